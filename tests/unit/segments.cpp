// The shared memory of peer transfers: what is opened, and what its files are called.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "interpose/transport/peer/segment_names.hpp"
#include "interpose/transport/peer/shared_segment.hpp"
#include "tests/support/catch.hpp"

namespace {

using namespace gpudt::interpose::peer;

/// Of this process alone.
std::string some_job() {
  static int jobs = 0;
  return "unit test " + std::to_string(getpid()) + " " + std::to_string(++jobs);
}

std::string file_of(const std::string& job, int rank) {
  return "/dev/shm" + name_of(job, rank, "memory");
}

TEST_CASE("segments: names differ by job, rank and purpose, and do not follow from each other", "[kernel]") {
  const std::string name = name_of("job", 0, "memory");
  CHECK(name == name_of("job", 0, "memory"));
  CHECK(name != name_of("job", 1, "memory"));
  CHECK(name != name_of("job", 0, "here"));
  CHECK(name != name_of("other job", 0, "memory"));
  CHECK(name.size() == 1 + name_prefix().size() + 32);  // 128 bits
}

TEST_CASE("segments: one that others have access to is refused, and it is said why", "[kernel]") {
  const std::string job = some_job();
  const auto own = Segment::create(job, 0);
  std::string why;
  REQUIRE(Segment::open(job, 0, &why));
  CHECK(why.empty());
  REQUIRE(chmod(file_of(job, 0).c_str(), 0606) == 0);
  CHECK(!Segment::open(job, 0, &why));
  CHECK(why.find("other users have access") != std::string::npos);
  REQUIRE(chmod(file_of(job, 0).c_str(), 0600) == 0);
  CHECK(Segment::open(job, 0));
}

TEST_CASE("segments: another user's is refused", "[kernel]") {
  if (geteuid() != 0) return;  // nobody else can give a file away
  const std::string job = some_job();
  const auto own = Segment::create(job, 0);
  REQUIRE(announce(job, 1, 7));
  REQUIRE(announced(job, 1) == 7);
  REQUIRE(chown(file_of(job, 0).c_str(), 12345, 12345) == 0);
  std::string why;
  CHECK(!Segment::open(job, 0, &why));
  CHECK(why.find("belongs to user 12345") != std::string::npos);
  REQUIRE(chown(("/dev/shm" + name_of(job, 1, "here")).c_str(), 12345, 12345) == 0);
  CHECK(announced(job, 1) == 0);
}

TEST_CASE("segments: a name that somebody has taken makes no segment", "[kernel]") {
  const std::string job = some_job(), name = name_of(job, 0, "memory");
  const int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0666);
  REQUIRE(file >= 0);
  CHECK_THROWS(Segment::create(job, 0));
  close(file);
  shm_unlink(name.c_str());
}

TEST_CASE("segments: a child of a process that has ended does not keep its segment alive", "[kernel]") {
  const std::string job = some_job();
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t owner = fork();
  if (owner == 0) {
    const auto own = Segment::create(job, 0);
    const bool said = announce(job, 0, 3);
    const pid_t child = fork();
    if (child == 0) {
      close(ends[1]);
      pause();
      _exit(0);
    }
    const bool told = said && write(ends[1], &child, sizeof child) == ssize_t{sizeof child};
    pause();
    _exit(told ? 0 : 1);
  }
  pid_t child = 0;
  REQUIRE(read(ends[0], &child, sizeof child) == ssize_t{sizeof child});
  const auto theirs = Segment::open(job, 0);
  REQUIRE(theirs);
  CHECK(!theirs->orphaned());
  CHECK(announced(job, 0) == 3);
  kill(owner, SIGKILL);
  waitpid(owner, nullptr, 0);
  CHECK(theirs->orphaned());
  CHECK(announced(job, 0) == 0);
  kill(child, SIGKILL);
  shm_unlink(name_of(job, 0, "memory").c_str());
  shm_unlink(name_of(job, 0, "here").c_str());
  close(ends[0]);
  close(ends[1]);
}

}  // namespace

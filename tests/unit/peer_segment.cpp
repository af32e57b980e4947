// Segments in shared memory: what other users have made is refused, signals do not keep one from being made, and a
// process that has ended is seen to have, whatever children it has left.
#include "interpose/transport/launcher.hpp"
#include "interpose/transport/peer/shared_segment.hpp"

#include <fcntl.h>
#include <mpi.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <string>

#include "tests/support/catch.hpp"

namespace {

int interruptions = 0;  // of the calls of posix_fallocate() that come next
constexpr off_t uninterrupted_bytes = 512 << 10;

}  // namespace

/// As on a machine where signals come so often that no long call ends.
extern "C" int posix_fallocate(int file, off_t offset, off_t bytes) {
  if (interruptions > 0 && (bytes > uninterrupted_bytes || interruptions-- % 2 == 0)) return EINTR;
  return fallocate(file, 0, offset, bytes) == 0 ? 0 : errno;
}

namespace gpudt::interpose::peer {
namespace {

namespace fs = std::filesystem;

std::string new_job() {
  static int jobs = 0;
  return "segments" + std::to_string(getpid()) + "." + std::to_string(++jobs);
}

std::set<fs::path> shared_files() {
  std::set<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator("/dev/shm")) files.insert(entry.path());
  return files;
}

/// What `act` leaves in /dev/shm that was not there, but of other processes' what they make meanwhile.
std::set<fs::path> made_by(const std::function<void()>& act) {
  const std::set<fs::path> before = shared_files();
  act();
  std::set<fs::path> made;
  for (const fs::path& path : shared_files())
    if (!before.contains(path) && path.filename().string().find("vader") == std::string::npos) made.insert(path);
  return made;
}

/// What act() returns in another process, of 0 to 255.
int in_child(const std::function<int()>& act) {
  const pid_t child = fork();
  if (child == 0) _exit(act());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// By a process that ends without removing it, when everybody else may have a look: `then` is its last act.
void leave_segment(
    const std::string& job, const std::function<void()>& then = [] {}) {
  REQUIRE(in_child([&] {
            Segment::create(job, 0).release();
            const bool said = announce(job, 0, 7);
            then();
            return said ? 0 : 1;
          }) == 0);
}

bool opens(const std::string& job) {
  return in_child([&] { return Segment::open(job, 0) ? 1 : 0; }) == 1;
}

}  // namespace

TEST_CASE("a segment is opened by others, and seen to be left by its process", "[datatype][segment]") {
  const std::string job = new_job();
  const auto segment = Segment::create(job, 0);
  CHECK(in_child([&] {
          const auto seen = Segment::open(job, 0);
          return seen && !seen->orphaned() && !Segment::open(job, 1) ? 1 : 0;
        }) == 1);
  const std::string other = new_job();
  const std::set<fs::path> left = made_by([&] { leave_segment(other); });
  const auto orphan = Segment::open(other, 0);
  REQUIRE(orphan);
  CHECK(orphan->orphaned());
  for (const fs::path& path : left) fs::remove_all(path);
}

TEST_CASE("what is announced is seen by all that have announced something", "[datatype][segment]") {
  const std::string job = new_job();
  REQUIRE(in_child([&] { return announce(job, 1, 8) && announced(job, 1) == 8 ? 1 : 0; }) == 1);
  CHECK(announced(job, 1) == 0);  // yet
  REQUIRE(announce(job, 0, 7));
  REQUIRE(in_child([&] { return announce(job, 2, 9) && announced(job, 0) == 7 ? 1 : 0; }) == 1);
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  const struct rlimit none = {0, files.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);  // whoever had to open something now would see less than others
  CHECK(announced(job, 0) == 7);
  CHECK(announced(job, 2) == 9);
  CHECK(announced(job, 3) == 0);
  setrlimit(RLIMIT_NOFILE, &files);
}

TEST_CASE("what others may have written to is refused", "[datatype][segment]") {
  const std::string job = new_job();
  std::unique_ptr<Segment> segment;
  const std::set<fs::path> made = made_by([&] { segment = Segment::create(job, 0); });
  REQUIRE(opens(job));
  for (const fs::path& path : made) {
    INFO(path);
    struct stat status;
    REQUIRE(stat(path.c_str(), &status) == 0);
    CHECK((status.st_mode & 0077) == 0);
    for (const mode_t others : {0020, 0002, 0044}) {
      REQUIRE(chmod(path.c_str(), (status.st_mode & 07777) | others) == 0);
      CHECK_FALSE(opens(job));
    }
    REQUIRE(chmod(path.c_str(), status.st_mode & 07777) == 0);
    if (geteuid() == 0) {  // who may give files away
      REQUIRE(chown(path.c_str(), 65534, status.st_gid) == 0);
      CHECK_FALSE(opens(job));
      REQUIRE(chown(path.c_str(), 0, status.st_gid) == 0);
    }
    const fs::path aside = "/dev/shm/aside-" + job;
    fs::rename(path, aside);
    fs::create_symlink(aside, path);
    CHECK_FALSE(opens(job));
    fs::remove(path);
    if (fs::is_regular_file(aside)) {
      REQUIRE(mkfifo(path.c_str(), 0600) == 0);  // which nobody reads
      CHECK_FALSE(opens(job));
      fs::remove(path);
      fs::create_hard_link(aside, path);
      CHECK_FALSE(opens(job));
      fs::remove(path);
    }
    fs::rename(aside, path);
    CHECK(opens(job));
  }
}

TEST_CASE("where another user has been first there is no segment", "[datatype][segment]") {
  const std::string job = new_job();
  const std::set<fs::path> made = made_by([&] { leave_segment(job); });
  REQUIRE_FALSE(made.empty());
  const fs::path first = *made.begin();
  for (const fs::path& path : made) fs::remove_all(path);
  const auto cannot_be_made = [&] {
    return in_child([&] {
             try {
               Segment::create(job, 0).release();
               return 0;
             } catch (const std::exception&) {
               return announce(job, 0, 7) ? 0 : 1;
             }
           }) == 1;
  };
  fs::create_directory(first);
  fs::permissions(first, fs::perms(0777));
  CHECK(cannot_be_made());
  CHECK_FALSE(opens(job));
  fs::remove_all(first);
  close(open(first.c_str(), O_CREAT | O_RDWR, 0666));
  CHECK(cannot_be_made());
  CHECK_FALSE(opens(job));
  fs::remove_all(first);
}

TEST_CASE("other users do not know a job's name", "[datatype][segment]") {
  setenv("PMIX_NAMESPACE", "job", 1);
  setenv("OMPI_MCA_orte_precondition_transports", "0123456789abcdef-0123456789abcdef", 1);
  const std::string one = job_name();
  setenv("OMPI_MCA_orte_precondition_transports", "0123456789abcdef-0123456789abcdee", 1);
  CHECK(job_name() != one);
  unsetenv("PMIX_NAMESPACE");
}

#ifndef OPEN_MPI
TEST_CASE("MPICH's mpirun tells what job a process belongs to by the socket that it has made", "[datatype][segment]") {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  setenv("PMI_FD", std::to_string(ends[0]).c_str(), 1);
  const std::string job = job_name();
  CHECK(job.find(std::to_string(getpid())) != std::string::npos);
  setenv("PMI_FD", std::to_string(ends[1]).c_str(), 1);
  CHECK(job_name() == job);
  setenv("PMI_RANK", "3", 1);
  setenv("PMIX_NAMESPACE", "of a shell that srun has started", 1);
  setenv("PMIX_RANK", "0", 1);
  CHECK(job_name() == job);
  CHECK(rank_by_launcher() == 3);
  for (const char* const name : {"PMI_RANK", "PMIX_NAMESPACE", "PMIX_RANK"}) unsetenv(name);
  setenv("PMI_SPAWNED", "1", 1);
  CHECK(job_name().empty());
  unsetenv("PMI_SPAWNED");
  close(ends[0]);
  close(ends[1]);
  CHECK(job_name().empty());
  unsetenv("PMI_FD");
}
#endif

TEST_CASE("signals do not keep a segment from being made", "[datatype][segment]") {
  interruptions = 20;
  const std::string job = new_job();
  CHECK_NOTHROW(Segment::create(job, 0));
  interruptions = 0;
}

TEST_CASE("a child of a process that has ended does not stand for it", "[datatype][segment]") {
  const std::string job = new_job();
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const std::set<fs::path> left = made_by([&] {
    leave_segment(job, [&] {
      if (fork() != 0) return;
      char byte = 0;
      close(ends[1]);
      static_cast<void>(!read(ends[0], &byte, 1));  // until the test ends
      _exit(0);
    });
  });
  const auto segment = Segment::open(job, 0);
  REQUIRE(segment);
  CHECK(segment->orphaned());
  close(ends[1]);
  close(ends[0]);
  for (const fs::path& path : left) fs::remove_all(path);
}

}  // namespace gpudt::interpose::peer

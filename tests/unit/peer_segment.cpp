// Segments in shared memory: what other users have made is refused, signals do not keep one from being made, and a
// process that has ended is seen to have, whatever children it has left.
#include "interpose/job/launcher.hpp"
#include "interpose/shared/shared_segment.hpp"

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
#include <vector>

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

std::vector<std::string> jobs;

std::string new_job() {
  return jobs.emplace_back("segments" + std::to_string(getpid()) + "." + std::to_string(jobs.size()));
}

/// The files of this test's jobs: other processes come and go in /dev/shm meanwhile.
std::set<fs::path> shared_files() {
  std::set<fs::path> files;
  for (const std::string& job : jobs)
    if (const fs::path path = path_of(job); fs::exists(fs::symlink_status(path))) files.insert(path);
  return files;
}

/// What `act` leaves in /dev/shm that was not there.
std::set<fs::path> made_by(const std::function<void()>& act) {
  const std::set<fs::path> before = shared_files();
  act();
  std::set<fs::path> made;
  for (const fs::path& path : shared_files())
    if (!before.contains(path)) made.insert(path);
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

/// Another process, which has announced itself as `rank`, and does `act` when it is told to go on.
class Fellow {
 public:
  Fellow(const std::string& job, int rank, const std::function<int()>& act) {
    REQUIRE(pipe(ready_) == 0);
    REQUIRE(pipe(go_) == 0);
    child_ = fork();
    if (child_ != 0) {
      REQUIRE(read(ready_[0], &said_, 1) == 1);
      return;
    }
    close(go_[1]);
    said_ = announce(job, rank, announced_here, unknown);
    const bool told = write(ready_[1], &said_, 1) == 1 && read(go_[0], &said_, 1) == 1;
    _exit(told ? act() : 1);
  }
  ~Fellow() {
    for (const int end : {ready_[0], ready_[1], go_[0], go_[1]}) close(end);
    if (!ended_) waitpid(child_, nullptr, 0);
  }
  Fellow(const Fellow&) = delete;
  Fellow& operator=(const Fellow&) = delete;

  bool has_announced() const { return said_; }
  /// What it has returned, of 0 to 255; -1: it has been killed.
  int end() {
    int status = 0;
    ended_ = true;
    REQUIRE(write(go_[1], &said_, 1) == 1);
    waitpid(child_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  static constexpr int announced_here = 7, unknown = -1;

 private:
  int ready_[2], go_[2];
  pid_t child_ = -1;
  bool said_ = false, ended_ = false;
};
constexpr int what = Fellow::announced_here, unknown = Fellow::unknown;

/// Makes the segment of process `rank`, when everybody has come.
std::unique_ptr<Segment> make_segment(const std::string& job, int rank) {
  all_have_announced(job);
  return Segment::create(job, rank);
}

}  // namespace

TEST_CASE("a segment is opened by others, and seen to be left by its process", "[datatype][segment]") {
  const std::string job = new_job();
  std::unique_ptr<Segment> segment;
  const std::set<fs::path> left = made_by([&] {
    REQUIRE(announce(job, 0, what, unknown));
    Fellow reader(job, 1, [&] {
      const auto seen = Segment::open(job, 0);
      return seen && !seen->orphaned() && !Segment::is_there(job, 1) && !Segment::open(job, 1) ? 0 : 1;
    });
    Fellow killed(job, 2, [&] {
      make_segment(job, 2).release();
      return kill(getpid(), SIGKILL);
    });
    segment = make_segment(job, 0);
    CHECK(reader.end() == 0);
    CHECK(killed.end() == -1);
  });
  CHECK(left.empty());
  const auto orphan = Segment::open(job, 2);
  REQUIRE(orphan);
  CHECK(orphan->orphaned());
}

TEST_CASE("the file of a job has a name until all have come", "[datatype][segment]") {
  const std::string job = new_job();
  const std::set<fs::path> made = made_by([&] { REQUIRE(announce(job, 1, what, 3)); });
  REQUIRE(made.size() == 1);
  CHECK_THROWS(Segment::create(job, 1));
  const Fellow second(job, 0, [] { return 0; });
  CHECK(fs::exists(*made.begin()));
  {
    const Fellow again(job, 0, [] { return 0; });  // by another program that the process has become
    CHECK(fs::exists(*made.begin()));
  }
  const auto told = [&] { return announced(job, 0) == what ? 0 : 1; };
  CHECK(in_child([&] { return announce(job, 2, 9, 3) ? told() : 1; }) == 0);
  CHECK_FALSE(fs::exists(*made.begin()));
  CHECK(announced(job, 2) == 9);
  CHECK_NOTHROW(Segment::create(job, 1));
  CHECK(made_by([&] { CHECK(Segment::create(new_job(), 0)); }).empty());  // where nobody is known
}

TEST_CASE("what is announced is seen by all that have announced something", "[datatype][segment]") {
  const std::string job = new_job();
  REQUIRE(in_child([&] { return announce(job, 1, 8, unknown) && announced(job, 1) == 8 ? 1 : 0; }) == 1);
  CHECK(announced(job, 1) == 0);  // yet
  REQUIRE(announce(job, 0, 7, unknown));
  REQUIRE(in_child([&] {
            const bool sees = announce(job, 2, 9, unknown) && announced(job, 0) == 7 && started(0) == Started::not_yet;
            tell_started(Started::on);
            return sees ? 1 : 0;
          }) == 1);
  all_have_announced(job);
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  const struct rlimit none = {0, files.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);  // whoever had to open something now would see less than others
  CHECK(announced(job, 0) == 7);
  CHECK(announced(job, 1) == 8);
  CHECK(announced(job, 2) == 9);
  CHECK(announced(job, 3) == 0);
  CHECK(started(0) == Started::not_yet);
  CHECK(started(2) == Started::on);
  tell_started(Started::off);
  CHECK(started(0) == Started::off);
  setrlimit(RLIMIT_NOFILE, &files);
}

TEST_CASE("what others may have written to is refused", "[datatype][segment]") {
  const std::string job = new_job();
  int next = 0;
  const auto joins = [&] { return Fellow(job, ++next, [] { return 0; }).has_announced(); };
  const std::set<fs::path> made = made_by([&] { REQUIRE(announce(job, 0, what, unknown)); });
  REQUIRE(made.size() == 1);
  REQUIRE(joins());
  const fs::path path = *made.begin();
  struct stat status;
  REQUIRE(stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0077) == 0);
  for (const mode_t others : {0020, 0002, 0044}) {
    REQUIRE(chmod(path.c_str(), (status.st_mode & 07777) | others) == 0);
    CHECK_FALSE(joins());
  }
  REQUIRE(chmod(path.c_str(), status.st_mode & 07777) == 0);
  if (geteuid() == 0) {  // who may give files away
    REQUIRE(chown(path.c_str(), 65534, status.st_gid) == 0);
    CHECK_FALSE(joins());
    REQUIRE(chown(path.c_str(), 0, status.st_gid) == 0);
  }
  const fs::path aside = "/dev/shm/aside-" + job;
  fs::rename(path, aside);
  fs::create_symlink(aside, path);
  CHECK_FALSE(joins());
  fs::remove(path);
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);  // which nobody reads
  CHECK_FALSE(joins());
  fs::remove(path);
  fs::create_hard_link(aside, path);
  CHECK_FALSE(joins());
  fs::remove(path);
  fs::rename(aside, path);
  CHECK(joins());
  all_have_announced(job);
}

TEST_CASE("where another user has been first there is no segment", "[datatype][segment]") {
  const std::string known = new_job();
  const std::set<fs::path> made = made_by([&] { REQUIRE(announce(known, 0, what, unknown)); });
  REQUIRE(made.size() == 1);
  all_have_announced(known);
  const fs::path first = *made.begin();
  const auto cannot_be_made = [&] {
    return in_child([&] {
             if (announce(known, 0, what, unknown)) return 1;
             try {
               Segment::create(known, 0).release();
               return 1;
             } catch (const std::exception&) {
               return 0;
             }
           }) == 0;
  };
  fs::create_directory(first);
  fs::permissions(first, fs::perms(0777));
  CHECK(cannot_be_made());
  fs::remove_all(first);
  close(open(first.c_str(), O_CREAT | O_RDWR, 0666));
  fs::permissions(first, fs::perms(0666));
  CHECK(cannot_be_made());
  fs::remove_all(first);
}

TEST_CASE("a limit on the length of files is kept", "[datatype][segment]") {
  CHECK(in_child([] {
          const struct rlimit limit = {1 << 20, 1 << 20};
          setrlimit(RLIMIT_FSIZE, &limit);  // to write more would be the end of the process
          try {
            Segment::create(new_job(), 0).release();
          } catch (const std::exception&) {
            return 0;
          }
          return 1;
        }) == 0);
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
  REQUIRE(announce(job, 1, what, unknown));
  Fellow parent(job, 0, [&] {
    make_segment(job, 0).release();
    if (fork() != 0) return 0;
    char byte = 0;
    close(ends[1]);
    return static_cast<int>(read(ends[0], &byte, 1));  // until the test ends
  });
  CHECK(parent.end() == 0);
  const auto segment = Segment::open(job, 0);
  REQUIRE(segment);
  CHECK(segment->orphaned());
  close(ends[1]);
  close(ends[0]);
}

}  // namespace gpudt::interpose::peer

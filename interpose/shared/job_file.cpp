// Everybody may write to /dev/shm: a file that another user has made, or might have written to, is refused. Locks are
// POSIX's: unlike flock()'s they are not inherited by fork(), so that a child does not pass for its dead parent; but
// they end when the process closes any descriptor of the file, so that no process may open its job's file twice.
#include "interpose/shared/job_file.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "base/exception.hpp"
#include "base/never_destroyed.hpp"
#include "interpose/shared/shared_segment.hpp"

namespace gpudt::interpose::peer {
namespace {

constexpr const char* shared_memory = "/dev/shm/";
/// Another job's process may remove the name between this one's opening the file and its locking it.
constexpr int attempts_at_file = 100;

/// A descriptor, closed at the end.
class File {
 public:
  explicit File(int number = -1) : number_(number) {}
  File(File&& other) noexcept : number_(other.release()) {}
  File& operator=(File&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~File() {
    const int error = errno;
    if (number_ >= 0) close(number_);
    errno = error;
  }
  explicit operator bool() const { return number_ >= 0; }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

// The file begins with an entry for each process that has announced something, in the order of their coming.
struct Entry {
  std::int32_t number;  ///< the rank, plus 1; 0: this is nobody's yet
  std::int16_t what;    ///< the number that it has announced
  bool has_segment;     ///< which others may open
  Started started;
};
constexpr off_t entry_bytes = sizeof(Entry);
constexpr off_t entry_count = 1 << 16;
/// A byte that a process keeps locked while it takes an entry.
constexpr off_t gate = entry_count * entry_bytes;
/// Behind all else each text of says_first() has a byte, which is locked and never written.
constexpr off_t behind_segments = off_t{1} << 48;

/// A job's file, which this process keeps open.
struct Joined {
  std::string path;
  pid_t process;  ///< the process that has joined: children inherit this object
  int file;       ///< negative: it could not be opened
  int error;      ///< why; 0: its name was removed again and again
  off_t entry;    ///< this process's
};
auto& joined = never_destroyed<std::vector<Joined>>();
pid_t own_process = 0;

std::string prefix() {
  return "gpudt-" + std::to_string(geteuid()) + "-";
}

}  // namespace

std::string path_of(const std::string& job) {
  return shared_memory + prefix() + std::to_string(std::hash<std::string>()(job));
}

namespace {

/// Empty if the file cannot be opened, or others than this user may have made or changed it (EPERM).
File open_private(const std::string& path, int access) {
  // O_NONBLOCK: a FIFO would wait.
  File file(open(path.c_str(), access | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, S_IRUSR | S_IWUSR));
  struct stat status;
  if (!file || fstat(file.get(), &status) != 0) return File();
  const bool is_private = S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
                          (status.st_mode & (S_IRWXG | S_IRWXO)) == 0 && status.st_nlink <= 1;
  if (is_private) return file;
  errno = EPERM;
  return File();
}

/// `bytes` bytes of a file; 0: all.
struct flock range(short type, off_t first = 0, off_t bytes = 0) {
  struct flock wanted = {};
  wanted.l_type = type;
  wanted.l_whence = SEEK_SET;
  wanted.l_start = first;
  wanted.l_len = bytes;
  return wanted;
}

bool lock(int file, struct flock wanted = range(F_WRLCK)) {
  return fcntl(file, F_SETLK, &wanted) == 0;
}

/// Held for the few moments in which a process takes an entry.
class Gate {
 public:
  explicit Gate(int file) : file_(file) {
    struct flock wanted = range(F_WRLCK, gate, 1);
    while (fcntl(file_, F_SETLKW, &wanted) != 0 && errno == EINTR) {
    }
  }
  ~Gate() { lock(file_, range(F_UNLCK, gate, 1)); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

 private:
  int file_;
};

/// Whether the name is still this file's: another process may have removed it, and made a new file.
bool still_named(const std::string& path, int file) {
  struct stat own, now;
  return fstat(file, &own) == 0 && own.st_nlink != 0 && lstat(path.c_str(), &now) == 0 && now.st_ino == own.st_ino &&
         now.st_dev == own.st_dev;
}

void remove_name(const std::string& path, int file) {
  if (still_named(path, file)) unlink(path.c_str());
}

std::vector<std::string> names_in(const char* folder) {
  std::vector<std::string> names;
  DIR* const list = opendir(folder);
  if (list == nullptr) return names;
  while (const dirent* const entry = readdir(list)) names.emplace_back(entry->d_name);
  closedir(list);
  return names;
}

void remove_abandoned() {
  for (const std::string& name : names_in(shared_memory)) {
    if (!name.starts_with(prefix())) continue;
    const std::string path = shared_memory + name;
    const File file = open_private(path, O_RDWR);
    if (file && lock(file.get())) remove_name(path, file.get());
  }
}

// Only if this process is the last one. Not in a child, which may end earlier.
void remove_own() {
  if (own_process != getpid()) return;
  for (const Joined& own : joined) {
    const bool last = own.process == getpid() && own.file >= 0 && lock(own.file, range(F_UNLCK)) && lock(own.file);
    if (last) remove_name(own.path, own.file);
  }
}

/// Before the first file of this process, removes those that other jobs have left.
void prepare() {
  if (std::exchange(own_process, getpid()) != 0) return;
  remove_abandoned();
  std::atexit(remove_own);
}

/// Null if this process has not tried to join.
const Joined* joined_as(const std::string& job) {
  const std::string path = path_of(job);
  const auto found = std::find_if(joined.begin(), joined.end(),
                                  [&](const Joined& each) { return each.path == path && each.process == getpid(); });
  return found == joined.end() ? nullptr : &*found;
}

/// Negative if this process has announced nothing.
int file_of(const std::string& job) {
  const Joined* const own = joined_as(job);
  return own == nullptr ? -1 : own->file;
}

/// Calls look(entry, place) for all entries before the first unused one.
template <class Look>
void for_each_entry(int file, Look look) {
  std::array<Entry, 256> some;
  for (off_t first = 0; first < gate; first += off_t{sizeof some}) {
    some = {};
    if (pread(file, some.data(), sizeof some, first) < 0) return;
    for (std::size_t i = 0; i < some.size(); ++i) {
      if (some[i].number == 0) return;
      look(some[i], first + static_cast<off_t>(i) * entry_bytes);
    }
  }
}

/// The latest entry that a process has taken.
std::optional<std::pair<Entry, off_t>> entry_of(int file, int rank) {
  std::optional<std::pair<Entry, off_t>> found;
  for_each_entry(file, [&](const Entry& entry, off_t place) {
    if (entry.number == rank + 1) found.emplace(entry, place);
  });
  return found;
}

/// How many processes have an entry, and where the next one is to be.
std::pair<int, off_t> entries_so_far(int file) {
  std::set<std::int32_t> numbers;
  off_t next = 0;
  for_each_entry(file, [&](const Entry& entry, off_t place) {
    numbers.insert(entry.number);
    next = place + entry_bytes;
  });
  return {static_cast<int>(numbers.size()), next};
}

/// Takes an entry, with the gate held. Returns 0, or an error number.
int take_entry(int file, off_t place, const Entry& mine) {
  if (place >= gate) return ENOSPC;
  if (!lock(file, range(F_WRLCK, place, entry_bytes))) return errno;
  const ssize_t written = pwrite(file, &mine, sizeof mine, place);
  if (written == entry_bytes) return 0;
  return written < 0 ? errno : ENOSPC;
}

void join(Joined& own, const Entry& mine, int on_node) {
  for (int attempt = 0; attempt < attempts_at_file; ++attempt) {
    File file = open_private(own.path, O_RDWR | O_CREAT);
    own.error = errno;
    if (!file) return;
    const Gate held(file.get());
    own.error = 0;
    if (!still_named(own.path, file.get())) continue;
    own.entry = entries_so_far(file.get()).second;
    own.error = take_entry(file.get(), own.entry, mine);
    if (own.error != 0) return;
    if (entries_so_far(file.get()).first == on_node) remove_name(own.path, file.get());
    own.file = file.release();
    return;
  }
}

std::string reason(const std::string& path, int error) {
  return error == EPERM ? path + " belongs to another user, or others may use it" : std::strerror(error);
}

off_t segment_of(off_t entry) {
  return first_segment + entry / entry_bytes * static_cast<off_t>(sizeof(Image));
}

}  // namespace

bool announce(const std::string& job, int rank, int what, int on_node) {
  prepare();
  Joined& own = joined.emplace_back(Joined{path_of(job), getpid(), -1, 0, 0});
  join(own, {rank + 1, static_cast<std::int16_t>(what), false, Started::not_yet}, on_node);
  return own.file >= 0;
}

void all_have_announced(const std::string& job) {
  if (const Joined* const own = joined_as(job); own != nullptr && own->file >= 0) remove_name(own->path, own->file);
}

int announced(const std::string& job, int rank) {
  const int file = file_of(job);
  const auto found = file < 0 ? std::nullopt : entry_of(file, rank);
  return found ? found->first.what : 0;
}

void tell_started(Started started) noexcept {
  if (joined.empty() || joined.back().file < 0) return;
  const off_t place = joined.back().entry + off_t{offsetof(Entry, started)};
  while (pwrite(joined.back().file, &started, sizeof started, place) != sizeof started && errno == EINTR) {
  }
}

Started started(int rank) noexcept {
  const auto found = joined.empty() ? std::nullopt : entry_of(joined.back().file, rank);
  return found ? found->first.started : Started::not_yet;
}

bool says_first(const std::string& job, const std::string& text) {
  const int file = file_of(job);
  const auto place = static_cast<off_t>(static_cast<std::uint32_t>(std::hash<std::string>()(text)));
  return file < 0 || lock(file, range(F_WRLCK, behind_segments + place, 1));
}

bool awaits_others(const std::string& job) {
  const Joined* const own = joined_as(job);
  return own != nullptr && own->file >= 0 && still_named(own->path, own->file);
}

SegmentPlace own_place(const std::string& job) {
  const Joined* const own = joined_as(job);
  if (own == nullptr) {
    File file(open(shared_memory, O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
    if (!file) throw Exception(reason(shared_memory, errno));
    return {file.release(), -1, 0};
  }
  if (own->file < 0) throw Exception(reason(own->path, own->error));
  if (awaits_others(job)) throw Exception("processes of the job may still come");
  return {own->file, own->entry, segment_of(own->entry)};
}

void publish(const SegmentPlace& place) {
  constexpr bool there = true;
  if (place.entry >= 0 &&
      pwrite(place.file, &there, sizeof there, place.entry + off_t{offsetof(Entry, has_segment)}) != sizeof there)
    throw Exception(std::string("shared memory: ") + std::strerror(errno));
}

std::optional<SegmentPlace> place_of(const std::string& job, int rank) {
  const int file = file_of(job);
  const auto found = file < 0 ? std::nullopt : entry_of(file, rank);
  if (!found || !found->first.has_segment) return std::nullopt;
  return SegmentPlace{file, found->second, segment_of(found->second)};
}

bool has_ended(const SegmentPlace& place) {
  struct flock found = range(F_WRLCK, place.entry, 1);
  return fcntl(place.file, F_GETLK, &found) == 0 && found.l_type == F_UNLCK;
}

// Piece by piece: a signal may undo one. Exceeding RLIMIT_FSIZE would end the process (SIGXFSZ).
int allocate(int file, off_t first, off_t end) {
  constexpr off_t piece = 256 << 10;
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      static_cast<rlim_t>(end) > limit.rlim_cur)
    return EFBIG;
  for (off_t place = first; place < end; place += piece) {
    int error = EINTR;
    while (error == EINTR) error = posix_fallocate(file, place, std::min(piece, end - place));
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace gpudt::interpose::peer

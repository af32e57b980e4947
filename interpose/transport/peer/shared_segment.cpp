// Segments are files in a folder of shared memory that belongs to this job and this user alone. The process that has
// made one keeps it locked, so that others can tell that it has ended, however that came about; what is left of jobs
// that were killed is removed by the next.
//
// Everybody may write to /dev/shm: a folder or file that another user has made, or might have written to, is refused.
// In a folder of one's own nobody else can make or see any. Locks are POSIX's: unlike flock()'s they are not inherited
// by fork(), so that a child does not pass for its dead parent; but they end when the process closes any descriptor of
// the file, so that nobody opens a file of its own a second time.
#include "interpose/transport/peer/shared_segment.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "base/never_destroyed.hpp"

namespace gpudt::interpose::peer {
namespace {

constexpr std::uint64_t image_magic = 0x5245455054445047;  // "GPDTPEER"
/// Chunks get memory when they are first needed, which is never where GPUs reach each other.
constexpr auto size_at_first = static_cast<off_t>(offsetof(Image, boards));
constexpr const char* shared_memory = "/dev/shm/";
/// Another job's process that has just ended may remove the folder before there is a file in it.
constexpr int attempts_at_folder = 100;

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

/// A file of this process's, to be removed when it ends.
struct Own {
  std::string folder, name;
  bool made = false;
};
auto& own_files = never_destroyed<std::vector<Own>>();
pid_t own_process = 0;

/// The file of a job with what its processes have announced, a byte for each, which all that announce anything keep
/// open: none can fail to see what others see. Each keeps its own byte locked.
struct Notices {
  std::string folder;
  int file;
};
constexpr const char* notices_name = "notices";
auto& notices = never_destroyed<std::vector<Notices>>();

std::string prefix() {
  return "gpudt-" + std::to_string(geteuid()) + "-";
}

/// The job's name has parts that other users cannot know, so that they cannot be there first.
std::string folder_of(const std::string& job) {
  return shared_memory + prefix() + std::to_string(std::hash<std::string>()(job));
}

/// Whether nobody but this user can have made or changed it.
bool is_private(const struct stat& status, mode_t type) {
  return (status.st_mode & S_IFMT) == type && status.st_uid == geteuid() && (status.st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

/// Nothing if there is none, or it is not for this user alone (EPERM).
File open_folder(const std::string& folder) {
  File file(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status;
  if (!file || fstat(file.get(), &status) != 0) return File();
  if (is_private(status, S_IFDIR)) return file;
  errno = EPERM;
  return File();
}

/// Likewise. `status` is the file's.
File open_in(const File& folder, const std::string& name, int access, struct stat& status) {
  // A FIFO must not make it wait.
  File file(openat(folder.get(), name.c_str(), access | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!file || fstat(file.get(), &status) != 0) return File();
  if (is_private(status, S_IFREG) && status.st_nlink <= 1) return file;
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

/// By another process, as far as can be told.
bool is_locked(int file) {
  struct flock found = range(F_WRLCK);
  return fcntl(file, F_GETLK, &found) != 0 || found.l_type != F_UNLCK;
}

/// Another process may have removed the file meanwhile, and made a new one of that name.
bool still_named(const File& folder, const std::string& name, const struct stat& status) {
  struct stat now;
  return fstatat(folder.get(), name.c_str(), &now, AT_SYMLINK_NOFOLLOW) == 0 && now.st_ino == status.st_ino &&
         now.st_dev == status.st_dev;
}

/// The names in a folder; none if it cannot be read.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  DIR* const list = opendir(folder.c_str());
  if (list == nullptr) return names;
  while (const dirent* const entry = readdir(list)) names.emplace_back(entry->d_name);
  closedir(list);
  return names;
}

void remove_abandoned() {
  for (const std::string& job : names_in(shared_memory)) {
    if (!job.starts_with(prefix())) continue;
    const std::string path = shared_memory + job;
    const File folder = open_folder(path);
    if (!folder) continue;
    for (const std::string& name : names_in(path)) {
      struct stat status;
      const File file = open_in(folder, name, O_RDWR, status);
      // One of no size is being made.
      if (file && status.st_size != 0 && lock(file.get()) && still_named(folder, name, status))
        unlinkat(folder.get(), name.c_str(), 0);
    }
    rmdir(path.c_str());  // if it is empty
  }
}

/// Gives the bytes [first, end) memory. Piece by piece: a signal may undo one. Returns 0, or what is wrong.
int allocate(int file, off_t first, off_t end) {
  constexpr off_t piece = 256 << 10;
  for (off_t place = first; place < end; place += piece) {
    int error = EINTR;
    while (error == EINTR) error = posix_fallocate(file, place, std::min(piece, end - place));
    if (error != 0) return error;
  }
  return 0;
}

Image* map(int file) {
  void* const address = mmap(nullptr, sizeof(Image), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return address == MAP_FAILED ? nullptr : static_cast<Image*>(address);
}

[[noreturn]] void give_up(int file, const std::string& what, int error) {
  if (file >= 0) close(file);
  throw Exception(what + ": " + std::strerror(error));
}

/// The open file of the job's notices; negative if this process has announced nothing.
int notices_of(const std::string& job) {
  const std::string folder = folder_of(job);
  const auto kept =
      std::find_if(notices.begin(), notices.end(), [&](const Notices& each) { return each.folder == folder; });
  return kept == notices.end() ? -1 : kept->file;
}

/// If no other process of the job needs it any more.
void leave(const Notices& kept) {
  const bool last = lock(kept.file, range(F_UNLCK)) && lock(kept.file);
  if (last) unlink((kept.folder + "/" + notices_name).c_str());
  rmdir(kept.folder.c_str());  // if it is empty
}

// Not in a child, which may end before.
void remove_own() {
  if (own_process != getpid()) return;
  for (const Own& own : own_files) {
    if (own.made) unlink((own.folder + "/" + own.name).c_str());
    rmdir(own.folder.c_str());
  }
  for (const Notices& kept : notices) leave(kept);
}

/// Before the first file of this process, what is left of other jobs goes.
void prepare() {
  if (std::exchange(own_process, getpid()) != 0) return;
  remove_abandoned();
  std::atexit(remove_own);
}

/// make(folder) in the job's folder, which is made if need be, until there is a file or it cannot be made: `errno` says
/// why.
template <class Make>
File make_in(const std::string& folder, Make make) {
  for (int attempt = 0; attempt < attempts_at_folder; ++attempt) {
    if (mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) break;
    const File in = open_folder(folder);
    File file = in ? make(in) : File();
    if (file || errno != ENOENT) return file;
  }
  return File();
}

/// A new file of this process's own, of `bytes` bytes, locked. Negative if there cannot be one, and `errno` says why.
int make_own(const std::string& folder, const std::string& name, off_t bytes) {
  prepare();
  Own& own = own_files.emplace_back(Own{folder, name});
  File file = make_in(folder, [&](const File& in) {
    return File(openat(in.get(), name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
  });
  if (!file) return -1;
  // Not ftruncate alone: writing to memory that turns out not to be there would be the program's end.
  const int error = lock(file.get()) ? allocate(file.get(), 0, bytes) : errno;
  own.made = error == 0;
  if (own.made) return file.release();
  unlink((folder + "/" + name).c_str());
  errno = error;
  return -1;
}

/// The job's file of control messages, with the byte of process `rank` locked.
File open_notices(const std::string& folder, int rank) {
  return make_in(folder, [&](const File& in) {
    struct stat status;
    File file = open_in(in, notices_name, O_RDWR | O_CREAT, status);
    if (file && lock(file.get(), range(F_WRLCK, rank, 1)) && still_named(in, notices_name, status)) return file;
    if (file) errno = ENOENT;  // another job's process is removing what it takes for abandoned
    return File();
  });
}

/// What make_own() could not do.
std::string reason(const std::string& folder, int error) {
  return error == EPERM ? folder + " belongs to another user, or others may use it" : std::strerror(error);
}

}  // namespace

std::unique_ptr<Segment> Segment::create(const std::string& job, int rank) {
  const std::string folder = folder_of(job);
  const int file = make_own(folder, std::to_string(rank), size_at_first);
  if (file < 0 && errno == ENOSPC)
    throw SharedMemoryFull("/dev/shm has no room for " + std::to_string(size_at_first) +
                           " bytes: enlarge it (docker run --shm-size=1g, or --ipc=host)");
  if (file < 0)
    throw Exception("shared memory of " + std::to_string(size_at_first) + " bytes: " + reason(folder, errno));
  Image* const image = map(file);
  if (image == nullptr) give_up(file, "mapping shared memory", errno);
  // What follows the file's end may be mapped, but not touched.
  for (Descriptor& descriptor : image->descriptors) new (&descriptor) Descriptor;
  if (getrandom(image->nonce, sizeof image->nonce, 0) != sizeof image->nonce) give_up(file, "random numbers", errno);
  image->rank = rank;
  image->version = peer_version;
  std::atomic_ref<std::uint64_t>(image->magic).store(image_magic, std::memory_order_release);
  return std::unique_ptr<Segment>(new Segment(file, image, sizeof(Image)));
}

std::unique_ptr<Segment> Segment::open(const std::string& job, int rank) {
  const File folder = open_folder(folder_of(job));
  struct stat status;
  File file = folder ? open_in(folder, std::to_string(rank), O_RDWR, status) : File();
  Image* const image = file && status.st_size >= size_at_first ? map(file.get()) : nullptr;
  if (image == nullptr) return nullptr;
  std::unique_ptr<Segment> segment(new Segment(file.release(), image, sizeof(Image)));
  const bool valid = std::atomic_ref<std::uint64_t>(image->magic).load(std::memory_order_acquire) == image_magic &&
                     image->version == peer_version && image->rank == rank;
  return valid ? std::move(segment) : nullptr;
}

bool Segment::is_there(const std::string& job, int rank) {
  return access((folder_of(job) + "/" + std::to_string(rank)).c_str(), F_OK) == 0;
}

/// Without what only processes of one node use. What is not written takes no memory.
std::unique_ptr<Segment> Segment::image(int rank, const std::uint64_t (&nonce)[2]) {
  constexpr auto bytes = static_cast<std::size_t>(size_at_first);
  void* const address =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  auto* const image = static_cast<Image*>(address);
  image->rank = rank;
  std::copy(std::begin(nonce), std::end(nonce), std::begin(image->nonce));
  return std::unique_ptr<Segment>(new Segment(-1, image, bytes));
}

Segment::~Segment() {
  munmap(image_, mapped_);
  if (file_ >= 0) close(file_);
}

off_t Segment::place_of(const void* address) const {
  return static_cast<const std::byte*>(address) - reinterpret_cast<const std::byte*>(image_);
}

/// `address`, of `bytes` bytes, is in the image.
bool Segment::make(const void* address, std::size_t bytes) {
  const off_t first = place_of(address);
  return allocate(file_, first, first + static_cast<off_t>(bytes)) == 0;
}

bool Segment::make_chunks() {
  return make(image_->chunks, sizeof image_->chunks);
}

bool Segment::make_board(int index) {
  return make(&image_->boards[index], sizeof image_->boards[index]);
}

bool Segment::make_layout_slot(int slot, std::size_t bytes) {
  struct statvfs left;
  if (fstatvfs(file_, &left) != 0) return false;
  const bool limited = left.f_blocks != 0;
  if (limited && std::uint64_t{left.f_bavail} * left.f_frsize / 2 < bytes) return false;
  return make(image_->layouts[slot], bytes);
}

void Segment::drop_layout_slot(int slot) {
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, place_of(image_->layouts[slot]), layout_slot_size);
}

bool Segment::orphaned() const {
  return file_ >= 0 && !is_locked(file_);  // MPI ends the job if a process of another node does
}

bool announce(const std::string& job, int rank, int what) {
  prepare();
  Notices& kept = notices.emplace_back(Notices{folder_of(job), -1});
  File file = open_notices(kept.folder, rank);
  const auto said = static_cast<unsigned char>(what);
  if (!file || pwrite(file.get(), &said, 1, rank) != 1) {
    notices.pop_back();
    return false;
  }
  kept.file = file.release();
  return true;
}

int announced(const std::string& job, int rank) {
  const int file = notices_of(job);
  unsigned char said = 0;
  return file >= 0 && pread(file, &said, 1, rank) == 1 ? said : 0;
}

// A text is a byte behind those of all ranks, which is locked and never written.
bool says_first(const std::string& job, const std::string& text) {
  constexpr off_t behind_all_ranks = off_t{1} << 32;
  const int file = notices_of(job);
  const auto place = static_cast<off_t>(static_cast<std::uint32_t>(std::hash<std::string>()(text)));
  return file < 0 || lock(file, range(F_WRLCK, behind_all_ranks + place, 1));
}

}  // namespace gpudt::interpose::peer

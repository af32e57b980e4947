// Segments are files of POSIX shared memory. The process that has made one keeps it locked, so that others can tell
// that it has ended, however that came about; what is left of jobs that were killed is removed by the next.
#include "interpose/transport/peer/shared_segment.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace gpudt::interpose::peer {
namespace {

constexpr std::uint64_t image_magic = 0x5245455054445047;  // "GPDTPEER"
/// Chunks get memory when they are first needed, which is never where GPUs reach each other.
constexpr auto size_without_chunks = static_cast<off_t>(offsetof(Image, chunks));
const std::string folder = "/dev/shm";

// Never destroyed: handlers at the process's end, and in its children, look at them.
auto& own_names = *new std::vector<std::string>;  // to be removed when the process ends
auto& own_files = *new std::vector<int>;          // whose locks tell that it has not
pid_t own_process = 0;

/// A child shares the locks of its parent as long as it has the files open, and may outlive it.
void close_in_child() {
  for (const int file : own_files) close(file);
  own_files.clear();
}

constexpr const char* memory_purpose = "memory";
constexpr const char* announcement_purpose = "here";

void close_own(int file) {
  std::erase(own_files, file);
  close(file);
}

/// Another process's file; negative if there is none. `why`, unless null, says so of one that is not to be trusted.
int open_of(const std::string& job, int rank, const char* purpose, int access, std::string* why) {
  const std::string name = name_of(job, rank, purpose);
  const int file = shm_open(name.c_str(), access | O_NONBLOCK | O_CLOEXEC, 0);
  std::string reason;
  if (file < 0 || is_private(file, &reason)) return file;
  if (why != nullptr) *why = "shared memory " + name + " is not used: " + reason;
  close(file);
  return -1;
}

/// Gives `bytes` bytes of the file from `first` on memory; the error, or 0. Piece by piece, and again if a signal
/// interrupts it: it undoes what it has done.
int allocate(int file, off_t first, off_t bytes) {
  constexpr off_t piece = 256 << 10;
  const off_t end = first + bytes;
  for (off_t place = first; place < end; place += piece) {
    int error = EINTR;
    while (error == EINTR) error = posix_fallocate(file, place, std::min(piece, end - place));
    if (error != 0) return error;
  }
  return 0;
}

bool lock(int file) {
  return flock(file, LOCK_EX | LOCK_NB) == 0;
}

/// Another process may have removed the file meanwhile, and made a new one of that name.
bool still_named(const std::string& name, const struct stat& status) {
  struct stat now;
  return stat((folder + name).c_str(), &now) == 0 && now.st_ino == status.st_ino && now.st_dev == status.st_dev;
}

void remove_abandoned() {
  DIR* const list = opendir(folder.c_str());
  if (list == nullptr) return;
  while (const dirent* const entry = readdir(list)) {
    if (!std::string_view(entry->d_name).starts_with(name_prefix())) continue;
    const std::string name = std::string("/") + entry->d_name;
    const int file = shm_open(name.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC, 0);
    if (file < 0) continue;
    // One of no size is being made.
    struct stat status;
    if (is_private(file) && fstat(file, &status) == 0 && status.st_size != 0 && lock(file) && still_named(name, status))
      shm_unlink(name.c_str());
    close(file);
  }
  closedir(list);
}

Image* map(int file) {
  void* const address = mmap(nullptr, sizeof(Image), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return address == MAP_FAILED ? nullptr : static_cast<Image*>(address);
}

[[noreturn]] void give_up(int file, const std::string& what, int error) {
  if (file >= 0) close_own(file);
  throw std::runtime_error(what + ": " + std::strerror(error));
}

// Not in a child, which may end before.
void remove_own() {
  if (own_process == getpid())
    for (const std::string& name : own_names) shm_unlink(name.c_str());
}

/// A new file of this process's own, of `bytes` bytes, locked. Negative if there cannot be one, and `errno` says why.
/// Before the first, what is left of other jobs goes.
int make_own(const std::string& name, off_t bytes) {
  if (own_names.empty()) remove_abandoned();
  const int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return -1;
  if (own_names.empty()) {
    std::atexit(remove_own);
    pthread_atfork(nullptr, nullptr, close_in_child);
  }
  own_names.push_back(name);
  own_files.push_back(file);
  own_process = getpid();
  // Not ftruncate alone: writing to memory that turns out not to be there would be the program's end.
  const int error = lock(file) ? allocate(file, 0, bytes) : errno;
  if (error == 0) return file;
  shm_unlink(name.c_str());
  close_own(file);
  errno = error;
  return -1;
}

}  // namespace

std::unique_ptr<Segment> Segment::create(const std::string& job, int rank) {
  const std::string name = name_of(job, rank, memory_purpose);
  const int file = make_own(name, size_without_chunks);
  if (file < 0) give_up(file, "shared memory " + name + " of " + std::to_string(size_without_chunks) + " bytes", errno);
  Image* const image = map(file);
  if (image == nullptr) give_up(file, "mapping shared memory", errno);
  madvise(image, sizeof(Image), MADV_DONTFORK);  // a mapping keeps the file open, and locked, in a child
  // What follows the file's end may be mapped, but not touched.
  for (Descriptor& descriptor : image->descriptors) new (&descriptor) Descriptor;
  if (getrandom(image->nonce, sizeof image->nonce, 0) != sizeof image->nonce) give_up(file, "random numbers", errno);
  image->rank = rank;
  image->version = peer_version;
  std::atomic_ref<std::uint64_t>(image->magic).store(image_magic, std::memory_order_release);
  return std::unique_ptr<Segment>(new Segment(file, image, sizeof(Image)));
}

std::unique_ptr<Segment> Segment::open(const std::string& job, int rank, std::string* why) {
  const int file = open_of(job, rank, memory_purpose, O_RDWR, why);
  if (file < 0) return nullptr;
  struct stat status;
  const bool whole = fstat(file, &status) == 0 && status.st_size >= size_without_chunks;
  Image* const image = whole ? map(file) : nullptr;
  if (image == nullptr) {
    close(file);
    return nullptr;
  }
  std::unique_ptr<Segment> segment(new Segment(file, image, sizeof(Image)));
  const bool valid = std::atomic_ref<std::uint64_t>(image->magic).load(std::memory_order_acquire) == image_magic &&
                     image->version == peer_version && image->rank == rank;
  return valid ? std::move(segment) : nullptr;
}

/// Without what only processes of one node use. What is not written takes no memory.
std::unique_ptr<Segment> Segment::image(int rank, const std::uint64_t (&nonce)[2]) {
  constexpr auto bytes = static_cast<std::size_t>(size_without_chunks);
  void* const address =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  auto* const image = static_cast<Image*>(address);
  image->rank = rank;
  std::copy(std::begin(nonce), std::end(nonce), std::begin(image->nonce));
  image->checking.store(1);
  return std::unique_ptr<Segment>(new Segment(-1, image, bytes));
}

Segment::~Segment() {
  munmap(image_, mapped_);
  if (file_ >= 0) close_own(file_);
}

off_t Segment::place_of(const void* address) const {
  return static_cast<const std::byte*>(address) - reinterpret_cast<const std::byte*>(image_);
}

/// `address`, of `bytes` bytes, is in the image.
bool Segment::make(const void* address, std::size_t bytes) {
  return allocate(file_, place_of(address), static_cast<off_t>(bytes)) == 0;
}

bool Segment::make_chunks() {
  return make(image_->chunks, sizeof image_->chunks);
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
  if (file_ < 0) return false;  // MPI ends the job if a process of another node does
  if (!lock(file_)) return false;
  flock(file_, LOCK_UN);
  return true;
}

bool announce(const std::string& job, int rank, int what) {
  const int file = make_own(name_of(job, rank, announcement_purpose), 1);
  if (file < 0) return false;
  const auto said = static_cast<unsigned char>(what);
  if (pwrite(file, &said, 1, 0) == 1) return true;  // open, and so locked, from now on
  close_own(file);
  return false;
}

int announced(const std::string& job, int rank) {
  const int file = open_of(job, rank, announcement_purpose, O_RDONLY, nullptr);
  if (file < 0) return 0;
  unsigned char said = 0;
  const bool there = pread(file, &said, 1, 0) == 1 && flock(file, LOCK_SH | LOCK_NB) != 0;
  close(file);
  return there ? said : 0;
}

}  // namespace gpudt::interpose::peer

// Segments are files of POSIX shared memory. The process that has made one keeps it locked, so that others can tell
// that it has ended, however that came about; what is left of jobs that were killed is removed by the next.
#include "interpose/transport/peer/shared_segment.hpp"

#include <dirent.h>
#include <fcntl.h>
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
#include <functional>
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

std::vector<std::string> own_names;  // to be removed when the process ends
pid_t own_process = 0;

std::string prefix() {
  return "gpudt-" + std::to_string(geteuid()) + "-";
}

std::string name_of(const std::string& job, int rank) {
  return "/" + prefix() + std::to_string(std::hash<std::string>()(job)) + "-" + std::to_string(rank);
}

std::string announcement_name_of(const std::string& job, int rank) {
  return name_of(job, rank) + "-here";
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
    if (!std::string_view(entry->d_name).starts_with(prefix())) continue;
    const std::string name = std::string("/") + entry->d_name;
    const int file = shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
    if (file < 0) continue;
    // One of no size is being made.
    struct stat status;
    if (fstat(file, &status) == 0 && status.st_size != 0 && lock(file) && still_named(name, status))
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
  if (file >= 0) close(file);
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
  if (own_names.empty()) std::atexit(remove_own);
  own_names.push_back(name);
  own_process = getpid();
  // Not ftruncate alone: writing to memory that turns out not to be there would be the program's end.
  const int error = lock(file) ? posix_fallocate(file, 0, bytes) : errno;
  if (error == 0) return file;
  shm_unlink(name.c_str());
  close(file);
  errno = error;
  return -1;
}

}  // namespace

std::unique_ptr<Segment> Segment::create(const std::string& job, int rank) {
  const std::string name = name_of(job, rank);
  const int file = make_own(name, size_without_chunks);
  if (file < 0) give_up(file, "shared memory " + name + " of " + std::to_string(size_without_chunks) + " bytes", errno);
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
  const int file = shm_open(name_of(job, rank).c_str(), O_RDWR | O_CLOEXEC, 0);
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
  if (file_ >= 0) close(file_);
}

off_t Segment::place_of(const void* address) const {
  return static_cast<const std::byte*>(address) - reinterpret_cast<const std::byte*>(image_);
}

/// `address`, of `bytes` bytes, is in the image. Piece by piece: a signal may undo one.
bool Segment::make(const void* address, std::size_t bytes) {
  constexpr off_t piece = 256 << 10;
  const off_t first = place_of(address), end = first + static_cast<off_t>(bytes);
  for (off_t place = first; place < end; place += piece) {
    int error = EINTR;
    while (error == EINTR) error = posix_fallocate(file_, place, std::min(piece, end - place));
    if (error != 0) return false;
  }
  return true;
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
  const int file = make_own(announcement_name_of(job, rank), 1);
  if (file < 0) return false;
  const auto said = static_cast<unsigned char>(what);
  if (pwrite(file, &said, 1, 0) == 1) return true;  // open, and so locked, from now on
  close(file);
  return false;
}

int announced(const std::string& job, int rank) {
  const int file = shm_open(announcement_name_of(job, rank).c_str(), O_RDONLY | O_CLOEXEC, 0);
  if (file < 0) return 0;
  unsigned char said = 0;
  const bool there = pread(file, &said, 1, 0) == 1 && flock(file, LOCK_SH | LOCK_NB) != 0;
  close(file);
  return there ? said : 0;
}

std::string job_name() {
  for (const char* const variable : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"})
    if (const char* const value = std::getenv(variable); value != nullptr && *value != '\0') {
      const char* const server = std::getenv("PMIX_SERVER_URI2");
      return std::string(variable) + "=" + value + ";" + (server == nullptr ? "" : server);
    }
  return {};
}

}  // namespace gpudt::interpose::peer

#include "interpose/shared/shared_segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

namespace gpudt::interpose::peer {
namespace {

constexpr std::uint64_t image_magic = 0x5245455054445047;  // "GPDTPEER"
/// Chunks get memory when they are first needed, which is never where GPUs reach each other.
constexpr auto size_at_first =
    static_cast<off_t>(offsetof(Image, records) + std::size_t{records_at_a_time} * sizeof(CallRecord));
constexpr SegmentPlace no_place = {-1, -1, 0};

/// Parts without memory are mapped, too, but must not be touched.
Image* map(const SegmentPlace& place) {
  void* const address = mmap(nullptr, sizeof(Image), PROT_READ | PROT_WRITE, MAP_SHARED, place.file, place.first);
  return address == MAP_FAILED ? nullptr : static_cast<Image*>(address);
}

[[noreturn]] void give_up(const std::string& what, int error) {
  throw Exception(what + ": " + std::strerror(error));
}

}  // namespace

std::unique_ptr<Segment> Segment::create(const std::string& job, int rank) {
  const std::string memory = "shared memory of " + std::to_string(size_at_first) + " bytes";
  const SegmentPlace place = own_place(job);
  // Not the file's size alone: a write to memory that the system cannot supply would end the program (SIGBUS).
  const int error = allocate(place.file, place.first, place.first + size_at_first);
  if (error == ENOSPC)
    throw SharedMemoryFull("/dev/shm has no room for " + std::to_string(size_at_first) +
                           " bytes: enlarge it (docker run --shm-size=1g, or --ipc=host)");
  if (error != 0) give_up(memory, error);
  Image* const image = map(place);
  if (image == nullptr) give_up("mapping " + memory, errno);
  std::unique_ptr<Segment> segment(new Segment(place, image, sizeof(Image)));
  for (Descriptor& descriptor : image->descriptors) new (&descriptor) Descriptor;
  image->descriptors_made.store(descriptors_at_a_time);
  if (getrandom(image->nonce, sizeof image->nonce, 0) != sizeof image->nonce) give_up("random numbers", errno);
  image->rank = rank;
  image->number = static_cast<std::int32_t>((place.first - first_segment) / static_cast<off_t>(sizeof(Image)));
  image->version = peer_version;
  std::atomic_ref<std::uint64_t>(image->magic).store(image_magic, std::memory_order_release);
  publish(place);
  return segment;
}

std::unique_ptr<Segment> Segment::open(const std::string& job, int rank) {
  const std::optional<SegmentPlace> place = peer::place_of(job, rank);
  Image* const image = place ? map(*place) : nullptr;
  if (image == nullptr) return nullptr;
  std::unique_ptr<Segment> segment(new Segment(*place, image, sizeof(Image)));
  const bool valid = std::atomic_ref<std::uint64_t>(image->magic).load(std::memory_order_acquire) == image_magic &&
                     image->version == peer_version && image->rank == rank;
  return valid ? std::move(segment) : nullptr;
}

bool Segment::is_there(const std::string& job, int rank) {
  return peer::place_of(job, rank).has_value();
}

/// Without the members that only processes of one node use. Pages not written take no memory.
std::unique_ptr<Segment> Segment::image(int rank, const std::uint64_t (&nonce)[2]) {
  constexpr auto bytes = static_cast<std::size_t>(size_at_first);
  void* const address =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  auto* const image = static_cast<Image*>(address);
  image->rank = rank;
  image->descriptors_made.store(descriptors_at_a_time);
  std::copy(std::begin(nonce), std::end(nonce), std::begin(image->nonce));
  return std::unique_ptr<Segment>(new Segment(no_place, image, bytes));
}

// The file stays open until the process ends: others may still read what is there.
Segment::~Segment() {
  munmap(image_, mapped_);
}

off_t Segment::place_of(const void* address) const {
  return place_.first + static_cast<const std::byte*>(address) - reinterpret_cast<const std::byte*>(image_);
}

/// Gives memory to `bytes` bytes of the image at `address`.
bool Segment::make(const void* address, std::size_t bytes) {
  const off_t first = place_of(address);
  return allocate(place_.file, first, first + static_cast<off_t>(bytes)) == 0;
}

bool Segment::make_chunks() {
  return make(image_->chunks, sizeof image_->chunks);
}

bool Segment::make_descriptors() {
  const int made = image_->descriptors_made.load(std::memory_order_relaxed);
  if (made >= descriptor_count) return false;
  Descriptor* const first = &image_->descriptor(made);
  const std::byte* const first_data = image_->data_of(*first).data();
  constexpr std::size_t least_left = std::size_t{8} << 20;  // for what others put there
  if (!has_twice(least_left) || !make(first, descriptors_at_a_time * sizeof(Descriptor)) ||
      !make(first_data, descriptors_at_a_time * sizeof(DescriptorData)))
    return false;
  for (int i = 0; i < descriptors_at_a_time; ++i) new (first + i) Descriptor;
  image_->descriptors_made.store(made + descriptors_at_a_time, std::memory_order_release);
  return true;
}

bool Segment::make_records(std::uint32_t first) {
  return make(&image_->records[first], std::size_t{records_at_a_time} * sizeof(CallRecord));
}

bool Segment::make_board(int index) {
  Board& board = image_->boards[index];
  return has_twice(sizeof board.slots) && make(board.slots, sizeof board.slots);
}

bool Segment::make_board_layouts(int index, std::size_t slot, std::size_t bytes) {
  return has_twice(bytes) && make(image_->boards[index].layouts[slot], bytes);
}

/// Whether `bytes` bytes are no more than half of the shared memory that is left on the node.
bool Segment::has_twice(std::size_t bytes) const {
  struct statvfs left;
  if (fstatvfs(place_.file, &left) != 0) return false;
  const bool limited = left.f_blocks != 0;
  return !limited || std::uint64_t{left.f_bavail} * left.f_frsize / 2 >= bytes;
}

bool Segment::make_layout_slot(int slot, std::size_t bytes) {
  return has_twice(bytes) && make(image_->layouts[slot], bytes);
}

void Segment::drop_layout_slot(int slot) {
  fallocate(place_.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, place_of(image_->layouts[slot]), layout_slot_size);
}

bool Segment::orphaned() const {
  return place_.file >= 0 && has_ended(place_);  // for processes of other nodes MPI ends the job
}

}  // namespace gpudt::interpose::peer

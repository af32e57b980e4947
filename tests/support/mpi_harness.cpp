// Buffers, streams and memory of the tests under mpirun (mpi_harness.hpp).
#include "tests/support/mpi_harness.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <utility>

#include "pingpong/common/driver.hpp"
#include "tests/support/mpi_quirks.hpp"
#include "tests/support/mpi_world.hpp"

namespace gpudt::test {
namespace {

constexpr std::size_t guard_bytes = 192;
constexpr char poison_byte = '\x5a';

void expect_cuda(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

char* host_allocate(std::size_t bytes) {
  void* data = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (data == nullptr) throw std::bad_alloc();
  return static_cast<char*>(data);
}

#define DRIVER(name, ...)                                                                          \
  do {                                                                                             \
    const CUresult error = GPUDT_DRIVER(name)(__VA_ARGS__);                                        \
    if (error != CUDA_SUCCESS) throw std::runtime_error(#name ": error " + std::to_string(error)); \
  } while (false)

/// Virtual addresses and what is mapped there: one piece, or two that neighbour each other.
class Mappings {
 public:
  void* map(std::size_t bytes, int gpu, bool shareable) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = gpu;
    if (shareable) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    std::size_t granularity = 0;
    DRIVER(cuMemGetAllocationGranularity, &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    const std::size_t pieces = bytes > granularity ? 2 : 1;
    const std::size_t piece = (bytes / pieces / granularity + 1) * granularity, total = pieces * piece;
    CUdeviceptr address = 0;
    DRIVER(cuMemAddressReserve, &address, total, 0, 0, 0);
    for (std::size_t i = 0; i < pieces; ++i) {
      CUmemGenericAllocationHandle handle = 0;
      DRIVER(cuMemCreate, &handle, piece, &properties, 0);
      DRIVER(cuMemMap, address + i * piece, piece, 0, handle, 0);
      DRIVER(cuMemRelease, handle);
    }
    CUmemAccessDesc access = {};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    DRIVER(cuMemSetAccess, address, total, &access, 1);
    std::lock_guard lock(mutex_);
    bytes_[address] = total;
    return reinterpret_cast<void*>(address);
  }

  void unmap(void* data) {
    const auto address = reinterpret_cast<CUdeviceptr>(data);
    std::unique_lock lock(mutex_);
    const std::size_t bytes = bytes_.at(address);
    bytes_.erase(address);
    lock.unlock();
    DRIVER(cuMemUnmap, address, bytes);
    DRIVER(cuMemAddressFree, address, bytes);
  }

 private:
  std::mutex mutex_;
  std::map<CUdeviceptr, std::size_t> bytes_;
} mappings;

/// Makes a GPU the thread's current one, for a while.
class WhileCurrent {
 public:
  explicit WhileCurrent(int gpu) : before_(current_gpu()) { use_gpu(gpu); }
  ~WhileCurrent() { use_gpu(before_); }
  WhileCurrent(const WhileCurrent&) = delete;
  WhileCurrent& operator=(const WhileCurrent&) = delete;

 private:
  int before_;
};

void* allocate(Place place, std::size_t bytes, int gpu) {
  void* data = nullptr;
  switch (place) {
    case Place::device:
    case Place::other_gpu:
      expect_cuda(cudaMalloc(&data, bytes), "cudaMalloc");
      break;
    case Place::pinned:
      expect_cuda(cudaHostAlloc(&data, bytes, cudaHostAllocDefault), "cudaHostAlloc");
      break;
    case Place::managed:
      expect_cuda(cudaMallocManaged(&data, bytes, cudaMemAttachGlobal), "cudaMallocManaged");
      break;
    case Place::stream_ordered:
      expect_cuda(cudaMallocAsync(&data, bytes, nullptr), "cudaMallocAsync");
      expect_cuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
      break;
    case Place::mapped:
    case Place::shareable:
      return mappings.map(bytes, gpu, place == Place::shareable);
    default:
      data = host_allocate(bytes);
      if (place == Place::registered)
        expect_cuda(cudaHostRegister(data, bytes, cudaHostRegisterDefault), "cudaHostRegister");
  }
  return data;
}

void release(Place place, void* data) {
  switch (place) {
    case Place::device:
    case Place::other_gpu:
    case Place::managed:
      cudaFree(data);
      break;
    case Place::pinned:
      cudaFreeHost(data);
      break;
    case Place::stream_ordered:
      cudaFreeAsync(data, nullptr);
      cudaStreamSynchronize(nullptr);
      break;
    case Place::mapped:
    case Place::shareable:
      mappings.unmap(data);
      break;
    default:
      if (place == Place::registered) cudaHostUnregister(data);
      std::free(data);
  }
}

/// What the environment says that this kind of memory stands for.
Place actual(Place place) {
  if (host_only()) return Place::host;
  if (place != Place::host && place != Place::device) return place;
  const char* wanted = std::getenv(place == Place::host ? "GPUDT_TEST_HOST_IS" : "GPUDT_TEST_DEVICE_IS");
  if (wanted == nullptr) return place;
  for (const Place other : all_places)
    if (std::strcmp(wanted, place_name(other)) == 0) return other;
  throw std::runtime_error(std::string("no kind of memory is called ") + wanted);
}

/// cudaMemcpy, and not back before the bytes are where every stream sees them.
void copy(void* to, const void* from, std::size_t bytes, int gpu) {
  const WhileCurrent current(gpu);
  expect_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
  expect_cuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
}

int as_count(std::int64_t count) {
  return static_cast<int>(count);
}

}  // namespace

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15ULL + b + 0x632be59bd9b4e019ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

int bytes_in(const MPI_Status& status) {
  int bytes = -1;
  PMPI_Get_count(&status, MPI_BYTE, &bytes);
  return bytes;
}

std::string error_text(int code) {
  if (code == MPI_SUCCESS) return "";
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  PMPI_Error_string(code, text, &length);
  return std::string(text, static_cast<std::size_t>(length));
}

int error_class(int code) {
  int result = MPI_SUCCESS;
  PMPI_Error_class(code, &result);
  return result;
}

int failure_class(int code, int wanted) {
  return code == MPI_SUCCESS && !returns_handled_errors() ? wanted : error_class(code);
}

const char* place_name(Place place) {
  constexpr const char* names[] = {"host",       "device",   "pinned",      "managed",  "cudaMallocAsync",
                                   "registered", "cuMemMap", "cuMemMap-fd", "other-gpu"};
  return names[static_cast<int>(place)];
}

int current_gpu() {
  int ordinal = 0;
  if (!host_only()) expect_cuda(cudaGetDevice(&ordinal), "cudaGetDevice");
  return ordinal;
}

void use_gpu(int ordinal) {
  if (!host_only()) expect_cuda(cudaSetDevice(ordinal), "cudaSetDevice");
}

// --- memory ----------------------------------------------------------------------------------------------------------

Memory::Memory(Place place, std::size_t bytes)
    : place_(actual(place)), bytes_(bytes), gpu_((current_gpu() + (place_ == Place::other_gpu ? 1 : 0)) % gpu_count()) {
  const WhileCurrent current(gpu_);
  data_ = static_cast<char*>(allocate(place_, std::max<std::size_t>(bytes, 1), gpu_));
}

Memory::Memory(Memory&& other) noexcept
    : place_(other.place_), bytes_(other.bytes_), gpu_(other.gpu_), data_(std::exchange(other.data_, nullptr)) {}

Memory::~Memory() {
  if (data_ == nullptr) return;
  const WhileCurrent current(gpu_);
  release(place_, data_);
}

void Memory::write(const void* from, std::size_t bytes, std::size_t offset) {
  if (!on_host(place_))
    copy(data_ + offset, from, bytes, gpu_);
  else
    std::memcpy(data_ + offset, from, bytes);
}

void Memory::read(void* to, std::size_t bytes, std::size_t offset) const {
  if (!on_host(place_))
    copy(to, data_ + offset, bytes, gpu_);
  else
    std::memcpy(to, data_ + offset, bytes);
}

// --- images and streams ----------------------------------------------------------------------------------------------

Image::Image(const Type& type, std::int64_t count, std::size_t skew) {
  const MPI_Aint low = type.low(count), high = type.high(count);
  bytes_.assign(2 * guard_bytes + skew + static_cast<std::size_t>(high - low), poison_byte);
  origin_ = static_cast<std::ptrdiff_t>(guard_bytes + skew) - low;
}

void Image::poison() {
  std::fill(bytes_.begin(), bytes_.end(), poison_byte);
}

void Image::fill(std::uint64_t key, std::size_t skew) {
  constexpr std::size_t word = sizeof(std::uint64_t);
  char* const begin = bytes_.data() + skew;
  const std::size_t size = bytes_.size() - skew, words_end = size / word * word;
  const auto put = [&](std::size_t at, std::size_t bytes) {
    const std::uint64_t value = mix(key, at);
    std::memcpy(begin + at, &value, bytes);
  };
  for (std::size_t at = 0; at < words_end; at += word) put(at, word);
  put(words_end, size - words_end);
}

Stream stream_of(const Type& type, std::int64_t count, std::uint64_t key) {
  Image image(type, count);
  image.fill(key);
  Stream stream(static_cast<std::size_t>(type.size() * count));
  int position = 0;
  if (!stream.empty())
    PMPI_Pack(image.base(), as_count(count), type, stream.data(), static_cast<int>(stream.size()), &position, world());
  return stream;
}

// A stream that ends early is completed in two ways that differ in every byte: bytes of the image that then differ
// are the ones that the short stream does not reach.
void unpack_into(Image& image, const Type& type, std::int64_t count, const Stream& stream) {
  const auto full = static_cast<std::size_t>(type.size() * count);
  if (full == 0) return;
  int position = 0;
  if (stream.size() >= full) {
    PMPI_Unpack(stream.data(), static_cast<int>(full), &position, image.base(), as_count(count), type, world());
    return;
  }
  Stream first(full, '\x00'), second(full, '\xff');
  std::copy(stream.begin(), stream.end(), first.begin());
  std::copy(stream.begin(), stream.end(), second.begin());
  Image other = image;
  const std::vector<char> before = image.bytes();
  PMPI_Unpack(first.data(), static_cast<int>(full), &position, image.base(), as_count(count), type, world());
  position = 0;
  PMPI_Unpack(second.data(), static_cast<int>(full), &position, other.base(), as_count(count), type, world());
  char* const bytes = image.bytes().data();
  const char* const others = other.bytes().data();
  for (std::size_t i = 0; i < before.size(); ++i) bytes[i] = bytes[i] != others[i] ? before[i] : bytes[i];
}

// --- buffers ---------------------------------------------------------------------------------------------------------

Buffer::Buffer(Place place, const Type& type, std::int64_t count, std::size_t skew)
    : type_(&type), count_(count), skew_(skew), image_(type, count, skew), memory_(place, image_.bytes().size()) {
  upload();
}

void Buffer::upload() {
  memory_.write(image_.bytes().data(), image_.bytes().size());
}

void Buffer::fill(std::uint64_t key) {
  // The pattern belongs to places relative to the first byte of an unskewed image, so that streams do not depend on
  // the skew.
  image_.fill(key, skew_);
  upload();
}

void Buffer::poison() {
  image_.poison();
  upload();
}

void Buffer::expect(const Stream& stream) {
  unpack_into(image_, *type_, count_, stream);
}

std::vector<char> Buffer::download() const {
  std::vector<char> found(image_.bytes().size());
  memory_.read(found.data(), found.size());
  return found;
}

std::string Buffer::difference() const {
  return compare(download());
}

std::string Buffer::difference_outside() const {
  const auto size = static_cast<std::size_t>(type_->size() * count_);
  Image zeros = image_, ones = image_;
  unpack_into(zeros, *type_, count_, Stream(size, '\x00'));
  unpack_into(ones, *type_, count_, Stream(size, '\xff'));
  std::vector<char> found = download();
  for (std::size_t i = 0; i < found.size(); ++i)
    if (zeros.bytes()[i] != ones.bytes()[i]) found[i] = image_.bytes()[i];
  return compare(found);
}

std::string Buffer::compare(const std::vector<char>& found) const {
  if (found == image_.bytes()) return "";  // sooner than std::mismatch, which looks at byte after byte
  const auto [here, there] = std::mismatch(found.begin(), found.end(), image_.bytes().begin());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < found.size(); ++i) wrong += found[i] != image_.bytes()[i] ? 1 : 0;
  const auto hex = [](char byte) { return std::to_string(static_cast<unsigned char>(byte)); };
  return std::to_string(wrong) + " of " + std::to_string(found.size()) + " bytes differ, first at offset " +
         std::to_string((here - found.begin()) - image_.origin()) + ": found " + hex(*here) + ", expected " +
         hex(*there) + "; " + std::to_string(count_) + " x " + type_->text();
}

}  // namespace gpudt::test

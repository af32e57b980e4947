#include "pingpong/kinds_memory.hpp"

#include <cuda.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "pingpong/common/driver.hpp"
#include "pingpong/common/memory.hpp"

#define DRIVER(name, ...)                                                                          \
  do {                                                                                             \
    const CUresult error = GPUDT_DRIVER(name)(__VA_ARGS__);                                        \
    if (error != CUDA_SUCCESS) throw std::runtime_error(#name ": error " + std::to_string(error)); \
  } while (false)

namespace gpudt::bench {
namespace {

/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, which the simulated device's header does not have.
constexpr auto file_descriptor = static_cast<CUmemAllocationHandleType>(1);

class PlaceBuffer final : public KindBuffer {
 public:
  PlaceBuffer(Place place, std::size_t bytes) : buffer_(place) {
    buffer_.reserve(bytes);
    address_ = buffer_.data();
  }

 private:
  Buffer buffer_;
};

/// From the default pool of the device.
class PoolBuffer final : public KindBuffer {
 public:
  explicit PoolBuffer(std::size_t bytes) {
    cuda_check(cudaMallocAsync(&address_, bytes, stream_.get()), "cudaMallocAsync");
    stream_.synchronize();
  }
  PoolBuffer(const PoolBuffer&) = delete;
  PoolBuffer& operator=(const PoolBuffer&) = delete;
  ~PoolBuffer() override { cudaFreeAsync(address_, stream_.get()); }

 private:
  Stream stream_;
};

/// Virtual addresses with two pieces of memory mapped side by side, as in segments that grow.
class MappedBuffer final : public KindBuffer {
 public:
  MappedBuffer(std::size_t bytes, int gpu, CUmemAllocationHandleType handles) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = handles;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = gpu;
    std::size_t granularity = 0;
    DRIVER(cuMemGetAllocationGranularity, &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    const std::size_t piece = (bytes / 2 / granularity + 1) * granularity;
    bytes_ = 2 * piece;
    DRIVER(cuMemAddressReserve, &first_, bytes_, 0, 0, 0);
    for (std::size_t at = 0; at < bytes_; at += piece) map(first_ + at, piece, properties);
    CUmemAccessDesc access = {};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    DRIVER(cuMemSetAccess, first_, bytes_, &access, 1);
    address_ = reinterpret_cast<void*>(first_);
  }
  MappedBuffer(const MappedBuffer&) = delete;
  MappedBuffer& operator=(const MappedBuffer&) = delete;
  ~MappedBuffer() override {
    GPUDT_DRIVER(cuMemUnmap)(first_, bytes_);
    GPUDT_DRIVER(cuMemAddressFree)(first_, bytes_);
  }

 private:
  static void map(CUdeviceptr address, std::size_t bytes, const CUmemAllocationProp& properties) {
    CUmemGenericAllocationHandle handle = 0;
    DRIVER(cuMemCreate, &handle, bytes, &properties, 0);
    DRIVER(cuMemMap, address, bytes, 0, handle, 0);
    DRIVER(cuMemRelease, handle);
  }

  CUdeviceptr first_ = 0;
  std::size_t bytes_ = 0;
};

void copy(void* to, const void* from, std::size_t bytes) {
  const Stream stream;
  cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get()), "cudaMemcpyAsync");
  stream.synchronize();
}

}  // namespace

const std::vector<std::string>& kind_names() {
  static const std::vector<std::string> names = {"malloc", "pinned", "managed",   "device",
                                                 "pool",   "mapped", "exportable"};
  return names;
}

bool kind_is_on_gpu(const std::string& kind) {
  return kind != "malloc" && kind != "pinned";
}

void KindBuffer::write(std::span<const std::byte> from) {
  copy(address_, from.data(), from.size());
}

void KindBuffer::read(std::span<std::byte> to) const {
  copy(to.data(), address_, to.size());
}

std::unique_ptr<KindBuffer> make_kind_buffer(const std::string& kind, std::size_t bytes, int gpu) {
  if (kind == "malloc") return std::make_unique<PlaceBuffer>(Place::host, bytes);
  if (kind == "pool") return std::make_unique<PoolBuffer>(bytes);
  if (kind == "mapped") return std::make_unique<MappedBuffer>(bytes, gpu, CU_MEM_HANDLE_TYPE_NONE);
  if (kind == "exportable") return std::make_unique<MappedBuffer>(bytes, gpu, file_descriptor);
  return std::make_unique<PlaceBuffer>(place_from_name(kind), bytes);
}

}  // namespace gpudt::bench

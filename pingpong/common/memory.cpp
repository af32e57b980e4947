#include "pingpong/common/memory.hpp"

#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

namespace gpudt::bench {
namespace {

constexpr std::align_val_t host_alignment{256};

void device_copy(void* to, const void* from, std::size_t bytes) {
  const Stream stream;
  cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get()), "cudaMemcpyAsync");
  stream.synchronize();
}

}  // namespace

void cuda_check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

const char* place_name(Place place) {
  switch (place) {
    case Place::host:
      return "host";
    case Place::pinned:
      return "pinned";
    case Place::managed:
      return "managed";
    case Place::device:
      break;
  }
  return "device";
}

Place place_from_name(const std::string& name) {
  for (const Place place : {Place::host, Place::pinned, Place::managed, Place::device}) {
    if (name == place_name(place)) return place;
  }
  throw std::invalid_argument("memory '" + name + "': expected host, pinned, managed or device");
}

Stream::Stream() {
  cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

Stream::~Stream() {
  cudaStreamDestroy(stream_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : place_(other.place_), data_(std::exchange(other.data_, nullptr)), capacity_(std::exchange(other.capacity_, 0)) {}

void Buffer::reserve(std::size_t bytes) {
  if (bytes <= capacity_) return;
  release();
  allocate(bytes);
  capacity_ = bytes;
}

void Buffer::allocate(std::size_t bytes) {
  void* address = nullptr;
  switch (place_) {
    case Place::host:
      address = ::operator new(bytes, host_alignment);
      break;
    case Place::pinned:
      cuda_check(cudaHostAlloc(&address, bytes, cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc");
      break;
    case Place::managed:
      cuda_check(cudaMallocManaged(&address, bytes, cudaMemAttachGlobal), "cudaMallocManaged");
      break;
    case Place::device:
      cuda_check(cudaMalloc(&address, bytes), "cudaMalloc");
      break;
  }
  data_ = static_cast<std::byte*>(address);
}

void Buffer::release() noexcept {
  if (data_ == nullptr) return;
  if (place_ == Place::host) {
    ::operator delete(data_, host_alignment);
  } else if (place_ == Place::pinned) {
    cudaFreeHost(data_);
  } else {
    cudaFree(data_);
  }
  data_ = nullptr;
  capacity_ = 0;
}

void Buffer::write(std::span<const std::byte> from) {
  if (place_ == Place::host || place_ == Place::pinned) {
    std::memcpy(data_, from.data(), from.size());
  } else {
    device_copy(data_, from.data(), from.size());
  }
}

void Buffer::read(std::span<std::byte> to) const {
  if (place_ == Place::host || place_ == Place::pinned) {
    std::memcpy(to.data(), data_, to.size());
  } else {
    device_copy(to.data(), data_, to.size());
  }
}

void Buffer::fill(std::byte value, std::size_t bytes) {
  if (place_ == Place::host || place_ == Place::pinned) {
    std::memset(data_, std::to_integer<int>(value), bytes);
    return;
  }
  const Stream stream;
  cuda_check(cudaMemsetAsync(data_, std::to_integer<int>(value), bytes, stream.get()), "cudaMemsetAsync");
  stream.synchronize();
}

}  // namespace gpudt::bench

// The simulated device's memory: who may touch it, what is known about it, and what happens out of bounds.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <vector>

#include "device/sim/sim_api.h"
#include "pingpong/common/driver.hpp"
#include "tests/support/catch.hpp"

namespace {

constexpr std::size_t guard_granularity = 256;

template <class T = char>
T* device_memory(std::size_t bytes) {
  void* address = nullptr;
  REQUIRE(cudaMalloc(&address, bytes) == cudaSuccess);
  return static_cast<T*>(address);
}

cudaPointerAttributes attributes_of(const void* address) {
  cudaPointerAttributes attributes;
  std::memset(&attributes, 0x55, sizeof attributes);
  REQUIRE(cudaPointerGetAttributes(&attributes, address) == cudaSuccess);
  return attributes;
}

/// The signal that ends a child process which runs action(); 0 if it ends by itself.
template <class Action>
int fatal_signal_of(Action action) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);
    action();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

const gpudt_sim_api_table& api() {
  // Looked up, since the library may be preloaded rather than linked.
  static const auto entry = reinterpret_cast<decltype(&gpudt_sim_api)>(dlsym(RTLD_DEFAULT, "gpudt_sim_api"));
  REQUIRE(entry != nullptr);
  return *entry();
}

/// A kernel that stores one byte at the place that the program knows as the address.
struct Store {
  char* address;
  std::ptrdiff_t distance;
};
void store_byte(void* args) {
  const Store& store = *static_cast<Store*>(args);
  *(store.address + store.distance) = 'x';
}

/// What a kernel on device 0 that stores at `address` leaves behind; resets the device.
cudaError_t error_of_store(char* address) {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  const char* begin = nullptr;
  std::size_t bytes = 0;
  Store store = {address, 0};
  api().device_range(&begin, &bytes, &store.distance);
  REQUIRE(api().launch(stream, store_byte, &store, sizeof store) == cudaSuccess);
  return cudaStreamSynchronize(stream);
}

}  // namespace

TEST_CASE("sim: the host cannot touch device memory", "[sim]") {
  volatile char* memory = device_memory(4096);
  CHECK(fatal_signal_of([&] { memory[17] = 1; }) == SIGSEGV);
  CHECK(fatal_signal_of([&] { [[maybe_unused]] const char byte = memory[0]; }) == SIGSEGV);
  REQUIRE(cudaFree(const_cast<char*>(memory)) == cudaSuccess);
  CHECK(fatal_signal_of([&] { memory[17] = 1; }) == SIGSEGV);

  void *pinned = nullptr, *managed = nullptr;
  REQUIRE(cudaMallocHost(&pinned, 100) == cudaSuccess);
  REQUIRE(cudaMallocManaged(&managed, 100, cudaMemAttachGlobal) == cudaSuccess);
  std::memset(pinned, 1, 100);
  std::memset(managed, 2, 100);
  CHECK(static_cast<char*>(managed)[99] == 2);
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
  CHECK(cudaFree(managed) == cudaSuccess);
  CHECK(fatal_signal_of([&] { *static_cast<volatile char*>(pinned) = 1; }) == SIGSEGV);
}

TEST_CASE("sim: what pointer attributes say", "[sim]") {
  int devices = 0;
  REQUIRE(cudaGetDeviceCount(&devices) == cudaSuccess);
  REQUIRE(devices >= 2);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  char* memory = device_memory(1000);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  for (const std::size_t offset : {0, 1, 500, 999}) {
    const auto attributes = attributes_of(memory + offset);
    CHECK(attributes.type == cudaMemoryTypeDevice);
    CHECK(attributes.device == 1);
    CHECK(attributes.devicePointer == memory + offset);
    CHECK(attributes.hostPointer == nullptr);
  }
  CHECK(attributes_of(memory + 1000).type == cudaMemoryTypeUnregistered);
  CHECK(attributes_of(memory - 1).type == cudaMemoryTypeUnregistered);
  CHECK(cudaFree(memory + 1) == cudaErrorInvalidValue);
  CHECK(cudaFreeHost(memory) == cudaErrorInvalidValue);
  CHECK(cudaFree(memory) == cudaSuccess);
  CHECK(cudaFree(memory) == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(attributes_of(memory).type == cudaMemoryTypeUnregistered);

  void *pinned = nullptr, *managed = nullptr;
  REQUIRE(cudaHostAlloc(&pinned, 100, cudaHostAllocPortable) == cudaSuccess);
  REQUIRE(cudaMallocManaged(&managed, 100, cudaMemAttachGlobal) == cudaSuccess);
  CHECK(attributes_of(static_cast<char*>(pinned) + 99).type == cudaMemoryTypeHost);
  CHECK(attributes_of(managed).type == cudaMemoryTypeManaged);
  unsigned flags = 0;
  CHECK(cudaHostGetFlags(&flags, pinned) == cudaSuccess);
  CHECK((flags & cudaHostAllocPortable) != 0);
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
  CHECK(cudaFree(managed) == cudaSuccess);

  std::vector<char> plain(1000);
  const auto host = attributes_of(plain.data());
  CHECK(host.type == cudaMemoryTypeUnregistered);
  CHECK(host.device == cudaInvalidDeviceId);
  REQUIRE(cudaHostRegister(plain.data() + 100, 200, cudaHostRegisterDefault) == cudaSuccess);
  CHECK(cudaHostRegister(plain.data() + 299, 10, cudaHostRegisterDefault) == cudaErrorHostMemoryAlreadyRegistered);
  CHECK(attributes_of(plain.data() + 99).type == cudaMemoryTypeUnregistered);
  CHECK(attributes_of(plain.data() + 100).type == cudaMemoryTypeHost);
  CHECK(attributes_of(plain.data() + 299).type == cudaMemoryTypeHost);
  CHECK(attributes_of(plain.data() + 300).type == cudaMemoryTypeUnregistered);
  CHECK(cudaHostUnregister(plain.data() + 100) == cudaSuccess);
  CHECK(cudaHostUnregister(plain.data() + 100) == cudaErrorHostMemoryNotRegistered);
  cudaGetLastError();
}

TEST_CASE("sim: pointer queries among many allocations", "[sim]") {
  std::vector<char*> blocks(500);
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = device_memory(1 + i * 37);
  for (std::size_t i = 0; i < blocks.size(); i += 2) REQUIRE(cudaFree(blocks[i]) == cudaSuccess);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    int device = -1;
    const auto expected = i % 2 ? gpudt_sim_device : gpudt_sim_host;
    CHECK(api().classify(blocks[i] + i * 37, &device) == expected);
    CHECK(device == (i % 2 ? 0 : -1));
  }
  for (std::size_t i = 1; i < blocks.size(); i += 2) REQUIRE(cudaFree(blocks[i]) == cudaSuccess);
}

TEST_CASE("sim: copies move what they should and nothing else", "[sim]") {
  constexpr std::size_t bytes = 3000;
  char* memory = device_memory(bytes);
  std::vector<char> out(bytes), in(bytes, 0x11);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<char>(i * 7);
  REQUIRE(cudaMemcpy(memory, out.data(), bytes, cudaMemcpyHostToDevice) == cudaSuccess);
  REQUIRE(cudaMemset(memory + 10, 0x22, 5) == cudaSuccess);
  std::memset(out.data() + 10, 0x22, 5);
  REQUIRE(cudaMemcpy(in.data(), memory, bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(in == out);

  std::vector<char> rows(4 * 100, 0x33), expected = rows;
  REQUIRE(cudaMemcpy2D(rows.data(), 100, memory + 1, 700, 9, 4, cudaMemcpyDefault) == cudaSuccess);
  for (std::size_t row = 0; row < 4; ++row) std::memcpy(&expected[row * 100], &out[1 + row * 700], 9);
  CHECK(rows == expected);

  CHECK(cudaMemcpy(memory, in.data(), bytes + 1, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(in.data(), memory, 10, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(in.data(), memory, 10, cudaMemcpyHostToHost) == cudaErrorInvalidValue);
  CHECK(cudaMemset(in.data(), 0, 10) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy2D(memory, 5, in.data(), 10, 10, 2, cudaMemcpyHostToDevice) == cudaErrorInvalidPitchValue);
  cudaGetLastError();
  CHECK(cudaFree(memory) == cudaSuccess);
  CHECK(cudaMemcpy(in.data(), memory, 10, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST_CASE("sim: allocations are lazy, counted and bounded", "[sim]") {
  std::size_t before = 0, during = 0, after = 0, total = 0;
  REQUIRE(cudaMemGetInfo(&before, &total) == cudaSuccess);
  constexpr std::size_t huge = std::size_t(40) << 30;
  char* memory = device_memory(huge);
  REQUIRE(cudaMemGetInfo(&during, &total) == cudaSuccess);
  CHECK(before - during == huge);
  REQUIRE(cudaMemset(memory + huge - 3, 7, 3) == cudaSuccess);
  char last = 0;
  REQUIRE(cudaMemcpy(&last, memory + huge - 1, 1, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(last == 7);
  void* more = nullptr;
  CHECK(cudaMalloc(&more, huge) == cudaErrorMemoryAllocation);
  CHECK(cudaMalloc(&more, std::size_t(1) << 62) == cudaErrorMemoryAllocation);
  cudaGetLastError();
  REQUIRE(cudaFree(memory) == cudaSuccess);
  REQUIRE(cudaMemGetInfo(&after, &total) == cudaSuccess);
  CHECK(after == before);
  CHECK(cudaMalloc(&more, 0) == cudaSuccess);
  CHECK(more == nullptr);
}

TEST_CASE("sim: a kernel out of bounds or after free is a sticky error", "[sim]") {
  char* memory = device_memory(1000);
  CHECK(error_of_store(memory + 999) == cudaSuccess);
  char stored = 0;
  REQUIRE(cudaMemcpy(&stored, memory + 999, 1, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(stored == 'x');

  SECTION("beyond the end") {
    CHECK(error_of_store(memory + 1000 + guard_granularity) == cudaErrorIllegalAddress);
  }
  SECTION("after free") {
    REQUIRE(cudaFree(memory) == cudaSuccess);
    CHECK(error_of_store(memory) == cudaErrorIllegalAddress);
  }
  CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
  void* more = nullptr;
  CHECK(cudaMalloc(&more, 1) == cudaErrorIllegalAddress);
  CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
  CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
  REQUIRE(cudaDeviceReset() == cudaSuccess);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(cudaMalloc(&more, 1) == cudaSuccess);
  CHECK(cudaFree(more) == cudaSuccess);
}

TEST_CASE("sim: stream-ordered allocation", "[sim]") {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  void* memory = nullptr;
  REQUIRE(cudaMallocAsync(&memory, 100, stream) == cudaSuccess);
  CHECK(attributes_of(memory).type == cudaMemoryTypeDevice);
  cudaIpcMemHandle_t handle;
  CHECK(cudaIpcGetMemHandle(&handle, memory) == cudaErrorInvalidValue);
  cudaGetLastError();
  REQUIRE(cudaMemsetAsync(memory, 1, 100, stream) == cudaSuccess);
  REQUIRE(cudaFreeAsync(memory, stream) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(attributes_of(memory).type == cudaMemoryTypeUnregistered);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}

TEST_CASE("sim: memory mapped in pieces", "[sim]") {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = 1;
  std::size_t piece = 0;
  REQUIRE(GPUDT_DRIVER(cuMemGetAllocationGranularity)(&piece, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ==
          CUDA_SUCCESS);
  CUdeviceptr address = 0;
  REQUIRE(GPUDT_DRIVER(cuMemAddressReserve)(&address, 3 * piece, 0, 0, 0) == CUDA_SUCCESS);
  auto* const memory = reinterpret_cast<char*>(address);
  CHECK(attributes_of(memory).type == cudaMemoryTypeUnregistered);
  const auto map = [&](std::size_t place) {
    CUmemGenericAllocationHandle handle = 0;
    REQUIRE(GPUDT_DRIVER(cuMemCreate)(&handle, piece, &properties, 0) == CUDA_SUCCESS);
    REQUIRE(GPUDT_DRIVER(cuMemMap)(address + place * piece, piece, 0, handle, 0) == CUDA_SUCCESS);
    CHECK(GPUDT_DRIVER(cuMemMap)(address + 2 * piece, piece, 0, handle, 0) != CUDA_SUCCESS);
    REQUIRE(GPUDT_DRIVER(cuMemRelease)(handle) == CUDA_SUCCESS);
    CHECK(GPUDT_DRIVER(cuMemRelease)(handle) == CUDA_ERROR_INVALID_VALUE);
  };
  map(0);
  map(1);
  CUmemAccessDesc access = {};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CHECK(GPUDT_DRIVER(cuMemSetAccess)(address, 3 * piece, &access, 1) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(GPUDT_DRIVER(cuMemSetAccess)(address, 2 * piece, &access, 1) == CUDA_SUCCESS);
  CHECK(attributes_of(memory + 2 * piece - 1).type == cudaMemoryTypeDevice);
  CHECK(attributes_of(memory).device == 1);
  CHECK(attributes_of(memory + 2 * piece).type == cudaMemoryTypeUnregistered);

  std::vector<char> out(2 * piece), in(2 * piece);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<char>(i * 7 + i / 4096);
  REQUIRE(cudaMemcpy(memory, out.data(), out.size(), cudaMemcpyDefault) == cudaSuccess);
  REQUIRE(cudaMemcpy(in.data(), memory, in.size(), cudaMemcpyDefault) == cudaSuccess);
  CHECK(in == out);
  CHECK(cudaMemcpy(memory + 1, out.data(), out.size(), cudaMemcpyDefault) == cudaErrorInvalidValue);
  CHECK(cudaFree(memory) == cudaErrorInvalidValue);
  cudaGetLastError();
  CHECK(fatal_signal_of([memory] { *static_cast<volatile char*>(memory) = 1; }) == SIGSEGV);

  CHECK(GPUDT_DRIVER(cuMemAddressFree)(address, 3 * piece) == CUDA_ERROR_INVALID_VALUE);  // something is mapped
  REQUIRE(GPUDT_DRIVER(cuMemUnmap)(address, 2 * piece) == CUDA_SUCCESS);
  CHECK(attributes_of(memory).type == cudaMemoryTypeUnregistered);
  CHECK(GPUDT_DRIVER(cuMemUnmap)(address, 2 * piece) == CUDA_ERROR_INVALID_VALUE);
  CHECK(GPUDT_DRIVER(cuMemAddressFree)(address, 3 * piece) == CUDA_SUCCESS);
}

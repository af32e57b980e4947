// What tests of transfers on a device share: the library, memory of each kind, random bytes, messages.
#pragma once

#include <cuda_runtime_api.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "datatype/decode.hpp"
#include "device/device.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/owned_type.hpp"
#include "tests/support/unit.hpp"

namespace gpudt::test {

using Bytes = std::vector<char>;

constexpr std::int64_t guard = 64;  ///< bytes around what is moved
constexpr int most_misaligned = 16;
constexpr datatype::ListLimits no_lists{0, 1, 0, 0};  ///< what is not strided goes to the general traversal

inline void cuda_check(cudaError_t error) {
  INFO(cudaGetErrorString(error));
  REQUIRE(error == cudaSuccess);
}

/// cudaMemset and cudaMemcpy from pageable memory may return before the bytes are where other streams see them.
inline void settle() {
  cuda_check(cudaStreamSynchronize(nullptr));
}

/// The device library, started for one test case.
class Device {
 public:
  explicit Device(device::Way way, bool batches = true, device::ResidentUse resident = device::ResidentUse::automatic) {
    device::Config config;
    config.way = way;
    config.batches = batches;
    config.resident = resident;
    const char* choice = std::getenv("GPUDT_DEVICE");
    if (choice && std::string(choice) == "cuda") config.choice = device::Choice::cuda;
    if (choice && std::string(choice) == "sim") config.choice = device::Choice::sim;
    device::start(config);
    if (std::string(device::runtime_name()) == "none") WARN("no device: nothing is tested here");
  }
  ~Device() { device::stop(); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  bool there() const { return std::string(device::runtime_name()) != "none"; }
};

enum class Place { mapped, device };

/// Memory that grows as needed.
class Memory {
 public:
  explicit Memory(Place place, int ordinal = 0) : place_(place), ordinal_(ordinal) {}
  ~Memory() { release(); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  char* reserve(std::int64_t bytes) {
    if (bytes > capacity_) {
      release();
      void* address = nullptr;
      capacity_ = 2 * bytes;
      const auto size = static_cast<std::size_t>(capacity_);
      int current = 0;
      cuda_check(cudaGetDevice(&current));
      cuda_check(cudaSetDevice(ordinal_));
      cuda_check(place_ == Place::device ? cudaMalloc(&address, size)
                                         : cudaHostAlloc(&address, size, cudaHostAllocMapped));
      cuda_check(cudaSetDevice(current));
      data_ = static_cast<char*>(address);
    }
    return data_;
  }
  void write(const Bytes& bytes) {
    reserve(static_cast<std::int64_t>(bytes.size()));
    cuda_check(cudaMemcpy(data_, bytes.data(), bytes.size(), cudaMemcpyDefault));
    settle();
  }
  Bytes read(std::size_t size) const {
    Bytes bytes(size);
    cuda_check(cudaMemcpy(bytes.data(), data_, size, cudaMemcpyDefault));
    return bytes;
  }

 private:
  void release() {
    if (place_ == Place::device)
      cudaFree(data_);
    else
      cudaFreeHost(data_);
    data_ = nullptr;
  }
  Place place_;
  int ordinal_;  ///< the GPU whose memory it is
  char* data_ = nullptr;
  std::int64_t capacity_ = 0;
};

class Random {
 public:
  explicit Random(std::uint64_t index) : engine_(unit_random(index)) {}
  std::int64_t operator()(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  Bytes bytes(std::int64_t size) {
    Bytes made(static_cast<std::size_t>(size));
    std::size_t i = 0;
    for (; i + 8 <= made.size(); i += 8) {
      const std::uint64_t value = engine_();
      std::memcpy(made.data() + i, &value, 8);
    }
    for (; i < made.size(); ++i) made[i] = static_cast<char>(engine_());
    return made;
  }
  std::mt19937_64& engine() { return engine_; }

 private:
  std::mt19937_64 engine_;
};

/// The first place where two buffers differ, or -1.
inline std::int64_t difference(const Bytes& a, const Bytes& b) {
  if (a.size() != b.size()) return 0;
  const auto at = std::mismatch(a.begin(), a.end(), b.begin());
  return at.first == a.end() ? -1 : at.first - a.begin();
}

/// One message: a datatype, a count and which bytes of the user's buffer it touches.
struct Message {
  MPI_Datatype type;
  int count;
  std::int64_t low, high;  ///< from the buffer's address
  const datatype::Layout* layout;
};

inline Message message_of(MPI_Datatype type, const datatype::Layout& layout, int count) {
  if (layout.size() == 0) return {type, count, 0, 0, &layout};  // MPI libraries give such types any true extent
  MPI_Aint low = 0, extent = 0, lb = 0, true_extent = 0;
  MPI_Type_get_true_extent(type, &low, &true_extent);
  MPI_Type_get_extent(type, &lb, &extent);
  const std::int64_t last = extent * (std::int64_t{count} - 1);
  return {type, count, low + std::min<std::int64_t>(last, 0), low + true_extent + std::max<std::int64_t>(last, 0),
          &layout};
}

/// A committed datatype with its layout.
struct Typed {
  explicit Typed(OwnedType made, datatype::ListLimits limits = {})
      : type(std::move(made.commit())), layout(datatype::decode(type, limits)) {}
  Message message(int count) const { return message_of(type, *layout, count); }
  OwnedType type;
  datatype::LayoutRef layout;
};

/// Microseconds that `once` takes, the median.
template <class Once>
double median_us(const Once& once) {
  constexpr int warm = 5, times = 51;
  std::vector<double> all;
  for (int i = 0; i < warm + times; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    once();
    all.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  all.erase(all.begin(), all.begin() + warm);
  std::nth_element(all.begin(), all.begin() + times / 2, all.end());
  return all[times / 2];
}

}  // namespace gpudt::test

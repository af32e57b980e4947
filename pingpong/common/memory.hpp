// Buffers in the four kinds of memory that a program may hand to MPI, and moving bytes in and out of them through
// the CUDA runtime's own names. Failures are thrown as std::runtime_error.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>
#include <string>

namespace gpudt::bench {

/// Throws std::runtime_error("<what>: <CUDA's message>") unless `status` is cudaSuccess.
void cuda_check(cudaError_t status, const char* what);

enum class Place { host, pinned, managed, device };

/// "host", "pinned", "managed", "device".
const char* place_name(Place place);
/// The inverse; throws std::invalid_argument.
Place place_from_name(const std::string& name);
/// Whether the memory has its home on a GPU.
inline bool on_device(Place place) {
  return place == Place::device || place == Place::managed;
}

/// A stream that does not wait for the default one.
class Stream {
 public:
  Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();
  cudaStream_t get() const { return stream_; }
  void synchronize() const { cuda_check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Memory that grows on demand and is kept from message to message. Aligned to 256 bytes. Every function returns
/// when its work is done. Place::host works without any CUDA device.
class Buffer {
 public:
  explicit Buffer(Place place) : place_(place) {}
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer() { release(); }

  /// Makes it at least `bytes` long; the contents are lost if it has to grow.
  void reserve(std::size_t bytes);
  std::byte* data() const { return data_; }
  Place place() const { return place_; }

  void write(std::span<const std::byte> from);  ///< to its first bytes
  void read(std::span<std::byte> to) const;     ///< from its first bytes
  void fill(std::byte value, std::size_t bytes);

 private:
  void allocate(std::size_t bytes);
  void release() noexcept;
  Place place_;
  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
};

}  // namespace gpudt::bench

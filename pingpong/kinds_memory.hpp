// One buffer in any of the kinds of memory that a CUDA program may have.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace gpudt::bench {

/// The names of all kinds.
const std::vector<std::string>& kind_names();

/// Whether the memory has its home on a GPU.
bool kind_is_on_gpu(const std::string& kind);

class KindBuffer {
 public:
  virtual ~KindBuffer() = default;
  void* address() const { return address_; }
  void write(std::span<const std::byte> from);  ///< to its first bytes; complete when it returns
  void read(std::span<std::byte> to) const;     ///< from its first bytes; complete when it returns

 protected:
  void* address_ = nullptr;
};

/// `bytes` of that kind on the current device. Throws std::runtime_error where there is no such memory.
std::unique_ptr<KindBuffer> make_kind_buffer(const std::string& kind, std::size_t bytes, int gpu);

}  // namespace gpudt::bench

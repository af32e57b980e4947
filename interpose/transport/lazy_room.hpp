// Memory for long messages, of which few come: most receives into device memory get an RTS. Only addresses are
// reserved; the system adds pages where something is written. GPUs do not reach it.
#pragma once

#include <cstddef>

namespace gpudt::interpose {

class LazyRoom {
 public:
  LazyRoom() = default;
  /// At least `bytes` bytes; empty if mmap fails. Thread-safe.
  static LazyRoom of(std::size_t bytes);
  LazyRoom(LazyRoom&& other) noexcept { swap(other); }
  LazyRoom& operator=(LazyRoom&& other) noexcept {
    LazyRoom taken(static_cast<LazyRoom&&>(other));
    swap(taken);
    return *this;
  }
  ~LazyRoom() {
    if (data_ != nullptr) give_back();
  }
  explicit operator bool() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }
  /// Notes that the first `bytes` bytes have been written: the destructor returns their pages to the system.
  void note_written(std::size_t bytes) { written_ = bytes > written_ ? bytes : written_; }

 private:
  void give_back() noexcept;
  void swap(LazyRoom& other) noexcept;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0, written_ = 0;
};

/// To be called in MPI_Finalize: frees those kept for reuse.
void lazy_rooms_stop();

}  // namespace gpudt::interpose

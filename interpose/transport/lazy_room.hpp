// Memory for long messages that hardly ever come: most of what comes to device memory is an RTS. It has addresses
// alone, and pages where something has been written. GPUs do not reach it.
#pragma once

#include <cstddef>

namespace gpudt::interpose {

class LazyRoom {
 public:
  LazyRoom() = default;
  /// Empty if the system gives no addresses. Thread-safe.
  static LazyRoom of(std::size_t bytes);
  LazyRoom(LazyRoom&& other) noexcept { swap(other); }
  LazyRoom& operator=(LazyRoom&& other) noexcept {
    LazyRoom taken(static_cast<LazyRoom&&>(other));
    swap(taken);
    return *this;
  }
  ~LazyRoom();
  explicit operator bool() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }
  /// That many bytes have been written at its beginning: their pages go back to the system with the object.
  void note_written(std::size_t bytes) { written_ = bytes > written_ ? bytes : written_; }

 private:
  void swap(LazyRoom& other) noexcept;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0, written_ = 0;
};

/// At MPI_Finalize: those that are kept for reuse go.
void lazy_rooms_stop();

}  // namespace gpudt::interpose

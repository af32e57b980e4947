// Marks in the program's default stream of each GPU: its memory is used only after the work that the program had put
// into the stream before its call (stream_mark.hpp).
//
// A mark in an idle stream has been reached: most programs have nothing there. Otherwise the stream writes a word of
// mapped memory when it reaches the mark. The host polls the word and then starts the work. cudaStreamWaitEvent would
// not do: all operations share the streams of this library, so that operations behind the waiting one would wait, too,
// even if the program's work needs them to be over; and the wait would be mistaken for a start delay (delay.hpp).
//
// The query costs 1.5 to 2 us, and so does any work given to the stream.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/mutex.hpp"
#include "device/runtime/runtime.hpp"
#include "device/transfer/config.hpp"

namespace gpudt::device {

/// The default stream of one GPU. Thread-safe.
class DefaultStream {
 public:
  DefaultStream(Runtime& runtime, int ordinal, Order order);
  ~DefaultStream();
  DefaultStream(const DefaultStream&) = delete;
  DefaultStream& operator=(const DefaultStream&) = delete;

  /// The number of a new mark at the end of the stream; 0: the stream is empty. Throws Error.
  std::uint64_t mark();
  bool reached(std::uint64_t number);
  /// The GPU's context has ended with all its work: all marks count as reached.
  void lose() noexcept;

 private:
  struct Mark {
    std::uint64_t number;
    std::uint32_t* word;  ///< holds the lower half of the number when the mark is reached
    bool reached() const;
  };
  std::uint32_t* take_word() REQUIRES(mutex_);
  void forget_reached() REQUIRES(mutex_);

  Runtime& runtime_;
  const int ordinal_;
  const Order order_;
  /// All marks up to this number have been reached. Used only with one stream: marks of several have no order.
  std::atomic<std::uint64_t> reached_{0};
  Mutex mutex_;
  std::uint64_t last_ GUARDED_BY(mutex_) = 0;
  std::vector<Mark> pending_ GUARDED_BY(mutex_);  ///< by number
  std::vector<std::uint32_t*> idle_ GUARDED_BY(mutex_);
  std::vector<void*> pages_ GUARDED_BY(mutex_);  ///< the memory that holds the words
};

}  // namespace gpudt::device

// Marks in the program's default streams, one of each GPU: what is done with its memory on behalf of an MPI call comes
// after what it had put into the stream before that call (StreamMark in device.hpp).
//
// A mark in an idle stream has been reached: most programs have nothing there. Otherwise the stream writes a word of
// mapped memory when it reaches the mark. The host polls the word and then starts the work, instead of using
// cudaStreamWaitEvent: the streams of this library are shared by all operations, so that those behind the one that
// waits would wait, too, for something that may need them to be over; and what a stream waits for would be taken for a
// late start (delay.hpp).
//
// The query costs 1.5 to 2 us, and so does any work given to the stream. Blocking calls make their marks when MPI has
// their message or receive (StreamMark::late), while the other process is at work.
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

  /// The number of a new mark, behind all that is in the stream; 0: there is nothing to wait for. Throws Error.
  std::uint64_t mark();
  bool reached(std::uint64_t number);
  /// The GPU's context has ended, with all work in it: all marks have been reached.
  void lose() noexcept;

 private:
  struct Mark {
    std::uint64_t number;
    std::uint32_t* word;  ///< reached: the number's lower half
    bool reached() const;
  };
  std::uint32_t* take_word() REQUIRES(mutex_);
  void forget_reached() REQUIRES(mutex_);

  Runtime& runtime_;
  const int ordinal_;
  const Order order_;
  /// Marks up to this one have been reached; of one stream alone, since those of several have no order.
  std::atomic<std::uint64_t> reached_{0};
  Mutex mutex_;
  std::uint64_t last_ GUARDED_BY(mutex_) = 0;
  std::vector<Mark> pending_ GUARDED_BY(mutex_);  ///< by number
  std::vector<std::uint32_t*> idle_ GUARDED_BY(mutex_);
  std::vector<void*> pages_ GUARDED_BY(mutex_);  ///< of words
};

}  // namespace gpudt::device

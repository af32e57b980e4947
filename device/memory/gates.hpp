// Gates (runtime/meeting.hpp) for operations that the program enqueues in its streams. They are taken in advance, since
// an allocation may have to wait for the GPU, where a stream may be waiting for the operation that needs the gate.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "device/runtime/runtime.hpp"

namespace gpudt::device {

/// The numbers of a gate: what the GPU writes, and the host, in cache lines of their own.
struct GateWords {
  alignas(64) std::uint32_t told;
  alignas(64) std::uint32_t done;
  std::uint32_t given_up;  ///< the number of the latest operation that was given up
};

/// A gate that one operation has at a time. Its numbers go on from operation to operation. An operation in a graph
/// always has the number `in_graph`, which is taken back between launches.
class Gate {
 public:
  static constexpr std::uint32_t in_graph = 1;

  Gate(int ordinal, GateWords* words) : ordinal_(ordinal), words_(words) {}

  int ordinal() const { return ordinal_; }
  /// The latest number with which the stream has come to the gate.
  std::uint32_t told() const { return std::atomic_ref<std::uint32_t>(words_->told).load(std::memory_order_acquire); }
  /// Lets streams pass that have come to it the `number`th time, modulo 2^32.
  void open(std::uint32_t number) const {
    std::atomic_ref<std::uint32_t>(words_->done).store(number, std::memory_order_release);
  }
  /// Whether the stream has come to the gate the `number`th time. Outside of graphs; stays true. Throws Error if that
  /// operation was given up before.
  bool has_told(std::uint32_t number) const;
  /// The operation is not to use the program's memory if the stream has not come to it.
  void give_up(std::uint32_t number) const {
    std::atomic_ref<std::uint32_t>(words_->given_up).store(number, std::memory_order_release);
  }
  /// Takes back what a launch of a graph has told, for the next launch.
  void take_told() const { std::atomic_ref<std::uint32_t>(words_->told).store(0, std::memory_order_relaxed); }
  /// The number of the next operation that is not in a graph; never 0, with which gates begin.
  std::uint32_t next() { return ++last_ != 0 ? last_ : ++last_; }
  /// Readies the gate for an operation in a graph. No stream may wait at it: it has only been for graphs that are gone.
  void ready_for_graph() const;
  /// Makes `meeting` tell the host.
  void tell_in(Meeting& meeting, std::uint32_t number) const;
  /// Makes `meeting` wait until the host has opened the gate for `number`. `closes`: of an operation in a graph.
  void wait_in(Meeting& meeting, std::uint32_t number, bool closes) const;

 private:
  int ordinal_;
  GateWords* words_;
  std::uint32_t last_ = 0;
};

/// All gates of the process. Thread-safe.
class Gates {
 public:
  explicit Gates(Runtime& runtime) : runtime_(runtime) {}
  /// The gates' memory stays allocated: streams may still come to them, and wait at those that are open.
  ~Gates() = default;
  Gates(const Gates&) = delete;
  Gates& operator=(const Gates&) = delete;

  /// Makes some gates of both sorts, unless there are some. Throws Error.
  void prepare(int ordinal);
  /// Throws Error if there is no memory for more.
  Gate* take(int ordinal, bool for_graph);
  void give(Gate* gate, bool for_graph) noexcept;
  /// Whether any gate is taken: then a stream may wait for the host, and the host must not wait for a GPU's streams.
  static bool any_taken() { return taken.load(std::memory_order_acquire) != 0; }
  /// Held while a gate is taken. Who lets the host wait for streams holds it from before any_taken() until the wait is
  /// over: otherwise the stream of a gate that is taken meanwhile would wait for the host, and the host for the stream.
  static inline Mutex taking;

 private:
  static constexpr std::size_t in_chunk = 1024;
  struct Chunk {
    int ordinal;
    GateWords* words;
    std::vector<Gate> gates;
  };
  std::vector<Gate*>& idle(int ordinal, bool for_graph) REQUIRES(mutex_);
  void add_chunk(int ordinal, bool for_graph) REQUIRES(mutex_);

  static inline constinit std::atomic<std::size_t> taken{0};
  Runtime& runtime_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Chunk>> chunks_ GUARDED_BY(mutex_);
  std::vector<std::vector<Gate*>> idle_ GUARDED_BY(mutex_);  ///< by GPU and sort
};

}  // namespace gpudt::device

// Probes of a channel: launches that nobody waits for, to find out whether kernels still begin late.
#include "device/memory/in_time.hpp"
#include "device/transfer/context_watch.hpp"
#include "device/transfer/engine.hpp"

namespace gpudt::device {
namespace {

/// Maximum number of polls of a probe while a message is given to the stream.
constexpr int looks_for_probe = 3;
/// After this many slow launches of probes in a row, launches are taken to block (CUDA_LAUNCH_BLOCKING): there are no
/// more probes.
constexpr int most_slow_probes = 3;

}  // namespace

void Channel::probe(double expected_us) noexcept try {
  check_context();
  if (!probe_mutex_.try_lock()) return;
  const LockGuard lock(probe_mutex_, std::adopt_lock);
  if (probing_.load(std::memory_order_relaxed) || slow_probes_ == most_slow_probes) return;
  const bool first = probe_stream_ == nullptr;
  const auto make_stream = [this]() NO_THREAD_SAFETY_ANALYSIS {  // this thread calls it
    probe_stream_ = runtime_->stream_create(ordinal_);
  };
  if (first && !in_time(make_stream, std::chrono::milliseconds(0))) return;
  StateOwner state = take();
  do_not_count(*state);
  state->is_probe = true;
  if (unprepared_.load(std::memory_order_relaxed)) return;  // the other stream clears the state's memory
  datatype::Shape shape;
  shape.kind = datatype::ShapeKind::contiguous;
  shape.total = shape.run = shape.count = shape.align = probe_bytes;
  shape.extent = 1;
  // The probe copies its state's counter, which is not in use, to the bytes behind the flag.
  KernelArgs args = plan(shape, /*unpack=*/false, state->counter, reinterpret_cast<char*>(state->flag) + probe_bytes, 0,
                         probe_bytes, {.multiprocessors = 1, .packed_is_host = true});
  args.completion = completion_of(*state);
  if (!first) state->lesson = {&kernels, expected_us};  // as in learn()
  state->started = Clock::now();
  runtime_->launch(ordinal_, args, probe_stream_);
  slow_probes_ = allow_for_loading(*state) ? slow_probes_ + 1 : 0;
  state->finished = false;
  probe_ = Transfer(std::move(state));
  looks_left_ = looks_for_probe;
  probing_.store(true, std::memory_order_relaxed);
} catch (const std::exception&) {
  // Then nothing is learnt; the next transfer that somebody waits for reports the error.
}

/// Polls the probe while a message is given to the stream.
void Channel::look_in_time() noexcept {
  if (looks_left_ == 0) return;
  look_after_probe();
  looks_left_ = probing_.load(std::memory_order_relaxed) ? looks_left_ - 1 : 0;
}

void Channel::poll_probe() noexcept {
  if (!probe_mutex_.try_lock()) return;
  const LockGuard lock(probe_mutex_, std::adopt_lock);
  if (!probing_.load(std::memory_order_relaxed)) return;
  try {
    if (!probe_.done()) return;
  } catch (const Error&) {  // as in probe()
  }
  probe_ = {};
  probing_.store(false, std::memory_order_relaxed);
}

void Channel::close_probe() noexcept {
  const LockGuard lock(probe_mutex_);
  if (!probe_stream_) return;
  try {
    check_context();
    runtime_->stream_synchronize(ordinal_, probe_stream_);
  } catch (const Error&) {  // as in drain()
  }
  probe_ = {};
  probing_.store(false, std::memory_order_relaxed);
  if (!lost_) runtime_->stream_destroy(ordinal_, probe_stream_);
}

}  // namespace gpudt::device

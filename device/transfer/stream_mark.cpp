#include "device/transfer/stream_mark.hpp"

#include <thread>

#include "device/transfer/engine.hpp"

namespace gpudt::device {

namespace {

constinit thread_local bool ordered_by_stream = false;

}  // namespace

OrderedByStream::OrderedByStream(bool ordered) : before_(std::exchange(ordered_by_stream, ordered)) {}
OrderedByStream::~OrderedByStream() {
  ordered_by_stream = before_;
}
bool is_ordered_by_stream() {
  return ordered_by_stream;
}

StreamMark mark_default_stream(int ordinal) {
  if (ordered_by_stream) return {};
  DefaultStream* const stream = current_engine().default_stream(ordinal);
  return stream != nullptr ? StreamMark(ordinal, stream->mark()) : StreamMark();
}

bool StreamMark::reached() const {
  return number_ == 0 || current_engine().default_stream(ordinal_)->reached(number_);
}

void StreamMark::wait() const {
  while (!reached()) std::this_thread::yield();
}

}  // namespace gpudt::device

#include "device/transfer/stream_mark.hpp"

#include <thread>

#include "device/transfer/engine.hpp"

namespace gpudt::device {

StreamMark mark_default_stream(int ordinal) {
  DefaultStream* const stream = current_engine().default_stream(ordinal);
  return stream != nullptr ? StreamMark(ordinal, stream->mark()) : StreamMark();
}

StreamMark StreamMark::late(int ordinal) {
  return current_engine().default_stream(ordinal) != nullptr ? StreamMark(ordinal, unmade) : StreamMark();
}

void StreamMark::make() const {
  if (!made()) number_ = current_engine().default_stream(ordinal_)->mark();
}

bool StreamMark::reached() const {
  make();
  return number_ == 0 || current_engine().default_stream(ordinal_)->reached(number_);
}

void StreamMark::wait() const {
  while (!reached()) std::this_thread::yield();
}

}  // namespace gpudt::device

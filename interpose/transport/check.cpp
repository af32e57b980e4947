#include "interpose/transport/check.hpp"

#include <dlfcn.h>
#include <execinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "base/never_destroyed.hpp"
#include "datatype/runs.hpp"
#include "interpose/support/log.hpp"

namespace gpudt::interpose {

bool check_wanted = false;

struct CheckedRun {
  std::uintptr_t begin, end;
};

namespace {

/// Buffers with more runs than this are not checked for overlaps.
constexpr std::int64_t most_runs = 1 << 20;
/// How long a call waits for the default stream before it hashes what is sent: the stream may wait for the call.
constexpr std::chrono::seconds most_waiting{1};
/// How long a call waits for the default stream, to see whether its buffer changes meanwhile.
constexpr std::chrono::milliseconds longest_look{100};
constexpr int most_frames = 64;

/// The place of the program's call: the first return address outside this library.
const void* call_site() {
  Dl_info here{}, there{};
  dladdr(reinterpret_cast<const void*>(&call_site), &here);
  std::array<void*, most_frames> frames;
  const int count = backtrace(frames.data(), most_frames);
  for (void* const frame : std::span(frames).first(static_cast<std::size_t>(std::max(count, 0))))
    if (dladdr(frame, &there) == 0 || there.dli_fbase != here.dli_fbase) return frame;
  return nullptr;
}

/// "./app+0x11f (main)": the offset is as addr2line takes it.
std::string text_of(const void* site) {
  Dl_info info{};
  if (dladdr(site, &info) == 0 || info.dli_fname == nullptr) return "an unknown place";
  const auto offset_from = [site](const void* base) {
    return reinterpret_cast<std::uintptr_t>(site) - reinterpret_cast<std::uintptr_t>(base);
  };
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "+0x%zx", static_cast<std::size_t>(offset_from(info.dli_fbase)));
  return std::string(info.dli_fname) + text.data() +
         (info.dli_sname != nullptr ? std::string(" (") + info.dli_sname + ")" : std::string());
}

std::string text_of(const DeviceBuffer& operand) {
  std::array<char, 32> address;
  std::snprintf(address.data(), address.size(), "%p", operand.buffer);
  return std::string("buffer ") + address.data() + " (" + std::to_string(operand.bytes()) + " B on GPU " +
         std::to_string(operand.ordinal) + ")";
}

enum class Wrong { not_ready, overlaps, freed, changed, not_mapped, too_long };

struct Checks {
  bool order = true;
  Mutex mutex;
  std::set<std::pair<const void*, Wrong>> said GUARDED_BY(mutex);
  std::set<const void*> looked_in_vain GUARDED_BY(mutex);  ///< call sites where a wait timed out
  std::vector<const CheckedBuffer*> pending GUARDED_BY(mutex);
};

Checks& checks() {
  static auto& made = never_destroyed<Checks>();
  return made;
}

void say(const void* site, const char* call, Wrong wrong, const std::string& what) {
  {
    const LockGuard lock(checks().mutex);
    if (!checks().said.emplace(site, wrong).second) return;
  }
  log_warning(std::string("GPUDT_CHECK: ") + call + ", called at " + text_of(site) + ": " + what);
}

/// The memory that the operand's bytes lie in, in order; empty if there are too many runs.
std::vector<CheckedRun> runs_of(const DeviceBuffer& operand) {
  std::vector<CheckedRun> runs;
  const auto base = reinterpret_cast<std::uintptr_t>(operand.buffer);
  datatype::for_each_run(operand.info->layout(), 0, operand.bytes(),
                         [&](std::int64_t at, std::int64_t, std::int64_t length) {
                           const std::uintptr_t begin = base + static_cast<std::uintptr_t>(at);
                           const std::uintptr_t end = begin + static_cast<std::uintptr_t>(length);
                           if (runs.size() <= most_runs) runs.push_back({begin, end});
                         });
  if (runs.size() > most_runs) return {};
  std::sort(runs.begin(), runs.end(), [](const CheckedRun& a, const CheckedRun& b) { return a.begin < b.begin; });
  return runs;
}

bool overlap(const std::vector<CheckedRun>& some, const std::vector<CheckedRun>& others) {
  for (auto a = some.begin(), b = others.begin(); a != some.end() && b != others.end();) {
    if (a->begin < b->end && b->begin < a->end) return true;
    (a->end <= b->begin ? a : b)++;
  }
  return false;
}

std::uint64_t hash(const void* data, std::size_t bytes) {
  return std::hash<std::string_view>()({static_cast<const char*>(data), bytes});
}

/// A hash of the operand's bytes once the mark has been reached. May throw device::Error.
std::uint64_t checksum(const DeviceBuffer& operand, const device::StreamMark& after) {
  const auto bytes = static_cast<std::size_t>(operand.bytes());
  const device::Staging staging = device::acquire(device::StagingKind::mapped, operand.ordinal, bytes);
  device::start(device::Direction::pack, operand.ordinal, operand.info->layout(), operand.count, operand.buffer, 0,
                operand.bytes(), staging.data(), device::MemoryKind::pinned, after)
      .wait();
  return hash(staging.data(), bytes);
}

bool reached_soon(const device::StreamMark& mark) {
  const auto timeout = std::chrono::steady_clock::now() + most_waiting;
  while (!mark.reached()) {
    if (std::chrono::steady_clock::now() >= timeout) return false;
    std::this_thread::yield();
  }
  return true;
}

const void* first_byte(const DeviceBuffer& operand) {
  return static_cast<const char*>(operand.buffer) + operand.info->layout().true_lb();
}

}  // namespace

class CheckedBuffer {
 public:
  CheckedBuffer(const char* call, const DeviceBuffer& operand)
      : call_(call),
        site_(call_site()),
        operand_(operand),
        allocation_(device::allocation_id(first_byte(operand))),
        runs_(runs_of(operand)) {
    operand_.checked = nullptr;
    const bool whole = check_reach();
    if (whole) check_ready();
    check_overlap();
    if (whole && operand_.use == Use::read && reached_soon(operand_.after)) checksum_ = checksum(operand_, {});
    const LockGuard lock(checks().mutex);
    checks().pending.push_back(this);
  }

  ~CheckedBuffer() {
    {
      const LockGuard lock(checks().mutex);
      std::erase(checks().pending, this);
    }
    try {
      check_end();
    } catch (const std::exception& failure) {
      log_warning(std::string("GPUDT_CHECK: ") + call_ + ": " + failure.what());
    }
  }
  CheckedBuffer(const CheckedBuffer&) = delete;
  CheckedBuffer& operator=(const CheckedBuffer&) = delete;

 private:
  void say(Wrong wrong, const std::string& what) const {
    interpose::say(site_, call_, wrong, text_of(operand_) + " " + what);
  }

  /// Whether the last byte lies in the memory of a GPU, too. (If another allocation follows, it does.)
  bool check_reach() const {
    const auto buffer = reinterpret_cast<std::uintptr_t>(operand_.buffer);
    const std::int64_t last = operand_.info->layout().span(operand_.count).end - 1;
    const auto* const address = reinterpret_cast<const void*>(buffer + static_cast<std::uintptr_t>(last));
    if (operand_.division || device::classify(address).on_device()) return true;
    say(Wrong::too_long, "reaches beyond its memory: the count or the datatype is too large");
    return false;
  }

  /// The work of the default stream, and of streams for which it waits, may have nothing to do with the buffer: reports
  /// the buffer only if its data change after the call.
  void check_ready() const {
    if (checks().order || operand_.use != Use::read || device::default_stream_idle(operand_.ordinal)) return;
    const std::uint64_t at_first = checksum(operand_, {});
    wait_until_idle();
    if (checksum(operand_, {}) != at_first)
      say(Wrong::not_ready,
          "was not ready: it has changed after the call, while the default stream had work to do, which "
          "GPUDT_ORDER=none does not wait for");
  }

  /// Does not wait where an earlier wait has timed out.
  void wait_until_idle() const {
    {
      const LockGuard lock(checks().mutex);
      if (checks().looked_in_vain.count(site_) != 0) return;
    }
    const auto timeout = std::chrono::steady_clock::now() + longest_look;
    while (!device::default_stream_idle(operand_.ordinal)) {
      if (std::chrono::steady_clock::now() >= timeout) {
        const LockGuard lock(checks().mutex);
        checks().looked_in_vain.insert(site_);
        return;
      }
      std::this_thread::yield();
    }
  }

  void check_overlap() const {
    if (operand_.use == Use::unknown) return;
    std::string other;
    {
      const LockGuard lock(checks().mutex);
      const auto found = std::find_if(checks().pending.begin(), checks().pending.end(), [this](const auto* each) {
        const bool known = each->operand_.use != Use::unknown;
        const bool written = each->operand_.use == Use::written || operand_.use == Use::written;
        return known && written && overlap(runs_, each->runs_);
      });
      if (found == checks().pending.end()) return;
      other = std::string((*found)->call_) + " on " + text_of((*found)->operand_) + ", called at " +
              text_of((*found)->site_);
    }
    say(Wrong::overlaps, "overlaps that of a pending " + other);
  }

  void check_end() const {
    if (allocation_ != 0 && device::allocation_id(first_byte(operand_)) != allocation_)
      say(Wrong::freed, "was freed before the operation was over");
    else if (checksum_ && checksum(operand_, {}) != *checksum_)
      say(Wrong::changed, "was changed while it was being sent");
  }

  const char* call_;
  const void* site_;
  DeviceBuffer operand_;
  std::uint64_t allocation_;
  std::vector<CheckedRun> runs_;
  std::optional<std::uint64_t> checksum_;
};

void check_start(bool order) {
  checks().order = order;
  check_wanted = true;
}

CheckedRef check_operand(const char* call, const DeviceBuffer& operand) try {
  // A persistent request is checked each time that it is started.
  if (std::string_view(call).find("_init") != std::string_view::npos) return nullptr;
  return std::make_shared<const CheckedBuffer>(call, operand);
} catch (const std::exception& failure) {
  log_warning(std::string("GPUDT_CHECK: ") + call + ": " + failure.what());
  return nullptr;
}

namespace {

/// Reads by write() to a pipe, which fails where a load would raise a signal.
class Probe {
 public:
  Probe() { usable_ = pipe(ends_.data()) == 0; }
  bool reads(const void* address) {
    if (!usable_) return true;
    const LockGuard lock(mutex_);
    if (write(ends_[1], address, 1) != 1) return false;
    char byte = 0;
    return read(ends_[0], &byte, 1) == 1;
  }

 private:
  Mutex mutex_;
  std::array<int, 2> ends_{};  // one byte at a time
  bool usable_;
};

}  // namespace

void check_host(const char* call, const void* buffer, std::int64_t count, MPI_Datatype type) {
  static auto& probe = never_destroyed<Probe>();
  const datatype::TypeInfoRef info = count > 0 && type != MPI_DATATYPE_NULL ? datatype::type_info(type) : nullptr;
  if (!info || info->layout().size() == 0) return;
  const datatype::Span span = info->layout().span(count);
  const auto base = reinterpret_cast<std::uintptr_t>(buffer);
  for (const std::int64_t at : {span.begin, span.end - 1}) {
    const auto* const address = reinterpret_cast<const void*>(base + static_cast<std::uintptr_t>(at));
    if (device::classify(address).on_device() || probe.reads(address)) continue;
    std::array<char, 32> text;
    std::snprintf(text.data(), text.size(), "%p", address);
    say(call_site(), call, Wrong::not_mapped,
        std::string("address ") + text.data() + " of the buffer is neither GPU memory nor the host's: was it freed?");
    return;
  }
}

}  // namespace gpudt::interpose

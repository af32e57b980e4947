// The only file that uses spdlog: header-only, with a logger of its own, so that nothing is shared with a program that
// uses spdlog too.
#include "interpose/support/log.hpp"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <set>

#include "base/cancellation.hpp"
#include "base/mutex.hpp"
#include "base/never_destroyed.hpp"

namespace gpudt::interpose {
namespace {

auto& logger = never_destroyed<std::unique_ptr<spdlog::logger>>();

void write(spdlog::level::level_enum level, const std::string& text) noexcept {
  const CancellationPutOff undisturbed;
  if (logger) logger->log(level, "{}", text);  // spdlog reports its own failures instead of throwing
}

}  // namespace

void log_start(int rank, bool trace) {
  logger = std::make_unique<spdlog::logger>("gpudt", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("[gpudt " + std::to_string(rank) + "] %l: %v");
  logger->set_level(trace ? spdlog::level::trace : spdlog::level::warn);
}

void log_stop() noexcept {
  logger.reset();
}

void log_error(const std::string& text) noexcept {
  write(spdlog::level::err, text);
}
void log_failure(const char* doing, std::string_view what) noexcept {
  const CancellationPutOff undisturbed;
  if (logger) logger->log(spdlog::level::err, "{}: {}", doing, what);
}
void log_warning(const std::string& text) noexcept {
  write(spdlog::level::warn, text);
}
void log_trace(const std::string& text) noexcept {
  write(spdlog::level::trace, text);
}
void log_trace_once(const std::string& text) {
  static Mutex mutex;
  static auto& said GUARDED_BY(mutex) = never_destroyed<std::set<std::string>>();
  const LockGuard lock(mutex);
  if (said.insert(text).second) log_trace(text);
}

}  // namespace gpudt::interpose

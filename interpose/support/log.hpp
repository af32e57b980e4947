// Messages of the library, one line each, on stderr: errors and warnings always, traces with GPUDT_TRACE=1.
#pragma once

#include <string>
#include <string_view>

namespace gpudt::interpose {

/// To be called in MPI_Init; before it, lines have no rank.
void log_start(int rank, bool trace);
void log_stop() noexcept;

void log_error(const std::string& text) noexcept;
void log_warning(const std::string& text) noexcept;
void log_trace(const std::string& text) noexcept;
/// Logs "`doing`: `what`" as an error, without allocating memory.
void log_failure(const char* doing, std::string_view what) noexcept;
/// Logs a trace unless the same text has been logged before.
void log_trace_once(const std::string& text);

}  // namespace gpudt::interpose

// What the library says: errors and warnings always, traces when asked for. One line each, on stderr.
#pragma once

#include <string>
#include <string_view>

namespace gpudt::interpose {

/// Called in MPI_Init; before it, lines carry no rank.
void log_start(int rank, bool trace);
void log_stop() noexcept;

void log_error(const std::string& text) noexcept;
void log_warning(const std::string& text) noexcept;
void log_trace(const std::string& text) noexcept;
/// "`doing`: `what`" as an error, without memory that may not be there.
void log_failure(const char* doing, std::string_view what) noexcept;
/// Unless the same has been said before.
void log_trace_once(const std::string& text);

}  // namespace gpudt::interpose

#include "interpose/support/require.hpp"

#include <mpi.h>

#include <exception>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/mutex.hpp"
#include "base/never_destroyed.hpp"
#include "interpose/support/config.hpp"
#include "interpose/support/log.hpp"
#include "interpose/support/report.hpp"

namespace gpudt::interpose {

bool require_wanted = false;

namespace {

Requirement required;
int error_code = MPI_ERR_OTHER;  ///< its class has a text of its own

constinit thread_local Shortfalls* innermost = nullptr;

bool is_error() {
  return required.answer == Requirement::Answer::error;
}

/// Their data go to files, or stay in the process.
bool communicates(std::string_view call) {
  for (const std::string_view other : {"MPI_File_", "MPI_Pack", "MPI_Unpack", "MPI_Reduce_local"})
    if (call.starts_with(other)) return false;
  return true;
}

/// Whether the rank that is noted for a call is that of the other process. Messages of collectives have a communicator
/// of their own, and MPI_Sendrecv and the like have two other processes.
bool has_one_partner(std::string_view call) {
  const auto has = [call](const char* part) { return call.find(part) != std::string_view::npos; };
  return has("end") != has("ecv");
}

std::string setting() {
  return std::string("GPUDT_REQUIRE=") + (is_error() ? "gpu" : "warn");
}

/// Whether this is the first time in this process.
bool is_new(const char* call, const std::string& how) {
  static Mutex mutex;
  static auto& said GUARDED_BY(mutex) = never_destroyed<std::set<std::pair<std::string, std::string>>>();
  const LockGuard lock(mutex);
  return said.emplace(call, how).second;
}

std::string remedy(std::string_view why) {
  if (why == "GPUDT_PROTOCOL") return "Unset GPUDT_PROTOCOL";
  return "GPUDT_REPORT=1 names remedies, GPUDT_TRACE=1 shows each choice, " + setting() +
         ":BYTES lets shorter data pass";
}

}  // namespace

void require_start(const Requirement& requirement) {
  required = requirement;
  require_wanted = required.answer != Requirement::Answer::none;
  if (!require_wanted) return;
  buffers_followed = true;
  int error_class = MPI_ERR_OTHER;
  if (!is_error() || PMPI_Add_error_class(&error_class) != MPI_SUCCESS) return;
  PMPI_Add_error_string(error_class, "data in GPU memory went through the host, which GPUDT_REQUIRE=gpu forbids");
  error_code = error_class;
}

Shortfalls::Shortfalls() : outer_(std::exchange(innermost, this)) {}
Shortfalls::~Shortfalls() {
  innermost = outer_;
}

OutsideCalls::OutsideCalls() : within_(std::exchange(innermost, nullptr)) {}
OutsideCalls::~OutsideCalls() {
  innermost = within_;
}

int Shortfalls::judge(int rank) const noexcept {
  if (call_ == nullptr) return has_failed_ ? error_code : MPI_SUCCESS;
  try {
    log(rank);
  } catch (const std::exception&) {  // there is no memory for the text
    log_failure(call_, "data in GPU memory went through the host");
  }
  return is_error() ? error_code : MPI_SUCCESS;
}

void Shortfalls::log(int rank) const {
  const std::string how = std::string(" through the host (") + way_ + "): " + why_;
  if (!is_error() && !is_new(call_, how)) return;
  const int other = rank != no_rank || !has_one_partner(call_) ? rank : rank_;
  const std::string text = std::to_string(bytes_) + " B in GPU memory went" +
                           (other == no_rank ? "" : " to or from rank " + std::to_string(other)) + how + ". " +
                           remedy(why_);
  if (is_error()) return log_failure(call_, text);
  log_warning(std::string(call_) + ": " + text + ". More such buffers are not reported");
}

int Shortfalls::end_call() const noexcept {
  if (outer_ == nullptr) return judge();
  outer_->has_failed_ |= has_failed_;
  if (bytes_ <= outer_->bytes_) return MPI_SUCCESS;
  outer_->call_ = call_;
  outer_->way_ = way_;
  outer_->why_ = why_;
  outer_->bytes_ = bytes_;
  outer_->rank_ = rank_;
  return MPI_SUCCESS;
}

bool require_covers(const char* call, std::int64_t bytes) {
  return require_wanted && bytes > 0 && bytes >= required.least && communicates(call);
}

void require_checks(const char* call, const Went& went, std::int64_t bytes) {
  Shortfalls* const current = innermost;
  if (current == nullptr || bytes <= current->bytes_ || !require_covers(call, bytes)) return;
  current->call_ = call;
  current->way_ = went.way;
  current->why_ = went.why_through_host;
  current->bytes_ = bytes;
}

void require_names_now(int rank) {
  if (innermost != nullptr) innermost->rank_ = rank;
}

void require_explains_now(const char* why) {
  if (innermost != nullptr) innermost->explanation_ = why;
}

const char* require_explanation_now() {
  return innermost != nullptr ? innermost->explanation_ : nullptr;
}

bool require_fails_call() {
  if (innermost != nullptr) innermost->has_failed_ = true;
  return innermost != nullptr;
}

}  // namespace gpudt::interpose

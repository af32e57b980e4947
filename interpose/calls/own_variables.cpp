#include "interpose/calls/own_variables.hpp"

#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <set>
#include <vector>

#include "base/never_destroyed.hpp"
#include "interpose/support/config.hpp"
#include "interpose/support/report.hpp"

namespace gpudt::interpose {
namespace {

/// A handle counts while it is started.
struct Handle {
  int counter;
  MPI_T_pvar_session session;
  bool started = false;
  std::int64_t since = 0;    ///< the counter at a start, less what had been counted by then
  std::int64_t counted = 0;  ///< until the last stop
};

int begin GUARDED_BY(numbering) = -1;  ///< index of the first counter; -1 until a tool asks

Mutex handles_mutex;  ///< of the handles
constinit std::atomic<std::size_t> handle_count{0};

/// Tools may call before this library's static objects are initialised: in constructors of theirs.
std::set<Handle*>& handles() REQUIRES(handles_mutex) {
  static auto& all = never_destroyed<std::set<Handle*>>();
  return all;
}

void erase(std::set<Handle*>::iterator at) REQUIRES(handles_mutex) {
  delete *at;
  handles().erase(at);
  handle_count.store(handles().size(), std::memory_order_release);
}

std::int64_t value_of(int counter) {
  std::int64_t value = 0;
  report_counter(counter, value);
  return value;
}

int count_counters() {
  int number = 0;
  for (std::int64_t value = 0; report_counter(number, value) != nullptr;) ++number;
  return number;
}

/// A tool may ask before MPI_Init reads the variables. Without counters all is as without gpudt.
bool counters_wanted() {
  static const bool asked_for = [] {
    std::vector<std::string> complaints;  // MPI_Init has them logged
    const Config config = read_config(complaints);
    return !config.disable && (config.report || config.require.answer != Requirement::Answer::none);
  }();
  return asked_for || buffers_followed;
}

int number_of_own() {
  static const int number = count_counters();
  return counters_wanted() ? number : 0;
}

/// The index of the first counter. When MPI's tool interface is started anew, the MPI library may have fewer variables.
int first_own(int mpi_number) REQUIRES(numbering) {
  if (begin < 0 || begin > mpi_number) begin = mpi_number;
  return begin;
}

/// Calls `act(handle)` if that is a handle of gpudt.
template <class Act>
std::optional<int> with_handle(MPI_T_pvar_session session, MPI_T_pvar_handle handle, Act act) {
  const LockGuard lock(handles_mutex);
  const auto found = handles().find(reinterpret_cast<Handle*>(handle));
  if (found == handles().end()) return {};
  if ((*found)->session != session) return int(MPI_T_ERR_INVALID_SESSION);
  act(**found);
  return int(MPI_SUCCESS);
}

template <class Act>
void with_all_handles(MPI_T_pvar_session session, Act act) {
  const LockGuard lock(handles_mutex);
  for (Handle* const each : handles())
    if (each->session == session) act(*each);
}

void start_counting(Handle& handle) {
  if (!handle.started) handle.since = value_of(handle.counter) - handle.counted;
  handle.started = true;
}

void stop_counting(Handle& handle) {
  if (handle.started) handle.counted = value_of(handle.counter) - handle.since;
  handle.started = false;
}

}  // namespace

Mutex numbering;

int number_with_own(int mpi_number) {
  if (number_of_own() != 0) static_cast<void>(first_own(mpi_number));
  return mpi_number + number_of_own();
}

Variable variable_at(int index, int mpi_number) {
  const int number = number_of_own();
  if (number == 0 || index < first_own(mpi_number)) return {false, index};
  if (index < begin + number) return {true, index - begin};
  return {false, index - number};
}

int shown_index(int mpi_index, int mpi_number) {
  const int number = number_of_own();
  return number == 0 || mpi_index < first_own(mpi_number) ? mpi_index : mpi_index + number;
}

std::optional<int> own_index(const char* name, int mpi_number) {
  for (int counter = 0; counter < number_of_own(); ++counter)
    if (own_name(counter) == name) return first_own(mpi_number) + counter;
  return {};
}

std::string own_name(int counter) {
  std::int64_t unused = 0;
  return std::string("gpudt_") + report_counter(counter, unused);
}

const char* own_description(int counter) {
  return report_counter_meaning(counter);
}

int make_handle(MPI_T_pvar_session session, int counter, MPI_T_pvar_handle* handle) try {
  const LockGuard lock(handles_mutex);
  auto made = std::make_unique<Handle>(Handle{counter, session});
  handles().insert(made.get());
  handle_count.store(handles().size(), std::memory_order_release);
  *handle = reinterpret_cast<MPI_T_pvar_handle>(made.release());
  return MPI_SUCCESS;
} catch (const std::exception&) {
  return MPI_T_ERR_MEMORY;
}

bool any_handles() {
  return handle_count.load(std::memory_order_acquire) != 0;
}

std::optional<int> free_handle(MPI_T_pvar_session session, MPI_T_pvar_handle handle) {
  const LockGuard lock(handles_mutex);
  const auto found = handles().find(reinterpret_cast<Handle*>(handle));
  if (found == handles().end()) return {};
  if ((*found)->session != session) return int(MPI_T_ERR_INVALID_SESSION);
  erase(found);
  return int(MPI_SUCCESS);
}

std::optional<int> start_handle(MPI_T_pvar_session session, MPI_T_pvar_handle handle) {
  return with_handle(session, handle, start_counting);
}

std::optional<int> stop_handle(MPI_T_pvar_session session, MPI_T_pvar_handle handle) {
  return with_handle(session, handle, stop_counting);
}

std::optional<int> read_handle(MPI_T_pvar_session session, MPI_T_pvar_handle handle, std::int64_t& value) {
  return with_handle(session, handle,
                     [&](const Handle& own) { value = own.started ? value_of(own.counter) - own.since : own.counted; });
}

std::optional<int> check_handle(MPI_T_pvar_session session, MPI_T_pvar_handle handle) {
  return with_handle(session, handle, [](const Handle&) {});
}

void start_all_handles(MPI_T_pvar_session session) {
  with_all_handles(session, start_counting);
}

void stop_all_handles(MPI_T_pvar_session session) {
  with_all_handles(session, stop_counting);
}

void free_all_handles(MPI_T_pvar_session session) {
  const LockGuard lock(handles_mutex);
  for (auto next = handles().begin(); next != handles().end();) {
    const auto at = next++;
    if ((*at)->session == session) erase(at);
  }
}

}  // namespace gpudt::interpose

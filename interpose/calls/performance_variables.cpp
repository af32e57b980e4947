// MPI's tool information interface, as far as it has performance variables: gpudt's counters are among them
// (own_variables.hpp). These calls return codes and call no error handler.
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "base/mutex.hpp"
#include "base/one_thread.hpp"
#include "interpose/calls/own_variables.hpp"
#include "interpose/support/export.hpp"
#include "interpose/support/loaded.hpp"

namespace gpudt::interpose {
namespace {

/// How many variables the MPI library has; no value while the interface is not initialised.
std::optional<int> mpi_number() REQUIRES(numbering) {
  int number = 0;
  if (PMPI_T_pvar_get_num(&number) != MPI_SUCCESS) return {};
  return number;
}

/// The variable with this index; that of the MPI library if there are no others now.
Variable variable(int index) {
  const LockGuard lock(numbering);
  const std::optional<int> number = mpi_number();
  return number ? variable_at(index, *number) : Variable{false, index};
}

/// As the standard returns strings: at most *length characters with the end, and in *length all that there are.
void put_string(const std::string& text, char* place, int* length) {
  if (length == nullptr) return;
  if (place != nullptr && *length > 0) {
    const std::size_t copied = std::min(text.size(), static_cast<std::size_t>(*length) - 1);
    std::memcpy(place, text.data(), copied);
    place[copied] = '\0';
  }
  *length = static_cast<int>(text.size()) + 1;
}

template <class T>
void put(T* place, T value) {
  if (place != nullptr) *place = value;
}

bool is_all_handles(MPI_T_pvar_handle handle) {
#ifdef MPI_T_PVAR_ALL_HANDLES
  return handle == MPI_T_PVAR_ALL_HANDLES;
#else  // an object of MPICH's, to which this library must not be linked (calls/symbol_table.cpp)
  static const auto* const all = static_cast<const MPI_T_pvar_handle*>(global_function("MPI_T_PVAR_ALL_HANDLES"));
  return all != nullptr && handle == *all;
#endif
}

bool is_initialised() {
  const LockGuard lock(numbering);
  return mpi_number().has_value();
}

/// What gpudt answers for a handle; no value for those of the MPI library, and while the interface is not initialised.
template <class Act>
std::optional<int> own(Act act) {
  return any_handles() && is_initialised() ? act() : std::nullopt;
}

/// Whether a call for all handles of a session has reached each; some may have refused.
bool reaches_all(MPI_T_pvar_handle handle, int error) {
  return any_handles() && is_all_handles(handle) && (error == MPI_SUCCESS || error == MPI_T_ERR_PVAR_NO_STARTSTOP);
}

/// For calls that change a variable: gpudt's cannot be changed.
std::optional<int> refusal(MPI_T_pvar_session session, MPI_T_pvar_handle handle, int code) {
  const std::optional<int> found = own([&] { return check_handle(session, handle); });
  return found == MPI_SUCCESS ? code : found;
}

}  // namespace
}  // namespace gpudt::interpose

using gpudt::LockGuard;
using namespace gpudt::interpose;

/// A tool's threads may call this interface beside the program's calls of MPI.
GPUDT_EXPORT int MPI_T_init_thread(int required, int* provided) {
  if (required == MPI_THREAD_MULTIPLE) gpudt::expect_threads();
  return PMPI_T_init_thread(required, provided);
}

GPUDT_EXPORT int MPI_T_pvar_get_num(int* num_pvar) {
  const LockGuard lock(numbering);
  const int error = PMPI_T_pvar_get_num(num_pvar);
  if (error == MPI_SUCCESS) *num_pvar = number_with_own(*num_pvar);
  return error;
}

GPUDT_EXPORT int MPI_T_pvar_get_info(int pvar_index, char* name, int* name_len, int* verbosity, int* var_class,
                                     MPI_Datatype* datatype, MPI_T_enum* enumtype, char* desc, int* desc_len, int* bind,
                                     int* readonly, int* continuous, int* atomic) {
  const Variable asked = variable(pvar_index);
  if (!asked.own)
    return PMPI_T_pvar_get_info(asked.index, name, name_len, verbosity, var_class, datatype, enumtype, desc, desc_len,
                                bind, readonly, continuous, atomic);
  put_string(own_name(asked.index), name, name_len);
  put_string(own_description(asked.index), desc, desc_len);
  put(verbosity, int(MPI_T_VERBOSITY_USER_BASIC));
  put(var_class, int(MPI_T_PVAR_CLASS_COUNTER));
  put(datatype, MPI_Datatype(MPI_UNSIGNED_LONG_LONG));
  put(enumtype, MPI_T_ENUM_NULL);
  put(bind, int(MPI_T_BIND_NO_OBJECT));
  put(readonly, 1);
  put(continuous, 0);
  put(atomic, 0);
  return MPI_SUCCESS;
}

GPUDT_EXPORT int MPI_T_pvar_get_index(const char* name, int var_class, int* pvar_index) {
  const LockGuard lock(numbering);
  const std::optional<int> number = mpi_number();
  if (number && name != nullptr && pvar_index != nullptr && var_class == MPI_T_PVAR_CLASS_COUNTER)
    if (const std::optional<int> found = own_index(name, *number)) {
      *pvar_index = *found;
      return MPI_SUCCESS;
    }
  const int error = PMPI_T_pvar_get_index(name, var_class, pvar_index);
  if (error == MPI_SUCCESS && number) *pvar_index = shown_index(*pvar_index, *number);
  return error;
}

GPUDT_EXPORT int MPI_T_category_get_pvars(int cat_index, int len, int indices[]) {
  const LockGuard lock(numbering);
  const int error = PMPI_T_category_get_pvars(cat_index, len, indices);
  int no_name = 0, no_description = 0, controls = 0, filled = 0, categories = 0;
  const std::optional<int> number = mpi_number();
  if (error != MPI_SUCCESS || !number || indices == nullptr ||
      PMPI_T_category_get_info(cat_index, nullptr, &no_name, nullptr, &no_description, &controls, &filled,
                               &categories) != MPI_SUCCESS)
    return error;
  for (int i = 0; i < std::min(len, filled); ++i) indices[i] = shown_index(indices[i], *number);
  return error;
}

GPUDT_EXPORT int MPI_T_pvar_session_free(MPI_T_pvar_session* session) {
  // Before the session is free: another thread may get one at the same address.
  if (session != nullptr && any_handles() && is_initialised()) free_all_handles(*session);
  return PMPI_T_pvar_session_free(session);
}

GPUDT_EXPORT int MPI_T_pvar_handle_alloc(MPI_T_pvar_session session, int pvar_index, void* obj_handle,
                                         MPI_T_pvar_handle* handle, int* count) {
  const Variable asked = variable(pvar_index);
  if (!asked.own) return PMPI_T_pvar_handle_alloc(session, asked.index, obj_handle, handle, count);
  if (session == MPI_T_PVAR_SESSION_NULL) return MPI_T_ERR_INVALID_SESSION;
  if (handle == nullptr || count == nullptr) return MPI_T_ERR_INVALID;
  *count = 1;
  return make_handle(session, asked.index, handle);
}

GPUDT_EXPORT int MPI_T_pvar_handle_free(MPI_T_pvar_session session, MPI_T_pvar_handle* handle) {
  if (handle == nullptr) return PMPI_T_pvar_handle_free(session, handle);
  const std::optional<int> done = own([&] { return free_handle(session, *handle); });
  if (!done) return PMPI_T_pvar_handle_free(session, handle);
  if (*done == MPI_SUCCESS) *handle = MPI_T_PVAR_HANDLE_NULL;
  return *done;
}

GPUDT_EXPORT int MPI_T_pvar_start(MPI_T_pvar_session session, MPI_T_pvar_handle handle) {
  if (const std::optional<int> done = own([&] { return start_handle(session, handle); })) return *done;
  const int error = PMPI_T_pvar_start(session, handle);
  if (reaches_all(handle, error)) start_all_handles(session);
  return error;
}

GPUDT_EXPORT int MPI_T_pvar_stop(MPI_T_pvar_session session, MPI_T_pvar_handle handle) {
  if (const std::optional<int> done = own([&] { return stop_handle(session, handle); })) return *done;
  const int error = PMPI_T_pvar_stop(session, handle);
  if (reaches_all(handle, error)) stop_all_handles(session);
  return error;
}

GPUDT_EXPORT int MPI_T_pvar_read(MPI_T_pvar_session session, MPI_T_pvar_handle handle, void* buf) {
  std::int64_t value = 0;
  const std::optional<int> done = own([&] { return read_handle(session, handle, value); });
  if (!done) return PMPI_T_pvar_read(session, handle, buf);
  if (buf == nullptr) return MPI_T_ERR_INVALID;
  if (*done == MPI_SUCCESS) *static_cast<unsigned long long*>(buf) = static_cast<unsigned long long>(value);
  return *done;
}

GPUDT_EXPORT int MPI_T_pvar_write(MPI_T_pvar_session session, MPI_T_pvar_handle handle, const void* buf) {
  const std::optional<int> refused = refusal(session, handle, MPI_T_ERR_PVAR_NO_WRITE);
  return refused ? *refused : PMPI_T_pvar_write(session, handle, buf);
}

GPUDT_EXPORT int MPI_T_pvar_reset(MPI_T_pvar_session session, MPI_T_pvar_handle handle) {
  const std::optional<int> refused = refusal(session, handle, MPI_T_ERR_PVAR_NO_WRITE);
  return refused ? *refused : PMPI_T_pvar_reset(session, handle);
}

GPUDT_EXPORT int MPI_T_pvar_readreset(MPI_T_pvar_session session, MPI_T_pvar_handle handle, void* buf) {
  const std::optional<int> refused = refusal(session, handle, MPI_T_ERR_PVAR_NO_ATOMIC);
  return refused ? *refused : PMPI_T_pvar_readreset(session, handle, buf);
}

// Conversion of Fortran's MPI_BOTTOM and similar constants, of logicals and of arrays of handles.
#include "interpose/fortran/arguments.hpp"

#include <algorithm>
#include <set>
#include <string_view>

#include "base/mutex.hpp"
#include "base/never_destroyed.hpp"
#include "interpose/fortran/constants.hpp"
#include "interpose/support/loaded.hpp"

namespace gpudt::interpose::fortran {
namespace {

/// The value of .true. in MPI's Fortran library; it depends on the compiler.
MPI_Fint true_value() {
  static const MPI_Fint value = [] {
    MPI_Fint flag = 1, ierror = 0;
    auto* const initialized = reinterpret_cast<void (*)(MPI_Fint*, MPI_Fint*)>(loaded_function("mpi_initialized_"));
    if (initialized != nullptr) initialized(&flag, &ierror);
    return flag;
  }();
  return value;
}

constexpr std::size_t status_integers = sizeof(MPI_Status) / sizeof(MPI_Fint);
static_assert(sizeof(MPI_Status) == status_integers * sizeof(MPI_Fint));

std::size_t elements(int count) {
  return static_cast<std::size_t>(std::max(count, 0));
}

std::vector<MPI_Datatype> types_of(const MPI_Fint* handles, int count, const void* buffer) {
  std::vector<MPI_Datatype> types;
  if (is_in_place(buffer)) return types;
  types.reserve(elements(count));
  std::transform(handles, handles + elements(count), std::back_inserter(types), to_type);
  return types;
}

}  // namespace

void* to_buffer(void* address) {
  if (is_in_place(address)) return MPI_IN_PLACE;
  if (is_bottom(address)) return MPI_BOTTOM;
  return address;
}

MPI_Datatype to_type(MPI_Fint handle) {
  const MPI_Datatype type = PMPI_Type_f2c(handle);
  return type == MPI_Datatype() ? MPI_DATATYPE_NULL : type;
}

Types::Types(const MPI_Fint* handles, int count, const void* buffer) : types_(types_of(handles, count, buffer)) {}

const MPI_Datatype* lasting_types(const MPI_Fint* handles, int count, const void* buffer) {
  static Mutex mutex;
  static auto& arrays GUARDED_BY(mutex) = never_destroyed<std::set<std::vector<MPI_Datatype>>>();
  const LockGuard lock(mutex);
  return arrays.insert(types_of(handles, count, buffer)).first->data();
}

Blocks all_blocks(MPI_Fint comm) {
  const MPI_Comm handle = PMPI_Comm_f2c(comm);
  const int peers = handle == MPI_COMM_NULL ? 0 : peers_of(handle);
  return {peers, peers};
}

Blocks neighbour_blocks(MPI_Fint comm) {
  return neighbours(PMPI_Comm_f2c(comm));
}

Requests::Requests(MPI_Fint* handles, int count) : fortran_(handles) {
  before_.reserve(elements(count));
  std::transform(handles, handles + elements(count), std::back_inserter(before_), request_f2c);
  now_ = before_;
}

Requests::~Requests() {
  for (std::size_t i = 0; i < now_.size(); ++i)
    if (now_[i] != before_[i]) fortran_[i] = PMPI_Request_c2f(now_[i]);
}

Status::Status(MPI_Fint* fortran) : fortran_(is_status_ignore(fortran) ? nullptr : fortran) {
  if (fortran_ != nullptr) PMPI_Status_f2c(fortran_, &status_);
}

Status::~Status() {
  if (fortran_ != nullptr) PMPI_Status_c2f(&status_, fortran_);
}

Statuses::Statuses(MPI_Fint* fortran, int count) : fortran_(is_statuses_ignore(fortran) ? nullptr : fortran) {
  if (fortran_ == nullptr) return;
  statuses_.resize(elements(count));
  for (std::size_t i = 0; i < statuses_.size(); ++i) PMPI_Status_f2c(fortran_ + i * status_integers, &statuses_[i]);
}

Statuses::~Statuses() {
  for (std::size_t i = 0; i < statuses_.size(); ++i) PMPI_Status_c2f(&statuses_[i], fortran_ + i * status_integers);
}

MPI_Status* later_status(MPI_Fint* fortran) {
  return is_status_ignore(fortran) ? MPI_STATUS_IGNORE : reinterpret_cast<MPI_Status*>(fortran);
}

MPI_Status* later_statuses(MPI_Fint* fortran) {
  return is_statuses_ignore(fortran) ? MPI_STATUSES_IGNORE : reinterpret_cast<MPI_Status*>(fortran);
}

Flag::~Flag() {
  if (flag_ != untouched) *fortran_ = flag_ == 0 ? 0 : true_value();
}

Indices::~Indices() {
  int its_class = code_;
  if (code_ != MPI_SUCCESS) PMPI_Error_class(code_, &its_class);
  if (its_class != MPI_SUCCESS && its_class != MPI_ERR_IN_STATUS) return;
  for (MPI_Fint i = 0; i < *outcount_; ++i) ++fortran_[i];  // MPI_UNDEFINED is negative
}

String::String(const char* text, std::size_t length) {
  const std::string_view padded(text, length);
  text_ = padded.substr(0, padded.find_last_not_of(' ') + 1);
}

}  // namespace gpudt::interpose::fortran

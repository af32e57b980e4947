// What Fortran passes for MPI_BOTTOM and its like, for logicals and for arrays of handles.
#include "interpose/fortran/arguments.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <set>
#include <string_view>

#include "interpose/errors.hpp"

// Open MPI's constants without a value in Fortran are common blocks, known by their addresses: those of the program's
// own blocks where it has them. The name is the one of the four that the compiler makes of it; none of them exists in
// a C program, whence weak.
#define GPUDT_WEAK(name) extern "C" __attribute__((weak)) MPI_Fint name[]
#define GPUDT_SENTINEL(lower, upper) \
  GPUDT_WEAK(lower);                 \
  GPUDT_WEAK(lower##_);              \
  GPUDT_WEAK(lower##__);             \
  GPUDT_WEAK(upper);                 \
  static const std::array<MPI_Fint*, 4> lower##_names = {lower, lower##_, lower##__, upper}

GPUDT_SENTINEL(mpi_fortran_bottom, MPI_FORTRAN_BOTTOM);
GPUDT_SENTINEL(mpi_fortran_in_place, MPI_FORTRAN_IN_PLACE);
GPUDT_SENTINEL(mpi_fortran_status_ignore, MPI_FORTRAN_STATUS_IGNORE);
GPUDT_SENTINEL(mpi_fortran_statuses_ignore, MPI_FORTRAN_STATUSES_IGNORE);

// Open MPI's own, of which nothing exists in a C program either.
extern "C" __attribute__((weak)) void mpi_initialized_(MPI_Fint* flag, MPI_Fint* ierror);

namespace gpudt::interpose::fortran {
namespace {

bool is(const void* address, const std::array<MPI_Fint*, 4>& names) {
  return address != nullptr && std::find(names.begin(), names.end(), address) != names.end();
}

/// .true., which compilers do not agree on, as MPI's Fortran library knows it.
MPI_Fint true_value() {
  static const MPI_Fint value = [] {
    MPI_Fint flag = 1, ierror = 0;
    if (mpi_initialized_ != nullptr) mpi_initialized_(&flag, &ierror);
    return flag;
  }();
  return value;
}

constexpr std::size_t status_integers = sizeof(MPI_Status) / sizeof(MPI_Fint);

std::size_t elements(int count) {
  return static_cast<std::size_t>(std::max(count, 0));
}

std::vector<MPI_Datatype> types_of(const MPI_Fint* handles, int count, const void* buffer) {
  std::vector<MPI_Datatype> types;
  if (is(buffer, mpi_fortran_in_place_names)) return types;
  types.reserve(elements(count));
  std::transform(handles, handles + elements(count), std::back_inserter(types), to_type);
  return types;
}

}  // namespace

void* to_buffer(void* address) {
  if (is(address, mpi_fortran_in_place_names)) return MPI_IN_PLACE;
  if (is(address, mpi_fortran_bottom_names)) return MPI_BOTTOM;
  return address;
}

MPI_Datatype to_type(MPI_Fint handle) {
  const MPI_Datatype type = PMPI_Type_f2c(handle);
  return type == nullptr ? MPI_DATATYPE_NULL : type;
}

Types::Types(const MPI_Fint* handles, int count, const void* buffer) : types_(types_of(handles, count, buffer)) {}

const MPI_Datatype* lasting_types(const MPI_Fint* handles, int count, const void* buffer) {
  static std::mutex mutex;
  static auto& arrays = *new std::set<std::vector<MPI_Datatype>>;  // no destructor: requests may outlive it
  const std::lock_guard lock(mutex);
  return arrays.insert(types_of(handles, count, buffer)).first->data();
}

Blocks all_blocks(MPI_Fint comm) {
  const MPI_Comm handle = PMPI_Comm_f2c(comm);
  const int peers = handle == MPI_COMM_NULL ? 0 : collective_peers(handle);
  return {peers, peers};
}

Blocks neighbour_blocks(MPI_Fint comm) {
  return neighbours(PMPI_Comm_f2c(comm));
}

Requests::Requests(MPI_Fint* handles, int count) : fortran_(handles) {
  before_.reserve(elements(count));
  std::transform(handles, handles + elements(count), std::back_inserter(before_), PMPI_Request_f2c);
  now_ = before_;
}

Requests::~Requests() {
  for (std::size_t i = 0; i < now_.size(); ++i)
    if (now_[i] != before_[i]) fortran_[i] = PMPI_Request_c2f(now_[i]);
}

Status::Status(MPI_Fint* fortran) : fortran_(is(fortran, mpi_fortran_status_ignore_names) ? nullptr : fortran) {
  if (fortran_ != nullptr) PMPI_Status_f2c(fortran_, &status_);
}

Status::~Status() {
  if (fortran_ != nullptr) PMPI_Status_c2f(&status_, fortran_);
}

Statuses::Statuses(MPI_Fint* fortran, int count)
    : fortran_(is(fortran, mpi_fortran_statuses_ignore_names) ? nullptr : fortran) {
  if (fortran_ == nullptr) return;
  statuses_.resize(elements(count));
  for (std::size_t i = 0; i < statuses_.size(); ++i) PMPI_Status_f2c(fortran_ + i * status_integers, &statuses_[i]);
}

Statuses::~Statuses() {
  for (std::size_t i = 0; i < statuses_.size(); ++i) PMPI_Status_c2f(&statuses_[i], fortran_ + i * status_integers);
}

Flag::~Flag() {
  *fortran_ = flag_ == 0 ? 0 : true_value();
}

String::String(const char* text, std::size_t length) {
  const std::string_view padded(text, length);
  text_ = padded.substr(0, padded.find_last_not_of(' ') + 1);
}

int raise_current(const char* call) noexcept {
  return guarded(MPI_COMM_NULL, call, []() -> int { throw; });
}

}  // namespace gpudt::interpose::fortran

// Functions for the wrappers of large-count functions.
#include "interpose/calls/large_counts.hpp"

#include <algorithm>

#include "interpose/support/early_start.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/transport/peer/peer.hpp"

namespace gpudt::interpose {
namespace {

constexpr MPI_Count chunk = MPI_Count(1) << 30;  ///< elements of the inner type of a large one

}  // namespace

bool any_on_device(std::initializer_list<const void*> buffers) {
  if (EarlyStart::is_active()) return true;  // the functions with int counts refuse host memory
  return active.load(std::memory_order_acquire) && std::any_of(buffers.begin(), buffers.end(), [](const void* buffer) {
           // With MPI_BOTTOM the datatype decides, which the functions with int counts inspect.
           return buffer != MPI_IN_PLACE && (buffer == MPI_BOTTOM || device::classify(buffer).on_device());
         });
}

bool any_on_device_or_rts(std::initializer_list<const void*> buffers) {
  return peer_checks() || any_on_device(buffers);
}

int too_large(const char* call) {
  return fail(MPI_COMM_NULL, call, MPI_ERR_DISP,
              "a displacement unit beyond 2147483647 is not supported with device memory");
}

Elements::~Elements() {
  if (made_ != MPI_DATATYPE_NULL) PMPI_Type_free(&made_);
}

void Elements::make() {
  if (small() || count_ < 0 || count_ / chunk >= chunk || type_ == MPI_DATATYPE_NULL) return;
  MPI_Aint lb = 0, extent = 0;
  PMPI_Type_get_extent(type_, &lb, &extent);
  MPI_Datatype some = MPI_DATATYPE_NULL, most = MPI_DATATYPE_NULL;
  PMPI_Type_contiguous(static_cast<int>(chunk), type_, &some);
  PMPI_Type_contiguous(static_cast<int>(count_ / chunk), some, &most);
  const int lengths[] = {1, static_cast<int>(count_ % chunk)};
  const MPI_Aint displs[] = {0, static_cast<MPI_Aint>(count_ - count_ % chunk) * extent};
  const MPI_Datatype types[] = {most, type_};
  PMPI_Type_create_struct(2, lengths, displs, types, &made_);
  PMPI_Type_free(&some);
  PMPI_Type_free(&most);
  PMPI_Type_commit(&made_);
}

}  // namespace gpudt::interpose

#include "interpose/requests/kept_type.hpp"

#include "datatype/decode.hpp"

namespace gpudt::interpose {

// A duplicate would have the program's attributes, whose callbacks may fail.
KeptType::KeptType(MPI_Datatype type) : type_(type) {
  owned_ = !datatype::is_predefined(type);
  if (!owned_) return;
  PMPI_Type_contiguous(1, type, &type_);
  PMPI_Type_commit(&type_);
}

KeptType::~KeptType() {
  if (owned_) PMPI_Type_free(&type_);
}

}  // namespace gpudt::interpose

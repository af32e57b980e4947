// See basic.hpp.
#include "datatype/basic.hpp"

namespace gpudt::datatype {

BasicTypes basic_types;

std::span<const MPI_Datatype> element_types() {
  static const std::array list = {MPI_BYTE,
                                  MPI_CHAR,
                                  MPI_SIGNED_CHAR,
                                  MPI_UNSIGNED_CHAR,
                                  MPI_WCHAR,
                                  MPI_SHORT,
                                  MPI_UNSIGNED_SHORT,
                                  MPI_INT,
                                  MPI_UNSIGNED,
                                  MPI_LONG,
                                  MPI_UNSIGNED_LONG,
                                  MPI_LONG_LONG,
                                  MPI_UNSIGNED_LONG_LONG,
                                  MPI_INT8_T,
                                  MPI_INT16_T,
                                  MPI_INT32_T,
                                  MPI_INT64_T,
                                  MPI_UINT8_T,
                                  MPI_UINT16_T,
                                  MPI_UINT32_T,
                                  MPI_UINT64_T,
                                  MPI_FLOAT,
                                  MPI_DOUBLE,
                                  MPI_LONG_DOUBLE,
                                  MPI_C_BOOL,
                                  MPI_C_FLOAT_COMPLEX,
                                  MPI_C_DOUBLE_COMPLEX,
                                  MPI_C_LONG_DOUBLE_COMPLEX,
                                  MPI_AINT,
                                  MPI_OFFSET,
                                  MPI_COUNT,
                                  MPI_FLOAT_INT,
                                  MPI_DOUBLE_INT,
                                  MPI_LONG_INT,
                                  MPI_SHORT_INT,
                                  MPI_2INT,
                                  MPI_LONG_DOUBLE_INT,
                                  MPI_CHARACTER,
                                  MPI_LOGICAL,
                                  MPI_INTEGER,
                                  MPI_INTEGER1,
                                  MPI_INTEGER2,
                                  MPI_INTEGER4,
                                  MPI_INTEGER8,
                                  MPI_REAL,
                                  MPI_REAL4,
                                  MPI_REAL8,
                                  MPI_DOUBLE_PRECISION,
                                  MPI_COMPLEX,
                                  MPI_DOUBLE_COMPLEX,
                                  MPI_2INTEGER,
                                  MPI_2REAL,
                                  MPI_2DOUBLE_PRECISION,
                                  MPI_CXX_BOOL,
                                  MPI_CXX_FLOAT_COMPLEX,
                                  MPI_CXX_DOUBLE_COMPLEX,
                                  MPI_CXX_LONG_DOUBLE_COMPLEX};
  return list;
}

namespace {

bool has_gaps(MPI_Datatype type, int size) {
  MPI_Aint lb = 0, extent = 0, true_lb = 0, true_extent = 0;
  PMPI_Type_get_extent(type, &lb, &extent);
  PMPI_Type_get_true_extent(type, &true_lb, &true_extent);
  return lb != 0 || true_lb != 0 || extent != size || true_extent != size;
}

}  // namespace

void BasicTypes::fill() {
  entries_ = {};
  for (const MPI_Datatype type : element_types()) {
    int size = 0;
    if (type != MPI_DATATYPE_NULL) PMPI_Type_size(type, &size);
    if (size != 0 && !has_gaps(type, size)) entries_[find(type)] = {type, size};
  }
}

}  // namespace gpudt::datatype

// What MPI says of an error code, for messages.
#pragma once

#include <mpi.h>

#include <string>

namespace gpudt::initiated {

inline std::string mpi_error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  PMPI_Error_string(code, text, &length);
  return text;
}

}  // namespace gpudt::initiated

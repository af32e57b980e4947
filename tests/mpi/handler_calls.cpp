// Error handlers that remember (handler_calls.hpp).
#include "tests/mpi/handler_calls.hpp"

#include <utility>

#include "tests/support/mpi_harness.hpp"

namespace gpudt::test {
namespace {

constexpr int wrong_handle = -1;

std::vector<int> calls;
MPI_Comm watched_comm = MPI_COMM_NULL;
MPI_File watched_file = MPI_FILE_NULL;

// The standard's signatures have further, unspecified arguments.
void remember_comm(MPI_Comm* comm, int* code, ...) {
  calls.push_back(*comm == watched_comm ? error_class(*code) : wrong_handle);
}

void remember_file(MPI_File* file, int* code, ...) {
  calls.push_back(*file == watched_file ? error_class(*code) : wrong_handle);
}

}  // namespace

void watch_errors(MPI_Comm comm) {
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  PMPI_Comm_create_errhandler(remember_comm, &handler);
  PMPI_Comm_set_errhandler(comm, handler);
  PMPI_Errhandler_free(&handler);
  watched_comm = comm;
  calls.clear();
}

void watch_errors(MPI_File file) {
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  PMPI_File_create_errhandler(remember_file, &handler);
  PMPI_File_set_errhandler(file, handler);
  PMPI_Errhandler_free(&handler);
  watched_file = file;
  calls.clear();
}

void return_errors(MPI_Comm comm) {
  PMPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
}

void return_errors(MPI_File file) {
  PMPI_File_set_errhandler(file, MPI_ERRORS_RETURN);
}

std::vector<int> take_handler_calls() {
  return std::exchange(calls, {});
}

}  // namespace gpudt::test

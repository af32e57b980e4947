// A process offers a message in device memory and is killed: the receiver gets an error, and does not wait for ever.
// (Over Open MPI a blocking send to a dead process of the node does not return, which is MPI's own.)
//
// usage: death host|device   where rank 0, the receiver, wants to have it
#include <cuda_runtime.h>
#include <mpi.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int bytes = 4 << 20;

void* device_memory() {
  void* memory = nullptr;
  if (cudaMalloc(&memory, bytes) != cudaSuccess || cudaMemset(memory, 1, bytes) != cudaSuccess ||
      cudaDeviceSynchronize() != cudaSuccess)
    MPI_Abort(MPI_COMM_WORLD, 3);
  return memory;
}

/// So that MPI has all that it needs for messages between the two. Returns the other process.
pid_t get_acquainted(int other) {
  std::vector<char> in(bytes), out(bytes);
  for (const int length : {8, bytes, 8})
    MPI_Sendrecv(out.data(), length, MPI_BYTE, other, 1, in.data(), length, MPI_BYTE, other, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
  int own_id = getpid(), other_id = 0;
  MPI_Sendrecv(&own_id, 1, MPI_INT, other, 1, &other_id, 1, MPI_INT, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  return other_id;
}

[[noreturn]] void die() {
  kill(getpid(), SIGKILL);
  std::abort();
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 2) MPI_Abort(MPI_COMM_WORLD, 2);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const pid_t other = get_acquainted(1 - rank);
  if (rank == 1) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(device_memory(), bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &request);
    int flag = 0;
    for (int i = 0; i < 1000; ++i) MPI_Iprobe(0, 5, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);  // for its progress
    die();
  }
  std::vector<char> host(bytes);
  void* const buffer = std::string(argv[1]) == "device" ? device_memory() : host.data();
  // Until it is dead, and mpirun has seen that.
  while (kill(other, 0) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  const int code = MPI_Recv(buffer, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  int error_class = MPI_SUCCESS;
  MPI_Error_class(code, &error_class);
  std::printf("error class %d, MPI_ERR_OTHER is %d\n", error_class, MPI_ERR_OTHER);
  std::fflush(stdout);
  _exit(error_class == MPI_ERR_OTHER ? 0 : 1);  // MPI_Finalize would wait for the dead
}

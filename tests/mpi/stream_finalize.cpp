// MPI_Finalize with operations enqueued, for stream_finalize.py: says on stdout how it went. Or how many connections to
// the GPU CUDA is to have.
//
// usage: stream-finalize pending|never|late|long|connections
#include <cuda_runtime_api.h>
#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "include/gpudt_streams.h"

namespace {

constexpr int count = 50000;
int rank = 0;

void some_time(void*) {
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
}

void say(const std::string& text) {
  std::printf("rank %d: %s\n", rank, text.c_str());
  std::fflush(stdout);
}

void handler(MPI_Comm*, int* code, ...) {
  int error_class = MPI_SUCCESS;
  MPI_Error_class(*code, &error_class);
  say(error_class == MPI_ERR_TRUNCATE ? "truncated" : error_class == MPI_ERR_PENDING ? "pending" : "another error");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (mode == "connections") {
    say(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"));
    return MPI_Finalize();
  }
  int gpus = 1;
  cudaGetDeviceCount(&gpus);
  cudaSetDevice(rank % gpus);
  cudaStream_t cuda = nullptr;
  cudaStreamCreateWithFlags(&cuda, cudaStreamNonBlocking);
  std::vector<double> numbers(count, 1.0 + rank);
  double* data = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&data), count * sizeof(double));
  cudaMemcpy(data, numbers.data(), count * sizeof(double), cudaMemcpyDefault);
  MPI_Errhandler own = MPI_ERRHANDLER_NULL;
  MPI_Comm_create_errhandler(handler, &own);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, own);

  MPI_Info info = MPI_INFO_NULL;
  MPIX_Stream stream = MPIX_STREAM_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Info_create(&info);
  MPI_Info_set(info, "type", "cudaStream_t");
  // NOLINTNEXTLINE(bugprone-sizeof-expression): the handle itself is the value
  MPIX_Info_set_hex(info, "value", &cuda, sizeof cuda);
  MPIX_Stream_create(info, &stream);
  MPI_Info_free(&info);
  MPIX_Stream_comm_create(MPI_COMM_WORLD, stream, &comm);
  MPIX_Stream_free(&stream);

  const int expected = mode == "late" ? count / 2 : count;
  cudaLaunchHostFunc(cuda, some_time, nullptr);
  // The receive waits for longer than MPI_Finalize does for messages that nobody sends, but not behind it.
  if (rank == 0 && mode == "long") std::this_thread::sleep_for(std::chrono::milliseconds(3000));
  if (rank == 0 && mode != "never") MPIX_Send_enqueue(data, count, MPI_DOUBLE, 1, 0, comm);
  if (rank == 1) MPIX_Recv_enqueue(data, expected, MPI_DOUBLE, 0, 0, comm, MPI_STATUS_IGNORE);
  if (rank != 0 && mode == "long") std::this_thread::sleep_for(std::chrono::milliseconds(2300));
  if (mode == "pending") MPI_Comm_free(&comm);
  MPI_Finalize();
  say(cudaStreamSynchronize(cuda) == cudaSuccess ? "the stream goes on" : "the stream has failed");
  cudaMemcpy(numbers.data(), data, count * sizeof(double), cudaMemcpyDefault);
  if (mode == "pending" || mode == "long")
    say(numbers == std::vector<double>(count, 1.0) || rank > 1 ? "right" : "wrong");
  return 0;
}

// A program that resets its GPU between messages, and right before MPI_Finalize. Says on stdout what came of it.
//
// usage: reset [ROUNDS]
#include <cuda_runtime_api.h>
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

int rank = 0, ranks = 1;

bool good(cudaError_t error, const char* what) {
  if (error != cudaSuccess) std::printf("rank %d: %s: %s\n", rank, what, cudaGetErrorString(error));
  return error == cudaSuccess;
}

unsigned char value(int from, std::size_t i, int round) {
  return static_cast<unsigned char>(static_cast<std::size_t>(from * 31 + round * 7 + 1) + i * 13);
}

/// To the next rank and from the one before: every second word, of new memory, and all bytes of it. True if they are
/// right. The memory goes with the context.
bool exchange(std::size_t bytes, int round) {
  const int words = static_cast<int>(bytes / 16);
  const int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
  MPI_Datatype vector = MPI_DATATYPE_NULL;
  MPI_Type_vector(words, 8, 16, MPI_BYTE, &vector);
  MPI_Type_commit(&vector);
  bool right_bytes = true;
  for (const bool contiguous : {true, false}) {
    const std::size_t run = contiguous ? 16 : 8;
    void *out = nullptr, *in = nullptr;
    if (!good(cudaMalloc(&out, bytes), "cudaMalloc") || !good(cudaMalloc(&in, bytes), "cudaMalloc")) return false;
    std::vector<unsigned char> host(bytes);
    for (std::size_t i = 0; i < bytes; ++i) host[i] = value(rank, i, round);
    good(cudaMemcpy(out, host.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    good(cudaMemset(in, 0, bytes), "cudaMemset");
    good(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // MPI knows nothing of streams
    MPI_Sendrecv(out, contiguous ? static_cast<int>(bytes) : 1, contiguous ? MPI_BYTE : vector, right, round, in,
                 contiguous ? static_cast<int>(bytes) : 1, contiguous ? MPI_BYTE : vector, left, round, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    good(cudaMemcpy(host.data(), in, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (std::size_t i = 0; i < bytes; ++i)
      right_bytes = right_bytes && host[i] == (i % 16 < run ? value(left, i, round) : 0);
  }
  MPI_Type_free(&vector);
  return right_bytes;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 3;
  int gpus = 1;
  good(cudaGetDeviceCount(&gpus), "cudaGetDeviceCount");
  bool right_bytes = true;
  for (int round = 0; round < rounds; ++round) {
    good(cudaSetDevice(rank % gpus), "cudaSetDevice");
    for (int again = 0; again < 20; ++again)
      for (const std::size_t bytes : {std::size_t{64}, std::size_t{2048}, std::size_t{1} << 17, std::size_t{1} << 21})
        right_bytes = exchange(bytes, round) && right_bytes;
    if (round % 2 == 1) MPI_Barrier(MPI_COMM_WORLD);
    good(cudaDeviceReset(), "cudaDeviceReset");
  }
  std::printf("rank %d: %s\n", rank, right_bytes ? "right" : "WRONG");
  MPI_Finalize();
  return right_bytes ? 0 : 1;
}

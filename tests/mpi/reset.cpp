// A program that resets its GPU between messages, also while it has some under way with another one, and right before
// MPI_Finalize. Says on stdout what came of it.
//
// usage: reset [ROUNDS]
#include <cuda_runtime_api.h>
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
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

/// A message to the next rank and one from the one before, between new memory of the current GPU, which may go with the
/// context: of all bytes, or of every second word.
class Exchange {
 public:
  Exchange(std::size_t bytes, int round, bool contiguous, bool to_host = false)
      : bytes_(bytes), round_(round), run_(contiguous ? 16 : 8), count_(contiguous ? static_cast<int>(bytes) : 1) {
    if (!contiguous) MPI_Type_vector(static_cast<int>(bytes / 16), 8, 16, MPI_BYTE, &type_);
    if (!contiguous) MPI_Type_commit(&type_);
    std::vector<unsigned char> host(bytes);
    for (std::size_t i = 0; i < bytes; ++i) host[i] = value(rank, i, round);
    good(cudaMalloc(&out_, bytes), "cudaMalloc");
    good(cudaMemcpy(out_, host.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    if (to_host) {
      on_host_.assign(bytes, 0);
      in_ = on_host_.data();
    } else {
      good(cudaMalloc(&in_, bytes), "cudaMalloc");
      good(cudaMemset(in_, 0, bytes), "cudaMemset");
    }
    good(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // MPI knows nothing of streams
  }
  ~Exchange() {
    if (type_ != MPI_BYTE) MPI_Type_free(&type_);
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  void receive() { MPI_Irecv(in_, count_, type_, (rank + ranks - 1) % ranks, round_, MPI_COMM_WORLD, &request_); }
  /// True if the bytes are right.
  bool finish() {
    MPI_Send(out_, count_, type_, (rank + 1) % ranks, round_, MPI_COMM_WORLD);
    MPI_Wait(&request_, MPI_STATUS_IGNORE);
    std::vector<unsigned char> host(bytes_);
    good(cudaMemcpy(host.data(), in_, bytes_, cudaMemcpyDefault), "cudaMemcpy");
    bool right_bytes = true;
    for (std::size_t i = 0; i < bytes_; ++i)
      right_bytes = right_bytes && host[i] == (i % 16 < run_ ? value((rank + ranks - 1) % ranks, i, round_) : 0);
    return right_bytes;
  }
  /// Where the context lives.
  void free() {
    good(cudaFree(out_), "cudaFree");
    if (on_host_.empty()) good(cudaFree(in_), "cudaFree");
  }

 private:
  const std::size_t bytes_;
  const int round_;
  const std::size_t run_;
  const int count_;
  MPI_Datatype type_ = MPI_BYTE;
  MPI_Request request_ = MPI_REQUEST_NULL;
  void *out_ = nullptr, *in_ = nullptr;
  std::vector<unsigned char> on_host_;
};

constexpr std::size_t lengths[] = {64, 2048, std::size_t{1} << 17, std::size_t{1} << 21};

bool exchanges(int round) {
  bool right_bytes = true;
  for (int again = 0; again < 20; ++again)
    for (const std::size_t bytes : lengths)
      for (const bool contiguous : {true, false}) {
        Exchange exchange(bytes, round, contiguous);
        exchange.receive();
        right_bytes = exchange.finish() && right_bytes;
      }
  return right_bytes;
}

/// Resets `gpu` while receives of `other`'s memory wait, or of host memory whose messages come from `other`.
bool reset_beside(int gpu, int other, int round) {
  std::vector<std::unique_ptr<Exchange>> waiting;
  if (other != gpu) {
    good(cudaSetDevice(other), "cudaSetDevice");
    for (const bool to_host : {false, true})
      for (const std::size_t bytes : lengths) {
        waiting.push_back(std::make_unique<Exchange>(bytes, round, /*contiguous=*/false, to_host));
        waiting.back()->receive();
      }
  }
  good(cudaSetDevice(gpu), "cudaSetDevice");
  good(cudaDeviceReset(), "cudaDeviceReset");
  good(cudaSetDevice(other), "cudaSetDevice");
  bool right_bytes = true;
  for (const auto& exchange : waiting) right_bytes = exchange->finish() && right_bytes;
  for (const auto& exchange : waiting) exchange->free();
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
    const int gpu = (rank + round) % gpus;
    good(cudaSetDevice(gpu), "cudaSetDevice");
    right_bytes = exchanges(round) && right_bytes;
    if (round % 2 == 1) MPI_Barrier(MPI_COMM_WORLD);
    right_bytes = reset_beside(gpu, (gpu + 1) % gpus, round) && right_bytes;
  }
  std::printf("rank %d: %s\n", rank, right_bytes ? "right" : "WRONG");
  MPI_Finalize();
  return right_bytes ? 0 : 1;
}

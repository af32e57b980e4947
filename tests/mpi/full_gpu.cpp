// A program that has taken all memory of its GPU before it gives MPI any of it: every call works on device memory as it
// does on host memory. On a real GPU the kernels have been loaded before, by one message. Says on stdout what came of
// it.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <mpi.h>

#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int doubles = 40000;

int rank = 0, ranks = 1, failed = 0;

void check(bool right, const std::string& what) {
  if (right) return;
  ++failed;
  std::printf("rank %d: %s\n", rank, what.c_str());
}

/// What a call sends and receives, in memory of both kinds.
struct Buffers {
  std::vector<double> host_out, host_in;
  double *out = nullptr, *in = nullptr;

  static constexpr std::size_t bytes = doubles * sizeof(double);
  Buffers() : host_out(doubles), host_in(doubles) {
    check(cudaMalloc(reinterpret_cast<void**>(&out), bytes) == cudaSuccess &&
              cudaMalloc(reinterpret_cast<void**>(&in), bytes) == cudaSuccess,
          "no memory to begin with");
  }
  void set() {
    for (int i = 0; i < doubles; ++i) host_out[static_cast<std::size_t>(i)] = rank * 1000 + i % 997;
    host_in.assign(doubles, -1);
    cudaMemcpy(out, host_out.data(), bytes, cudaMemcpyHostToDevice);
    cudaMemcpy(in, host_in.data(), bytes, cudaMemcpyHostToDevice);
    cudaDeviceSynchronize();
  }
  bool alike() const {
    std::vector<double> now(doubles);
    cudaMemcpy(now.data(), in, bytes, cudaMemcpyDeviceToHost);
    return now == host_in;
  }
};

Buffers* buffers = nullptr;

/// `call(out, in)` on memory of both kinds. Over Open MPI a fault of its own on the host must not hide in what is left.
void both(const std::string& what, const std::function<int(double* out, double* in)>& call) {
  buffers->set();
  check(call(buffers->host_out.data(), buffers->host_in.data()) == MPI_SUCCESS, what + " fails on host memory");
  check(call(buffers->out, buffers->in) == MPI_SUCCESS, what + " fails");
  check(buffers->alike(), what + " differs");
}

/// The driver takes device memory to load the library's kernels.
void load_kernels() {
  if (dlsym(RTLD_DEFAULT, "gpudt_sim_api") != nullptr) return;
  const int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
  MPI_Sendrecv(buffers->out, 1000, MPI_DOUBLE, to, 1, buffers->in, 1000, MPI_DOUBLE, from, 1, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
}

/// Until nothing is left.
void fill_gpu() {
  for (std::size_t bytes = std::size_t{1} << 38; bytes >= 256; bytes /= 2) {
    void* taken = nullptr;
    while (cudaMalloc(&taken, bytes) == cudaSuccess) {
    }
    cudaGetLastError();
  }
}

MPI_Datatype structure(MPI_Datatype vector, MPI_Datatype list) {
  const int lengths[] = {1, 1};
  const MPI_Aint places[] = {0, 4000 * sizeof(double)};
  const MPI_Datatype parts[] = {vector, list};
  MPI_Datatype made;
  MPI_Type_create_struct(2, lengths, places, parts, &made);
  return made;
}

std::vector<std::pair<std::string, MPI_Datatype>> layouts() {
  std::vector<int> displs;
  for (int i = 0; i < 500; ++i) displs.push_back(i * 3 + i % 2);
  MPI_Datatype contiguous, vector, list;
  MPI_Type_contiguous(1000, MPI_DOUBLE, &contiguous);
  MPI_Type_vector(600, 2, 5, MPI_DOUBLE, &vector);
  MPI_Type_create_indexed_block(500, 1, displs.data(), MPI_DOUBLE, &list);
  std::vector<std::pair<std::string, MPI_Datatype>> all = {
      {"contiguous", contiguous}, {"vector", vector}, {"list", list}, {"structure", structure(vector, list)}};
  for (auto& [name, type] : all) MPI_Type_commit(&type);
  return all;
}

void messages(const std::string& name, MPI_Datatype type) {
  const int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
  for (const int count : {1, 5})
    both("MPI_Sendrecv of " + name, [=](double* out, double* in) {
      return MPI_Sendrecv(out, count, type, to, 1, in, count, type, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    });
  both("MPI_Isend of " + name, [=](double* out, double* in) {
    MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    const int received = MPI_Irecv(in, 2, type, from, 2, MPI_COMM_WORLD, &requests[0]);
    const int sent = MPI_Isend(out, 2, type, to, 2, MPI_COMM_WORLD, &requests[1]);
    const int code = MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    return received != MPI_SUCCESS ? received : sent != MPI_SUCCESS ? sent : code;
  });
}

void collectives(const std::string& name, MPI_Datatype type) {
  both("MPI_Bcast of " + name,
       [=](double* out, double* in) { return MPI_Bcast(rank == 0 ? out : in, 2, type, 0, MPI_COMM_WORLD); });
  both("MPI_Allgather of " + name,
       [=](double* out, double* in) { return MPI_Allgather(out, 1, type, in, 1, type, MPI_COMM_WORLD); });
  both("MPI_Alltoall of " + name,
       [=](double* out, double* in) { return MPI_Alltoall(out, 1, type, in, 1, type, MPI_COMM_WORLD); });
}

void reductions() {
  for (const int count : {10, doubles})
    both("MPI_Allreduce",
         [=](double* out, double* in) { return MPI_Allreduce(out, in, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD); });
}

/// To the next process's memory by `access(origin, target, window)`.
void window(const std::string& what, int (*access)(double*, int, MPI_Datatype, MPI_Win), MPI_Datatype type) {
  both(what, [=](double* out, double* in) {
    MPI_Win window = MPI_WIN_NULL;
    MPI_Win_create(in, Buffers::bytes, sizeof(double), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN);
    MPI_Win_fence(0, window);
    const int code = access(out, (rank + 1) % ranks, type, window);
    const int ended = MPI_Win_fence(0, window);
    MPI_Win_free(&window);
    return code != MPI_SUCCESS ? code : ended;
  });
}

void windows(const std::string& name, MPI_Datatype type) {
  window(
      "MPI_Put of " + name,
      [](double* origin, int target, MPI_Datatype its_type, MPI_Win window) {
        return MPI_Put(origin, 1, its_type, target, 0, 1, its_type, window);
      },
      type);
  window(
      "MPI_Accumulate of " + name,
      [](double* origin, int target, MPI_Datatype its_type, MPI_Win window) {
        return MPI_Accumulate(origin, 1, its_type, target, 0, 1, its_type, MPI_SUM, window);
      },
      type);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int gpus = 1;
  cudaGetDeviceCount(&gpus);
  cudaSetDevice(rank % gpus);
  Buffers all;
  buffers = &all;
  load_kernels();
  MPI_Barrier(MPI_COMM_WORLD);
  fill_gpu();
  MPI_Barrier(MPI_COMM_WORLD);
  for (const auto& [name, type] : layouts()) {
    messages(name, type);
    collectives(name, type);
    windows(name, type);
  }
  reductions();
  std::printf("rank %d: %s\n", rank, failed == 0 ? "right" : "WRONG");
  MPI_Finalize();
  return failed == 0 ? 0 : 1;
}

// A plain MPI program over the CUDA runtime: a 3-D block in GPU memory on a torus of processes, whose six faces are
// exchanged by MPI_Irecv, MPI_Isend and MPI_Waitall with subarray types. Knows nothing of gpudt.
#include <cuda_runtime_api.h>
#include <mpi.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int steps = 4;
using Index = std::array<int, 3>;
constexpr Index inner = {17, 12, 21};
constexpr Index outer = {inner[0] + 2, inner[1] + 2, inner[2] + 2};
constexpr std::size_t points = std::size_t(outer[0]) * outer[1] * outer[2];

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  MPI_Abort(MPI_COMM_WORLD, 1);
}

class Block {
 public:
  Block() : host_(points) {
    int size = 0, rank = 0, gpus = 0;
    const Index periods = {1, 1, 1};
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Dims_create(size, 3, dims_.data());
    MPI_Cart_create(MPI_COMM_WORLD, 3, dims_.data(), periods.data(), 0, &torus_);
    MPI_Comm_rank(torus_, &rank);
    MPI_Cart_coords(torus_, rank, 3, place_.data());
    check(cudaGetDeviceCount(&gpus));
    check(cudaSetDevice(rank % gpus));
    check(cudaMalloc(reinterpret_cast<void**>(&device_), points * sizeof(float)));
    for (int d = 0; d < 3; ++d)
      for (int side = 0; side < 2; ++side) {
        send_[d][side] = face(d, side == 0 ? 1 : inner[d]);
        receive_[d][side] = face(d, side == 0 ? 0 : inner[d] + 1);
      }
  }
  ~Block() {
    for (auto* faces : {&send_, &receive_})
      for (auto& pair : *faces)
        for (MPI_Datatype& type : pair) MPI_Type_free(&type);
    check(cudaFree(device_));
    MPI_Comm_free(&torus_);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void fill(int step) {
    for_each_point([&](const Index& at, float& point) { point = halo_sides(at) == 0 ? value(at, step) : -1.0F; });
    check(cudaMemcpy(device_, host_.data(), points * sizeof(float), cudaMemcpyHostToDevice));
    check(cudaStreamSynchronize(nullptr));  // a copy from pageable memory may still be under way
  }

  void exchange() {
    std::vector<MPI_Request> requests;
    for (int d = 0; d < 3; ++d) {
      int neighbours[2];
      MPI_Cart_shift(torus_, d, 1, &neighbours[0], &neighbours[1]);
      for (int side = 0; side < 2; ++side) {
        // What comes from one side was sent towards the other.
        MPI_Request request;
        MPI_Irecv(device_, 1, receive_[d][side], neighbours[side], 2 * d + 1 - side, torus_, &request);
        requests.push_back(request);
        MPI_Isend(device_, 1, send_[d][side], neighbours[side], 2 * d + side, torus_, &request);
        requests.push_back(request);
      }
    }
    MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  }

  int count_wrong(int step) {
    int wrong = 0;
    check(cudaMemcpy(host_.data(), device_, points * sizeof(float), cudaMemcpyDeviceToHost));
    // Edges and corners belong to no face.
    for_each_point([&](const Index& at, float& point) {
      wrong += point != (halo_sides(at) > 1 ? -1.0F : value(at, step)) ? 1 : 0;
    });
    return wrong;
  }

  int all(int wrong) const {
    int sum = 0, rank = 0;
    MPI_Allreduce(&wrong, &sum, 1, MPI_INT, MPI_SUM, torus_);
    MPI_Comm_rank(torus_, &rank);
    if (rank == 0)
      std::printf("halo 3-D, %d x %d x %d processes: %d wrong points\n", dims_[0], dims_[1], dims_[2], sum);
    return sum;
  }

 private:
  static MPI_Datatype face(int dimension, int layer) {
    Index part = inner, start = {1, 1, 1};
    part[static_cast<std::size_t>(dimension)] = 1;
    start[static_cast<std::size_t>(dimension)] = layer;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Type_create_subarray(3, outer.data(), part.data(), start.data(), MPI_ORDER_C, MPI_FLOAT, &type);
    MPI_Type_commit(&type);
    return type;
  }

  static int halo_sides(const Index& at) {
    int sides = 0;
    for (std::size_t d = 0; d < 3; ++d) sides += at[d] == 0 || at[d] == inner[d] + 1 ? 1 : 0;
    return sides;
  }

  /// The value of a point of the whole block, wrapped round the torus, in a step.
  float value(const Index& at, int step) const {
    int result = step;
    for (std::size_t d = 0; d < 3; ++d) {
      const int all = inner[d] * dims_[d];
      result = result * 211 + (place_[d] * inner[d] + at[d] - 1 + all) % all;
    }
    return static_cast<float>(result % (1 << 20));
  }

  template <class Do>
  void for_each_point(Do&& run) {
    std::size_t i = 0;
    for (Index at = {0, 0, 0}; at[0] < outer[0]; ++at[0])
      for (at[1] = 0; at[1] < outer[1]; ++at[1])
        for (at[2] = 0; at[2] < outer[2]; ++at[2]) run(at, host_[i++]);
  }

  Index dims_ = {0, 0, 0}, place_ = {0, 0, 0};
  MPI_Comm torus_ = MPI_COMM_NULL;
  std::vector<float> host_;
  float* device_ = nullptr;
  MPI_Datatype send_[3][2], receive_[3][2];
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int wrong = 0;
  {
    Block block;
    for (int step = 0; step < steps; ++step) {
      block.fill(step);
      block.exchange();
      wrong += block.count_wrong(step);
    }
    wrong = block.all(wrong);
  }
  MPI_Finalize();
  return wrong != 0 ? 1 : 0;
}

// Columns of a matrix that the processes of a ring exchange in partitions (docs/initiated.md): each block of a kernel
// computes some rows, marks its part of both outer columns ready (MPI_Pready), and goes on when the neighbours' parts
// have arrived (MPI_Parrived). README.md says how it is compiled; needs nvcc.
#include <mpi.h>
#include <cstdio>
#include <vector>

#include "initiated/mpi_calls.cuh"
#include "initiated/world.hpp"

using namespace gpudt::initiated;

constexpr int n = 64, width = n + 2, blocks = 8, rows = n / blocks, steps = 100;  // width: with columns of neighbours

struct Arguments {
  KernelWorld world;
  KernelRequest to_left, to_right, from_left, from_right;
  double* matrix;
  int* wrong;  // how many elements are
  int left, right, step;
};

__device__ double value(int rank, int step, int row, int column) {
  return rank * 1e9 + step * 1e6 + row * 1e3 + column;
}

__global__ void __launch_bounds__(256) exchange(const __grid_constant__ Arguments a) {
  __shared__ RankState state;
  Rank rank(a.world, state);
  const int block = blockIdx.x, first = block * rows;
  for (int i = threadIdx.x; i < rows * n; i += blockDim.x)
    a.matrix[(first + i / n) * width + 1 + i % n] = value(rank.gpu(), a.step, first + i / n, 1 + i % n);
  pready(block, mpi::Request(rank, a.to_left));
  pready(block, mpi::Request(rank, a.to_right));
  wait(mpi::Request(rank, a.from_left), block);
  wait(mpi::Request(rank, a.from_right), block);
  for (int row = first + threadIdx.x; row < first + rows; row += blockDim.x)
    if (a.matrix[row * width] != value(a.left, a.step, row, n) ||
        a.matrix[row * width + n + 1] != value(a.right, a.step, row, 1))
      atomicAdd(a.wrong, 1);
}

int main(int argc, char** argv) {
  int size, rank, gpus = 1, wrong = 0, all = 0;
  MPI_Datatype column, part;
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  cudaGetDeviceCount(&gpus);
  cudaSetDevice(rank % gpus);
  MPI_Type_vector(rows, 1, width, MPI_DOUBLE, &column);
  MPI_Type_create_resized(column, 0, rows * width * sizeof(double), &part);  // the next part begins behind its rows
  Arguments a = {};
  cudaMalloc(reinterpret_cast<void**>(&a.matrix), n * width * sizeof(double));
  cudaMalloc(reinterpret_cast<void**>(&a.wrong), sizeof(int));
  cudaMemset(a.wrong, 0, sizeof(int));
  a.left = (rank + size - 1) % size;
  a.right = (rank + 1) % size;
  try {
    World world(MPI_COMM_WORLD);
    std::vector<Request> requests = {world.psend_init(a.matrix + 1, blocks, 1, part, a.left, 0),
                                     world.psend_init(a.matrix + n, blocks, 1, part, a.right, 1),
                                     world.precv_init(a.matrix, blocks, 1, part, a.left, 1),
                                     world.precv_init(a.matrix + n + 1, blocks, 1, part, a.right, 0)};
    world.match();
    a.world = world.view(blocks);
    a.to_left = requests[0].kernel();
    a.to_right = requests[1].kernel();
    a.from_left = requests[2].kernel();
    a.from_right = requests[3].kernel();
    for (a.step = 0; a.step < steps; ++a.step) {
      Request::start_all(requests);
      world.run(reinterpret_cast<const void*>(exchange), blocks, 256, &a);
      Request::wait_all(requests);
    }
    check(cudaMemcpy(&wrong, a.wrong, sizeof(int), cudaMemcpyDeviceToHost), "cudaMemcpy");
  } catch (const Error& error) {
    std::fprintf(stderr, "columns_partitioned, process %d: %s\n", rank, error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) std::printf("columns_partitioned: %d processes, %s\n", size, all == 0 ? "all right" : "WRONG");
  MPI_Finalize();
  return all != 0;
}

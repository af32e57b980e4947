// Two-dimensional halo exchange that a kernel starts (docs/initiated.md): one process and one block for each GPU, 100
// steps in one kernel, in which the host does nothing. README.md says how it is compiled; needs nvcc.
#include <mpi.h>
#include <cstdio>

#include "initiated/mpi_calls.cuh"
#include "initiated/world.hpp"

using namespace gpudt::initiated;

constexpr int n = 64, width = n + 2, steps = 100;  // inner cells in each direction; with the halo

struct Arguments {
  KernelWorld world;
  Window window;  // two grids, for even and odd steps, so that no one overwrites what a neighbour still reads
  KernelType row, column;
  Window wrong;  // an int: how many cells are
  int up, down, left, right;
};

__device__ double value(int rank, int step, int row, int column) {
  return rank * 1e9 + step * 1e6 + row * 1e3 + column;
}

__global__ void __launch_bounds__(256) exchange(const __grid_constant__ Arguments a) {
  __shared__ RankState state;
  Rank rank(a.world, state);
  const mpi::Win win(rank, a.window);
  double* const grids = reinterpret_cast<double*>(a.window.base);
  for (int step = 0; step < steps; ++step) {
    double* const grid = grids + step % 2 * width * width;
    const auto cell = [&](int row, int column) -> double& { return grid[row * width + column]; };
    const auto send = [&](const KernelType& type, int to, double& from, double& target) {
      put_notify(&from, 1, type, to, &target - grids, 1, type, win, step);  // it lies there in everyone's window
    };
    for (int i = threadIdx.x; i < n * n; i += blockDim.x)
      cell(1 + i / n, 1 + i % n) = value(rank.rank(), step, 1 + i / n, 1 + i % n);
    send(a.row, a.up, cell(1, 1), cell(n + 1, 1));
    send(a.row, a.down, cell(n, 1), cell(0, 1));
    send(a.column, a.left, cell(1, 1), cell(1, n + 1));
    send(a.column, a.right, cell(1, n), cell(1, 0));
    wait(any_value, win, step, 4);
    for (int i = 1 + threadIdx.x; i <= n; i += blockDim.x)
      if (cell(0, i) != value(a.up, step, n, i) || cell(n + 1, i) != value(a.down, step, 1, i) ||
          cell(i, 0) != value(a.left, step, i, n) || cell(i, n + 1) != value(a.right, step, i, 1))
        atomicAdd(reinterpret_cast<int*>(a.wrong.base), 1);
  }
}

int main(int argc, char** argv) {
  int size, rank, dims[2] = {0, 0}, periods[2] = {1, 1}, gpus = 1, wrong, all;
  constexpr std::size_t bytes = 2 * width * width * sizeof(double);
  void* grids = nullptr;
  MPI_Win win;
  MPI_Comm comm;
  MPI_Datatype row, column;
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Dims_create(size, 2, dims);
  MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &comm);
  MPI_Comm_rank(comm, &rank);
  cudaGetDeviceCount(&gpus);
  cudaSetDevice(rank % gpus);
  MPI_Type_contiguous(n, MPI_DOUBLE, &row);
  MPI_Type_vector(n, 1, width, MPI_DOUBLE, &column);
  cudaMalloc(&grids, bytes);
  MPI_Win_create(grids, bytes, sizeof(double), MPI_INFO_NULL, comm, &win);
  try {
    World world(comm);
    const Datatype rows(row), columns(column);
    Arguments a = {world.view(1), world.attach(win), rows.kernel(), columns.kernel(), world.allocate(sizeof(int))};
    MPI_Cart_shift(comm, 0, 1, &a.up, &a.down);
    MPI_Cart_shift(comm, 1, 1, &a.left, &a.right);
    world.run(reinterpret_cast<const void*>(exchange), 1, 256, &a);
    check(cudaMemcpy(&wrong, a.wrong.base, sizeof(int), cudaMemcpyDeviceToHost), "cudaMemcpy");
  } catch (const Error& error) {
    std::fprintf(stderr, "halo2d_initiated, process %d: %s\n", rank, error.what());
    MPI_Abort(comm, 1);
  }
  MPI_Win_free(&win);
  MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, comm);
  if (rank == 0) std::printf("halo2d_initiated: %d processes, %s\n", size, all == 0 ? "all right" : "WRONG");
  MPI_Finalize();
  return all != 0;
}

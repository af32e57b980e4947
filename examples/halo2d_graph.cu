/* Jacobi's iteration on a torus: each step exchanges the halo and computes, in a stream. The host enqueues the first
   steps one by one, and then launches two of them as a graph, again and again. Compared with the host's own result.
   nvcc -ccbin mpicxx -DOMPI_SKIP_MPICXX -IPREFIX/include halo2d_graph.cu -o halo2d_graph \
     -LPREFIX/lib -lgpudt-pmpi -Xlinker -rpath=PREFIX/lib
   mpirun -n 4 ./halo2d_graph */
#include <cuda_runtime.h>
#include <gpudt_streams.h>

#include <cstdio>
#include <utility>
#include <vector>

constexpr int n = 64, width = n + 2, steps = 10, launches = 10; /* inner cells in each direction; with the halo */

struct Grid {
  double* cells; /* on the GPU */
  MPI_Request halo[8];
};

__global__ void relax(const double* from, double* to) {
  const int row = blockIdx.x + 1, column = threadIdx.x + 1, at = row * width + column;
  to[at] = 0.25 * (from[at - width] + from[at + width] + from[at - 1] + from[at + 1]);
}

/* All that a step is, in the program's order: alike in a stream that is being captured and in one that is not. */
static void step(Grid& from, Grid& to, cudaStream_t stream) {
  MPIX_Startall_enqueue(8, from.halo);
  MPIX_Waitall_enqueue(8, from.halo, MPI_STATUSES_IGNORE);
  relax<<<n, n, 0, stream>>>(from.cells, to.cells);
}

static void make_halo(Grid& grid, MPI_Comm comm, MPI_Datatype column) {
  int up, down, left, right;
  MPI_Cart_shift(comm, 0, 1, &up, &down);
  MPI_Cart_shift(comm, 1, 1, &left, &right);
  const auto cell = [&](int i, int j) { return grid.cells + i * width + j; };
  MPI_Recv_init(cell(0, 1), n, MPI_DOUBLE, up, 0, comm, &grid.halo[0]);
  MPI_Recv_init(cell(n + 1, 1), n, MPI_DOUBLE, down, 1, comm, &grid.halo[1]);
  MPI_Recv_init(cell(1, 0), 1, column, left, 2, comm, &grid.halo[2]);
  MPI_Recv_init(cell(1, n + 1), 1, column, right, 3, comm, &grid.halo[3]);
  MPI_Send_init(cell(n, 1), n, MPI_DOUBLE, down, 0, comm, &grid.halo[4]);
  MPI_Send_init(cell(1, 1), n, MPI_DOUBLE, up, 1, comm, &grid.halo[5]);
  MPI_Send_init(cell(1, n), 1, column, right, 2, comm, &grid.halo[6]);
  MPI_Send_init(cell(1, 1), 1, column, left, 3, comm, &grid.halo[7]);
}

/* The whole torus after `count` steps. */
static std::vector<double> on_host(int rows, int columns, int count) {
  std::vector<double> now(rows * columns), next(now.size());
  for (int i = 0; i < rows * columns; ++i) now[i] = i * 37 % 1009;
  for (; count > 0; --count, now.swap(next))
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < columns; ++j)
        next[i * columns + j] =
            0.25 * (now[(i + rows - 1) % rows * columns + j] + now[(i + 1) % rows * columns + j] +
                    now[i * columns + (j + columns - 1) % columns] + now[i * columns + (j + 1) % columns]);
  return now;
}

int main(int argc, char** argv) {
  int rank, size, dims[2] = {0, 0}, periods[2] = {1, 1}, place[2], gpus = 1, errors = 0, all;
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Dims_create(size, 2, dims);
  MPI_Comm torus, comm;
  MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &torus);
  MPI_Comm_rank(torus, &rank);
  MPI_Cart_coords(torus, rank, 2, place);
  cudaGetDeviceCount(&gpus);
  cudaSetDevice(rank % gpus);
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  MPI_Info info;
  MPIX_Stream mpi_stream;
  MPI_Info_create(&info);
  MPI_Info_set(info, "type", "cudaStream_t");
  MPIX_Info_set_hex(info, "value", &stream, sizeof stream);
  MPIX_Stream_create(info, &mpi_stream);
  MPI_Info_free(&info);
  MPIX_Stream_comm_create(torus, mpi_stream, &comm);

  Grid one, other;
  MPI_Datatype column;
  MPI_Type_vector(n, 1, width, MPI_DOUBLE, &column);
  MPI_Type_commit(&column);
  for (Grid* const grid : {&one, &other}) {
    cudaMalloc(&grid->cells, width * width * sizeof(double));
    make_halo(*grid, comm, column);
  }
  MPI_Type_free(&column);

  const int columns = dims[1] * n, first = place[0] * n * columns + place[1] * n;
  const auto copy = [&](double* host, cudaMemcpyKind kind) {
    /* the inner cells, as they lie in the whole torus */
    void *const there = one.cells + width + 1, *const here = host + first;
    const std::size_t row = n * sizeof(double), pitch = width * sizeof(double), host_pitch = columns * sizeof(double);
    if (kind == cudaMemcpyHostToDevice)
      cudaMemcpy2DAsync(there, pitch, here, host_pitch, row, n, kind, stream);
    else
      cudaMemcpy2DAsync(here, host_pitch, there, pitch, row, n, kind, stream);
    cudaStreamSynchronize(stream);
  };
  const auto check = [&](const char* what, int count) {
    const std::vector<double> expected = on_host(dims[0] * n, columns, count);
    std::vector<double> found(expected.size());
    copy(found.data(), cudaMemcpyDeviceToHost);
    for (int i = 0; i < n; ++i)
      for (int j = 0; j < n; ++j) errors += found[first + i * columns + j] != expected[first + i * columns + j];
    MPI_Allreduce(&errors, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
      std::printf("halo2d_graph: %d x %d processes, %s: %s\n", dims[0], dims[1], what,
                  all == 0 ? "all right" : "WRONG");
  };

  std::vector<double> begin = on_host(dims[0] * n, columns, 0);
  copy(begin.data(), cudaMemcpyHostToDevice);
  for (int i = 0; i < steps; i += 2) step(one, other, stream), step(other, one, stream);
  check("one by one", steps);

  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  step(one, other, stream), step(other, one, stream);
  cudaStreamEndCapture(stream, &graph);
  cudaGraphInstantiate(&executable, graph, 0);
  for (int i = 0; i < launches; ++i) cudaGraphLaunch(executable, stream);
  check("as a graph", steps + 2 * launches);

  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  for (Grid* const grid : {&one, &other}) {
    for (MPI_Request& request : grid->halo) MPI_Request_free(&request);
    cudaFree(grid->cells);
  }
  MPI_Comm_free(&comm);
  MPI_Comm_free(&torus);
  MPIX_Stream_free(&mpi_stream);
  cudaStreamDestroy(stream);
  MPI_Finalize();
  return all != 0;
}

/* A plain MPI program over the CUDA runtime: a 2-D grid in GPU memory on a torus of processes, whose halo is exchanged
 * by MPI_Sendrecv, rows as they lie and columns by MPI_Type_vector. Knows nothing of gpudt. */
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { rows = 37, columns = 53, width = columns + 2, steps = 5 };

static double *grid_on_gpu, *grid;
static MPI_Comm torus;
static int place[2], dims[2];

static void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  MPI_Abort(MPI_COMM_WORLD, 1);
}

/* The value of a point of the whole grid, wrapped round the torus, in a step. */
static double value(int row, int column, int step) {
  const int all_rows = rows * dims[0], all_columns = columns * dims[1];
  row = (row + all_rows) % all_rows;
  column = (column + all_columns) % all_columns;
  return row * 1000.0 + column + step * 0.25;
}

static void fill(int step) {
  for (int row = 0; row < rows + 2; ++row)
    for (int column = 0; column < width; ++column) {
      const int inside = row > 0 && row <= rows && column > 0 && column <= columns;
      grid[row * width + column] =
          inside ? value(place[0] * rows + row - 1, place[1] * columns + column - 1, step) : -1.0;
    }
  check(cudaMemcpy(grid_on_gpu, grid, sizeof(double) * (rows + 2) * width, cudaMemcpyHostToDevice));
  check(cudaStreamSynchronize(NULL)); /* a copy from pageable memory may still be under way */
}

/* Columns first, then whole rows with their corners. */
static void exchange(MPI_Datatype column, MPI_Datatype row) {
  int left, right, up, down;
  double* const at = grid_on_gpu;
  MPI_Cart_shift(torus, 1, 1, &left, &right);
  MPI_Cart_shift(torus, 0, 1, &up, &down);
  MPI_Sendrecv(at + width + columns, 1, column, right, 1, at + width, 1, column, left, 1, torus, MPI_STATUS_IGNORE);
  MPI_Sendrecv(at + width + 1, 1, column, left, 2, at + width + columns + 1, 1, column, right, 2, torus,
               MPI_STATUS_IGNORE);
  MPI_Sendrecv(at + rows * width, 1, row, down, 3, at, 1, row, up, 3, torus, MPI_STATUS_IGNORE);
  MPI_Sendrecv(at + width, 1, row, up, 4, at + (rows + 1) * width, 1, row, down, 4, torus, MPI_STATUS_IGNORE);
}

static int count_wrong(int step) {
  int wrong = 0;
  check(cudaMemcpy(grid, grid_on_gpu, sizeof(double) * (rows + 2) * width, cudaMemcpyDeviceToHost));
  for (int row = 0; row < rows + 2; ++row)
    for (int column = 0; column < width; ++column)
      wrong += grid[row * width + column] != value(place[0] * rows + row - 1, place[1] * columns + column - 1, step);
  return wrong;
}

int main(int argc, char** argv) {
  int rank, size, gpus = 0, wrong = 0, all_wrong = 0;
  const int periods[2] = {1, 1};
  MPI_Datatype column, row;
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Dims_create(size, 2, dims);
  MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &torus);
  MPI_Comm_rank(torus, &rank);
  MPI_Cart_coords(torus, rank, 2, place);
  check(cudaGetDeviceCount(&gpus));
  check(cudaSetDevice(rank % gpus));
  grid = malloc(sizeof(double) * (rows + 2) * width);
  check(cudaMalloc((void**)&grid_on_gpu, sizeof(double) * (rows + 2) * width));
  MPI_Type_vector(rows, 1, width, MPI_DOUBLE, &column);
  MPI_Type_contiguous(width, MPI_DOUBLE, &row);
  MPI_Type_commit(&column);
  MPI_Type_commit(&row);
  for (int step = 0; step < steps; ++step) {
    fill(step);
    exchange(column, row);
    wrong += count_wrong(step);
  }
  MPI_Type_free(&column);
  MPI_Type_free(&row);
  MPI_Allreduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, torus);
  if (rank == 0) printf("halo 2-D, %d x %d processes: %d wrong points\n", dims[0], dims[1], all_wrong);
  check(cudaFree(grid_on_gpu));
  free(grid);
  MPI_Comm_free(&torus);
  MPI_Finalize();
  return all_wrong != 0;
}

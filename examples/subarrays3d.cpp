// Three-dimensional halo exchange by one call: six subarrays in GPU memory by MPI_Neighbor_alltoallw.
// mpicxx subarrays3d.cpp -o subarrays3d -lcudart && mpirun -n 4 -x LD_PRELOAD=libgpudt-pmpi.so ./subarrays3d
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <array>
#include <cstdio>
#include <utility>
#include <vector>

namespace {
constexpr int n = 16, width = n + 2;  // inner cells in each direction; with the halo

float value(int rank, int x, int y, int z) {
  return static_cast<float>(rank * 10000 + x * 400 + y * 20 + z);
}

/// One layer of inner cells, at `place` in dimension `dim`.
MPI_Datatype layer(int dim, int place) {
  const int sizes[] = {width, width, width};
  int subsizes[] = {n, n, n}, starts[] = {1, 1, 1};
  subsizes[dim] = 1;
  starts[dim] = place;
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Type_create_subarray(3, sizes, subsizes, starts, MPI_ORDER_C, MPI_FLOAT, &type);
  MPI_Type_commit(&type);
  return type;
}
}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int size = 0, rank = 0, gpus = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::array<int, 3> dims{}, periods{};
  MPI_Dims_create(size, 3, dims.data());
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Cart_create(MPI_COMM_WORLD, 3, dims.data(), periods.data(), 0, &comm);
  MPI_Comm_rank(comm, &rank);
  cudaGetDeviceCount(&gpus);
  cudaSetDevice(rank % gpus);

  std::vector<float> host;
  for (int x = 0; x < width; ++x)
    for (int y = 0; y < width; ++y)
      for (int z = 0; z < width; ++z) host.push_back(value(rank, x, y, z));
  float* cells = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&cells), host.size() * sizeof(float));
  cudaMemcpy(cells, host.data(), host.size() * sizeof(float), cudaMemcpyHostToDevice);
  cudaDeviceSynchronize();  // MPI does not wait for the program's own work on the GPU

  // In the order of a Cartesian communicator's neighbours: lower and upper in each dimension.
  std::vector<MPI_Datatype> given, taken;
  for (int dim = 0; dim < 3; ++dim)
    for (const auto& [inner, halo] : {std::pair(1, 0), std::pair(n, n + 1)}) {
      given.push_back(layer(dim, inner));
      taken.push_back(layer(dim, halo));
    }
  const int ones[] = {1, 1, 1, 1, 1, 1};
  const MPI_Aint begin[6] = {};
  MPI_Neighbor_alltoallw(cells, ones, begin, given.data(), cells, ones, begin, taken.data(), comm);

  cudaMemcpy(host.data(), cells, host.size() * sizeof(float), cudaMemcpyDeviceToHost);
  int lower = 0, upper = 0, errors = 0, all = 0;
  MPI_Cart_shift(comm, 0, 1, &lower, &upper);
  const auto at = [&](int x, int y, int z) { return host[static_cast<std::size_t>((x * width + y) * width + z)]; };
  for (int y = 1; y <= n; ++y)
    for (int z = 1; z <= n; ++z) {
      if (lower != MPI_PROC_NULL && at(0, y, z) != value(lower, n, y, z)) ++errors;
      if (upper != MPI_PROC_NULL && at(n + 1, y, z) != value(upper, 1, y, z)) ++errors;
    }
  MPI_Allreduce(&errors, &all, 1, MPI_INT, MPI_SUM, comm);
  if (rank == 0) std::printf("subarrays3d: %d processes, %s\n", size, all == 0 ? "all right" : "WRONG");
  for (auto* types : {&given, &taken})
    for (MPI_Datatype& type : *types) MPI_Type_free(&type);
  MPI_Comm_free(&comm);
  cudaFree(cells);
  MPI_Finalize();
  return all != 0 ? 1 : 0;
}

#include "initiated/dcuda_host.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>

#include "initiated/world.hpp"

using gpudt::initiated::check;
using gpudt::initiated::Error;
using gpudt::initiated::Options;
using gpudt::initiated::Window;
using gpudt::initiated::World;

struct dcuda_host_context {
  std::unique_ptr<World> world;
  dcuda_kernel_t kernel = nullptr;
  int threads = 0;
  bool started_mpi = false;
  dcuda_rank_info info = {};
  Window heap, places;
  std::size_t used = 0;
  dcuda_context* device = nullptr;
  std::vector<double> timings;
};

namespace {

/// Nodes are numbered by the order of their first processes.
void find_nodes(dcuda_rank_info& info) {
  MPI_Comm node = MPI_COMM_NULL;
  PMPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  PMPI_Comm_size(node, &info.device_count);
  PMPI_Comm_rank(node, &info.device_index);
  const int first = info.device_index == 0 ? 1 : 0;
  PMPI_Allreduce(&first, &info.node_count, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  PMPI_Scan(&first, &info.node_index, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  --info.node_index;
  PMPI_Bcast(&info.node_index, 1, MPI_INT, 0, node);
  PMPI_Comm_free(&node);
}

/// What all devices can run.
int ranks_of_each(const World& world, dcuda_kernel_t kernel, int threads) {
  const int here = world.most_blocks(reinterpret_cast<const void*>(kernel), threads);
  int ranks = std::min(here, world.options().ranks);
  PMPI_Allreduce(MPI_IN_PLACE, &ranks, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (ranks < 1) throw Error("dcuda_host_init: no block of " + std::to_string(threads) + " threads can run");
  return ranks;
}

}  // namespace

void dcuda_host_init(int argc, char* argv[], dcuda_host_context_handle* handle, dcuda_kernel_t kernel,
                     int threads_per_rank, std::size_t heap_bytes, const Options* options) {
  auto context = std::make_unique<dcuda_host_context>();
  int started = 0, level = MPI_THREAD_SINGLE;
  PMPI_Initialized(&started);
  if (started == 0) MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);  // between nodes proxies need it
  context->started_mpi = started == 0;
  find_nodes(context->info);
  context->world = std::make_unique<World>(MPI_COMM_WORLD, options != nullptr ? *options : Options{});
  World& world = *context->world;
  context->kernel = kernel;
  context->threads = threads_per_rank;
  const int ranks = ranks_of_each(world, kernel, threads_per_rank);
  dcuda_rank_info& info = context->info;
  info.rank_count = ranks * world.gpus();
  info.rank_responsible = ranks;
  info.rank_start = ranks * world.gpu();
  info.process_count = world.gpus();
  info.process_index = world.gpu();
  context->heap = world.allocate(static_cast<std::int64_t>(heap_bytes));
  context->places =
      world.allocate(static_cast<std::int64_t>(sizeof(dcuda_place)) * 2 * dcuda_most_windows * info.rank_count);
  void* device = nullptr;
  check(cudaMalloc(&device, sizeof(dcuda_context)), "dcuda_host_init: memory");
  context->device = static_cast<dcuda_context*>(device);
  *handle = context.release();
}

void dcuda_host_get_rank_info(dcuda_host_context_handle context, dcuda_rank_info* info) {
  *info = context->info;
}

void* dcuda_host_malloc(dcuda_host_context_handle context, std::size_t bytes) {
  const std::size_t at = context->used;
  const auto size = static_cast<std::size_t>(context->heap.bytes);
  if (bytes > size - at)
    throw Error("dcuda_host_malloc: process " + std::to_string(context->info.process_index) + ": " +
                std::to_string(bytes) + " bytes; " + std::to_string(size - at) + " are left of heap_bytes");
  context->used = std::min(size, (at + bytes + 255) / 256 * 256);
  return context->heap.base + at;
}

double dcuda_host_run(dcuda_host_context_handle context, void* gpu_data, std::size_t gpu_size) {
  dcuda_context told = {};
  told.world = context->world->view(context->info.rank_responsible);
  told.heap = context->heap;
  told.places = context->places;
  if (gpu_size > 0) {
    check(cudaMalloc(&told.data, gpu_size), "dcuda_host_run: memory for the data");
    check(cudaMemcpy(told.data, gpu_data, gpu_size, cudaMemcpyHostToDevice), "dcuda_host_run: copying the data");
  }
  check(cudaMemcpy(context->device, &told, sizeof told, cudaMemcpyHostToDevice), "dcuda_host_run: copying the context");
  const auto start = std::chrono::steady_clock::now();
  context->world->run(reinterpret_cast<const void*>(context->kernel), context->info.rank_responsible, context->threads,
                      &context->device);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  if (gpu_size > 0) {
    check(cudaMemcpy(gpu_data, told.data, gpu_size, cudaMemcpyDeviceToHost), "dcuda_host_run: copying the data back");
    cudaFree(told.data);
  }
  check(cudaMemcpy(&told, context->device, sizeof told, cudaMemcpyDeviceToHost), "dcuda_host_run: copying timings");
  context->timings.insert(context->timings.end(), told.milliseconds, told.milliseconds + told.timings);
  return took.count();
}

std::vector<double> dcuda_host_get_timings(dcuda_host_context_handle context) {
  return context->timings;
}

void dcuda_host_finish(dcuda_host_context_handle handle) {
  const std::unique_ptr<dcuda_host_context> context(handle);
  cudaFree(context->device);
  context->world->free(context->places);
  context->world->free(context->heap);
  context->world.reset();
  if (context->started_mpi) MPI_Finalize();
}

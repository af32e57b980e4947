// Windows and collectives for the tests of jobs in which some ranks run without gpudt (mixed_job.py): says on stdout
// what happened. A rank with GPUDT_TEST_HOST uses host memory alone.
//
// usage: mixed-job [collectives]
//   collectives: nothing but these
//
// GPUDT_TEST_OFF=DEVICE: rank 0 has the library, but not this device, so that gpudt is off there.
#include <cuda_runtime_api.h>
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr int count = 1 << 14;      ///< ints
constexpr int sum_count = 1 << 19;  ///< likewise: enough for a reduction over nodes to be worth it
constexpr MPI_Aint bytes = count * static_cast<MPI_Aint>(sizeof(int));

int rank = 0, ranks = 1;
bool device_wanted = true;

/// Ints in device memory, where that is wanted and can be.
class Buffer {
 public:
  explicit Buffer(int value, bool on_device = true, int ints = count)
      : ints_(ints), on_device_(on_device && device_wanted) {
    const std::vector<int> values(static_cast<std::size_t>(ints), value);
    if (on_device_)
      cudaMalloc(reinterpret_cast<void**>(&data_), size());
    else
      data_ = static_cast<int*>(std::malloc(size()));
    copy(data_, values.data());
  }
  ~Buffer() { on_device_ ? static_cast<void>(cudaFree(data_)) : std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  int* data() const { return data_; }
  bool holds(int value) const {
    std::vector<int> values(static_cast<std::size_t>(ints_));
    copy(values.data(), data_);
    return std::all_of(values.begin(), values.end(), [value](int each) { return each == value; });
  }

 private:
  std::size_t size() const { return static_cast<std::size_t>(ints_) * sizeof(int); }
  void copy(void* to, const void* from) const {
    if (!on_device_) {
      std::copy_n(static_cast<const char*>(from), size(), static_cast<char*>(to));
      return;
    }
    cudaMemcpy(to, from, size(), cudaMemcpyDefault);
    cudaStreamSynchronize(nullptr);
  }
  int ints_;
  bool on_device_;
  int* data_ = nullptr;
};

std::string outcome(int code) {
  int error = MPI_SUCCESS;
  MPI_Error_class(code, &error);
  if (error == MPI_SUCCESS) return "right";
  if (error == MPI_ERR_OTHER) return "MPI_ERR_OTHER";
  if (error == MPI_ERR_RMA_ATTACH) return "MPI_ERR_RMA_ATTACH";
  return "error class " + std::to_string(error);
}

void say(const char* what, const std::string& result) {
  std::printf("rank %d: %s: %s\n", rank, what, result.c_str());
  std::fflush(stdout);
  MPI_Barrier(MPI_COMM_WORLD);
}

int neighbour(int distance) {
  return (rank + distance + ranks) % ranks;
}

/// Whether what this rank puts into its neighbour's memory arrives there.
std::string exchange(MPI_Win window, const Buffer& out) {
  MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN);
  MPI_Win_fence(0, window);
  int code = MPI_Put(out.data(), count, MPI_INT, neighbour(1), 0, count, MPI_INT, window);
  const int after = MPI_Win_fence(0, window);
  if (code == MPI_SUCCESS) code = after;
  return outcome(code);
}

void host_window() {
  const Buffer memory(0, false), out(rank + 1, false);
  MPI_Win window = MPI_WIN_NULL;
  const int code = MPI_Win_create(memory.data(), bytes, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  std::string result = outcome(code);
  if (code == MPI_SUCCESS) {
    result = exchange(window, out);
    MPI_Win_free(&window);
    if (!memory.holds(neighbour(-1) + 1)) result = "wrong";
  }
  say("host window", result);
}

/// A window that is refused is there all the same, for the other ranks, which wait in MPI_Win_free.
void device_window() {
  const Buffer memory(0);
  MPI_Win window = MPI_WIN_NULL;
  const int code = MPI_Win_create(memory.data(), bytes, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  if (window != MPI_WIN_NULL) MPI_Win_free(&window);
  say("device window", outcome(code));
}

void own_device_window() {
  const Buffer memory(0), out(rank + 1);
  MPI_Win window = MPI_WIN_NULL;
  std::string result = "right";
  if (device_wanted) {
    MPI_Win_create(memory.data(), bytes, sizeof(int), MPI_INFO_NULL, MPI_COMM_SELF, &window);
    MPI_Win_fence(0, window);
    MPI_Put(out.data(), count, MPI_INT, 0, 0, count, MPI_INT, window);
    MPI_Win_fence(0, window);
    MPI_Win_free(&window);
    if (!memory.holds(rank + 1)) result = "wrong";
  }
  say("own device window", result);
}

void dynamic_window() {
  const Buffer host(0, false), device(0);
  MPI_Win window = MPI_WIN_NULL;
  int code = MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  if (code != MPI_SUCCESS) return say("dynamic window", outcome(code));
  MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN);
  code = MPI_Win_attach(window, host.data(), bytes);
  if (code == MPI_SUCCESS) code = MPI_Win_detach(window, host.data());
  say("dynamic window", outcome(code));
  code = MPI_Win_attach(window, device.data(), bytes);
  if (code == MPI_SUCCESS) MPI_Win_detach(window, device.data());
  say("device memory attached", outcome(code));
  MPI_Win_free(&window);
}

void allocated_window() {
  const Buffer out(rank + 1);
  int* memory = nullptr;
  MPI_Win window = MPI_WIN_NULL;
  MPI_Win_allocate(bytes, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, static_cast<void*>(&memory), &window);
  std::string result = exchange(window, out);
  if (std::count(memory, memory + count, neighbour(-1) + 1) != count) result = "wrong";
  MPI_Win_free(&window);
  say("allocated window", result);
}

void collectives() {
  const Buffer mine(rank + 1, true, sum_count), sum(0, true, sum_count), spread(rank + 1), all(0, true, count * ranks);
  MPI_Allreduce(mine.data(), sum.data(), sum_count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Bcast(spread.data(), count, MPI_INT, ranks - 1, MPI_COMM_WORLD);
  const Buffer ones(1);
  MPI_Allgather(ones.data(), count, MPI_INT, all.data(), count, MPI_INT, MPI_COMM_WORLD);
  const bool right = sum.holds(ranks * (ranks + 1) / 2) && spread.holds(ranks) && all.holds(1);
  say("collectives", right ? "right" : "wrong");
}

}  // namespace

int main(int argc, char** argv) {
  const char* const off = std::getenv("GPUDT_TEST_OFF");
  const char* const number = std::getenv("OMPI_COMM_WORLD_RANK");
  const bool is_off = off != nullptr && number != nullptr && std::string(number) == "0";
  if (is_off) setenv("GPUDT_DEVICE", off, 1);
  device_wanted = !is_off && std::getenv("GPUDT_TEST_HOST") == nullptr;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (argc < 2 || std::string(argv[1]) != "collectives") {
    host_window();
    device_window();
    own_device_window();
    dynamic_window();
    allocated_window();
  }
  collectives();
  MPI_Finalize();
  return 0;
}

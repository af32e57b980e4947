#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "initiated/kernel_world.hpp"
#include "initiated/proxy.hpp"
#include "initiated/wire.hpp"

namespace gpudt::initiated {
namespace {

/// A word stored in a stream by the driver (cuStreamWriteValue64): at once, behind all before, and sooner than a copy.
/// Without it, where a driver or a GPU has none, a copy of 8 bytes does.
class WordStore {
 public:
  /// Tries it, on memory of the current device.
  explicit WordStore(cudaStream_t stream) {
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (driver == nullptr) return;
    write_ = reinterpret_cast<Write>(dlsym(driver, "cuStreamWriteValue64_v2"));
    if (write_ != nullptr && !works(stream)) write_ = nullptr;
  }
  void operator()(cudaStream_t stream, char* to, const std::uint64_t* word) const {
    if (write_ == nullptr)
      check(cudaMemcpyAsync(to, word, sizeof *word, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
    else if (const int code = write_(stream, reinterpret_cast<std::uintptr_t>(to), *word, 0); code != 0)
      throw Error("cuStreamWriteValue64: error " + std::to_string(code));
  }

 private:
  using Write = int (*)(cudaStream_t, unsigned long long, std::uint64_t, unsigned);

  bool works(cudaStream_t stream) const {
    constexpr std::uint64_t expected = 0x0123456789ABCDEF;
    void* memory = nullptr;
    std::uint64_t seen = 0;
    if (cudaMalloc(&memory, sizeof seen) != cudaSuccess) return false;
    const bool works = write_(stream, reinterpret_cast<std::uintptr_t>(memory), expected, 0) == 0 &&
                       cudaStreamSynchronize(stream) == cudaSuccess &&
                       cudaMemcpy(&seen, memory, sizeof seen, cudaMemcpyDeviceToHost) == cudaSuccess;
    cudaFree(memory);
    return works && seen == expected;
  }

  Write write_ = nullptr;
};

/// By copy engines, in a stream of its own that waits for no other: kernels may occupy the GPU.
class CudaCopies final : public ProxyCopies {
 public:
  explicit CudaCopies(int device) : device_(device), stream_(make_stream()), store_(stream_) {
    for (cudaEvent_t& event : events_)
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "World: cudaEventCreate");
    check(cudaEventCreateWithFlags(&launched_, cudaEventDisableTiming), "World: cudaEventCreate");
    warm_up();
  }
  ~CudaCopies() override {
    cudaStreamSynchronize(stream_);
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    cudaEventDestroy(launched_);
    cudaStreamDestroy(stream_);
  }
  CudaCopies(const CudaCopies&) = delete;
  CudaCopies& operator=(const CudaCopies&) = delete;

  /// A kernel has been launched in a stream. By the program's thread.
  void launched(cudaStream_t stream) {
    check(cudaEventRecord(launched_, stream), "World::launch: cudaEventRecord");
    ++launches_;
  }

  void begin() override {
    check(cudaSetDevice(device_), "cudaSetDevice");
    // Queries of events while other threads capture streams neither fail nor end these captures.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  }
  void to_window(char* window, const char* buffer, std::size_t bytes, std::size_t rows, std::size_t stride) override {
    copy(window, stride, buffer, bytes, bytes, rows, cudaMemcpyHostToDevice);
  }
  void from_window(char* buffer, const char* window, std::size_t bytes, std::size_t rows, std::size_t stride) override {
    copy(buffer, bytes, window, stride, bytes, rows, cudaMemcpyDeviceToHost);
  }
  void store(char* window, const std::uint64_t* word) override { store_(stream_, window, word); }
  std::uint64_t mark() override {
    check(cudaEventRecord(events_[marks_ % events_.size()], stream_), "cudaEventRecord");
    return marks_++;
  }
  bool reached(std::uint64_t mark) override {
    const cudaError_t status = cudaEventQuery(events_[mark % events_.size()]);
    if (status != cudaErrorNotReady) check(status, "a copy, or the kernel");
    return status == cudaSuccess;
  }
  bool busy() override {
    const std::uint64_t launches = launches_;
    if (launches == ended_) return false;
    if (cudaEventQuery(launched_) == cudaErrorNotReady) return true;
    ended_ = launches;
    return false;
  }

 private:
  /// Makes the first copy of each kind now: it loads code or allocates memory, which would wait for a kernel that
  /// occupies the GPU.
  void warm_up() {
    constexpr std::size_t bytes = 16, rows = 2, stride = 64, all = rows * stride;
    void *window = nullptr, *buffer = nullptr;
    check(cudaMalloc(&window, all), "World: cudaMalloc");
    check(cudaHostAlloc(&buffer, all, cudaHostAllocMapped), "World: cudaHostAlloc");
    for (const std::size_t some : {std::size_t{1}, rows}) {
      to_window(static_cast<char*>(window), static_cast<const char*>(buffer), bytes, some, stride);
      from_window(static_cast<char*>(buffer), static_cast<const char*>(window), bytes, some, stride);
    }
    mark();
    check(cudaStreamSynchronize(stream_), "World: cudaStreamSynchronize");
    cudaFreeHost(buffer);
    cudaFree(window);
  }
  static cudaStream_t make_stream() {
    int lowest = 0, highest = 0;
    cudaStream_t stream = nullptr;
    check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "World: cudaDeviceGetStreamPriorityRange");
    check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest), "World: cudaStreamCreateWithPriority");
    return stream;
  }
  void copy(char* to, std::size_t to_stride, const char* from, std::size_t from_stride, std::size_t bytes,
            std::size_t rows, cudaMemcpyKind kind) const {
    if (rows == 1)
      check(cudaMemcpyAsync(to, from, bytes, kind, stream_), "cudaMemcpyAsync");
    else
      check(cudaMemcpy2DAsync(to, to_stride, from, from_stride, bytes, rows, kind, stream_), "cudaMemcpy2DAsync");
  }

  int device_;
  cudaStream_t stream_;
  WordStore store_;
  std::array<cudaEvent_t, 2 * Proxy::buffers> events_ = {};
  std::uint64_t marks_ = 0;
  cudaEvent_t launched_ = nullptr;
  std::atomic<std::uint64_t> launches_ = 0;
  /// Number of launches when launched_ was last seen complete. Kernels in other streams may still run: then the thread
  /// only polls less often.
  std::uint64_t ended_ = 0;
};

/// The proxy's part in pinned host memory that the GPU maps, and kernels' part in the GPU's, zeroed.
class RingMemory {
 public:
  RingMemory() {
    constexpr std::size_t bytes = ring_bytes + completed_bytes + Proxy::buffers * Proxy::message_bytes;
    void *host = nullptr, *mapped = nullptr, *device = nullptr;
    check(cudaHostAlloc(&host, bytes, cudaHostAllocMapped),
          "World: " + std::to_string(bytes) + " bytes of pinned memory");
    host_ = static_cast<char*>(host);
    std::memset(host, 0, bytes);
    check(cudaHostGetDevicePointer(&mapped, host, 0), "World: cudaHostGetDevicePointer");
    mapped_ = static_cast<char*>(mapped);
    check(cudaMalloc(&device, 2 * line * sizeof(std::uint64_t)), "World: memory for the proxy");
    device_ = static_cast<std::uint64_t*>(device);
    check(cudaMemset(device, 0, 2 * line * sizeof(std::uint64_t)), "World: cudaMemset");
    check(cudaDeviceSynchronize(), "World: cudaDeviceSynchronize");
  }
  ~RingMemory() {
    cudaFree(device_);
    cudaFreeHost(host_);
  }
  RingMemory(const RingMemory&) = delete;
  RingMemory& operator=(const RingMemory&) = delete;

  Proxy::Memory host() const {
    return {reinterpret_cast<ProxySlot*>(host_), reinterpret_cast<std::uint64_t*>(host_ + ring_bytes),
            host_ + ring_bytes + completed_bytes};
  }
  ProxyPort port() const {
    return {reinterpret_cast<ProxySlot*>(mapped_), reinterpret_cast<std::uint64_t*>(mapped_ + ring_bytes), device_,
            device_ + line};
  }

 private:
  static constexpr std::size_t ring_bytes = proxy_slots * sizeof(ProxySlot), completed_bytes = 128;
  static constexpr std::size_t line = 16;  // words: each counter has a line of its own
  char *host_ = nullptr, *mapped_ = nullptr;
  std::uint64_t* device_ = nullptr;
};

/// A World over MPI's windows with a proxy.
class ProxyWire final : public Wire {
 public:
  ProxyWire(MPI_Comm comm, int process, int processes) : who_("process " + std::to_string(process) + ": ") {
    int mine = MPI_THREAD_SINGLE, level = mine;  // it may differ: all throw, or none
    PMPI_Query_thread(&mine);
    check_mpi(PMPI_Allreduce(&mine, &level, 1, MPI_INT, MPI_MIN, comm), "World: " + who_ + "MPI_Allreduce");
    if (level < MPI_THREAD_MULTIPLE)
      throw Error(
          "World: " + who_ +
          "the proxy, by which GPUs of several nodes are reached, calls MPI in a thread of its own: start MPI by "
          "MPI_Init_thread with MPI_THREAD_MULTIPLE");
    if (process == 0 && std::getenv("GPUDT_UNMAP_FREED") == nullptr)
      std::fprintf(stderr,
                   "gpudt-initiated: set GPUDT_UNMAP_FREED=0: the proxy calls MPI while kernels run, and unmapping "
                   "freed memory there would wait until they end\n");
    near_ = mpi_wire(comm, process, processes);
    check_mpi(PMPI_Comm_dup(comm, &comm_), "World: " + who_ + "MPI_Comm_dup");
    PMPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  }
  ~ProxyWire() override {
    proxy_.reset();
    copies_.reset();
    PMPI_Comm_free(&comm_);
  }

  const char* name() const override { return "MPI windows and a proxy"; }
  bool symmetric() const override { return false; }
  bool goes_far() const override { return true; }

  WiredMemory allocate(std::size_t bytes) override {
    WiredMemory memory = near_->allocate(bytes);
    for (MPI_Aint& there : memory.bytes) there = static_cast<MPI_Aint>(bytes);
    return memory;
  }
  void free(const WiredMemory& memory) override { near_->free(memory); }
  void barrier() override {
    drain();
    near_->barrier();
  }
  std::vector<MPI_Aint> gather(MPI_Aint mine) override { return near_->gather(mine); }
  void launch(const void* kernel, int blocks, int threads, void** arguments, std::size_t shared_bytes,
              cudaStream_t stream) override {
    near_->launch(kernel, blocks, threads, arguments, shared_bytes, stream);
    copies_->launched(stream);
  }

  void join(KernelWorld& kernel, std::int64_t bytes) override {
    int device = 0;
    check(cudaGetDevice(&device), "World: cudaGetDevice");
    memory_ = std::make_unique<RingMemory>();
    copies_ = std::make_unique<CudaCopies>(device);
    proxy_ = std::make_unique<Proxy>(comm_, memory_->host(), *copies_, kernel.timeout_ns);
    proxy_->expose(queue_memory, reinterpret_cast<char*>(kernel.rings), bytes);
    kernel.proxy = memory_->port();
  }
  void expose(std::int32_t id, char* base, std::int64_t bytes) override { proxy_->expose(id, base, bytes); }
  void hide(std::int32_t id) override {
    barrier();  // nobody's commands for it are under way
    if (proxy_ != nullptr) proxy_->hide(id);
  }
  void store_word(int process, std::int32_t id, std::int64_t offset, std::uint64_t word) override {
    try {
      proxy_->send_word(process, id, offset, word);
    } catch (const std::runtime_error& error) {
      throw Error(error.what());
    }
  }
  void settle() override { drain(); }
  void end(bool all) override {
    if (proxy_ == nullptr) return;
    // The others come to the barrier, whatever this process's proxy has met with.
    for (const auto step : {&ProxyWire::drain, &ProxyWire::near_barrier}) try {
        if (all) (this->*step)();
      } catch (const Error& error) {
        std::fprintf(stderr, "gpudt-initiated: %s\n", error.what());
      }
    proxy_->stop();
  }

 private:
  void drain() {
    if (proxy_ == nullptr) return;
    try {
      proxy_->drain();
    } catch (const std::runtime_error& error) {
      throw Error(error.what());
    }
  }
  void near_barrier() { near_->barrier(); }

  std::string who_;
  std::unique_ptr<Wire> near_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::unique_ptr<RingMemory> memory_;
  std::unique_ptr<CudaCopies> copies_;
  std::unique_ptr<Proxy> proxy_;
};

}  // namespace

std::unique_ptr<Wire> proxy_wire(MPI_Comm comm, int process, int processes) {
  return std::make_unique<ProxyWire>(comm, process, processes);
}

std::unique_ptr<Wire> usual_wire(MPI_Comm comm, int process, int processes) {
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(PMPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node), "World: MPI_Comm_split_type");
  int here = 0;
  PMPI_Comm_size(node, &here);
  PMPI_Comm_free(&node);
  const int mine = here;
  check_mpi(PMPI_Allreduce(&mine, &here, 1, MPI_INT, MPI_MIN, comm), "World: MPI_Allreduce");
  return (here == processes ? mpi_wire : proxy_wire)(comm, process, processes);
}

}  // namespace gpudt::initiated

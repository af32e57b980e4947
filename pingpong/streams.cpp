// gpudt-streams: what messages cost that are enqueued in streams of the GPU (gpudt_streams.h). Two ranks, each on a
// GPU, send a message to and fro in a stream, and in a graph that is launched; every byte is verified. Times are by the
// GPU's clock from stream to stream, one way, in microseconds, and by the host's for the calls that enqueue.
#include <cuda_runtime_api.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <vector>

#include "include/gpudt_streams.h"
#include "pingpong/common/command_line.hpp"

namespace {

constexpr int warm_up = 5;
constexpr int to_and_fro = 10;  ///< in each sample, and in each graph
constexpr int block = 16;       ///< numbers in a block of the vector type, half of whose extent is gaps

int rank = 0, samples = 51;

void require(bool done, const char* what) {
  if (done) return;
  std::fprintf(stderr, "rank %d: %s failed\n", rank, what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}
void require(cudaError_t error, const char* what) {
  if (error != cudaSuccess) std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  require(error == cudaSuccess, what);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double microseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

/// Device memory for all messages: of what is freed, processes unmap nothing while operations are enqueued.
class Memory {
 public:
  explicit Memory(std::int64_t bytes) {
    require(cudaMalloc(reinterpret_cast<void**>(&data_), static_cast<std::size_t>(bytes)), "cudaMalloc");
  }
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  double* data() const { return data_; }

 private:
  double* data_ = nullptr;
};

/// A message in that memory.
class Message {
 public:
  Message(const Memory& memory, int numbers, bool gaps) : numbers_(numbers), gaps_(gaps), data_(memory.data()) {
    if (gaps)
      MPI_Type_vector(numbers / block, block, 2 * block, MPI_DOUBLE, &type_);
    else
      MPI_Type_contiguous(numbers, MPI_DOUBLE, &type_);
    MPI_Type_commit(&type_);
  }
  ~Message() { MPI_Type_free(&type_); }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  void fill(double first) const {
    std::vector<double> all(extent());
    std::iota(all.begin(), all.end(), first);
    require(cudaMemcpy(data_, all.data(), bytes(), cudaMemcpyDefault), "cudaMemcpy");
  }
  bool holds(double first) const {
    std::vector<double> all(extent());
    require(cudaMemcpy(all.data(), data_, bytes(), cudaMemcpyDefault), "cudaMemcpy");
    for (std::size_t i = 0; i < all.size(); ++i)
      if (!(gaps_ && i / block % 2 == 1) && all[i] != first + static_cast<double>(i)) return false;
    return true;
  }
  double* data() const { return data_; }
  MPI_Datatype type() const { return type_; }

 private:
  std::size_t extent() const { return static_cast<std::size_t>(gaps_ ? 2 * numbers_ : numbers_); }
  std::size_t bytes() const { return extent() * sizeof(double); }
  int numbers_;
  bool gaps_;
  double* data_;
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

struct Stream {
  cudaStream_t cuda = nullptr;
  MPI_Comm comm = MPI_COMM_NULL;
};

Stream make_stream() {
  Stream made;
  require(cudaStreamCreateWithFlags(&made.cuda, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  MPI_Info info = MPI_INFO_NULL;
  MPI_Info_create(&info);
  MPI_Info_set(info, "type", "cudaStream_t");
  MPIX_Info_set_hex(info, "value", &made.cuda, sizeof(cudaStream_t));
  MPIX_Stream stream = MPIX_STREAM_NULL;
  MPIX_Stream_create(info, &stream);
  MPIX_Stream_comm_create(MPI_COMM_WORLD, stream, &made.comm);
  MPIX_Stream_free(&stream);
  MPI_Info_free(&info);
  return made;
}

/// Enqueues what goes to and fro `times` times. Returns the host's microseconds for each call.
double enqueue(const Stream& stream, const Message& message, int times) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i)
    for (const bool sends : {rank == 0, rank != 0})
      if (sends)
        MPIX_Send_enqueue(message.data(), 1, message.type(), 1 - rank, 0, stream.comm);
      else
        MPIX_Recv_enqueue(message.data(), 1, message.type(), 1 - rank, 0, stream.comm, MPI_STATUS_IGNORE);
  return microseconds_since(begin) / (2.0 * times);
}

/// The GPU's microseconds of `work()` in the stream, medians of samples.
double time_of(const Stream& stream, const std::function<void()>& work) {
  cudaEvent_t begin = nullptr, end = nullptr;
  require(cudaEventCreate(&begin), "cudaEventCreate");
  require(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<double> times;
  for (int i = 0; i < samples + warm_up; ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    require(cudaEventRecord(begin, stream.cuda), "cudaEventRecord");
    work();
    require(cudaEventRecord(end, stream.cuda), "cudaEventRecord");
    require(cudaStreamSynchronize(stream.cuda), "cudaStreamSynchronize");
    float milliseconds = 0;
    require(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    if (i >= warm_up) times.push_back(1000.0 * milliseconds);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return median(times);
}

double in_stream(const Stream& stream, const Message& message, double& host) {
  std::vector<double> calls;
  const double time =
      time_of(stream, [&] { calls.push_back(enqueue(stream, message, to_and_fro)); }) / (2 * to_and_fro);
  host = median(calls);
  return time;
}

double in_graph(const Stream& stream, const Message& message) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  require(cudaStreamBeginCapture(stream.cuda, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  enqueue(stream, message, to_and_fro);
  require(cudaStreamEndCapture(stream.cuda, &graph), "cudaStreamEndCapture");
  require(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  const double time =
      time_of(stream, [&] { require(cudaGraphLaunch(executable, stream.cuda), "cudaGraphLaunch"); }) / (2 * to_and_fro);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  return time;
}

/// What a program does without streams of MPI: it waits for its stream before it calls MPI.
double by_host(const Stream& stream, const Message& message) {
  std::vector<double> times;
  for (int i = 0; i < samples + warm_up; ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    const auto begin = std::chrono::steady_clock::now();
    for (int j = 0; j < to_and_fro; ++j)
      for (const bool sends : {rank == 0, rank != 0}) {
        require(cudaStreamSynchronize(stream.cuda), "cudaStreamSynchronize");
        if (sends)
          MPI_Send(message.data(), 1, message.type(), 1 - rank, 0, stream.comm);
        else
          MPI_Recv(message.data(), 1, message.type(), 1 - rank, 0, stream.comm, MPI_STATUS_IGNORE);
      }
    if (i >= warm_up) times.push_back(microseconds_since(begin) / (2 * to_and_fro));
  }
  return median(times);
}

double allreduce(const Stream& stream, const Message& message, int count) {
  return time_of(stream,
                 [&] {
                   for (int i = 0; i < to_and_fro; ++i)
                     MPIX_Allreduce_enqueue(MPI_IN_PLACE, message.data(), count, MPI_DOUBLE, MPI_MAX, stream.comm);
                 }) /
         to_and_fro;
}

void measure(const Stream& stream, const Memory& memory, int bytes, bool gaps) {
  const Message message(memory, bytes / static_cast<int>(sizeof(double)), gaps);
  message.fill(rank == 0 ? 7 : 0);
  MPI_Barrier(MPI_COMM_WORLD);
  double host = 0;
  const double plain = in_stream(stream, message, host);
  const double graph = in_graph(stream, message);
  const double blocking = by_host(stream, message);
  require(message.holds(7), "the comparison of the data");
  if (rank == 0)
    std::printf("%9d %-10s %9.2f %9.2f %9.2f %12.2f\n", bytes, gaps ? "vector" : "contiguous", plain, graph, blocking,
                host);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t most = 16 << 20;
  gpudt::bench::CommandLine command(
      "Measures messages that are enqueued in streams of GPUs, there and in graphs, beside those that the host sends "
      "when "
      "the stream is done.\nmpirun -np 2 gpudt-streams");
  command.add_size("--most", most, "The largest message");
  command.add("-n,--samples", samples, "Of which the median is shown", {gpudt::bench::Bounds::positive});
  if (const auto code = command.parse(argc, argv)) return *code;
  MPI_Init(&argc, &argv);
  int ranks = 0, gpus = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  require(ranks == 2, "the start: it takes two ranks");
  require(cudaGetDeviceCount(&gpus), "cudaGetDeviceCount");
  require(cudaSetDevice(rank % gpus), "cudaSetDevice");
  {
    const Stream stream = make_stream();
    const Memory memory(2 * std::max(most, std::int64_t{1} << 10));
    if (rank == 0)
      std::printf("%9s %-10s %9s %9s %9s %12s\n", "bytes", "layout", "stream", "graph", "blocking", "host a call");
    for (const int bytes : {1 << 10, 64 << 10, 1 << 20, 16 << 20})
      for (const bool gaps : {false, true})
        if (bytes <= most) measure(stream, memory, bytes, gaps);
    const Message message(memory, 128, false);
    const double reduction = allreduce(stream, message, 128);
    if (rank == 0) std::printf("allreduce of 1 KiB in the stream: %.2f\n", reduction);
    MPI_Comm freed = stream.comm;
    MPI_Comm_free(&freed);
    cudaStreamDestroy(stream.cuda);
  }
  MPI_Finalize();
  return 0;
}

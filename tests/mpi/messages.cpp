// A few messages for the tests of the environment variables (environment.py): says on stdout what happened.
//
// usage: messages
// apart|device|host|limit|again|probe|lengths|gather|late|turns|slow|managed|fatal|mistakes|leave|freed|beyond|
//                 handle|handle-send|unmatched|abort|exit|killed
//   apart   as device, each rank on a GPU of its own
//   device  a contiguous and a strided message between device buffers, verified
//   host    the same between host buffers
//   limit   a message too large for GPUDT_STAGING_LIMIT, then small ones
//   again   large messages, the last of them verified, then small ones
//   probe   large messages, probed by one who does nothing else for a while
//   lengths host messages of all odd lengths of 515 to 769 bytes, received after a device message; then another one
//   gather  several gathers of blocks of 256 KiB in all processes, the first of them with rank 0 on the host
//   managed long messages from managed memory into host memory, then some into device memory, verified
//   late    sums of ints on the host, then on GPUs, while rank 1 is in MPI_Init (of Open MPI)
//   turns   the same as gather, every other one with rank 0 on the host
//   slow    long messages from device into host memory, and a reduction by an operator of the program's own
//   fatal   a message too long for its receive, with the error handler that MPI starts with
//   mistakes  what GPUDT_CHECK finds, each twice at one place
//   leave   small messages, then one whose request is freed and one that is buffered, right before MPI_Finalize
//   freed   device memory that has been freed is sent; beyond: more than there is
//   handle  as device, but MPI_Init is taken from the MPI library's own handle
//   handle-send  as device, and MPI_Send is taken from there for a message of device memory
//   unmatched  between host buffers, and a receive that no message comes to
//   abort, exit, killed  as device, then ends so without MPI_Finalize; says first what shared memory it has
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace {

bool device_wanted = true, makes_segment_late = false;

class Buffer {
 public:
  explicit Buffer(int count) : count_(count) {
    if (device_wanted)
      cudaMalloc(reinterpret_cast<void**>(&data_), bytes());
    else
      data_ = static_cast<int*>(std::malloc(bytes()));
  }
  ~Buffer() {
    if (device_wanted)
      cudaFree(data_);
    else
      std::free(data_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  int* data() const { return data_; }
  void set(const std::vector<int>& values) { copy(data_, values.data()); }
  std::vector<int> get() const {
    std::vector<int> values(static_cast<std::size_t>(count_));
    copy(values.data(), data_);
    return values;
  }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * sizeof(int); }
  void copy(void* to, const void* from) const {
    if (device_wanted) {
      cudaMemcpy(to, from, bytes(), cudaMemcpyDefault);
      cudaStreamSynchronize(nullptr);
    } else {
      std::copy_n(static_cast<const char*>(from), bytes(), static_cast<char*>(to));
    }
  }
  int count_;
  int* data_ = nullptr;
};

int rank = 0, ranks = 1;
constexpr int beyond_limit = 1 << 20;  ///< ints: 4 MiB, where environment.py sets 1 MiB
constexpr int leaving = 50000;         ///< ints
constexpr int gathered = 1 << 16;      ///< ints

/// One message of `blocks` ints, `stride` apart, round the ring; the error class of the send or the receive.
int exchange(int blocks, int stride, bool& right) {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Type_vector(blocks, 1, stride, MPI_INT, &type);
  MPI_Type_commit(&type);
  Buffer out(blocks * stride), in(blocks * stride);
  std::vector<int> values(static_cast<std::size_t>(blocks * stride), rank + 1);
  out.set(values);
  in.set(std::vector<int>(values.size(), 0));
  const int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
  int error = MPI_Sendrecv(out.data(), 1, type, to, 1, in.data(), 1, type, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  MPI_Type_free(&type);
  values = in.get();
  right = true;
  for (std::size_t i = 0; i < values.size(); ++i)
    right = right && values[i] == (i % static_cast<std::size_t>(stride) == 0 ? from + 1 : 0);
  MPI_Error_class(error, &error);
  return error;
}

/// Long messages into host memory, which no GPU can fetch.
void send_to_host(int messages) {
  const Buffer out(leaving);
  std::vector<int> in(leaving);
  for (int i = 0; i < messages; ++i)
    MPI_Sendrecv(out.data(), leaving, MPI_INT, (rank + 1) % ranks, 3, in.data(), leaving, MPI_INT,
                 (rank + ranks - 1) % ranks, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/// Messages from memory that cannot be exported. Returns whether they came right.
bool send_managed(int messages, bool into_device) {
  int *out = nullptr, right = 0, to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
  cudaMallocManaged(reinterpret_cast<void**>(&out), leaving * sizeof(int), cudaMemAttachGlobal);
  std::fill_n(out, leaving, rank + 1);
  device_wanted = into_device;
  for (int i = 0; i < messages; ++i) {
    Buffer in(leaving);
    MPI_Sendrecv(out, leaving, MPI_INT, to, 3, in.data(), leaving, MPI_INT, from, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (in.get() == std::vector<int>(leaving, from + 1)) ++right;
  }
  cudaFree(out);
  return right == messages;
}

void add_up(void* in, void* inout, int* length, MPI_Datatype*) {
  for (int i = 0; i < *length; ++i) static_cast<int*>(inout)[i] += static_cast<int*>(in)[i];
}

void reduce_by_own_operator() {
  MPI_Op own = MPI_OP_NULL;
  MPI_Op_create(add_up, 1, &own);
  Buffer out(leaving), in(leaving);
  out.set(std::vector<int>(leaving, 1));
  MPI_Allreduce(out.data(), in.data(), leaving, MPI_INT, own, MPI_COMM_WORLD);
  MPI_Op_free(&own);
}

/// Long blocks of all processes.
bool gathers(bool from_device) {
  device_wanted = from_device;
  Buffer out(gathered), in(gathered * ranks);
  out.set(std::vector<int>(gathered, rank + 1));
  in.set(std::vector<int>(static_cast<std::size_t>(gathered * ranks), 0));
  MPI_Allgather(out.data(), gathered, MPI_INT, in.data(), gathered, MPI_INT, MPI_COMM_WORLD);
  const std::vector<int> values = in.get();
  bool right = true;
  for (std::size_t i = 0; i < values.size(); ++i) right = right && values[i] == static_cast<int>(i) / gathered + 1;
  return right;
}

/// Calls number 0, `period`, ... find rank 0 with host memory.
void gather(int calls, int period) {
  const bool on_device = device_wanted;
  bool right = true;
  for (int i = 0; i < calls; ++i) right = gathers(on_device && (rank != 0 || i % period != 0)) && right;
  device_wanted = on_device;
  std::printf("rank %d: gather: %s\n", rank, right ? "right" : "wrong");
}

/// All data but the first call's are on GPUs, and so no process goes another way, however late one comes.
void sum_late() {
  int own = rank, sum = 0;
  MPI_Allreduce(&own, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  bool right = true;
  for (int i = 0; i < 10; ++i) {
    Buffer out(leaving), in(leaving);
    out.set(std::vector<int>(leaving, i));
    MPI_Allreduce(out.data(), in.data(), leaving, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    right = right && in.get() == std::vector<int>(leaving, ranks * i);
  }
  std::printf("rank %d: late: %s\n", rank, right ? "right" : "wrong");
}

bool is_rank_1() {
  const char* const told = std::getenv("OMPI_COMM_WORLD_RANK");
  return told != nullptr && std::string(told) == "1";
}

/// The first rank sends; the second looks at each message's size before it receives it.
void probe() {
  constexpr int messages = 20;
  Buffer buffer(leaving);
  buffer.set(std::vector<int>(leaving, rank + 1));
  int right = 0;
  if (rank == 0) {
    std::vector<MPI_Request> requests(messages);
    for (MPI_Request& request : requests) MPI_Isend(buffer.data(), leaving, MPI_INT, 1, 4, MPI_COMM_WORLD, &request);
    MPI_Waitall(messages, requests.data(), MPI_STATUSES_IGNORE);
    right = messages;
  } else if (rank == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    for (int i = 0; i < messages; ++i) {
      MPI_Status status;
      int count = 0;
      MPI_Probe(0, 4, MPI_COMM_WORLD, &status);
      MPI_Get_count(&status, MPI_INT, &count);
      MPI_Recv(buffer.data(), leaving, MPI_INT, 0, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      if (count == leaving) ++right;
    }
  }
  std::printf("rank %d: probe: %s\n", rank, right == messages ? "right" : "wrong");
}

/// The first rank sends. What the second receives last has been sent first, so that all of it is under way before.
void lengths() {
  constexpr int shortest = 515, longest = 769, room = 1000;
  std::vector<std::vector<char>> out;
  for (int length = shortest; length <= longest; length += 2)
    out.emplace_back(static_cast<std::size_t>(length), static_cast<char>(length));
  Buffer buffer(leaving);
  buffer.set(std::vector<int>(leaving, 1));
  bool right = true;
  int received = 0;
  if (rank == 0) {
    std::vector<MPI_Request> requests(out.size());
    for (std::size_t i = 0; i < out.size(); ++i)
      MPI_Isend(out[i].data(), static_cast<int>(out[i].size()), MPI_CHAR, 1, 5, MPI_COMM_WORLD, &requests[i]);
    MPI_Send(buffer.data(), leaving, MPI_INT, 1, 6, MPI_COMM_WORLD);
    MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
    MPI_Recv(&received, 1, MPI_INT, 1, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Send(buffer.data(), leaving, MPI_INT, 1, 6, MPI_COMM_WORLD);
  } else if (rank == 1) {
    MPI_Recv(buffer.data(), leaving, MPI_INT, 0, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (const std::vector<char>& wanted : out) {
      std::vector<char> in(room);
      MPI_Status status;
      int count = 0;
      MPI_Recv(in.data(), room, MPI_CHAR, 0, 5, MPI_COMM_WORLD, &status);
      MPI_Get_count(&status, MPI_CHAR, &count);
      in.resize(static_cast<std::size_t>(count));
      right = right && in == wanted;
    }
    MPI_Send(&received, 1, MPI_INT, 0, 7, MPI_COMM_WORLD);
    MPI_Recv(buffer.data(), leaving, MPI_INT, 0, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  std::printf("rank %d: lengths: %s\n", rank, right ? "right" : "wrong");
}

const char* verdict(int error, bool right) {
  if (error == MPI_ERR_NO_MEM) return "MPI_ERR_NO_MEM";
  if (error != MPI_SUCCESS) return "another error";
  return right ? "right" : "wrong";
}

void report(const char* what, int blocks, int stride) {
  bool right = false;
  const int error = exchange(blocks, stride, right);
  std::printf("rank %d: %s: %s\n", rank, what, verdict(error, right));
  MPI_Barrier(MPI_COMM_WORLD);
}

/// Two ints are sent where one is received.
void truncate() {
  Buffer out(2), in(1);
  const int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
  MPI_Sendrecv(out.data(), 2, MPI_INT, to, 1, in.data(), 1, MPI_INT, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  std::printf("rank %d: not stopped\n", rank);
}

/// From rank 0 to rank 1.
void move(const Buffer& buffer) {
  if (rank == 0) MPI_Send(buffer.data(), leaving, MPI_INT, 1, 5, MPI_COMM_WORLD);
  if (rank == 1) MPI_Recv(buffer.data(), leaving, MPI_INT, 0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/// The default stream has yet to write what is sent.
void send_what_is_not_ready() {
  Buffer buffer(leaving);
  buffer.set(std::vector<int>(leaving, 0));
  const auto some_time = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(30)); };
  if (rank == 0) {
    cudaLaunchHostFunc(nullptr, some_time, nullptr);
    cudaMemsetAsync(buffer.data(), 1, leaving * sizeof(int), nullptr);
  }
  move(buffer);
  cudaStreamSynchronize(nullptr);
}

/// Another thread's stream, for which the default stream waits, works on other memory all the while: which is right.
void send_beside_other_work() {
  const Buffer buffer(leaving), other(leaving);
  cudaStream_t stream = nullptr;
  std::atomic<bool> sent{false};
  const auto wait = [](void* given) {
    while (!static_cast<std::atomic<bool>*>(given)->load()) std::this_thread::yield();
  };
  int gpu = 0;
  cudaGetDevice(&gpu);
  std::thread([&] {
    cudaSetDevice(gpu);
    cudaStreamCreate(&stream);
    cudaMemsetAsync(other.data(), 1, leaving * sizeof(int), stream);
    cudaLaunchHostFunc(stream, wait, &sent);
  }).join();
  move(buffer);
  sent = true;
  cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
}

/// Receives that nobody sends to.
void receive_twice_into_one_buffer() {
  const Buffer buffer(leaving);
  MPI_Request requests[2];
  if (rank != 1) return;
  MPI_Irecv(buffer.data(), leaving, MPI_INT, rank, 6, MPI_COMM_WORLD, &requests[0]);
  MPI_Irecv(buffer.data() + leaving - 1, 1, MPI_INT, rank, 7, MPI_COMM_WORLD, &requests[1]);
  for (MPI_Request& request : requests) MPI_Cancel(&request);
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
}

/// Columns of one matrix, whose elements lie between each other's.
void receive_into_columns() {
  constexpr int rows = 100;
  const Buffer matrix(2 * rows);
  MPI_Datatype column = MPI_DATATYPE_NULL;
  MPI_Type_vector(rows, 1, 2, MPI_INT, &column);
  MPI_Type_commit(&column);
  MPI_Request requests[4];
  const int other = (rank + 1) % ranks;
  const Buffer out(2 * rows);
  for (int i : {0, 1}) {
    MPI_Irecv(matrix.data() + i, 1, column, other, 8 + i, MPI_COMM_WORLD, &requests[i]);
    MPI_Isend(out.data(), 1, column, other, 8 + i, MPI_COMM_WORLD, &requests[2 + i]);
  }
  MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
  MPI_Type_free(&column);
}

void change_what_is_being_sent() {
  Buffer buffer(leaving);
  if (rank == 0) {
    buffer.set(std::vector<int>(leaving, 1));
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(buffer.data(), leaving, MPI_INT, 1, 10, MPI_COMM_WORLD, &request);
    buffer.set(std::vector<int>(leaving, 2));
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  } else if (rank == 1) {
    MPI_Recv(buffer.data(), leaving, MPI_INT, 0, 10, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
}

/// A receive that nobody sends to.
void give_up_receive(int* address, int count) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Irecv(address, count, MPI_INT, rank, 11, MPI_COMM_WORLD, &request);
  if (count > 1) cudaFree(address);
  MPI_Cancel(&request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

void free_what_is_received_into() {
  int* address = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&address), leaving * sizeof(int));
  if (rank == 0) give_up_receive(address, leaving);
  if (rank == 1) cudaFree(address);
  if (rank == 1) give_up_receive(address, 1);
}

void make_mistakes() {
  const char* const order = std::getenv("GPUDT_ORDER");
  for (int i = 0; i < 2; ++i) {
    if (order != nullptr && std::string(order) == "none") {
      send_what_is_not_ready();
      send_beside_other_work();
    }
    receive_twice_into_one_buffer();
    receive_into_columns();
    change_what_is_being_sent();
    free_what_is_received_into();
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

void send_bad_memory(bool freed) {
  constexpr int bytes = 512;  // which MPI reads before there is a receive
  void* memory = nullptr;
  cudaMalloc(&memory, bytes);
  cudaMemset(memory, 0, bytes);
  if (freed) cudaFree(memory);
  const int code = MPI_Send(memory, freed ? bytes : 1 << 20, MPI_BYTE, (rank + 1) % ranks, 2, MPI_COMM_WORLD);
  if (code != MPI_SUCCESS) MPI_Abort(MPI_COMM_WORLD, 3);
}

/// The MPI library's own function, as programs find it that load the library themselves.
template <class Function>
Function* by_handle(const char* name) {
  Dl_info mpi{};
  dladdr(dlsym(RTLD_DEFAULT, "PMPI_Wtime"), &mpi);
  return reinterpret_cast<Function*>(dlsym(dlopen(mpi.dli_fname, RTLD_LAZY | RTLD_NOLOAD), name));
}

void send_by_handle() {
  Buffer out(10);
  out.set(std::vector<int>(10, 1));  // after it the simulated device explains faults, whatever MPI_Init has installed
  auto* const send = by_handle<decltype(MPI_Send)>("MPI_Send");
  send(out.data(), 10, MPI_INT, (rank + 1) % ranks, 2, MPI_COMM_WORLD);
}

/// What is left under way here has to reach the other side while this one is in MPI_Finalize.
void send_and_leave(const Buffer& freed, const Buffer& buffered, std::vector<char>& attached) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Isend(freed.data(), leaving, MPI_INT, (rank + 1) % ranks, 2, MPI_COMM_WORLD, &request);
  MPI_Request_free(&request);
  MPI_Buffer_attach(attached.data(), static_cast<int>(attached.size()));
  MPI_Bsend(buffered.data(), leaving, MPI_INT, (rank + 1) % ranks, 3, MPI_COMM_WORLD);
}

void receive_what_was_left() {
  Buffer in(leaving);
  for (const int tag : {2, 3}) {
    MPI_Recv(in.data(), leaving, MPI_INT, (rank + ranks - 1) % ranks, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    const std::vector<int> values = in.get();
    const auto right = std::count(values.begin(), values.end(), (rank + ranks - 1) % ranks + 1);
    std::printf("rank %d: left %d: %s\n", rank, tag, right == leaving ? "right" : "wrong");
  }
}

/// Nothing for other modes.
void end_as(const std::string& mode) {
  if (mode != "abort" && mode != "exit" && mode != "killed") return;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (const auto name = line.find("/dev/shm/gpudt"); name != std::string::npos)
      std::printf("rank %d: shared: %s\n", rank, line.c_str() + name);
  std::fflush(stdout);
  MPI_Barrier(MPI_COMM_WORLD);
  if (mode == "abort") MPI_Abort(MPI_COMM_WORLD, 1);
  if (mode == "exit") std::exit(1);
  std::raise(rank == 0 ? SIGSEGV : SIGKILL);
}

}  // namespace

/// By which the library gives its segment memory, in MPI_Init.
extern "C" [[gnu::visibility("default")]] int posix_fallocate64(int file, off64_t first, off64_t bytes) {
  if (makes_segment_late) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  makes_segment_late = false;
  return fallocate64(file, 0, first, bytes) == 0 ? 0 : errno;
}

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  device_wanted = mode != "host" && mode != "unmatched" && std::getenv("GPUDT_TEST_HOST") == nullptr;
  auto* const init = mode == "handle" ? by_handle<decltype(MPI_Init)>("MPI_Init") : MPI_Init;
  makes_segment_late = mode == "late" && is_rank_1();
  init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int gpus = 0;
  if ((mode == "apart" || mode == "managed") && cudaGetDeviceCount(&gpus) == cudaSuccess) cudaSetDevice(rank % gpus);
  if (mode == "fatal") truncate();
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (mode == "probe") probe();
  if (mode == "gather") gather(6, 6);
  if (mode == "late") sum_late();
  if (mode == "slow") {
    send_to_host(5);
    reduce_by_own_operator();
  }
  if (mode == "managed" && !(send_managed(20, /*into_device=*/false) && send_managed(10, /*into_device=*/true)))
    std::printf("rank %d: managed: wrong\n", rank);
  if (mode == "turns") gather(30, 2);
  if (mode == "mistakes") make_mistakes();
  if (rank == 0 && (mode == "freed" || mode == "beyond")) send_bad_memory(mode == "freed");
  if (mode == "handle-send" && rank == 0) send_by_handle();
  if (mode == "limit") report("large", beyond_limit, 2);
  bool right = true;  // processes of two nodes first find out about each other
  for (int i = 0; (mode == "again" || mode == "lengths") && i < 20; ++i) exchange(beyond_limit, 2, right);
  if (mode == "lengths") lengths();
  if (mode == "again") report("large", beyond_limit, 2);
  report("contiguous", 1000, 1);
  report("strided", 1000, 3);
  end_as(mode);
  if (mode == "leave") {
    Buffer freed(leaving), buffered(leaving);
    freed.set(std::vector<int>(leaving, rank + 1));
    buffered.set(std::vector<int>(leaving, rank + 1));
    std::vector<char> attached(leaving * sizeof(int) + MPI_BSEND_OVERHEAD);
    send_and_leave(freed, buffered, attached);
    receive_what_was_left();
    MPI_Finalize();
    return 0;
  }
  std::vector<int> never(leaving);
  MPI_Request unmatched = MPI_REQUEST_NULL;
  if (mode == "unmatched") MPI_Irecv(never.data(), leaving, MPI_INT, MPI_ANY_SOURCE, 9, MPI_COMM_WORLD, &unmatched);
  MPI_Finalize();
  return 0;
}

// Rounds of cudaMalloc, communication and cudaFree with changing sizes: memory that other processes have had mapped is
// given back, and all data go by the GPUs, whatever has been mapped before. No file stays open.
//
// usage: given-back WAY [rounds] (default 2000), under mpirun with two ranks or more. WAY: one of `ways` below, or
// `laggard` (three ranks).
// GPUDT_TEST_PIECES=1: the memory is from cuMemCreate, in pieces whose handles may be file descriptors.
// GPUDT_TEST_SCALE multiplies the sizes, GPUDT_TEST_BUSY is the amount of the program's own work. GPUDT_REPORT tells
// how the data went, which given_back.py checks.
#include <cuda_runtime_api.h>
#include <dirent.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include "pingpong/common/driver.hpp"

namespace {

constexpr int default_rounds = 2000;
constexpr int verified_wholly = 64;  ///< every 64th round; of the others some bytes are looked at
constexpr int sizes[] = {5000, 9000, 30000, 65536, 70000, 100000, 150000, 250000};  ///< bytes, times GPUDT_TEST_SCALE
/// In collectives, and beside the program's work, chance decides when staging memory of some length is first needed.
constexpr long staging_of_chance = 4 << 20;
constexpr std::size_t busy_bytes = 4 << 20;
constexpr int default_busy = 12;  ///< pieces of the program's own work, unless GPUDT_TEST_BUSY says otherwise
constexpr int most_busy = 120;    ///< where that is too little, as on a machine that does other work
/// Of a piece on the simulated device, about what it takes there to set the bytes. It sleeps: the processes need the
/// processors.
constexpr useconds_t simulated_us = 400;

int rank = 0, ranks = 0;
long wrong = 0, busy_after = 0;

int setting(const char* name, int by_default) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : by_default;
}

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("rank %d: %s: %s\n", rank, what, cudaGetErrorString(error));
  MPI_Abort(MPI_COMM_WORLD, 2);
}

void check(CUresult error, const char* what) {
  if (error == CUDA_SUCCESS) return;
  std::printf("rank %d: %s: error %d\n", rank, what, static_cast<int>(error));
  MPI_Abort(MPI_COMM_WORLD, 2);
}

#define DRIVER(name, ...) check(GPUDT_DRIVER(name)(__VA_ARGS__), #name)

bool in_pieces() {
  static const bool wanted = setting("GPUDT_TEST_PIECES", 0) != 0;
  return wanted;
}

/// Whole pieces of 2 MiB, at least `bytes` bytes.
std::size_t in_pieces(std::size_t bytes) {
  constexpr std::size_t piece = std::size_t{2} << 20;
  return (bytes + piece - 1) / piece * piece;
}

/// Two pieces and more: the data go over the border between the first two.
void* map_pieces(std::size_t bytes) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  check(cudaGetDevice(&properties.location.id), "cudaGetDevice");
  const std::size_t piece = in_pieces(1), all = piece + in_pieces(bytes);
  CUdeviceptr address = 0;
  DRIVER(cuMemAddressReserve, &address, all, 0, 0, 0);
  for (std::size_t at = 0; at < all; at += piece) {
    CUmemGenericAllocationHandle handle = 0;
    DRIVER(cuMemCreate, &handle, piece, &properties, 0);
    DRIVER(cuMemMap, address + at, piece, 0, handle, 0);
    DRIVER(cuMemRelease, handle);
  }
  CUmemAccessDesc access = {};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  DRIVER(cuMemSetAccess, address, all, &access, 1);
  return reinterpret_cast<void*>(address + piece - std::min(piece, bytes / 2 / 256 * 256));
}

void unmap_pieces(void* data, std::size_t bytes) {
  const std::size_t piece = in_pieces(1), all = piece + in_pieces(bytes);
  const CUdeviceptr address = reinterpret_cast<CUdeviceptr>(data) + std::min(piece, bytes / 2 / 256 * 256) - piece;
  DRIVER(cuMemUnmap, address, all);
  DRIVER(cuMemAddressFree, address, all);
}

/// Of this process.
long open_files() {
  long count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (folder != nullptr && readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

/// Memory, from cudaMalloc as a rule, whose bytes are all `value`.
class Memory {
 public:
  Memory(int bytes, int value) : bytes_(bytes) {
    if (in_pieces())
      data_ = map_pieces(static_cast<std::size_t>(bytes));
    else
      check(cudaMalloc(&data_, static_cast<std::size_t>(bytes)), "cudaMalloc");
    check(cudaMemset(data_, value, static_cast<std::size_t>(bytes)), "cudaMemset");
    check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }
  ~Memory() {
    if (in_pieces())
      unmap_pieces(data_, static_cast<std::size_t>(bytes_));
    else
      check(cudaFree(data_), "cudaFree");
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data() const { return data_; }
  int bytes() const { return bytes_; }

  /// Counts a fault unless all `bytes` bytes from `offset` on, or some of them, are `value`.
  void expect(int offset, int bytes, int value, bool wholly) const {
    const int some = wholly ? bytes : std::min(bytes, 64);
    for (const int at : {offset, offset + bytes - some}) {
      std::vector<char> found(static_cast<std::size_t>(some));
      check(cudaMemcpy(found.data(), static_cast<char*>(data_) + at, found.size(), cudaMemcpyDeviceToHost),
            "cudaMemcpy");
      const bool right =
          std::all_of(found.begin(), found.end(), [&](char byte) { return byte == static_cast<char>(value); });
      if (!right) ++wrong;
    }
  }

 private:
  void* data_ = nullptr;
  int bytes_;
};

void nap(void*) {
  usleep(simulated_us);
}

/// The program's own work, which is under way while MPI is called.
class Work {
 public:
  explicit Work(bool wanted) {
    if (wanted) check(cudaMalloc(&data_, busy_bytes), "cudaMalloc");
  }
  ~Work() { cudaFree(data_); }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  void start() const {
    const char* const device = std::getenv("GPUDT_DEVICE");
    const bool simulated = device != nullptr && std::string_view(device) == "sim";
    for (int i = 0; data_ != nullptr && i < pieces_; ++i)
      check(simulated ? cudaLaunchHostFunc(nullptr, nap, nullptr) : cudaMemsetAsync(data_, i, busy_bytes, nullptr),
            "work");
  }
  /// Notes whether it is still under way; if it hardly ever is, there will be more of it.
  void look() {
    if (data_ == nullptr) return;
    if (cudaStreamQuery(nullptr) == cudaErrorNotReady)
      ++busy_after;
    else if (++idle_after_ > 16 * (busy_after + 1) && pieces_ < most_busy)
      ++pieces_;
  }

 private:
  void* data_ = nullptr;
  int pieces_ = setting("GPUDT_TEST_BUSY", default_busy);
  long idle_after_ = 0;
};

/// What all ranks know of a round.
struct Round {
  int number;
  int bytes, other;  ///< sizes that have nothing to do with each other
  bool wholly() const { return number % verified_wholly == 0; }
  int value(int of) const { return (number * 7 + of * 3 + 1) % 251; }
};

int next() {
  return (rank + 1) % ranks;
}
int previous() {
  return (rank + ranks - 1) % ranks;
}

void send_both_ways(const Round& round, Work& work) {
  // What goes up is of another size than what goes down.
  const auto size_from = [&](int from) { return from % 2 == 0 ? round.bytes : round.other; };
  const Memory out(size_from(rank), round.value(rank)), in(size_from(previous()), 255);
  work.start();
  MPI_Request request = MPI_REQUEST_NULL;
  if (round.number % 2 == 0) {
    MPI_Irecv(in.data(), in.bytes(), MPI_BYTE, previous(), 1, MPI_COMM_WORLD, &request);
    MPI_Send(out.data(), out.bytes(), MPI_BYTE, next(), 1, MPI_COMM_WORLD);
  } else {
    MPI_Isend(out.data(), out.bytes(), MPI_BYTE, next(), 1, MPI_COMM_WORLD, &request);
    MPI_Recv(in.data(), in.bytes(), MPI_BYTE, previous(), 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  work.look();
  in.expect(0, in.bytes(), round.value(previous()), round.wholly());
}

/// Requests that live for some rounds of their own.
void persist(const Round& round, Work& work) {
  const Memory out(round.bytes, round.value(rank)), in(round.bytes, 255);
  MPI_Request requests[2];
  MPI_Send_init(out.data(), out.bytes(), MPI_BYTE, next(), 2, MPI_COMM_WORLD, &requests[0]);
  MPI_Recv_init(in.data(), in.bytes(), MPI_BYTE, previous(), 2, MPI_COMM_WORLD, &requests[1]);
  for (int i = 0; i < 3; ++i) {
    work.start();
    MPI_Startall(2, requests);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  }
  work.look();
  for (MPI_Request& each : requests) MPI_Request_free(&each);
  in.expect(0, in.bytes(), round.value(previous()), round.wholly());
}

void reduce(const Round& round, Work& work) {
  const Memory in(round.bytes, 1), out(round.bytes, 255);
  work.start();
  if (round.number % 2 == 0) {
    MPI_Allreduce(in.data(), out.data(), round.bytes, MPI_UINT8_T, MPI_SUM, MPI_COMM_WORLD);
  } else {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallreduce(in.data(), out.data(), round.bytes, MPI_UINT8_T, MPI_SUM, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  work.look();
  out.expect(0, round.bytes, ranks, round.wholly());
}

void exchange(const Round& round, Work& work) {
  const Memory out(round.bytes * ranks, round.value(rank)), in(round.bytes * ranks, 255);
  work.start();
  MPI_Alltoall(out.data(), round.bytes, MPI_BYTE, in.data(), round.bytes, MPI_BYTE, MPI_COMM_WORLD);
  work.look();
  for (int from = 0; from < ranks; ++from)
    in.expect(from * round.bytes, round.bytes, round.value(from), round.wholly());
}

void access(const Round& round, Work& work) {
  const Memory exposed(round.bytes, 255), out(round.bytes, round.value(rank));
  MPI_Win window = MPI_WIN_NULL;
  MPI_Win_create(exposed.data(), round.bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  work.start();
  for (int i = 0; i < 3; ++i) {
    MPI_Win_fence(0, window);
    MPI_Put(out.data(), round.bytes, MPI_BYTE, next(), 0, round.bytes, MPI_BYTE, window);
  }
  MPI_Win_fence(0, window);
  work.look();
  exposed.expect(0, round.bytes, round.value(previous()), round.wholly());
  MPI_Win_free(&window);
}

struct Way {
  const char* name;
  void (*take)(const Round&, Work&);
  bool exact;         ///< not a byte more may be taken
  bool busy = false;  ///< the GPU works while MPI is called
};
constexpr Way ways[] = {
    {"messages", send_both_ways, true}, {"messages-busy", send_both_ways, false, true},
    {"persistent", persist, true},      {"persistent-busy", persist, false, true},
    {"reductions", reduce, false},      {"reductions-busy", reduce, false, true},
    {"exchanges", exchange, false},     {"exchanges-busy", exchange, false, true},
    {"windows", access, true},          {"windows-busy", access, false, true},
};

constexpr int small = 50000;  ///< bytes

/// When everybody has had the opportunity to unmap what was freed; of the GPU of this rank.
std::size_t free_bytes() {
  constexpr int bytes = small;
  const Memory out(bytes, rank), in(bytes, 255);
  std::size_t free = 0, total = 0;
  for (int i = 0; i < 100; ++i) {
    MPI_Sendrecv(out.data(), bytes, MPI_BYTE, next(), 3, in.data(), bytes, MPI_BYTE, previous(), 3, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  MPI_Barrier(MPI_COMM_WORLD);
  return free;
}

/// Returns the bytes that stay allocated when memory that another process has mapped has been freed. No other memory
/// has this size, so that what takes its place does not hide it.
long kept_of_one_buffer() {
  constexpr int bytes = 24 << 20;
  const std::size_t before = free_bytes();
  {
    const Memory out(bytes, rank), in(bytes, 255);
    MPI_Sendrecv(out.data(), bytes, MPI_BYTE, next(), 4, in.data(), bytes, MPI_BYTE, previous(), 4, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
  }
  return static_cast<long>(before) - static_cast<long>(free_bytes());
}

/// Rounds first, last - 1.
void run(const Way& way, int first, int last, std::mt19937& random, Work& work) {
  const int scale = setting("GPUDT_TEST_SCALE", 1);
  for (int number = first; number < last; ++number) {
    const int bytes = scale * sizes[random() % std::size(sizes)], other = scale * sizes[random() % std::size(sizes)];
    way.take({number, bytes, other}, work);
  }
}

long more_files = 0;  ///< open in the end than after the first half

/// Returns the bytes that fewer are free after the second half than before it. By then the library mostly has all
/// memory that it needs, also for what messages do not do in every round, with and without work beside them.
long run(const Way& way, int rounds) {
  std::mt19937 random(20261127);
  Work work(way.busy), beside(true);
  for (Work* each : {&work, &beside}) run(ways[0], 0, 100, random, *each);
  run(way, 0, rounds / 2, random, work);
  const long files = open_files();
  long kept = 0;
  // Staging memory that is first needed late, for data that could not be mapped just then, stays: memory that is lost
  // is lost in what follows, too. There are some ten sizes of such memory, and on a busy machine they come one by one.
  constexpr int most_parts = 12, rounds_of_part = 1500;
  for (int part = 0, most = 1; part < most_parts && most > 0; ++part) {
    const std::size_t without = free_bytes();
    run(way, part == 0 ? rounds / 2 : std::max(rounds / 2, rounds - rounds_of_part), rounds, random, work);
    kept = static_cast<long>(without) - static_cast<long>(free_bytes());
    most = kept > 0 ? 1 : 0;
    MPI_Allreduce(MPI_IN_PLACE, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  }
  more_files = open_files() - files;
  return kept;
}

void swap_with(int other, int value) {
  const Memory out(small, value + rank), in(small, 255);
  MPI_Sendrecv(out.data(), small, MPI_BYTE, other, 6, in.data(), small, MPI_BYTE, other, 6, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  in.expect(0, small, value + other, /*wholly=*/true);
}

/// The third rank maps memory of the first, and calls MPI no more until the others have sent each other new memory at
/// the same addresses many times.
void leave_one_behind(int rounds) {
  int* done = nullptr;
  MPI_Win window = MPI_WIN_NULL;
  MPI_Win_allocate_shared(rank == 0 ? sizeof *done : 0, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &done, &window);
  MPI_Aint size = 0;
  int unit = 0;
  MPI_Win_shared_query(window, 0, &size, &unit, static_cast<void*>(&done));
  const std::atomic_ref<int> finished(*done);
  if (rank == 0) finished.store(0);
  {
    const Memory memory(small, rank);
    if (rank == 0) MPI_Send(memory.data(), small, MPI_BYTE, 2, 5, MPI_COMM_WORLD);
    if (rank == 2) MPI_Recv(memory.data(), small, MPI_BYTE, 0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  for (; rank == 2 && finished.load() == 0; usleep(1000)) {
  }
  for (int round = 0; rank < 2 && round < rounds; ++round) {
    swap_with(1 - rank, round % 200);
    constexpr int polls = 200;  // in which the other one unmaps what has been freed
    for (int i = 0; i < polls; ++i)
      MPI_Sendrecv(nullptr, 0, MPI_BYTE, 1 - rank, 7, nullptr, 0, MPI_BYTE, 1 - rank, 7, MPI_COMM_WORLD,
                   MPI_STATUS_IGNORE);
  }
  if (rank == 0) finished.store(1);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Win_free(&window);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) == cudaSuccess && gpus > 0) cudaSetDevice(rank % gpus);
  const std::string_view name = argc > 1 ? argv[1] : "";
  const auto* const way =
      std::find_if(std::begin(ways), std::end(ways), [&](const Way& each) { return each.name == name; });
  const int rounds = argc > 2 ? std::atoi(argv[2]) : default_rounds;
  const bool lags = name == "laggard" && ranks == 3;
  if (gpus == 0 || (way == std::end(ways) && !lags) || rounds < 2) {
    std::printf("usage: given-back WAY [rounds], on GPUs\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  MPI_Barrier(MPI_COMM_WORLD);  // what is sent to a process in MPI_Init goes through the host
  const double began = MPI_Wtime();
  if (lags) leave_one_behind(rounds);
  const long growth = lags ? 0 : run(*way, rounds), kept = kept_of_one_buffer();
  long busy = 0;
  MPI_Allreduce(&busy_after, &busy, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  std::printf(
      "rank %d: %s: %d rounds, %ld wrong, %ld bytes more, %ld kept, %ld files more, %.1f us a round, %ld "
      "times at work\n",
      rank, argv[1], rounds, wrong, growth, kept, more_files, (MPI_Wtime() - began) / rounds * 1e6, busy);
  const long allowed = lags || way->exact ? 0 : setting("GPUDT_TEST_SCALE", 1) * staging_of_chance;
  const bool idle = !lags && way->busy && busy == 0;  // then nothing has been tested
  int failed = wrong > 0 || growth > allowed || kept > staging_of_chance || more_files > 0 || idle ? 1 : 0;
  int any = 0;
  MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return any;
}

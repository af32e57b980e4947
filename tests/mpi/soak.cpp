// Many mixed nonblocking messages, and no growth of memory: after a first part that fills the pools, a second part
// must add neither host memory nor GPU memory.
//
// usage: soak [messages] (default 20000), under mpirun with an even number of ranks
#include <cuda_runtime_api.h>
#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

constexpr int default_messages = 20000;
constexpr int in_flight = 24;
constexpr long growth_allowed = 4 << 20;  ///< bytes of host memory: the allocator's own slack
constexpr std::uint64_t seed = 20240229;

bool host_only() {
  return std::getenv("GPUDT_TEST_HOST") != nullptr;
}

/// Resident bytes that belong to this process alone (what MPI shares between ranks grows as it is touched).
long resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  long total = 0, resident = 0, shared = 0;
  const bool read = file != nullptr && std::fscanf(file, "%ld %ld %ld", &total, &resident, &shared) == 3;
  if (file != nullptr) std::fclose(file);
  return read ? (resident - shared) * 4096 : 0;
}

std::size_t gpu_free_bytes() {
  std::size_t free = 0, total = 0;
  if (!host_only()) cudaMemGetInfo(&free, &total);
  return free;
}

struct Place {
  bool device;
  char* data;
};

constexpr int type_count = 5;
constexpr std::size_t largest = 200000;  ///< bytes that a message may touch

std::vector<MPI_Datatype> make_types() {
  std::vector<MPI_Datatype> types(type_count);
  MPI_Type_contiguous(100, MPI_DOUBLE, &types[0]);
  MPI_Type_vector(50, 1, 2, MPI_DOUBLE, &types[1]);
  MPI_Type_vector(2000, 2, 4, MPI_DOUBLE, &types[2]);
  const int lengths[] = {3, 1, 7, 2, 200}, displacements[] = {0, 5, 10, 30, 40};
  MPI_Type_indexed(5, lengths, displacements, MPI_INT, &types[3]);
  const int whole[] = {30, 30, 30}, part[] = {20, 10, 5}, start[] = {1, 2, 3};
  MPI_Type_create_subarray(3, whole, part, start, MPI_ORDER_C, MPI_FLOAT, &types[4]);
  for (MPI_Datatype& type : types) MPI_Type_commit(&type);
  return types;
}

class Soak {
 public:
  explicit Soak(int rank) : rank_(rank), random_(seed), types_(make_types()) {
    for (int i = 0; i < in_flight; ++i) {
      out_.push_back(allocate(i % 2 == 0));
      in_.push_back(allocate((i / 2) % 2 == 0));
      std::vector<char> pattern(largest);
      for (std::size_t k = 0; k < largest; ++k) pattern[k] = byte(rank, i, k);
      fill(out_.back(), pattern);
    }
  }

  /// Both ranks of a pair draw the same numbers, so that each knows what the other does.
  void run(int messages) {
    for (int done = 0; done < messages; done += in_flight) round();
  }
  long wrong() const { return wrong_; }

  void finish() {
    for (MPI_Datatype& type : types_) MPI_Type_free(&type);
    for (const Place& place : out_) release(place);
    for (const Place& place : in_) release(place);
  }

 private:
  static char byte(int rank, int buffer, std::size_t at) {
    return static_cast<char>((at * 7 + at / 251) ^ static_cast<std::size_t>(rank * 16 + buffer));
  }
  static Place allocate(bool device) {
    void* data = nullptr;
    if (device && !host_only())
      cudaMalloc(&data, largest);
    else
      data = std::malloc(largest);
    return {device && !host_only(), static_cast<char*>(data)};
  }
  static void release(const Place& place) {
    if (place.device)
      cudaFree(place.data);
    else
      std::free(place.data);
  }
  static void fill(const Place& to, const std::vector<char>& pattern) {
    if (to.device) {
      cudaMemcpy(to.data, pattern.data(), pattern.size(), cudaMemcpyHostToDevice);
      cudaStreamSynchronize(nullptr);
    } else {
      std::copy(pattern.begin(), pattern.end(), to.data);
    }
  }

  void round() {
    const int peer = rank_ ^ 1;
    std::vector<MPI_Request> requests(2 * in_flight, MPI_REQUEST_NULL);
    std::vector<int> chosen(in_flight);
    for (int i = 0; i < in_flight; ++i) {
      chosen[static_cast<std::size_t>(i)] = static_cast<int>(random_() % type_count);
      MPI_Irecv(in_[static_cast<std::size_t>(i)].data, 1, type(chosen, i), peer, i, MPI_COMM_WORLD,
                &requests[static_cast<std::size_t>(i)]);
    }
    const bool freed = random_() % 4 == 0;
    for (int i = 0; i < in_flight; ++i) {
      MPI_Request* const request = &requests[static_cast<std::size_t>(in_flight + i)];
      start_send(static_cast<int>(random_() % 4), out_[static_cast<std::size_t>(i)].data, type(chosen, i), peer, i,
                 request);
    }
    MPI_Request nobody = MPI_REQUEST_NULL;
    MPI_Isend(out_[0].data, 1, types_[1], MPI_PROC_NULL, 0, MPI_COMM_WORLD, &nobody);
    if (freed)
      MPI_Request_free(&nobody);
    else
      MPI_Wait(&nobody, MPI_STATUS_IGNORE);
    MPI_Waitall(2 * in_flight, requests.data(), MPI_STATUSES_IGNORE);
    if (++rounds_ % 16 == 0) verify(chosen);
  }

  static void start_send(int way, const void* buffer, MPI_Datatype type, int peer, int tag, MPI_Request* request) {
    if (way == 0) {
      MPI_Issend(buffer, 1, type, peer, tag, MPI_COMM_WORLD, request);
    } else if (way == 1) {  // a datatype of its own, freed at once: caches must let go of it
      MPI_Datatype own = MPI_DATATYPE_NULL;
      MPI_Type_dup(type, &own);
      MPI_Isend(buffer, 1, own, peer, tag, MPI_COMM_WORLD, request);
      MPI_Type_free(&own);
    } else {
      MPI_Isend(buffer, 1, type, peer, tag, MPI_COMM_WORLD, request);
    }
  }

  MPI_Datatype type(const std::vector<int>& chosen, int i) const {
    return types_[static_cast<std::size_t>(chosen[static_cast<std::size_t>(i)])];
  }

  /// The bytes of the last round's messages, packed by MPI on host copies.
  void verify(const std::vector<int>& chosen) {
    std::vector<char> sent(largest), received(largest), wanted(largest), found(largest);
    for (int i = 0; i < in_flight; ++i) {
      for (std::size_t k = 0; k < largest; ++k) sent[k] = byte(rank_ ^ 1, i, k);
      const Place& place = in_[static_cast<std::size_t>(i)];
      if (place.device)
        cudaMemcpy(received.data(), place.data, largest, cudaMemcpyDeviceToHost);
      else
        std::copy_n(place.data, largest, received.data());
      int wanted_size = 0, found_size = 0;
      PMPI_Pack(sent.data(), 1, type(chosen, i), wanted.data(), static_cast<int>(largest), &wanted_size,
                MPI_COMM_WORLD);
      PMPI_Pack(received.data(), 1, type(chosen, i), found.data(), static_cast<int>(largest), &found_size,
                MPI_COMM_WORLD);
      if (!std::equal(wanted.begin(), wanted.begin() + wanted_size, found.begin())) ++wrong_;
    }
  }

  int rank_;
  std::mt19937_64 random_;
  std::vector<MPI_Datatype> types_;
  std::vector<Place> out_, in_;
  int rounds_ = 0;
  long wrong_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0, gpus = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (!host_only() && cudaGetDeviceCount(&gpus) == cudaSuccess && gpus > 0) cudaSetDevice(rank % gpus);
  const int messages = argc > 1 ? std::atoi(argv[1]) : default_messages;
  int failed = ranks % 2 != 0 || (!host_only() && gpus == 0) ? 1 : 0;
  if (failed == 0) {
    Soak soak(rank);
    soak.run(messages / 2);
    MPI_Barrier(MPI_COMM_WORLD);
    const long resident = resident_bytes();
    const std::size_t gpu_free = gpu_free_bytes();
    soak.run(messages / 2);
    MPI_Barrier(MPI_COMM_WORLD);
    const long growth = resident_bytes() - resident;
    const long gpu_growth = static_cast<long>(gpu_free) - static_cast<long>(gpu_free_bytes());
    failed = growth > growth_allowed || gpu_growth > growth_allowed || soak.wrong() > 0 ? 1 : 0;
    std::printf("rank %d: %ld wrong; second half: host memory %+ld KiB, GPU memory %+ld KiB\n", rank, soak.wrong(),
                growth / 1024, gpu_growth / 1024);
    soak.finish();
  }
  int any = 0;
  MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%d passed, %d failed (%d messages per rank)\n", 1 - any, any, messages);
  MPI_Finalize();
  return any;
}

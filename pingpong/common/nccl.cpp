#include "pingpong/common/nccl.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "pingpong/common/program.hpp"

namespace gpudt::bench {

// As nccl.h has them (NCCL 2).
struct NcclUniqueId {
  char internal[128];
};

namespace {

constexpr int success = 0, int8 = 0, float32 = 7, sum = 0;

}  // namespace

struct Nccl::Library {
  int (*get_unique_id)(NcclUniqueId*);
  int (*comm_init_rank)(void** comm, int size, NcclUniqueId, int rank);
  int (*comm_destroy)(void* comm);
  const char* (*get_error_string)(int);
  int (*group_start)();
  int (*group_end)();
  int (*send)(const void*, std::size_t, int type, int peer, void* comm, cudaStream_t);
  int (*recv)(void*, std::size_t, int type, int peer, void* comm, cudaStream_t);
  int (*broadcast)(const void*, void*, std::size_t, int type, int root, void* comm, cudaStream_t);
  int (*all_gather)(const void*, void*, std::size_t, int type, void* comm, cudaStream_t);
  int (*all_reduce)(const void*, void*, std::size_t, int type, int op, void* comm, cudaStream_t);
  int (*reduce)(const void*, void*, std::size_t, int type, int op, int root, void* comm, cudaStream_t);
  int (*reduce_scatter)(const void*, void*, std::size_t, int type, int op, void* comm, cudaStream_t);

  /// Null if it, or a function, is not there. Stays loaded, since NCCL has threads of its own.
  static std::unique_ptr<Library> load() {
    void* const handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return nullptr;
    auto library = std::make_unique<Library>();
    const auto find = [handle](const char* name, auto& function) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(handle, name));
      return function != nullptr;
    };
    const bool complete =
        find("ncclGetUniqueId", library->get_unique_id) && find("ncclCommInitRank", library->comm_init_rank) &&
        find("ncclCommDestroy", library->comm_destroy) && find("ncclGetErrorString", library->get_error_string) &&
        find("ncclGroupStart", library->group_start) && find("ncclGroupEnd", library->group_end) &&
        find("ncclSend", library->send) && find("ncclRecv", library->recv) &&
        find("ncclBroadcast", library->broadcast) && find("ncclAllGather", library->all_gather) &&
        find("ncclAllReduce", library->all_reduce) && find("ncclReduce", library->reduce) &&
        find("ncclReduceScatter", library->reduce_scatter);
    return complete ? std::move(library) : nullptr;
  }
  void check(int code) const {
    if (code != success) throw std::runtime_error(std::string("NCCL: ") + get_error_string(code));
  }
};

namespace {

/// Whether two ranks have chosen one GPU. NCCL would refuse these ranks, and the others would wait for them.
bool share_gpus(int size) {
  using Uuid = std::array<char, sizeof(cudaUUID_t::bytes)>;
  int gpu = 0;
  cudaDeviceProp properties = {};
  cuda_check(cudaGetDevice(&gpu), "cudaGetDevice");
  cuda_check(cudaGetDeviceProperties(&properties, gpu), "cudaGetDeviceProperties");
  Uuid own = {};
  std::copy_n(properties.uuid.bytes, own.size(), own.begin());
  std::vector<Uuid> all(static_cast<std::size_t>(size));
  PMPI_Allgather(own.data(), sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, MPI_COMM_WORLD);
  return std::set<Uuid>(all.begin(), all.end()).size() != all.size();
}

}  // namespace

std::shared_ptr<const Nccl> Nccl::open(std::string& why) {
  int rank = 0, size = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  PMPI_Comm_size(MPI_COMM_WORLD, &size);
  why = "two ranks have the same GPU";
  if (share_gpus(size)) return nullptr;
  std::unique_ptr<Library> library = Library::load();
  why = "libnccl.so.2 is not found";
  if (any_rank(library == nullptr)) return nullptr;
  NcclUniqueId id = {};
  int code = rank == 0 ? library->get_unique_id(&id) : success;
  PMPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  void* comm = nullptr;
  if (!any_rank(code != success)) code = library->comm_init_rank(&comm, size, id, rank);
  why = std::string("NCCL: ") + library->get_error_string(code);
  if (any_rank(code != success)) return nullptr;
  return std::shared_ptr<const Nccl>(new Nccl(std::move(library), comm, rank, size));
}

Nccl::Nccl(std::unique_ptr<Library> library, void* comm, int rank, int size)
    : library_(std::move(library)), comm_(comm), rank_(rank), size_(size) {}

Nccl::~Nccl() {
  library_->comm_destroy(comm_);
}

void Nccl::broadcast(void* data, std::size_t count, int root) const {
  library_->check(library_->broadcast(data, data, count, int8, root, comm_, stream_.get()));
  stream_.synchronize();
}

void Nccl::all_gather(const void* from, void* to, std::size_t count) const {
  library_->check(library_->all_gather(from, to, count, int8, comm_, stream_.get()));
  stream_.synchronize();
}

void Nccl::all_reduce(const void* from, void* to, std::size_t count) const {
  library_->check(library_->all_reduce(from, to, count, float32, sum, comm_, stream_.get()));
  stream_.synchronize();
}

void Nccl::reduce(const void* from, void* to, std::size_t count, int root) const {
  library_->check(library_->reduce(from, to, count, float32, sum, root, comm_, stream_.get()));
  stream_.synchronize();
}

void Nccl::reduce_scatter(const void* from, void* to, std::size_t count) const {
  library_->check(library_->reduce_scatter(from, to, count, float32, sum, comm_, stream_.get()));
  stream_.synchronize();
}

template <class Exchange>
void Nccl::exchange(const Exchange& exchange_with) const {
  library_->check(library_->group_start());
  for (int other = 0; other < size_; ++other) exchange_with(other);
  library_->check(library_->group_end());
  stream_.synchronize();
}

void Nccl::gather(const void* from, void* to, std::size_t count, int root) const {
  exchange([&](int other) {
    if (other == root) library_->check(library_->send(from, count, int8, root, comm_, stream_.get()));
    char* const block = static_cast<char*>(to) + static_cast<std::size_t>(other) * count;
    if (rank_ == root) library_->check(library_->recv(block, count, int8, other, comm_, stream_.get()));
  });
}

void Nccl::scatter(const void* from, void* to, std::size_t count, int root) const {
  exchange([&](int other) {
    const char* const block = static_cast<const char*>(from) + static_cast<std::size_t>(other) * count;
    if (rank_ == root) library_->check(library_->send(block, count, int8, other, comm_, stream_.get()));
    if (other == root) library_->check(library_->recv(to, count, int8, root, comm_, stream_.get()));
  });
}

void Nccl::all_to_all(const void* from, void* to, std::size_t count) const {
  exchange([&](int other) {
    const std::size_t at = static_cast<std::size_t>(other) * count;
    library_->check(library_->send(static_cast<const char*>(from) + at, count, int8, other, comm_, stream_.get()));
    library_->check(library_->recv(static_cast<char*>(to) + at, count, int8, other, comm_, stream_.get()));
  });
}

std::shared_ptr<const Nccl> nccl_for(const std::vector<std::string>& ways, const Machine& machine) {
  if (std::find(ways.begin(), ways.end(), "nccl") == ways.end()) return nullptr;
  std::string why = "the device is simulated";
  std::shared_ptr<const Nccl> nccl;
  if (!machine.simulated) nccl = Nccl::open(why);
  int rank = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0 && !nccl) fmt::print("# without the way nccl: {}\n", why);
  return nccl;
}

}  // namespace gpudt::bench

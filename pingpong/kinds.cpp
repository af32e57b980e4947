// gpudt-kinds: contiguous messages from every kind of memory to every other, by MPI and by hand through pinned memory.
// An ordinary MPI program for two ranks; every byte is verified.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>

#include "pingpong/common/contest.hpp"
#include "pingpong/common/pattern.hpp"
#include "pingpong/common/program.hpp"
#include "pingpong/kinds_memory.hpp"

namespace gpudt::bench {
namespace {

const std::vector<std::string> all_ways = {"mpi", "hand"}, all_types = {"char", "double"};
constexpr const char* reference_way = "hand";
constexpr int tag = 4;

struct Options : RunOptions {
  std::vector<std::string> from = kind_names(), to = kind_names(), types = all_types;
};

constexpr const char* ways_help = R"(Kinds of memory:
  malloc, pinned, managed, device  of the C library, cudaHostAlloc, cudaMallocManaged, cudaMalloc
  pool                             cudaMallocAsync, of the device's default pool
  mapped, exportable               cuMemCreate and cuMemMap, in two pieces; without and with a handle for other processes
Ways:
  mpi   MPI_Send and MPI_Recv on the buffers themselves
  hand  memory on GPUs is copied to pinned memory, which MPI sends, and the other way round
Times are half of a message there and back. The column /hand is the median divided by that of hand.
)";

/// The two buffers of each kind that this rank has: what it sends, and what it receives into.
struct Pair {
  std::unique_ptr<KindBuffer> send, receive;
};

using Pairs = std::map<std::string, Pair>;

/// Messages of `bytes` from one kind to another, in both directions at the same kinds.
class Exchange {
 public:
  Exchange(int rank, const Pairs& pairs, const std::string& from, const std::string& to, const std::string& type,
           std::int64_t bytes)
      : rank_(rank),
        bytes_(static_cast<std::size_t>(bytes)),
        send_(*pairs.at(from).send),
        receive_(*pairs.at(to).receive),
        type_(type == "double" ? MPI_DOUBLE : MPI_CHAR),
        count_(static_cast<int>(type == "double" ? bytes / 8 : bytes)),
        copies_sent_(kind_is_on_gpu(from)),
        copies_received_(kind_is_on_gpu(to)) {
    sent_staging_.reserve(bytes_);
    received_staging_.reserve(bytes_);
  }

  /// The entry refers to this object.
  Entry entry(const std::string& way) {
    const bool by_hand = way == "hand";
    return {"message", way, [this, by_hand] { return round_trip(by_hand); },
            [this, by_hand](std::int64_t round) { return verified(by_hand, round); }, static_cast<double>(bytes_)};
  }

 private:
  double round_trip(bool by_hand) {
    PMPI_Barrier(MPI_COMM_WORLD);
    const double start = now_us();
    if (rank_ == 0) send(by_hand);
    receive(by_hand);
    if (rank_ == 1) send(by_hand);
    return (now_us() - start) / 2;
  }

  void send(bool by_hand) {
    if (!by_hand) {
      MPI_Send(send_.address(), count_, type_, 1 - rank_, tag, MPI_COMM_WORLD);
      return;
    }
    if (copies_sent_) copy(sent_staging_.data(), send_.address());
    PMPI_Send(copies_sent_ ? sent_staging_.data() : send_.address(), count_, type_, 1 - rank_, tag, MPI_COMM_WORLD);
  }

  void receive(bool by_hand) {
    if (!by_hand) {
      MPI_Recv(receive_.address(), count_, type_, 1 - rank_, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      return;
    }
    PMPI_Recv(copies_received_ ? received_staging_.data() : receive_.address(), count_, type_, 1 - rank_, tag,
              MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (copies_received_) copy(receive_.address(), received_staging_.data());
  }

  void copy(void* to, const void* from) const {
    cuda_check(cudaMemcpyAsync(to, from, bytes_, cudaMemcpyDefault, stream_.get()), "cudaMemcpyAsync");
    stream_.synchronize();
  }

  std::optional<std::string> verified(bool by_hand, std::int64_t round) {
    const auto size = static_cast<std::int64_t>(bytes_);
    send_.write(packed_stream({rank_, round}, size));
    std::vector<std::byte> seen(bytes_, std::byte{0xff});
    receive_.write(seen);
    static_cast<void>(round_trip(by_hand));
    receive_.read(seen);
    return first_difference(packed_stream({1 - rank_, round}, size), seen);
  }

  int rank_;
  std::size_t bytes_;
  KindBuffer &send_, &receive_;
  MPI_Datatype type_;
  int count_;
  bool copies_sent_, copies_received_;
  Buffer sent_staging_{Place::pinned}, received_staging_{Place::pinned};
  Stream stream_;
};

/// Null, and a line on standard error, where there is no such memory.
std::unique_ptr<KindBuffer> try_to_make(const std::string& kind, std::size_t bytes, const Machine& machine, int rank) {
  try {
    return make_kind_buffer(kind, bytes, machine.gpu);
  } catch (const std::runtime_error& error) {
    if (rank == 0) fmt::print(stderr, "gpudt-kinds: no {} memory here: {}\n", kind, error.what());
    return nullptr;
  }
}

/// Of the kinds that both ranks have.
Pairs make_pairs(const Options& options, const Machine& machine, int rank) {
  const auto bytes = static_cast<std::size_t>(*std::max_element(options.sizes.begin(), options.sizes.end()));
  Pairs pairs;
  for (const std::string& kind : kind_names()) {
    Pair pair{try_to_make(kind, bytes, machine, rank), nullptr};
    if (pair.send) pair.receive = try_to_make(kind, bytes, machine, rank);
    if (!any_rank(pair.receive == nullptr)) pairs.emplace(kind, std::move(pair));
  }
  return pairs;
}

int run(const Options& options, int rank, int size) {
  if (size != 2) throw Refusal("gpudt-kinds needs two ranks: mpirun -np 2");
  const Machine machine = examine_machine(rank);
  Contest contest("gpudt-kinds", options, machine, rank,
                  {{"from", 10, true}, {"to", 10, true}, {"bytes", 9}, {"type", 6, true}}, reference_way);
  const std::vector<std::string> ways = contest.possible_ways({"mpi"});
  use_gpu(machine);
  const Pairs pairs = make_pairs(options, machine, rank);
  contest.print_head();
  for (const std::string& from : options.from)
    for (const std::string& to : options.to) {
      if (!pairs.contains(from) || !pairs.contains(to)) continue;
      for (const std::int64_t bytes : options.sizes)
        for (const std::string& type : options.types) {
          Exchange exchange(rank, pairs, from, to, type, bytes / 8 * 8);
          std::vector<Entry> entries;
          for (const std::string& way : ways) entries.push_back(exchange.entry(way));
          contest.measure({from, to, std::to_string(bytes / 8 * 8), type},
                          {{"from", from}, {"to", to}, {"bytes", bytes / 8 * 8}, {"type", type}}, std::move(entries));
        }
      contest.rule();
    }
  return contest.finish();
}

}  // namespace
}  // namespace gpudt::bench

int main(int argc, char** argv) {
  using namespace gpudt::bench;
  Options options;
  options.sizes_text = "1K,64K,1M,16M";
  CommandLine command(
      "Contiguous messages from every kind of memory to every other.\n"
      "mpirun -np 2 -x LD_PRELOAD=libgpudt-pmpi.so gpudt-kinds");
  add_run_options(command, options, all_ways, "Bytes of a message: a range 64:16M, or a list 1K,64K");
  command.add("--from", options.from, "Kinds that are sent from", kind_names());
  command.add("--to", options.to, "Kinds that are received into", kind_names());
  command.add("--types", options.types, "Datatypes", all_types);
  command.add_footer(ways_help);
  if (const auto code = command.parse(argc, argv)) return *code;
  return run_program("gpudt-kinds", argc, argv, [&](int rank, int size) { return run(options, rank, size); });
}

// gpudt-reductions: sums of floats in GPU memory over all processes. An ordinary MPI program, for any number of ranks;
// every result is verified.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include "pingpong/common/contest.hpp"
#include "pingpong/common/nccl.hpp"
#include "pingpong/common/program.hpp"

namespace gpudt::bench {
namespace {

const std::vector<std::string> all_ways = {"mpi", "nccl", "host"};
constexpr const char* reference_way = "host";
constexpr int root = 0;

struct Options : RunOptions {
  std::vector<std::string> operations;
};

constexpr const char* ways_help = R"(Ways:
  mpi   the reduction from and into GPU memory
  nccl  NCCL's, and a stream synchronisation (where libnccl.so.2 is found and each process has a GPU of its own)
  host  cudaMemcpyAsync to pinned memory, the reduction there, and back
Sizes are those of what a process gets. Times are those until all ranks are done. The column /hand is the median divided
by that of host.
)";

/// One reduction. `parts(size)`: how many times a process gives what it gets.
struct Operation {
  const char* name;
  int (*parts)(int size);
  bool (*gets)(int rank);
  /// Element `index` of what `rank` gets is the sum of these elements of ranks [0, through(rank, size)).
  std::size_t (*source)(int rank, std::size_t count, std::size_t index);
  int (*through)(int rank, int size);
  void (*run)(bool pmpi, const void* from, void* to, int count);
  /// Null: NCCL has none.
  void (*nccl)(const Nccl&, const void* from, void* to, std::size_t count);
};

int once(int) {
  return 1;
}
int for_each_process(int size) {
  return size;
}
bool everyone(int) {
  return true;
}
bool root_alone(int rank) {
  return rank == root;
}
std::size_t same(int, std::size_t, std::size_t index) {
  return index;
}
int all(int, int size) {
  return size;
}

constexpr Operation operations[] = {
    {"allreduce", once, everyone, same, all,
     [](bool pmpi, const void* from, void* to, int count) {
       (pmpi ? PMPI_Allreduce : MPI_Allreduce)(from, to, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
     },
     [](const Nccl& nccl, const void* from, void* to, std::size_t count) { nccl.all_reduce(from, to, count); }},
    {"reduce", once, root_alone, same, all,
     [](bool pmpi, const void* from, void* to, int count) {
       (pmpi ? PMPI_Reduce : MPI_Reduce)(from, to, count, MPI_FLOAT, MPI_SUM, root, MPI_COMM_WORLD);
     },
     [](const Nccl& nccl, const void* from, void* to, std::size_t count) { nccl.reduce(from, to, count, root); }},
    {"reduce_scatter_block", for_each_process, everyone,
     [](int rank, std::size_t count, std::size_t index) { return static_cast<std::size_t>(rank) * count + index; }, all,
     [](bool pmpi, const void* from, void* to, int count) {
       (pmpi ? PMPI_Reduce_scatter_block : MPI_Reduce_scatter_block)(from, to, count, MPI_FLOAT, MPI_SUM,
                                                                     MPI_COMM_WORLD);
     },
     [](const Nccl& nccl, const void* from, void* to, std::size_t count) { nccl.reduce_scatter(from, to, count); }},
    {"scan", once, everyone, same, [](int rank, int) { return rank + 1; },
     [](bool pmpi, const void* from, void* to, int count) {
       (pmpi ? PMPI_Scan : MPI_Scan)(from, to, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
     },
     nullptr},
};

std::vector<std::string> operation_names() {
  std::vector<std::string> names;
  for (const Operation& operation : operations) names.emplace_back(operation.name);
  return names;
}

/// What process `rank` gives at `index`: small whole numbers, whose sums are exact in any order.
float element(int rank, std::size_t index, std::int64_t round) {
  return static_cast<float>((index + 7 * static_cast<std::size_t>(rank) + 13 * static_cast<std::size_t>(round)) % 101);
}

/// One reduction of one size, by all ways.
class Measurement {
 public:
  Measurement(const Operation& operation, int rank, int size, std::size_t count)
      : operation_(operation),
        rank_(rank),
        size_(size),
        count_(count),
        given_(count * static_cast<std::size_t>(operation.parts(size)) * sizeof(float)),
        got_(count * sizeof(float)) {
    for (Buffer* const buffer : {&from_, &host_from_}) buffer->reserve(given_);
    for (Buffer* const buffer : {&to_, &host_to_}) buffer->reserve(got_);
  }

  /// The entries refer to this object.
  std::vector<Entry> entries(const std::vector<std::string>& ways, const std::shared_ptr<const Nccl>& nccl) {
    std::vector<Entry> entries;
    for (const std::string& way : ways) {
      std::function<void()> run = [this] { operation_.run(false, from_.data(), to_.data(), static_cast<int>(count_)); };
      if (way == "host") run = [this] { run_on_host(); };
      if (way == "nccl") {
        if (!nccl || operation_.nccl == nullptr) continue;
        run = [this, nccl] { operation_.nccl(*nccl, from_.data(), to_.data(), count_); };
      }
      entries.push_back({operation_.name, way, [run] { return timed(run); },
                         [this, run](std::int64_t round) { return verified(run, round); },
                         static_cast<double>(std::max(given_, got_))});
    }
    return entries;
  }

 private:
  void run_on_host() {
    cuda_check(cudaMemcpyAsync(host_from_.data(), from_.data(), given_, cudaMemcpyDefault, stream_.get()), "copy");
    stream_.synchronize();
    operation_.run(true, host_from_.data(), host_to_.data(), static_cast<int>(count_));
    if (!operation_.gets(rank_)) return;
    cuda_check(cudaMemcpyAsync(to_.data(), host_to_.data(), got_, cudaMemcpyDefault, stream_.get()), "copy");
    stream_.synchronize();
  }

  static double timed(const std::function<void()>& run) {
    PMPI_Barrier(MPI_COMM_WORLD);
    const double start = now_us();
    run();
    PMPI_Barrier(MPI_COMM_WORLD);
    return now_us() - start;
  }

  std::optional<std::string> verified(const std::function<void()>& run, std::int64_t round) {
    std::vector<float> image(given_ / sizeof(float));
    for (std::size_t i = 0; i < image.size(); ++i) image[i] = element(rank_, i, round);
    from_.write(std::as_bytes(std::span(image)));
    to_.fill(std::byte{0xC3}, got_);
    PMPI_Barrier(MPI_COMM_WORLD);
    run();
    if (!operation_.gets(rank_)) return std::nullopt;
    std::vector<float> seen(count_);
    to_.read(std::as_writable_bytes(std::span(seen)));
    for (std::size_t i = 0; i < count_; ++i) {
      float expected = 0;
      for (int other = 0; other < operation_.through(rank_, size_); ++other)
        expected += element(other, operation_.source(rank_, count_, i), round);
      if (seen[i] != expected) return fmt::format("element {} is {}, not {}", i, seen[i], expected);
    }
    return std::nullopt;
  }

  const Operation& operation_;
  int rank_, size_;
  std::size_t count_, given_, got_;  ///< elements that a process gets; bytes
  Buffer from_{Place::device}, to_{Place::device}, host_from_{Place::pinned}, host_to_{Place::pinned};
  Stream stream_;
};

int run(const Options& options, int rank, int size) {
  const Machine machine = examine_machine(rank);
  Contest contest("gpudt-reductions", options, machine, rank, {{"bytes", 10}}, reference_way);
  const std::vector<std::string> ways = contest.possible_ways({"mpi"});
  use_gpu(machine);
  const std::shared_ptr<const Nccl> nccl = nccl_for(ways, machine);
  contest.print_head();
  for (const Operation& operation : operations) {
    if (std::find(options.operations.begin(), options.operations.end(), operation.name) == options.operations.end())
      continue;
    for (const std::int64_t bytes : options.sizes) {
      const auto count = std::max<std::size_t>(static_cast<std::size_t>(bytes) / sizeof(float), 1);
      if (count > std::size_t{std::numeric_limits<int>::max()}) throw Refusal("sizes of at most 8 GiB");
      Measurement measurement(operation, rank, size, count);
      const std::size_t exactly = count * sizeof(float);
      contest.measure({std::to_string(exactly)}, {{"bytes", exactly}, {"ranks", size}},
                      measurement.entries(ways, nccl));
    }
    contest.rule();
  }
  return contest.finish({{"ranks", size}});
}

}  // namespace
}  // namespace gpudt::bench

int main(int argc, char** argv) {
  using namespace gpudt::bench;
  Options options;
  options.sizes_text = "8:128M";
  options.factor = 16;
  options.operations = operation_names();
  CommandLine command(
      "Sums of floats in GPU memory over all processes.\n"
      "mpirun -np 2 -x LD_PRELOAD=libgpudt-pmpi.so gpudt-reductions");
  add_run_options(command, options, all_ways, "Sizes of what a process gets");
  command.add("--operations", options.operations, "Which reductions", operation_names());
  command.add_footer(ways_help);
  if (const auto code = command.parse(argc, argv)) return *code;
  return run_program("gpudt-reductions", argc, argv, [&](int rank, int size) { return run(options, rank, size); });
}

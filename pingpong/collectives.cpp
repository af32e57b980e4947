// gpudt-collectives: collectives whose blocks lie in GPU memory, by datatypes and by hand. An ordinary MPI program, for
// any number of ranks; every byte that arrives is verified, as are those between the blocks.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "pingpong/common/contest.hpp"
#include "pingpong/common/movers.hpp"
#include "pingpong/common/nccl.hpp"
#include "pingpong/common/pattern.hpp"
#include "pingpong/common/program.hpp"

namespace gpudt::bench {
namespace {

const std::vector<std::string> all_ways = {"mpi", "nccl", "memcpy2d", "kernel"};
constexpr const char* reference_way = "memcpy2d";
constexpr int root = 0;

struct Options : CommonOptions {
  std::vector<std::string> operations;
};

constexpr const char* ways_help = R"(Ways:
  mpi       the collective with the layout's datatype, from and into GPU memory
  nccl      NCCL's, or a group of its sends and receives, and a stream synchronisation: of contiguous blocks, where
            libnccl.so.2 is found and each process has a GPU of its own
  memcpy2d  cudaMemcpy2DAsync to pinned memory for each block, the collective there, and back
  kernel    the same with a hand-written kernel for each block (not on the simulated device)
The root is rank 0; sizes are those of one block, of which each pair of ranks has one. Times are those until all ranks
are done. The column /hand is the median divided by that of memcpy2d.
)";

/// What MPI is told of the blocks on one side: of each `count` elements of `type`.
struct Side {
  void* address;
  int count;
  MPI_Datatype type;
};

/// MPI's functions under one of their two names.
struct Calls {
  decltype(&PMPI_Bcast) bcast;
  decltype(&PMPI_Gather) gather;
  decltype(&PMPI_Scatter) scatter;
  decltype(&PMPI_Allgather) allgather;
  decltype(&PMPI_Alltoall) alltoall;
  decltype(&PMPI_Alltoallv) alltoallv;
};
constexpr Calls mpi_calls = {MPI_Bcast, MPI_Gather, MPI_Scatter, MPI_Allgather, MPI_Alltoall, MPI_Alltoallv};
constexpr Calls pmpi_calls = {PMPI_Bcast, PMPI_Gather, PMPI_Scatter, PMPI_Allgather, PMPI_Alltoall, PMPI_Alltoallv};

/// Where a process takes part, and in what.
struct Ranks {
  int rank, size;
  bool is_root() const { return rank == root; }
};

/// One collective. Numbers of blocks are those of one process; `source(rank, block)` is the block of which process, and
/// which of it, that a process gets.
struct Operation {
  const char* name;
  int (*out)(const Ranks&);
  int (*in)(const Ranks&);
  std::pair<int, int> (*source)(int rank, int block);
  void (*run)(const Calls&, const Ranks&, const Side& out, const Side& in);
  /// Blocks of so many contiguous bytes.
  void (*nccl)(const Nccl&, const Ranks&, const void* out, void* in, std::size_t bytes);
};

int one(const Ranks&) {
  return 1;
}
int all(const Ranks& ranks) {
  return ranks.size;
}
int one_at_root(const Ranks& ranks) {
  return ranks.is_root() ? 1 : 0;
}
int one_elsewhere(const Ranks& ranks) {
  return ranks.is_root() ? 0 : 1;
}
int all_at_root(const Ranks& ranks) {
  return ranks.is_root() ? ranks.size : 0;
}

void run_alltoallv(const Calls& f, const Ranks& ranks, const Side& out, const Side& in) {
  const auto blocks = static_cast<std::size_t>(ranks.size);
  const std::vector<int> outs(blocks, out.count), ins(blocks, in.count);
  std::vector<int> out_displs(blocks), in_displs(blocks);
  for (int i = 0; i < ranks.size; ++i) {
    out_displs[static_cast<std::size_t>(i)] = i * out.count;
    in_displs[static_cast<std::size_t>(i)] = i * in.count;
  }
  f.alltoallv(out.address, outs.data(), out_displs.data(), out.type, in.address, ins.data(), in_displs.data(), in.type,
              MPI_COMM_WORLD);
}

void exchange_by_nccl(const Nccl& nccl, const Ranks&, const void* out, void* in, std::size_t bytes) {
  nccl.all_to_all(out, in, bytes);
}

constexpr Operation operations[] = {
    {"bcast", one_at_root, one_elsewhere,
     [](int, int) {
       return std::pair{root, 0};
     },
     [](const Calls& f, const Ranks& ranks, const Side& out, const Side& in) {
       const Side& here = ranks.is_root() ? out : in;
       f.bcast(here.address, here.count, here.type, root, MPI_COMM_WORLD);
     },
     [](const Nccl& nccl, const Ranks& ranks, const void* out, void* in, std::size_t bytes) {
       nccl.broadcast(ranks.is_root() ? const_cast<void*>(out) : in, bytes, root);
     }},
    {"gather", one, all_at_root,
     [](int, int block) {
       return std::pair{block, 0};
     },
     [](const Calls& f, const Ranks&, const Side& out, const Side& in) {
       f.gather(out.address, out.count, out.type, in.address, in.count, in.type, root, MPI_COMM_WORLD);
     },
     [](const Nccl& nccl, const Ranks&, const void* out, void* in, std::size_t bytes) {
       nccl.gather(out, in, bytes, root);
     }},
    {"scatter", all_at_root, one,
     [](int rank, int) {
       return std::pair{root, rank};
     },
     [](const Calls& f, const Ranks&, const Side& out, const Side& in) {
       f.scatter(out.address, out.count, out.type, in.address, in.count, in.type, root, MPI_COMM_WORLD);
     },
     [](const Nccl& nccl, const Ranks&, const void* out, void* in, std::size_t bytes) {
       nccl.scatter(out, in, bytes, root);
     }},
    {"allgather", one, all,
     [](int, int block) {
       return std::pair{block, 0};
     },
     [](const Calls& f, const Ranks&, const Side& out, const Side& in) {
       f.allgather(out.address, out.count, out.type, in.address, in.count, in.type, MPI_COMM_WORLD);
     },
     [](const Nccl& nccl, const Ranks&, const void* out, void* in, std::size_t bytes) {
       nccl.all_gather(out, in, bytes);
     }},
    {"alltoall", all, all,
     [](int rank, int block) {
       return std::pair{block, rank};
     },
     [](const Calls& f, const Ranks&, const Side& out, const Side& in) {
       f.alltoall(out.address, out.count, out.type, in.address, in.count, in.type, MPI_COMM_WORLD);
     },
     exchange_by_nccl},
    {"alltoallv", all, all,
     [](int rank, int block) {
       return std::pair{block, rank};
     },
     run_alltoallv, exchange_by_nccl},
};

std::vector<std::string> operation_names() {
  std::vector<std::string> names;
  for (const Operation& operation : operations) names.emplace_back(operation.name);
  return names;
}

/// Some blocks of one layout, one behind the other, in device memory.
class BlockArray {
 public:
  BlockArray(const Message& message, int blocks) : message_(message), blocks_(blocks) {
    MPI_Aint lb = 0, extent = 0;
    PMPI_Type_get_extent(message.type(), &lb, &extent);
    pitch_ = extent * message.count();
    image_.resize(static_cast<std::size_t>(std::max(pitch_, message.span()) * std::max(blocks, 1)));
    device_.reserve(image_.size());
  }
  void* address() const { return device_.data(); }
  void* block(int index) const { return device_.data() + index * pitch_; }
  int blocks() const { return blocks_; }

  /// Block i with the data of `seed_of(i)`, and poison between.
  template <class SeedOf>
  void load(SeedOf seed_of) {
    paint(seed_of);
    device_.write(image_);
  }
  void poison() {
    std::fill(image_.begin(), image_.end(), gap);
    device_.write(image_);
  }
  template <class SeedOf>
  std::optional<std::string> mismatch(SeedOf seed_of) {
    paint(seed_of);
    std::vector<std::byte> seen(image_.size());
    device_.read(seen);
    return first_difference(image_, seen);
  }

 private:
  static constexpr std::byte gap{0xC3};

  template <class SeedOf>
  void paint(SeedOf seed_of) {
    std::fill(image_.begin(), image_.end(), gap);
    for (int i = 0; i < blocks_; ++i) {
      const std::vector<std::byte> stream = packed_stream(seed_of(i), message_.size());
      const std::byte* next = stream.data();
      message_.for_each_block([&](std::int64_t offset, std::int64_t length) {
        std::memcpy(&image_[static_cast<std::size_t>(i * pitch_ + offset)], next, static_cast<std::size_t>(length));
        next += length;
      });
    }
  }

  const Message& message_;
  int blocks_;
  std::int64_t pitch_ = 0;
  std::vector<std::byte> image_;
  Buffer device_{Place::device};
};

/// One collective, one way.
class CollectiveWay {
 public:
  virtual ~CollectiveWay() = default;
  virtual void run(const BlockArray& out, const BlockArray& in) = 0;
};

class TypedWay final : public CollectiveWay {
 public:
  TypedWay(const Operation& operation, const Ranks& ranks, const Message& message)
      : operation_(operation), ranks_(ranks), message_(message) {}
  void run(const BlockArray& out, const BlockArray& in) override {
    operation_.run(mpi_calls, ranks_, {out.address(), message_.count(), message_.type()},
                   {in.address(), message_.count(), message_.type()});
  }

 private:
  const Operation& operation_;
  const Ranks& ranks_;
  const Message& message_;
};

class NcclWay final : public CollectiveWay {
 public:
  NcclWay(const Operation& operation, const Ranks& ranks, const Message& message, std::shared_ptr<const Nccl> nccl)
      : operation_(operation),
        ranks_(ranks),
        bytes_(static_cast<std::size_t>(message.size())),
        nccl_(std::move(nccl)) {}
  void run(const BlockArray& out, const BlockArray& in) override {
    operation_.nccl(*nccl_, ranks_, out.address(), in.address(), bytes_);
  }

 private:
  const Operation& operation_;
  const Ranks& ranks_;
  std::size_t bytes_;
  std::shared_ptr<const Nccl> nccl_;
};

class StagedWay final : public CollectiveWay {
 public:
  StagedWay(const Operation& operation, const Ranks& ranks, const Message& message, std::unique_ptr<Mover> mover)
      : operation_(operation), ranks_(ranks), size_(message.size()), mover_(std::move(mover)) {
    if (size_ > std::numeric_limits<int>::max()) throw Refusal("by hand, a block may have 2 GiB at most");
    out_.reserve(static_cast<std::size_t>(size_ * std::max(operation.out(ranks), 1)));
    in_.reserve(static_cast<std::size_t>(size_ * std::max(operation.in(ranks), 1)));
  }
  void run(const BlockArray& out, const BlockArray& in) override {
    for (int i = 0; i < out.blocks(); ++i) mover_->start_pack(out.block(i), out_.data() + i * size_);
    if (out.blocks() != 0) mover_->wait();
    const int count = static_cast<int>(size_);
    operation_.run(pmpi_calls, ranks_, {out_.data(), count, MPI_BYTE}, {in_.data(), count, MPI_BYTE});
    for (int i = 0; i < in.blocks(); ++i) mover_->start_unpack(in_.data() + i * size_, in.block(i));
    if (in.blocks() != 0) mover_->wait();
  }

 private:
  const Operation& operation_;
  const Ranks& ranks_;
  std::int64_t size_;
  std::unique_ptr<Mover> mover_;
  Buffer out_{Place::pinned}, in_{Place::pinned};
};

/// Null where the layout has no such way.
std::unique_ptr<CollectiveWay> make_way(const Operation& operation, const Ranks& ranks, const Message& message,
                                        const std::string& name, const std::shared_ptr<const Nccl>& nccl) {
  if (name == "nccl") {
    if (!nccl || message.span() != message.size()) return nullptr;
    return std::make_unique<NcclWay>(operation, ranks, message, nccl);
  }
  if (name == "mpi") return std::make_unique<TypedWay>(operation, ranks, message);
  auto mover = name == "kernel" ? make_kernel_mover(message, Place::pinned) : make_copy2d_mover(message, Place::pinned);
  if (!mover) return nullptr;
  return std::make_unique<StagedWay>(operation, ranks, message, std::move(mover));
}

/// All ways of one collective with blocks of one layout and size.
class Measurement {
 public:
  Measurement(const Operation& operation, const Ranks& ranks, const Message& message)
      : operation_(operation),
        ranks_(ranks),
        message_(message),
        out_(message, operation.out(ranks)),
        in_(message, operation.in(ranks)) {}

  /// The entries refer to this object.
  std::vector<Entry> entries(const std::vector<std::string>& names, const std::shared_ptr<const Nccl>& nccl) {
    std::vector<Entry> entries;
    for (const std::string& name : names) {
      ways_.push_back(make_way(operation_, ranks_, message_, name, nccl));
      CollectiveWay* const way = ways_.back().get();
      if (way == nullptr) continue;
      entries.push_back({operation_.name, name, [this, way] { return timed(*way); },
                         [this, way](std::int64_t round) { return verified(*way, round); },
                         static_cast<double>(message_.size() * std::max(out_.blocks(), in_.blocks()))});
    }
    return entries;
  }

 private:
  double timed(CollectiveWay& way) {
    PMPI_Barrier(MPI_COMM_WORLD);
    const double start = now_us();
    way.run(out_, in_);
    PMPI_Barrier(MPI_COMM_WORLD);
    return now_us() - start;
  }

  std::optional<std::string> verified(CollectiveWay& way, std::int64_t round) {
    const auto seed = [&](int rank, int block) { return Seed{rank * ranks_.size + block, round}; };
    out_.load([&](int block) { return seed(ranks_.rank, block); });
    in_.poison();
    PMPI_Barrier(MPI_COMM_WORLD);
    way.run(out_, in_);
    return in_.mismatch([&](int block) {
      const auto [rank, number] = operation_.source(ranks_.rank, block);
      return seed(rank, number);
    });
  }

  const Operation& operation_;
  const Ranks& ranks_;
  const Message& message_;
  BlockArray out_, in_;
  std::vector<std::unique_ptr<CollectiveWay>> ways_;
};

int run(const Options& options, const Ranks& ranks) {
  const Machine machine = examine_machine(ranks.rank);
  Contest contest("gpudt-collectives", options, machine, ranks.rank, {{"layout", 12, true}, {"bytes", 10}},
                  reference_way);
  const std::vector<std::string> ways = contest.possible_ways({"mpi"});
  use_gpu(machine);
  const std::shared_ptr<const Nccl> nccl = nccl_for(ways, machine);
  contest.print_head();
  for (const Operation& operation : operations) {
    if (std::find(options.operations.begin(), options.operations.end(), operation.name) == options.operations.end())
      continue;
    for (const LayoutFamily& layout : options.layouts)
      for (const std::int64_t bytes : options.sizes) {
        const Message message = layout.message(bytes);
        Measurement measurement(operation, ranks, message);
        contest.measure({layout.name(), std::to_string(message.size())},
                        {{"layout", layout.name()}, {"bytes", message.size()}, {"ranks", ranks.size}},
                        measurement.entries(ways, nccl));
      }
    contest.rule();
  }
  return contest.finish({{"ranks", ranks.size}});
}

}  // namespace
}  // namespace gpudt::bench

int main(int argc, char** argv) {
  using namespace gpudt::bench;
  Options options;
  options.sizes_text = "16K:16M";
  options.layout_names = {"contiguous", "vector:32"};
  options.operations = operation_names();
  CommandLine command(
      "Collectives on blocks in GPU memory, by datatypes and by hand.\n"
      "mpirun -np 2 -x LD_PRELOAD=libgpudt-pmpi.so gpudt-collectives");
  add_common_options(command, options, all_ways);
  command.add("--operations", options.operations, "Which collectives", operation_names());
  command.add_footer(ways_help);
  if (const auto code = command.parse(argc, argv)) return *code;
  return run_program("gpudt-collectives", argc, argv, [&](int rank, int size) { return run(options, {rank, size}); });
}

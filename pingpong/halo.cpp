// gpudt-halo: the halo exchange of a 3-D block of doubles in GPU memory with all 26 neighbours: faces, edges and
// corners as subarray types, by nonblocking messages and by one neighbourhood collective, against packed copies by
// hand. An ordinary MPI program, for any number of ranks; every point of the block is verified.
#include <fmt/format.h>
#include <mpi.h>

#include <array>

#include "pingpong/common/contest.hpp"
#include "pingpong/common/program.hpp"
#include "pingpong/halo_exchange.hpp"

namespace gpudt::bench {
namespace {

constexpr std::size_t dimensions = 3;
using Index = std::array<int, dimensions>;

struct Options : RunOptions {
  int width = 1;
  std::vector<int> grid = {0, 0, 0};
};

const std::vector<std::string> all_ways = {"mpi", "persistent", "joined", "neighbour", "started", "memcpy2d", "kernel"};
constexpr const char* reference_way = "memcpy2d";
constexpr double untouched = -1;  // what stands in the halo before an exchange

constexpr const char* ways_help = R"(Ways:
  mpi        MPI_Irecv, MPI_Isend and MPI_Waitall with subarray types on the block
  persistent the same as persistent requests: MPI_Startall and MPI_Waitall
  joined     one message to each neighbour, whose type is the struct of all pieces for it
  neighbour  one MPI_Neighbor_alltoallw with the same types
  started    the same as a persistent request: MPI_Start and MPI_Wait (not over MPI libraries without persistent
             collectives)
  memcpy2d   cudaMemcpy2DAsync to pinned memory and back, and the same messages from there
  kernel     the same with hand-written kernels, one for each piece (not on the simulated device)
The processes form a torus. The column /hand is the median divided by that of memcpy2d.
)";

/// The pieces of a block of `inner` points with a halo of `width`.
Halo make_halo(const ProcessGrid& grid, const Index& inner, int width) {
  Halo halo{grid.comm(), {}};
  for (const Direction& direction : all_directions(dimensions)) {
    Index outer, box, inside, outside;
    for (std::size_t d = 0; d < dimensions; ++d) {
      outer[d] = inner[d] + 2 * width;
      box[d] = direction[d] == 0 ? inner[d] : width;
      inside[d] = direction[d] > 0 ? inner[d] : width;
      outside[d] = direction[d] == 0 ? width : direction[d] > 0 ? 0 : inner[d] + width;
    }
    halo.pieces.push_back({grid.neighbour(direction, 1), grid.neighbour(direction, -1), make_box(outer, box, inside),
                           make_box(outer, box, outside)});
  }
  return halo;
}

/// A block in device memory, and a copy on the host to fill and to check it.
class Block final : public ExchangedMemory {
 public:
  Block(const ProcessGrid& grid, const Index& inner, int width) : grid_(grid), inner_(inner), width_(width) {
    std::size_t points = 1;
    for (std::size_t d = 0; d < dimensions; ++d) points *= static_cast<std::size_t>(inner_[d] + 2 * width_);
    host_.resize(points);
    device_.reserve(points * sizeof(double));
  }
  void* address() const override { return device_.data(); }

  void fill(std::int64_t round) override {
    for_each_point([&](const Index& at, double& point) { point = in_halo(at) ? untouched : value(at, round); });
    device_.write(std::as_bytes(std::span(host_)));
  }

  std::optional<std::string> mismatch(std::int64_t round) override {
    device_.read(std::as_writable_bytes(std::span(host_)));
    std::optional<std::string> wrong;
    for_each_point([&](const Index& at, double& point) {
      if (wrong || point == value(at, round)) return;
      wrong = fmt::format("point {}, {}, {} is {}, expected {}", at[0], at[1], at[2], point, value(at, round));
    });
    return wrong;
  }

 private:
  bool in_halo(const Index& at) const {
    for (std::size_t d = 0; d < dimensions; ++d) {
      if (at[d] < width_ || at[d] >= width_ + inner_[d]) return true;
    }
    return false;
  }

  /// Tells the point's place in the whole torus, and the round.
  double value(const Index& at, std::int64_t round) const {
    std::int64_t number = round;
    for (std::size_t d = 0; d < dimensions; ++d) {
      const int all = inner_[d] * grid_.dims()[d];
      number = number * 4099 + (grid_.place()[d] * inner_[d] + at[d] - width_ + all) % all;
    }
    return static_cast<double>(number);
  }

  template <class Visit>
  void for_each_point(Visit&& visit) {
    auto point = host_.begin();
    for (Index at = {0, 0, 0}; at[0] < inner_[0] + 2 * width_; ++at[0]) {
      for (at[1] = 0; at[1] < inner_[1] + 2 * width_; ++at[1]) {
        for (at[2] = 0; at[2] < inner_[2] + 2 * width_; ++at[2]) visit(at, *point++);
      }
    }
  }

  const ProcessGrid& grid_;
  Index inner_;
  int width_;
  std::vector<double> host_;
  Buffer device_{Place::device};
};

void measure_side(Contest& contest, const ProcessGrid& grid, int side, const Options& options,
                  const std::vector<std::string>& ways) {
  if (side < options.width) throw Refusal("a block must be at least as wide as its halo");
  const Index inner = {side, side, side};
  const Halo halo = make_halo(grid, inner, options.width);
  Block block(grid, inner, options.width);
  measure_exchanges(contest, {fmt::format("{}^3", side), std::to_string(halo.bytes())},
                    {{"side", side}, {"width", options.width}, {"bytes", halo.bytes()}, {"grid", grid.dims()}}, halo,
                    ways, block);
}

int run(const Options& options, int rank) {
  const Machine machine = examine_machine(rank);
  Contest contest("gpudt-halo", options, machine, rank, {{"block", 8, true}, {"bytes", 10}}, reference_way);
  const std::vector<std::string> ways = contest.possible_ways({"mpi", "persistent", "joined", "neighbour", "started"});
  use_gpu(machine);
  const ProcessGrid grid(options.grid, true);
  contest.print_head();
  for (const std::int64_t side : options.sizes) {
    measure_side(contest, grid, static_cast<int>(side), options, ways);
    contest.rule();
  }
  return contest.finish({{"width", options.width}, {"grid", grid.dims()}});
}

}  // namespace
}  // namespace gpudt::bench

int main(int argc, char** argv) {
  using namespace gpudt::bench;
  Options options;
  options.sizes_text = "16:256";
  options.factor = 2;
  options.check_sizes = "5,12";
  CommandLine command(
      "Halo exchange of a 3-D block in GPU memory with 26 neighbours, by datatypes and by hand.\n"
      "mpirun -np 2 -x LD_PRELOAD=libgpudt-pmpi.so gpudt-halo");
  add_run_options(command, options, all_ways, "Side of the block, in points: a range 16:256, or a list 20,50");
  command.add("--width", options.width, "Layers of the halo", {Bounds::within, 1, 64});
  command.add("--grid", options.grid, "Processes in each dimension, slowest first, e.g. 1,1,2; 0: MPI chooses",
              {Bounds::not_negative});
  command.add_footer(ways_help);
  if (const auto code = command.parse(argc, argv)) return *code;
  return run_program("gpudt-halo", argc, argv, [&](int rank, int) { return run(options, rank); });
}

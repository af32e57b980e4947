// gpudt-stencil: a nine-point stencil on a 2-D grid of processes in single and double precision, after the one of
// SHOC. The halo is exchanged from and into GPU memory with derived datatypes (rows, columns as vectors, corners),
// against packed copies by hand; the kernel is the same. An ordinary MPI program, for any number of ranks; results are
// verified against a computation on the host. On the simulated device, the host computes.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "pingpong/common/contest.hpp"
#include "pingpong/common/program.hpp"
#include "pingpong/halo_exchange.hpp"
#include "pingpong/stencil_kernel.hpp"

namespace gpudt::bench {
namespace {

struct Options : RunOptions {
  std::vector<int> grid = {0, 0};
  std::vector<std::string> precisions = {"single", "double"};
  bool periodic = false;
};

const std::vector<std::string> all_ways = {"mpi", "memcpy2d", "kernel"};
constexpr const char* reference_way = "memcpy2d";
constexpr int verified_steps = 3;  // after which a wrong corner has reached other points
constexpr int pitch_unit = 32;     // numbers

constexpr const char* ways_help = R"(Calls:
  exchange   the halo alone
  iteration  the halo, one step of the stencil and a stream synchronisation; GF: 10^9 operations of one rank, 11 a point
Ways:
  mpi        MPI_Irecv, MPI_Isend and MPI_Waitall with datatypes on the array
  memcpy2d   cudaMemcpy2DAsync to pinned memory and back, and the same messages from there
  kernel     the same with hand-written kernels, one for each piece (not on the simulated device)
The column /hand is the median divided by that of memcpy2d.
)";

template <class Real>
MPI_Datatype mpi_type() {
  return sizeof(Real) == sizeof(float) ? MPI_FLOAT : MPI_DOUBLE;
}

/// So many rows and columns of a shape: contiguous, or a vector of single numbers.
template <class Real>
Message make_part(const StencilShape& shape, int rows, int cols) {
  constexpr std::int64_t width = sizeof(Real);
  if (rows == 1) return {mpi_type<Real>(), false, cols, StridedBlocks{0, cols * width, {}}};
  MPI_Datatype type;
  MPI_Type_vector(rows, cols, shape.pitch, mpi_type<Real>(), &type);
  MPI_Type_commit(&type);
  return {type, true, 1, StridedBlocks{0, cols * width, {{rows, shape.pitch * width}}}};
}

template <class Real>
Halo make_halo(const ProcessGrid& grid, const StencilShape& shape) {
  const auto inside = [](int step, int points) { return step > 0 ? points : 1; };
  const auto outside = [](int step, int points) { return step == 0 ? 1 : step > 0 ? 0 : points + 1; };
  const auto offset = [&](int row, int col) { return static_cast<std::int64_t>(shape.index(row, col) * sizeof(Real)); };
  Halo halo{grid.comm(), {}};
  for (const Direction& direction : all_directions(2)) {
    const int down = direction[0], right = direction[1];
    const int rows = down == 0 ? shape.rows : 1, cols = right == 0 ? shape.cols : 1;
    halo.pieces.push_back({grid.neighbour(direction, 1), grid.neighbour(direction, -1),
                           make_part<Real>(shape, rows, cols), make_part<Real>(shape, rows, cols),
                           offset(inside(down, shape.rows), inside(right, shape.cols)),
                           offset(outside(down, shape.rows), outside(right, shape.cols))});
  }
  return halo;
}

/// The values at the start, and what becomes of them, computed without communication.
class Reference {
 public:
  Reference(const ProcessGrid& grid, const StencilShape& shape) : grid_(grid), shape_(shape) {}

  /// Whether a point of this rank, or of its halo, lies beyond the edge, where values never change.
  bool beyond_edge(int row, int col) const {
    if (grid_.periodic()) return false;
    const std::array<int, 2> at = whole_place(row, col);
    return at[0] < 0 || at[1] < 0 || at[0] >= whole_rows() || at[1] >= whole_cols();
  }

  /// The same for one point of the whole grid on every rank; from 0 to 1.
  double initial(int row, int col, std::int64_t round) const {
    std::array<int, 2> at = whole_place(row, col);
    if (grid_.periodic()) at = {wrapped(at[0], whole_rows()), wrapped(at[1], whole_cols())};
    // One step of splitmix64 (Steele, Lea, Flood 2014).
    std::uint64_t x = (static_cast<std::uint64_t>(round) << 48) ^ (static_cast<std::uint64_t>(at[0] + 1) << 24) ^
                      static_cast<std::uint64_t>(at[1] + 1);
    x = (x + 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return static_cast<double>(x >> 40) / (1 << 24);
  }

  /// The points after so many steps, in the rank's own shape: from a larger piece of the whole, which gets smaller.
  std::vector<double> after(int steps, std::int64_t round) const {
    const int margin = steps;
    const StencilShape wide = {shape_.rows + 2 * margin - 2, shape_.cols + 2 * margin - 2, shape_.cols + 2 * margin};
    std::vector<double> now(wide.size());
    const int shift = margin - 1;  // from the wide piece's rows and columns to the rank's
    for (int row = 0; row < wide.rows + 2; ++row) {
      for (int col = 0; col < wide.cols + 2; ++col) {
        now[wide.index(row, col)] = initial(row - shift, col - shift, round);
      }
    }
    std::vector<double> next = now;
    for (int step = 0; step < steps; ++step) {
      for (int row = 1 + step; row <= wide.rows - step; ++row) {
        for (int col = 1 + step; col <= wide.cols - step; ++col) {
          if (beyond_edge(row - shift, col - shift)) continue;
          const double* const here = &now[wide.index(row, 0)];
          next[wide.index(row, col)] = nine_points(here - wide.pitch, here, here + wide.pitch, col);
        }
      }
      std::swap(now, next);
    }
    std::vector<double> points;
    for (int row = 1; row <= shape_.rows; ++row) {
      const auto from = now.begin() + static_cast<std::ptrdiff_t>(wide.index(row + shift, 1 + shift));
      points.insert(points.end(), from, from + shape_.cols);
    }
    return points;
  }

 private:
  static int wrapped(int i, int n) { return ((i % n) + n) % n; }
  int whole_rows() const { return shape_.rows * grid_.dims()[0]; }
  int whole_cols() const { return shape_.cols * grid_.dims()[1]; }
  std::array<int, 2> whole_place(int row, int col) const {
    return {grid_.place()[0] * shape_.rows + row - 1, grid_.place()[1] * shape_.cols + col - 1};
  }

  const ProcessGrid& grid_;
  StencilShape shape_;
};

/// The rank's part of the grid in device memory, now and after the next step.
template <class Real>
class Field {
 public:
  Field(const ProcessGrid& grid, const StencilShape& shape, bool simulated)
      : shape_(shape), simulated_(simulated), reference_(grid, shape), image_(shape.size()), result_(shape.size()) {
    for (Buffer* buffer : {&now_, &next_}) buffer->reserve(bytes());
  }

  void load(std::int64_t round) {
    constexpr Real never_used = std::numeric_limits<Real>::quiet_NaN();
    std::fill(image_.begin(), image_.end(), never_used);
    for (int row = 0; row < shape_.rows + 2; ++row) {
      for (int col = 0; col < shape_.cols + 2; ++col) {
        const bool mine = row >= 1 && row <= shape_.rows && col >= 1 && col <= shape_.cols;
        if (!mine && !reference_.beyond_edge(row, col)) continue;
        image_[shape_.index(row, col)] = static_cast<Real>(reference_.initial(row, col, round));
      }
    }
    for (Buffer* buffer : {&now_, &next_}) buffer->write(std::as_bytes(std::span(image_)));
  }

  void exchange(HaloExchange& halo) { halo.run((swapped_ ? next_ : now_).data()); }

  void step() {
    Buffer& in = swapped_ ? next_ : now_;
    Buffer& out = swapped_ ? now_ : next_;
    if (simulated_) {
      step_on_host(in, out);
    } else {
      step_on_device(in, out);
    }
    swapped_ = !swapped_;
  }

  /// After load() and so many steps.
  std::optional<std::string> mismatch(int steps, std::int64_t round) {
    (swapped_ ? next_ : now_).read(std::as_writable_bytes(std::span(image_)));
    const std::vector<double> expected = reference_.after(steps, round);
    // Rounded in another order, since the compiler for the GPU fuses multiplications and additions.
    const double tolerance = 8 * steps * static_cast<double>(std::numeric_limits<Real>::epsilon());
    for (int row = 1; row <= shape_.rows; ++row) {
      for (int col = 1; col <= shape_.cols; ++col) {
        const double seen = image_[shape_.index(row, col)];
        const double wanted = expected[static_cast<std::size_t>(row - 1) * static_cast<std::size_t>(shape_.cols) +
                                       static_cast<std::size_t>(col - 1)];
        if (std::abs(seen - wanted) <= tolerance) continue;  // not so if it is no number
        return fmt::format("row {}, column {} is {}, expected {}", row, col, seen, wanted);
      }
    }
    return std::nullopt;
  }

 private:
  std::size_t bytes() const { return shape_.size() * sizeof(Real); }

  void step_on_host(const Buffer& in, Buffer& out) {
    in.read(std::as_writable_bytes(std::span(image_)));
    out.read(std::as_writable_bytes(std::span(result_)));
    for (int row = 1; row <= shape_.rows; ++row) {
      const Real* const here = &image_[shape_.index(row, 0)];
      for (int col = 1; col <= shape_.cols; ++col) {
        result_[shape_.index(row, col)] = nine_points(here - shape_.pitch, here, here + shape_.pitch, col);
      }
    }
    out.write(std::as_bytes(std::span(result_)));
  }

  void step_on_device([[maybe_unused]] const Buffer& in, [[maybe_unused]] Buffer& out) {
#if GPUDT_BY_HAND
    launch_stencil(reinterpret_cast<const Real*>(in.data()), reinterpret_cast<Real*>(out.data()), shape_,
                   stream_.get());
    stream_.synchronize();
#else
    throw std::runtime_error("built without CUDA");
#endif
  }

  StencilShape shape_;
  bool simulated_, swapped_ = false;
  Reference reference_;
  std::vector<Real> image_, result_;
  Buffer now_{Place::device}, next_{Place::device};
  Stream stream_;
};

template <class Act>
double timed(Act&& act) {
  PMPI_Barrier(MPI_COMM_WORLD);
  const double start = now_us();
  act();
  return now_us() - start;
}

template <class Real>
std::optional<std::string> verify(Field<Real>& field, HaloExchange& halo, int steps, std::int64_t round) {
  field.load(round);
  for (int step = 0; step < steps; ++step) {
    field.exchange(halo);
    field.step();
  }
  return field.mismatch(steps, round);
}

template <class Real>
void measure_side(Contest& contest, const ProcessGrid& grid, const std::string& precision, int side, bool simulated,
                  const std::vector<std::string>& ways) {
  const StencilShape shape = {side, side, (side + 2 + pitch_unit - 1) / pitch_unit * pitch_unit};
  const Halo halo = make_halo<Real>(grid, shape);
  Field<Real> field(grid, shape, simulated);
  std::vector<std::unique_ptr<HaloExchange>> exchanges;
  std::vector<Entry> entries, iterations;
  for (const std::string& way : ways) {
    exchanges.push_back(make_exchange(halo, way));
    HaloExchange* const exchange = exchanges.back().get();
    if (any_rank(exchange == nullptr)) continue;
    entries.push_back({"exchange", way, [&field, exchange] { return timed([&] { field.exchange(*exchange); }); },
                       [&field, exchange](std::int64_t round) { return verify(field, *exchange, 1, round); },
                       static_cast<double>(halo.bytes())});
    iterations.push_back(
        {"iteration", way,
         [&field, exchange] {
           return timed([&] {
             field.exchange(*exchange);
             field.step();
           });
         },
         [&field, exchange](std::int64_t round) { return verify(field, *exchange, verified_steps, round); },
         static_cast<double>(stencil_flops) * side * side, "GF"});
  }
  entries.insert(entries.end(), iterations.begin(), iterations.end());
  contest.measure({precision, fmt::format("{0} x {0}", side), std::to_string(halo.bytes())},
                  {{"precision", precision}, {"side", side}, {"halo_bytes", halo.bytes()}}, std::move(entries));
  contest.rule();
}

/// MPI prefers many rows of processes; this prefers columns, whose neighbours exchange strided data.
std::vector<int> grid_dims(const std::vector<int>& wanted, int size) {
  std::vector<int> dims = wanted;
  if (dims != std::vector<int>{0, 0}) return dims;
  MPI_Dims_create(size, 2, dims.data());
  std::reverse(dims.begin(), dims.end());
  return dims;
}

int run(const Options& options, int rank, int size) {
  const Machine machine = examine_machine(rank);
  Contest contest("gpudt-stencil", options, machine, rank, {{"precision", 9, true}, {"points", 13, true}, {"bytes", 8}},
                  reference_way);
  const std::vector<std::string> ways = contest.possible_ways({"mpi"});
  use_gpu(machine);
  const ProcessGrid grid(grid_dims(options.grid, size), options.periodic);
  contest.print_head();
  for (const std::string& precision : options.precisions) {
    for (const std::int64_t side : options.sizes) {
      const auto measure = precision == "single" ? measure_side<float> : measure_side<double>;
      measure(contest, grid, precision, static_cast<int>(side), machine.simulated, ways);
    }
  }
  return contest.finish({{"grid", grid.dims()}, {"periodic", options.periodic}});
}

}  // namespace
}  // namespace gpudt::bench

int main(int argc, char** argv) {
  using namespace gpudt::bench;
  Options options;
  options.sizes_text = "128:4K";
  options.factor = 2;
  options.check_sizes = "5,40";
  CommandLine command(
      "A nine-point stencil on a 2-D grid of processes, with the halo in GPU memory exchanged by datatypes and by "
      "hand.\nmpirun -np 2 -x LD_PRELOAD=libgpudt-pmpi.so gpudt-stencil");
  add_run_options(command, options, all_ways, "Side of a rank's part, in points: a range 128:4K, or a list 100,1K");
  command.add("--grid", options.grid, "Rows and columns of processes, e.g. 1,2; 0: MPI chooses",
              {Bounds::not_negative});
  command.add("--precision", options.precisions, "single, double", {"single", "double"});
  command.add_flag("--periodic", options.periodic, "The processes form a torus: all have eight neighbours");
  command.add_footer(ways_help);
  if (const auto code = command.parse(argc, argv)) return *code;
  return run_program("gpudt-stencil", argc, argv, [&](int rank, int size) { return run(options, rank, size); });
}

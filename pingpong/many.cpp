// gpudt-many: many messages at once, each of a different vector in GPU memory, from every rank to the next one: posted
// together and waited for together, persistent, joined to one message, and by hand. An ordinary MPI program; every byte
// is verified.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pingpong/common/contest.hpp"
#include "pingpong/common/program.hpp"
#include "pingpong/halo_exchange.hpp"

namespace gpudt::bench {
namespace {

struct Options : RunOptions {
  std::string numbers_text = "8,64,512,4096";
};

const std::vector<std::string> all_ways = {"mpi", "persistent", "joined", "memcpy2d"};
constexpr const char* reference_way = "joined";
constexpr const char* check_numbers = "1,33,300";
constexpr double untouched = -1;  // what stands in the receive buffer before an exchange

constexpr const char* ways_help = R"(Ways:
  mpi         MPI_Irecv and MPI_Isend for each vector, and one MPI_Waitall
  persistent  the same as persistent requests: MPI_Startall and MPI_Waitall
  joined      one message, whose datatype is the struct of all vectors
  memcpy2d    cudaMemcpy2DAsync to pinned memory and back, and a message for each vector from there
Blocks of the vectors have 8, 16, 32 and 64 bytes in turn, and different strides. The column /hand is the median divided
by that of joined.
)";

/// A vector of doubles in the buffer.
struct Vector {
  std::int64_t start, blocks, words, stride;  ///< in doubles
  std::int64_t end() const { return start + blocks * stride; }

  Message message() const {
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Type_vector(static_cast<int>(blocks), static_cast<int>(words), static_cast<int>(stride), MPI_DOUBLE, &type);
    MPI_Type_commit(&type);
    constexpr std::int64_t word = sizeof(double);
    return {type, /*owned=*/true, 1, StridedBlocks{0, words * word, {{blocks, stride * word}}}};
  }
  template <class Visit>
  void for_each_word(Visit&& visit) const {
    for (std::int64_t i = 0; i < blocks * words; ++i) visit(start + i / words * stride + i % words, i);
  }
};

/// `number` vectors of `bytes` bytes each, in whole blocks, and gaps of different lengths between them.
std::vector<Vector> make_vectors(std::int64_t number, std::int64_t bytes) {
  std::vector<Vector> vectors;
  std::int64_t start = 0;
  for (std::int64_t i = 0; i < number; ++i) {
    const std::int64_t words = std::min<std::int64_t>(std::int64_t{1} << i % 4, std::max<std::int64_t>(1, bytes / 8));
    vectors.push_back({start, std::max<std::int64_t>(1, bytes / 8 / words), words, words * 3 + i % 5});
    start = vectors.back().end() + 7;
  }
  return vectors;
}

/// What this rank sends and, behind it, what it receives: vectors of the same form from the rank before it.
class Messages final : public ExchangedMemory {
 public:
  Messages(std::int64_t number, std::int64_t bytes) : vectors_(make_vectors(number, bytes)), all_{MPI_COMM_WORLD, {}} {
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    PMPI_Comm_size(MPI_COMM_WORLD, &ranks_);
    half_ = static_cast<std::size_t>(vectors_.back().end());
    host_.resize(2 * half_);
    device_.reserve(host_.size() * sizeof(double));
    for (const Vector& vector : vectors_) {
      const auto offset = static_cast<std::int64_t>(sizeof(double)) * vector.start;
      const auto behind = static_cast<std::int64_t>(sizeof(double) * half_);
      all_.pieces.push_back(
          {(rank_ + 1) % ranks_, before(), vector.message(), vector.message(), offset, behind + offset});
    }
  }
  const Halo& all() const { return all_; }
  void* address() const override { return device_.data(); }
  int ranks() const { return ranks_; }

  void fill(std::int64_t round) override {
    std::fill(host_.begin(), host_.end(), untouched);
    write(host_.data(), rank_, round);
    device_.write(std::as_bytes(std::span(host_)));
  }

  std::optional<std::string> mismatch(std::int64_t round) override {
    device_.read(std::as_writable_bytes(std::span(host_)));
    std::vector<double> expected(half_, untouched);
    write(expected.data(), before(), round);
    for (std::size_t i = 0; i < half_; ++i)
      if (const double found = host_[half_ + i]; found != expected[i])
        return fmt::format("word {} is {}, expected {}", i, found, expected[i]);
    return std::nullopt;
  }

 private:
  int before() const { return (rank_ + ranks_ - 1) % ranks_; }
  /// What `rank` sends in this round.
  void write(double* words, int rank, std::int64_t round) const {
    for (std::size_t i = 0; i < vectors_.size(); ++i)
      vectors_[i].for_each_word([&](std::int64_t at, std::int64_t word) {
        words[at] = static_cast<double>(((round * 64 + rank) * 100003 + static_cast<std::int64_t>(i)) * 4099 + word);
      });
  }

  std::vector<Vector> vectors_;
  Halo all_;
  int rank_ = 0, ranks_ = 0;
  std::size_t half_ = 0;  ///< doubles that are sent, from the first to the last
  std::vector<double> host_;
  Buffer device_{Place::device};
};

void measure_case(Contest& contest, std::int64_t number, std::int64_t bytes, const std::vector<std::string>& ways) {
  Messages messages(number, bytes);
  measure_exchanges(contest, {std::to_string(number), std::to_string(bytes)},
                    {{"number", number}, {"bytes", bytes}, {"ranks", messages.ranks()}}, messages.all(), ways,
                    messages);
}

int run(const Options& options, int rank) {
  const Machine machine = examine_machine(rank);
  Contest contest("gpudt-many", options, machine, rank, {{"messages", 8, true}, {"bytes", 8, true}}, reference_way);
  const std::vector<std::string> ways = contest.possible_ways({"mpi", "persistent", "joined"});
  use_gpu(machine);
  contest.print_head();
  for (const std::int64_t number : parse_sizes(options.numbers_text, 2)) {
    for (const std::int64_t bytes : options.sizes) measure_case(contest, number, bytes, ways);
    contest.rule();
  }
  return contest.finish({{"numbers", options.numbers_text}});
}

}  // namespace
}  // namespace gpudt::bench

int main(int argc, char** argv) {
  using namespace gpudt::bench;
  Options options;
  options.sizes_text = "64,1K,16K";
  options.check_sizes = "64,1000";
  CommandLine command(
      "Many messages at once, of different vectors in GPU memory, by datatypes and by hand.\n"
      "mpirun -np 2 -x LD_PRELOAD=libgpudt-pmpi.so gpudt-many");
  add_run_options(command, options, all_ways, "Bytes of each message: a range 64:16K, or a list 64,1K");
  command.add("--numbers", options.numbers_text, "Messages at once: a range 8:4K, or a list 8,64");
  command.add_footer(ways_help);
  if (const auto code = command.parse(argc, argv)) return *code;
  if (options.check && !command.given("--numbers")) options.numbers_text = check_numbers;
  return run_program("gpudt-many", argc, argv, [&](int rank, int) { return run(options, rank); });
}

// gpudt-scale: how time grows with the number of blocks of a datatype, the depth of its tree, the number of messages
// under way and the number of ranks; scripts/measure/scale.py fits the exponents. An ordinary MPI program: one process
// measures packing, two measure messages, any number measures itself. Everything is verified.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <deque>

#include "pingpong/common/contest.hpp"
#include "pingpong/common/movers.hpp"
#include "pingpong/common/pattern.hpp"
#include "pingpong/common/program.hpp"

namespace gpudt::bench {
namespace {

struct Options : RunOptions {
  std::vector<std::string> quantities;
};

constexpr int tag = 3;
constexpr std::int64_t depth_blocks = 1 << 16;  // in trees of every depth
constexpr std::int64_t deepest = 14;            // of which the inner levels have two blocks each
constexpr std::int64_t most_messages = 1024;    // under way at once
constexpr std::int64_t most_checked_messages = 64;
constexpr std::int64_t ring_bytes = 64 << 10;

const std::vector<std::string> all_quantities = {"blocks", "lists", "first-use", "depth", "messages", "ranks"};

constexpr const char* quantities_help = R"(Quantities:
  blocks     packing into pinned memory: vectors of n blocks of 8 bytes       (one process)
  lists      the same with n blocks of 16 to 48 bytes at irregular places     (one process)
  first-use  the first packing with a datatype of such a list                 (one process)
  depth      packing 65536 blocks of 8 bytes that n nested vectors describe   (one process)
  messages   exchanging n messages of 1 KiB, 128 blocks, all at once          (two processes)
  ranks      64 KiB round a ring of n processes, and broadcast to all
The way "device" uses device memory, "host" makes the same calls on host memory.
)";

/// Every level but the outermost has two blocks, and a gap that keeps it from being merged with its neighbours.
Message nested_vectors(std::int64_t depth) {
  constexpr std::int64_t run = sizeof(double);
  MPI_Datatype type = MPI_DOUBLE;
  StridedBlocks blocks = {0, run, {}};
  std::int64_t stride = 2 * run, left = depth_blocks;
  for (std::int64_t level = 1; level <= depth; ++level) {
    const std::int64_t count = level < depth ? 2 : left;
    MPI_Datatype outer;
    PMPI_Type_create_hvector(static_cast<int>(count), 1, stride, type, &outer);
    if (type != MPI_DOUBLE) PMPI_Type_free(&type);
    type = outer;
    blocks.dims.insert(blocks.dims.begin(), {count, stride});
    stride = count * stride + run;
    left /= count;
  }
  PMPI_Type_commit(&type);
  return {type, true, 1, std::move(blocks)};
}

/// What a quantity is measured with, kept as long as its entries are.
struct Workshop {
  explicit Workshop(Contest& its_contest, int its_rank, int its_size)
      : contest(its_contest), rank(its_rank), size(its_size), canvas(Place::pinned) {}
  void measure(std::int64_t n, std::int64_t bytes, std::vector<Entry> entries) {
    contest.measure({std::to_string(n), std::to_string(bytes)}, {{"n", n}, {"bytes", bytes}}, std::move(entries));
  }
  Contest& contest;
  const int rank, size;
  Canvas canvas;
};

double timed(const std::function<void()>& work) {
  const double start = now_us();
  work();
  return now_us() - start;
}

double timed_together(const std::function<void()>& work) {
  PMPI_Barrier(MPI_COMM_WORLD);
  return timed(work);
}

using MakeMessage = std::function<Message()>;

/// MPI_Pack into pinned memory; `fresh`: with a datatype that has not been used before.
class Packing {
 public:
  Packing(Place place, const Message& message, const MakeMessage& make, bool fresh, Workshop& shop)
      : message_(message),
        make_(make),
        fresh_(fresh),
        flat_(MPI_BYTE, false, static_cast<int>(message.size()), StridedBlocks{0, message.size(), {}}),
        user_(place, shop.canvas),
        packed_(Place::pinned, shop.canvas) {
    user_.reserve(message);
    packed_.reserve(flat_);
    user_.poison(message);
  }

  double run() {
    if (!fresh_) return pack(message_);
    const Message unused = make_();
    return pack(unused);
  }

  std::optional<std::string> verify(std::int64_t round) {
    user_.load(message_, {0, round});
    packed_.poison(flat_);
    run();
    return packed_.mismatch(flat_, {0, round});
  }

 private:
  double pack(const Message& message) {
    const auto mover = make_mpi_mover(message);
    return timed([&] { mover->pack(user_.address(), packed_.address()); });
  }

  const Message& message_;
  const MakeMessage& make_;
  const bool fresh_;
  Message flat_;
  MessageBuffer user_, packed_;
};

/// Two processes: n messages each way, under way together, each with a buffer of its own at the receiver.
class Exchange {
 public:
  Exchange(Place place, const Message& message, std::int64_t n, Workshop& shop)
      : message_(message), shop_(shop), send_(place, shop.canvas), requests_(2 * static_cast<std::size_t>(n)) {
    send_.reserve(message);
    for (std::int64_t i = 0; i < n; ++i) receives_.emplace_back(place, shop.canvas).reserve(message);
    send_.poison(message);
  }

  void run() {
    const int peer = 1 - shop_.rank;
    MPI_Request* request = requests_.data();
    for (const MessageBuffer& buffer : receives_)
      MPI_Irecv(buffer.address(), message_.count(), message_.type(), peer, tag, MPI_COMM_WORLD, request++);
    for (std::size_t i = 0; i < receives_.size(); ++i)
      MPI_Isend(send_.address(), message_.count(), message_.type(), peer, tag, MPI_COMM_WORLD, request++);
    MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE);
  }

  std::optional<std::string> verify(std::int64_t round) {
    send_.load(message_, {shop_.rank, round});
    for (MessageBuffer& buffer : receives_) buffer.poison(message_);
    PMPI_Barrier(MPI_COMM_WORLD);
    run();
    for (MessageBuffer& buffer : receives_)
      if (auto wrong = buffer.mismatch(message_, {1 - shop_.rank, round})) return wrong;
    return std::nullopt;
  }

 private:
  const Message& message_;
  Workshop& shop_;
  MessageBuffer send_;
  std::deque<MessageBuffer> receives_;
  std::vector<MPI_Request> requests_;
};

/// Any number of processes: each passes a message on to the next, or rank 0's goes to all.
class Round {
 public:
  Round(Place place, const Message& message, Workshop& shop)
      : message_(message), shop_(shop), send_(place, shop.canvas), receive_(place, shop.canvas) {
    for (MessageBuffer* buffer : {&send_, &receive_}) {
      buffer->reserve(message);
      buffer->poison(message);
    }
  }

  void ring() {
    const int next = (shop_.rank + 1) % shop_.size;
    MPI_Sendrecv(send_.address(), message_.count(), message_.type(), next, tag, receive_.address(), message_.count(),
                 message_.type(), before(), tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  void broadcast() { MPI_Bcast(receive_.address(), message_.count(), message_.type(), 0, MPI_COMM_WORLD); }

  std::optional<std::string> verify_ring(std::int64_t round) {
    send_.load(message_, {shop_.rank, round});
    receive_.poison(message_);
    PMPI_Barrier(MPI_COMM_WORLD);
    ring();
    return receive_.mismatch(message_, {before(), round});
  }
  std::optional<std::string> verify_broadcast(std::int64_t round) {
    receive_.poison(message_);
    if (shop_.rank == 0) receive_.load(message_, {0, round});
    PMPI_Barrier(MPI_COMM_WORLD);
    broadcast();
    return shop_.rank == 0 ? std::nullopt : receive_.mismatch(message_, {0, round});
  }

 private:
  int before() const { return (shop_.rank + shop_.size - 1) % shop_.size; }

  const Message& message_;
  Workshop& shop_;
  MessageBuffer send_, receive_;
};

void measure_pack(Workshop& shop, const std::string& quantity, std::int64_t n, const MakeMessage& make, bool fresh,
                  const std::vector<std::string>& ways) {
  const Message message = make();
  const auto amount = static_cast<double>(message.size());
  std::deque<Packing> packings;
  std::vector<Entry> entries;
  for (const std::string& way : ways) {
    Packing& packing = packings.emplace_back(place_from_name(way), message, make, fresh, shop);
    entries.push_back({quantity, way, [&] { return packing.run(); },
                       [&](std::int64_t round) { return packing.verify(round); }, amount});
  }
  shop.measure(n, message.size(), std::move(entries));
}

void measure_messages(Workshop& shop, std::int64_t n, const std::vector<std::string>& ways) {
  const Message message = LayoutFamily("vector:8").message(1 << 10);
  const auto amount = static_cast<double>(n * message.size());
  std::deque<Exchange> exchanges;
  std::vector<Entry> entries;
  for (const std::string& way : ways) {
    Exchange& exchange = exchanges.emplace_back(place_from_name(way), message, n, shop);
    entries.push_back({"messages", way, [&] { return timed_together([&] { exchange.run(); }); },
                       [&](std::int64_t round) { return exchange.verify(round); }, amount});
  }
  shop.measure(n, message.size(), std::move(entries));
}

void measure_ranks(Workshop& shop, const std::vector<std::string>& ways) {
  const Message message = LayoutFamily("vector:128").message(ring_bytes);
  const auto amount = static_cast<double>(message.size());
  std::deque<Round> rounds;
  std::vector<Entry> entries;
  for (const std::string& way : ways) {
    Round& round = rounds.emplace_back(place_from_name(way), message, shop);
    entries.push_back({"ring", way, [&] { return timed_together([&] { round.ring(); }); },
                       [&](std::int64_t number) { return round.verify_ring(number); }, amount});
    entries.push_back({"bcast", way, [&] { return timed_together([&] { round.broadcast(); }); },
                       [&](std::int64_t number) { return round.verify_broadcast(number); }, amount});
  }
  shop.measure(shop.size, message.size(), std::move(entries));
}

void measure_quantity(Workshop& shop, const std::string& quantity, const Options& options,
                      const std::vector<std::string>& ways) {
  const auto packs = [&](const std::string& layout, std::int64_t block, bool fresh) {
    const LayoutFamily family(layout);
    for (const std::int64_t n : options.sizes)
      measure_pack(
          shop, quantity, n, [&] { return family.message(n * block); }, fresh, ways);
  };
  if (quantity == "blocks") return packs("vector:8", 8, false);
  if (quantity == "lists") return packs("indexed:32", 32, false);
  if (quantity == "first-use") return packs("indexed:32", 32, true);
  if (quantity == "ranks") return measure_ranks(shop, ways);
  if (quantity == "depth") {
    for (std::int64_t n = 1; n <= deepest; n += options.check ? deepest - 1 : 1)
      measure_pack(
          shop, quantity, n, [&] { return nested_vectors(n); }, false, ways);
    return;
  }
  for (std::int64_t n = 1; n <= (options.check ? most_checked_messages : most_messages); n *= 4)
    measure_messages(shop, n, ways);
}

/// Those wanted that so many processes can measure.
std::vector<std::string> possible_quantities(const Options& options, int size) {
  std::vector<std::string> possible;
  for (const std::string& quantity : options.quantities) {
    const bool fits = quantity == "ranks" ? size > 1 : quantity == "messages" ? size == 2 : size == 1;
    if (fits) possible.push_back(quantity);
  }
  if (possible.empty()) throw Refusal(fmt::format("none of these quantities is measured by {} processes", size));
  return possible;
}

int run(const Options& options, int rank, int size) {
  const std::vector<std::string> quantities = possible_quantities(options, size);
  const Machine machine = examine_machine(rank);
  Contest contest("gpudt-scale", options, machine, rank, {{"n", 8}, {"bytes", 10}}, "");
  const std::vector<std::string> ways = contest.possible_ways({"device"});
  use_gpu(machine);
  contest.print_head();
  Workshop shop(contest, rank, size);
  for (const std::string& quantity : quantities) {
    measure_quantity(shop, quantity, options, ways);
    contest.rule();
  }
  return contest.finish({{"quantities", quantities}, {"ranks", size}});
}

}  // namespace
}  // namespace gpudt::bench

int main(int argc, char** argv) {
  using namespace gpudt::bench;
  Options options;
  options.sizes_text = "64:256K";
  options.check_sizes = "64,4K";
  options.quantities = all_quantities;
  CommandLine command(
      "How time grows with blocks, depth, messages and ranks, for scripts/measure/scale.py.\n"
      "mpirun -np 1 (and 2, 4, ...) -x LD_PRELOAD=libgpudt-pmpi.so gpudt-scale --json FILE");
  add_run_options(command, options, {"device", "host"}, "Numbers of blocks: a range 64:256K, or a list 64,4K");
  command.add("--quantities", options.quantities, "Separated by commas; those that suit the number of processes",
              all_quantities);
  command.add_footer(quantities_help);
  if (const auto code = command.parse(argc, argv)) return *code;
  return run_program("gpudt-scale", argc, argv, [&](int rank, int size) { return run(options, rank, size); });
}

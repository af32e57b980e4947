// gpudt-initiated-pingpong: messages of any layout between two GPUs, put by kernels that run for all of them, beside
// MPI_Send and MPI_Recv on device memory where MPI takes it. Every byte is verified, gaps and guards included.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstring>

#include "initiated/programs/message_kernels.hpp"
#include "initiated/programs/session.hpp"
#include "pingpong/common/layouts.hpp"
#include "pingpong/common/pattern.hpp"
#include "pingpong/common/statistics.hpp"

namespace gpudt::initiated::programs {
namespace {

using bench::Message;

constexpr std::byte poison{0xA5}, gap{0xC3};
constexpr std::int64_t guard = 256;

struct Way {
  std::string name;
  Mode mode = Mode::ranks;
  int blocks = 1, threads = 512;
  bool direct = true;
};

/// Half of the window is sent, the other half received into.
class Exchange {
 public:
  Exchange(Session& session, const Window& window) : session_(session), window_(window) {}

  PingPong arguments(const Message& message, const Layout& layout, const Way& way, int iterations) const {
    PingPong p = {};
    const bool by_grid = way.mode == Mode::grid;
    p.world = session_.world().view(by_grid ? 1 : way.blocks);
    if (!way.direct) p.world.direct = p.world.reaches_all = 0;
    p.window = window_;
    p.layout = layout.kernel();
    p.bytes = message.size();
    p.send = guard;
    p.receive = half() + guard;
    p.mode = way.mode;
    p.contiguous = message.block_count() == 1 ? 1 : 0;
    if (const auto* strided = std::get_if<bench::StridedBlocks>(&message.blocks()))
      if (strided->dims.size() == 1) p.iput_stride = strided->dims[0].stride / 8;
    p.iterations = iterations;
    return p;
  }

  void run(PingPong p, const Way& way) {
    if (way.mode == Mode::bare) {
      p.flags_set = flags_set_;
      flags_set_ += static_cast<std::uint64_t>(p.iterations);
    }
    session_.world().run(pingpong_kernel(), way.blocks, way.threads, &p);
  }

  /// There and back once with fresh data; what is wrong with what this process got.
  std::string verify(const Message& message, const Layout& layout, const Way& way, std::int64_t round) {
    const auto touched = static_cast<std::size_t>(message.span() + 2 * guard);
    write_device(window_.base, painted(message, {session_.process(), round}, gap));
    write_device(window_.base + half(), std::vector<std::byte>(touched, poison));
    session_.world().barrier();
    run(arguments(message, layout, way, 1), way);
    session_.world().barrier();
    const auto seen = DeviceArray<std::byte>::read_device(window_.base + half(), touched);
    // GPU 1 sends its own data, not what it has got.
    return bench::first_difference(painted(message, {1 - session_.process(), round}, poison), seen).value_or("");
  }

 private:
  static std::vector<std::byte> painted(const Message& message, bench::Seed seed, std::byte between) {
    std::vector<std::byte> image(static_cast<std::size_t>(message.span() + 2 * guard), between);
    const std::vector<std::byte> stream = bench::packed_stream(seed, message.size());
    const std::byte* from = stream.data();
    message.for_each_block([&](std::int64_t offset, std::int64_t length) {
      std::memcpy(image.data() + guard + offset, from, static_cast<std::size_t>(length));
      from += length;
    });
    return image;
  }

  std::int64_t half() const { return (window_.bytes - flags_bytes) / 2; }

  Session& session_;
  Window window_;
  std::uint64_t flags_set_ = 0;  ///< as in PingPong
};

bool suits_iput(const Message& message) {
  const auto* strided = std::get_if<bench::StridedBlocks>(&message.blocks());
  return strided != nullptr && strided->dims.size() == 1 && strided->run == 8 && message.block_count() > 1;
}

/// Numbers of blocks that are worth a measurement: each block gets at least 512 bytes.
std::vector<int> block_counts(std::int64_t bytes, int most, bool check) {
  std::vector<int> counts;
  for (const int blocks : {8, 32, 64, 128})
    if (blocks <= most && blocks * 512 <= bytes) counts.push_back(blocks);
  if (check && counts.size() > 1) counts.erase(counts.begin(), counts.end() - 1);
  return counts;
}

std::vector<Way> ways_for(Session& session, const Message& message, int most_blocks) {
  const bool check = session.check(), nvshmem = session.settings().wire == "nvshmem";
  const bool reaches_all = session.world().reaches_all();
  std::vector<Way> ways = {{"rank"}};
  const std::vector<int> counts = block_counts(message.size(), most_blocks, check);
  for (const int blocks : counts) ways.push_back({"ranks", Mode::ranks, blocks});
  for (const int blocks : counts) ways.push_back({"grid", Mode::grid, blocks});
  if (nvshmem && suits_iput(message) && message.size() <= 64 << 10) ways.push_back({"iput", Mode::iput});
  if (reaches_all && (suits_iput(message) || (message.block_count() == 1 && message.size() % 16 == 0))) {
    ways.push_back({"bare", Mode::bare});
    for (const int blocks : counts) ways.push_back({"bare", Mode::bare, blocks});
  }
  if (reaches_all && session.direct_or_not().size() > 1)
    ways.push_back({"packed", Mode::ranks, counts.empty() ? 1 : std::min(counts.back(), 64), 512, false});
  return ways;
}

double mpi_round_trips(Session& session, const Message& message, char* send, char* receive, int iterations) {
  return session.measure([&] {
    if (session.process() > 1) return;
    const int other = 1 - session.process();
    for (int i = 0; i < 2 * iterations; ++i) {
      if ((i & 1) == session.process())
        MPI_Send(send, message.count(), message.type(), other, 0, MPI_COMM_WORLD);
      else
        MPI_Recv(receive, message.count(), message.type(), other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
  });
}

struct Wanted {
  std::vector<std::string> layouts = bench::default_layouts();
  std::string sizes = "64,1K,64K,1M";
  int blocks = 128;
};

void measure_message(Session& session, Exchange& exchange, const std::string& name, const Message& message,
                     int most_blocks, std::int64_t& round) {
  const Layout layout(message.type(), message.count());
  // So many that a launch, which is in the times, does not count, but not where one block takes a millisecond.
  const auto iterations_of = [&](int blocks) {
    return session.check() ? 3 : blocks < 8 && message.size() > 64 << 10 ? 40 : 300;
  };
  const auto row = [&](const std::string& way, int blocks, double total, const std::string& wrong) {
    const int iterations = iterations_of(blocks);
    const double us = total / (2.0 * iterations);
    session.row({name, std::to_string(message.size()), way, std::to_string(blocks), bench::number(us),
                 bench::number(static_cast<double>(message.size()) / us / 1e3)},
                {{"layout", name}, {"bytes", message.size()}, {"way", way}, {"blocks", blocks}, {"median_us", us}},
                wrong);
  };
  for (const Way& way : ways_for(session, message, most_blocks)) {
    std::string wrong = exchange.verify(message, layout, way, ++round);
    const PingPong p = exchange.arguments(message, layout, way, iterations_of(way.blocks));
    const double total = session.measure([&] { exchange.run(p, way); });
    if (wrong.empty()) wrong = exchange.verify(message, layout, way, ++round);
    row(way.name, way.blocks, total, wrong);
  }
  if (!session.mpi_takes_device_memory()) return;
  const DeviceArray<char> send(static_cast<std::size_t>(message.span())), receive(send.size());
  row("mpi", 0, mpi_round_trips(session, message, send.data(), receive.data(), iterations_of(0)), "");
}

void measure_all(Session& session, const Wanted& wanted) {
  if (session.processes() < 2) throw bench::Refusal("this takes 2 processes: mpirun -np 2 ...");
  std::vector<std::pair<std::string, Message>> messages;
  std::int64_t most = 0;
  for (const std::string& name : wanted.layouts)
    for (const std::int64_t bytes : bench::parse_sizes(session.check() ? "64,4K,64K" : wanted.sizes, 4)) {
      messages.emplace_back(name, bench::LayoutFamily(name).message(bytes));
      most = std::max(most, messages.back().second.span());
    }
  Window window = session.world().allocate(2 * ((most + 2 * guard + 255) / 256 * 256) + flags_bytes);
  write_device(window.base + window.bytes - flags_bytes, std::vector<std::byte>(flags_bytes, std::byte{0}));
  session.world().barrier();
  Exchange exchange(session, window);
  std::int64_t round = 0;
  for (const auto& [name, message] : messages) measure_message(session, exchange, name, message, wanted.blocks, round);
  session.world().free(window);
}

}  // namespace
}  // namespace gpudt::initiated::programs

int main(int argc, char** argv) {
  using namespace gpudt;
  using namespace gpudt::initiated::programs;
  Wanted wanted;
  bench::CommandLine command(
      "Ping-pong of any layout between two GPUs, by kernels that put, and by MPI on device memory.\n"
      "mpirun -np 2 -x LD_PRELOAD=libgpudt-pmpi.so gpudt-initiated-pingpong");
  command.add("-l,--layouts", wanted.layouts, "Layouts, separated by commas");
  command.add("-s,--sizes", wanted.sizes, "Packed bytes: a range 64:1M, or a list 64,4K,1M");
  command.add("--blocks", wanted.blocks, "Most thread blocks", {bench::Bounds::positive});
  command.add_footer(
      "Ways:\n"
      "  rank    one thread block puts the message and notifies\n"
      "  ranks   several, each its part\n"
      "  grid    several, together, with one notification\n"
      "  iput    one, by NVSHMEM's own strided put\n"
      "  bare    stores and a flag for each block, by a kernel for this layout that does nothing else: the limit\n"
      "  packed  as ranks, without loads and stores to the other GPU: packed and put, as between nodes\n"
      "  mpi     MPI_Send and MPI_Recv, started by the host\nLayouts:\n" +
      bench::layout_help());
  return run("gpudt-initiated-pingpong", command, argc, argv,
             {{"layout", 16, true},
              {"bytes", 9},
              {"way", 8, true},
              {"blocks", 6},
              {"one way us", 10},
              {"GB/s", 8},
              {"data", 8, true}},
             {}, [&](Session& session) { measure_all(session, wanted); });
}

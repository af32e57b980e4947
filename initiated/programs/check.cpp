// gpudt-initiated-check: communication that kernels start, tested on two GPUs: puts and gets of random layouts on both
// sides against MPI_Pack and MPI_Unpack, by each scope, by loads and stores and without; a million notifications;
// barriers and reductions; wrong calls; windows as buffers of MPI; and MPI's calls (check_calls.cpp).
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "initiated/programs/check_kernels.hpp"
#include "initiated/programs/check_parts.hpp"
#include "initiated/programs/session.hpp"
#include "pingpong/common/pattern.hpp"
#include "pingpong/common/program.hpp"
#include "tests/support/random_type.hpp"

namespace gpudt::initiated::programs {
namespace {

using test::RandomType;

/// One side: a datatype and how many elements, and its image with guards on all processes.
struct Side {
  Side(Random& random, bool unpack_safe)
      : type(random.engine, {.max_span = 2048, .max_runs = 300, .unpack_safe = unpack_safe}) {
    const std::int64_t size = std::max<std::int64_t>(type.size(), 1);
    const std::int64_t extent = std::max<std::int64_t>(std::abs(type.extent()), 1);
    const std::int64_t many =
        std::clamp<std::int64_t>(std::min(most_bytes / size, (window_bytes / 4) / extent), 1, 3000);
    count = static_cast<int>(random(1, random(0, 1) == 0 ? many : std::min<std::int64_t>(many, 5)));
    lead = guard + (random(0, 1) == 0 ? 0 : random(0, 16)) - type.low(count);
    image = random.bytes(lead + type.high(count) + guard);
  }
  std::int64_t size() const { return type.size() * count; }

  RandomType type;
  int count = 0;
  std::int64_t lead = 0;
  Bytes image;
};

Bytes packed(const Bytes& image, const Side& side) {
  Bytes stream(static_cast<std::size_t>(side.size()) + 1);
  int position = 0;
  PMPI_Pack(image.data() + side.lead, side.count, side.type.handle(), stream.data(), static_cast<int>(side.size()),
            &position, MPI_COMM_SELF);
  return stream;
}

/// All processes make the same random numbers. GPU 0's memory is `here`; GPU 1's window `there`. Both twice.
class Moves {
 public:
  Moves(Session& session, const Window& window)
      : session_(session), window_(window), memory_(2 * window_bytes), status_(1) {}
  Moves(const Moves&) = delete;
  Moves& operator=(const Moves&) = delete;

  std::string once(Random& random, Call call, By by, bool direct) {
    const bool put = call == Call::put;
    Side here(random, !put), there(random, put);
    const bool plain_here = random(0, 4) == 0, plain_there = random(0, 4) == 0;
    const std::int64_t bytes = std::min(plain_here ? most_bytes : here.size(), plain_there ? most_bytes : there.size());
    Bytes expected_here = plain_here ? random.bytes(bytes + 2 * guard) : here.image;
    Bytes expected_there = plain_there ? random.bytes(bytes + 2 * guard) : there.image;
    const std::int64_t lead_here = plain_here ? guard : here.lead, lead_there = plain_there ? guard : there.lead;

    const Layout layout_here(here.type.handle(), here.count), layout_there(there.type.handle(), there.count);
    OneMove p = {};
    p.world = session_.world().view(1);
    if (!direct) p.world.direct = p.world.reaches_all = 0;
    p.window = window_;
    p.here = layout_here.kernel();
    p.there = layout_there.kernel();
    p.memory = (direct || random(0, 1) == 0 ? reinterpret_cast<char*>(memory_.data()) : window_.base) + lead_here;
    p.offset = lead_there;
    p.bytes = bytes;
    p.aside = window_bytes;
    p.by = by;
    p.call = call;
    p.plain_here = plain_here ? 1 : 0;
    p.plain_there = plain_there ? 1 : 0;
    p.status = status_.data();
    char* const mine = session_.process() == 0 ? p.memory - lead_here : window_.base;
    write_device(mine, session_.process() == 0 ? expected_here : expected_there);
    session_.world().barrier();
    session_.world().run(one_move_kernel(), by == By::grid ? 20 : 2, 256, &p);
    session_.world().barrier();

    transfer(put ? expected_here : expected_there, put ? plain_here : plain_there, put ? here : there,
             put ? expected_there : expected_here, put ? plain_there : plain_here, put ? there : here, bytes);
    if (session_.process() > 1) return "";
    const Bytes& expected = session_.process() == 0 ? expected_here : expected_there;
    const auto difference =
        bench::first_difference(expected, DeviceArray<std::byte>::read_device(mine, expected.size()));
    const int status = session_.process() == 0 ? status_.read()[0] : 0;
    if (!difference && status == 0) return "";
    return fmt::format("{} by {}, direct {}: {} (status {}); {} x{} {} -> {} x{} {}, {} bytes", put ? "put" : "get",
                       name_of(by), direct, difference.value_or("data"), status, here.type.description(), here.count,
                       plain_here ? "plain" : "", there.type.description(), there.count, plain_there ? "plain" : "",
                       bytes);
  }

 private:
  /// What the host makes of it. Plain sides lie behind a guard.
  static void transfer(const Bytes& from, bool plain_from, const Side& from_side, Bytes& to, bool plain_to,
                       const Side& to_side, std::int64_t bytes) {
    const Bytes sent = plain_from ? Bytes(from.begin() + guard, from.begin() + guard + bytes) : packed(from, from_side);
    if (plain_to) {
      std::copy_n(sent.begin(), bytes, to.begin() + guard);
      return;
    }
    Bytes stream = packed(to, to_side);
    std::copy_n(sent.begin(), bytes, stream.begin());
    int position = 0;
    PMPI_Unpack(stream.data(), static_cast<int>(to_side.size()), &position, to.data() + to_side.lead, to_side.count,
                to_side.type.handle(), MPI_COMM_SELF);
  }

  Session& session_;
  Window window_;
  DeviceArray<std::byte> memory_;
  DeviceArray<std::int32_t> status_;
};

/// Device memory of the program's own in an MPI window: on each process more, and in another place of an allocation.
class ProgramsWindow {
 public:
  explicit ProgramsWindow(Session& session)
      : session_(session), memory_(static_cast<std::size_t>(2 * window_bytes + 4096 * session.process())) {
    const int lead = 256 * session.process();
    MPI_Win_create(memory_.data() + lead, 2 * window_bytes + 1024 * session.process(), 8, MPI_INFO_NULL, MPI_COMM_WORLD,
                   &win_);
    window_ = session.world().attach(win_);
  }
  ~ProgramsWindow() {
    session_.world().free(window_);
    MPI_Win_free(&win_);
  }
  ProgramsWindow(const ProgramsWindow&) = delete;
  ProgramsWindow& operator=(const ProgramsWindow&) = delete;
  const Window& window() const { return window_; }

 private:
  Session& session_;
  DeviceArray<std::byte> memory_;
  MPI_Win win_ = MPI_WIN_NULL;
  Window window_;
};

void check_moves(Session& session, std::uint64_t seed, const std::string& what, const Window& window) {
  Moves moves(session, window);
  const int pairs = session.check() ? 15 : 80;
  for (const bool direct : session.direct_or_not())
    for (const Call call : {Call::put, Call::get})
      for (const By by : {By::thread, By::warp, By::block, By::grid}) {
        if (call == Call::get && by == By::grid) continue;  // its notification would be as a put's
        std::string wrong;
        Random random(seed + static_cast<std::uint64_t>(by));
        for (int i = 0; i < pairs && !bench::any_rank(!wrong.empty()); ++i)
          wrong = moves.once(random, call, by, direct);
        session.row(
            {fmt::format("{} by {}{}{}", call == Call::put ? "put_notify" : "get_notify", name_of(by), what,
                         direct ? "" : ", packed"),
             std::to_string(pairs)},
            {{"call", call == Call::put ? "put" : "get"}, {"by", name_of(by)}, {"window", what}, {"direct", direct}},
            wrong);
      }
}

void check_moves(Session& session, std::uint64_t seed) {
  Window window = session.world().allocate(2 * window_bytes);
  check_moves(session, seed, "", window);
  session.world().free(window);
  if (!session.mpi_takes_device_memory()) return;
  const ProgramsWindow programs(session);
  check_moves(session, seed + 100, ", MPI window", programs.window());
}

/// Of the notifications that the ranks of this process get: how many have each tag or window.
std::vector<unsigned long long> expected_notifications(const ManyNotifications& p) {
  std::vector<unsigned long long> counts(4, 0);
  const int size = p.world.size(), first = p.world.gpu * p.world.ranks.per_gpu;
  for (int target = first; target < first + p.world.ranks.per_gpu; ++target)
    for (int source = 0; source < size; ++source)
      for (int step = 0; step < p.steps; ++step)
        ++counts[static_cast<std::size_t>(p.matching == Matching::by_window ? window_of(source, target, step)
                                                                            : tag_of(source, target, step))];
  return counts;
}

void check_notifications(Session& session) {
  constexpr int ranks = 8;
  const int size = ranks * session.processes(), steps = session.check() ? 200 : 1'100'000 / (size * size);
  for (const bool direct : session.direct_or_not())
    for (const Matching matching : {Matching::by_source, Matching::by_tag, Matching::by_window, Matching::any}) {
      DeviceArray<unsigned long long> counts(std::vector<unsigned long long>(5, 0));
      ManyNotifications p = {};
      p.world = session.world().view(ranks);
      if (!direct) p.world.direct = p.world.reaches_all = 0;
      p.matching = matching;
      p.steps = direct ? steps : steps / 4;
      p.wrong = counts.data();
      p.consumed = counts.data() + 1;
      session.world().run(many_notifications_kernel(), ranks, 64, &p);
      const std::vector<unsigned long long> seen = counts.read(), expected = expected_notifications(p);
      std::string wrong;
      for (std::size_t i = 0; i < expected.size(); ++i)
        if (seen[i + 1] != expected[i]) wrong = fmt::format("{} with number {}, not {}", seen[i + 1], i, expected[i]);
      if (seen[0] != 0) wrong = fmt::format("{} were not those expected", seen[0]);
      constexpr const char* names[] = {"by source, in order", "by tag and count", "by window and count", "any"};
      const char* const name = names[static_cast<int>(matching)];
      session.row({fmt::format("notifications {}{}", name, direct ? "" : ", packed"),
                   std::to_string(static_cast<long long>(p.steps) * size * size)},
                  {{"call", "notifications"}, {"matching", name}, {"direct", direct}}, wrong);
    }
}

void check_collectives(Session& session) {
  for (const bool direct : session.direct_or_not())
    for (const int ranks : {1, 7, 100}) {
      DeviceArray<unsigned long long> count(std::vector<unsigned long long>(1, 0));
      Window window = session.world().allocate(2 * 8 * ranks * session.processes());
      Collectives p = {};
      p.world = session.world().view(ranks);
      if (!direct) p.world.direct = p.world.reaches_all = 0;
      p.window = window;
      p.steps = 200;
      p.wrong = count.data();
      session.world().run(collectives_kernel(), ranks, 64, &p);
      const unsigned long long wrong = count.read()[0];
      session.row({fmt::format("barriers, reductions, {} ranks each{}", ranks, direct ? "" : ", packed"),
                   std::to_string(p.steps)},
                  {{"call", "collectives"}, {"ranks", ranks}, {"direct", direct}},
                  wrong == 0 ? "" : fmt::format("{} times", wrong));
      session.world().free(window);
    }
}

/// What the window holds of one kind, which began as zeros: every other element is the result.
template <class T, class Operator>
std::string wrong_kind(const Session& session, const Window& window, int kind, int ranks, const Operator& with) {
  const auto seen = DeviceArray<T>::read_device(window.base + kind * 2 * 8 * accumulated, 2 * accumulated);
  for (int i = 0; i < accumulated; ++i) {
    T expected = 0;
    for (int rank = 0; rank < ranks * session.processes(); ++rank)
      expected = with(expected, static_cast<T>(contribution(rank, i)));
    const std::size_t at = 2 * static_cast<std::size_t>(i);
    if (seen[at] != expected || seen[at + 1] != 0)
      return fmt::format("kind {}, element {}: {} and {}, not {} and 0", kind, i, seen[at], seen[at + 1], expected);
  }
  return "";
}

/// On the first and the last GPU, in all kinds. Only where loads and stores reach.
void check_accumulations(Session& session) {
  if (!session.world().reaches_all()) return;
  constexpr int ranks = 8;
  Window window = session.world().allocate(4 * 2 * 8 * accumulated);
  DeviceArray<std::byte> source(std::vector<std::byte>(ranks * 4 * 2 * 8 * accumulated));
  DeviceArray<std::int32_t> status(std::vector<std::int32_t>(1, 0));
  const auto layout_of = [](int blocks, int length, int stride, MPI_Datatype type) {
    MPI_Datatype made = MPI_DATATYPE_NULL;
    MPI_Type_vector(blocks, length, stride, type, &made);
    Layout layout(made, 1);
    MPI_Type_free(&made);
    return layout;
  };
  const Layout from_4 = layout_of(accumulated / 3, 3, 5, MPI_INT), to_4 = layout_of(accumulated, 1, 2, MPI_INT);
  const Layout from_8 = layout_of(accumulated / 3, 3, 5, MPI_DOUBLE), to_8 = layout_of(accumulated, 1, 2, MPI_DOUBLE);
  Accumulations p = {};
  p.world = session.world().view(ranks);
  p.window = window;
  p.from_4 = from_4.kernel();
  p.to_4 = to_4.kernel();
  p.from_8 = from_8.kernel();
  p.to_8 = to_8.kernel();
  p.source = reinterpret_cast<char*>(source.data());
  p.status = status.data();
  session.world().run(accumulations_kernel(), ranks, 128, &p);
  session.world().barrier();
  std::string wrong;
  if (const int found = status.read()[0]; found != 0) wrong = status_text(static_cast<Status>(found));
  if (wrong.empty() && (session.process() == 0 || session.process() == session.processes() - 1)) {
    const auto least = [](auto a, auto b) { return std::min(a, b); };
    const auto most = [](auto a, auto b) { return std::max(a, b); };
    for (const std::string& found :
         {wrong_kind<std::int32_t>(session, window, 0, ranks, std::plus<>()),
          wrong_kind<double>(session, window, 1, ranks, std::plus<>()),
          wrong_kind<float>(session, window, 2, ranks, most), wrong_kind<long long>(session, window, 3, ranks, least)})
      if (!found.empty()) wrong = found;
  }
  session.row({"accumulate by layouts", std::to_string(4 * accumulated * ranks * session.processes())},
              {{"call", "accumulate"}}, wrong);
  session.world().free(window);
}

void check_gaspi(Session& session) {
  for (const bool direct : session.direct_or_not()) {
    DeviceArray<unsigned long long> count(std::vector<unsigned long long>(1, 0));
    GaspiExchange p = {};
    gpu_gaspi_context& context = p.context;
    context.world = session.world().view(1);
    if (!direct) context.world.direct = context.world.reaches_all = 0;
    context.notifications = gaspi_flags;
    p.words = 1000;
    p.steps = 100;
    for (const int segment : {0, 1}) context.segment[segment] = session.world().allocate(p.words * 4);
    context.flags = session.world().allocate(gpu_gaspi_flag_bytes(gaspi_flags));
    p.wrong = count.data();
    session.world().run(gaspi_kernel(), 1, 128, &p);
    const unsigned long long wrong = count.read()[0];
    session.row({fmt::format("GPI's calls{}", direct ? "" : ", packed"), std::to_string(p.steps)},
                {{"call", "gaspi"}, {"direct", direct}}, wrong == 0 ? "" : fmt::format("{} times", wrong));
    session.world().barrier();
    for (const int segment : {0, 1}) session.world().free(context.segment[segment]);
    session.world().free(context.flags);
  }
}

void check_wrong_calls(Session& session) {
  DeviceArray<std::int32_t> statuses(std::vector<std::int32_t>(wrong_calls, -1));
  Window window = session.world().allocate(4096);
  const Layout layout(MPI_DOUBLE, 3);
  WrongCalls p = {};
  p.world = session.world().view(1);
  p.window = window;
  p.layout = layout.kernel();
  p.statuses = statuses.data();
  session.world().run(wrong_calls_kernel(), 1, 64, &p);
  std::int32_t expected[wrong_calls];
  expected_statuses(expected);
  std::string wrong;
  const std::vector<std::int32_t> seen = statuses.read();
  for (int i = 0; i < wrong_calls; ++i)
    if (seen[static_cast<std::size_t>(i)] != expected[i])
      wrong = fmt::format("call {}: {}", i, status_text(static_cast<Status>(seen[static_cast<std::size_t>(i)])));
  int most = 0;
  try {  // more than can be resident
    most = session.world().most_blocks(wrong_calls_kernel(), 1024);
    session.world().launch(wrong_calls_kernel(), session.world().options().ranks + 1, 1024, &p);
    wrong = "a launch of too many blocks went through";
  } catch (const Error&) {
  }
  session.row({"wrong calls", std::to_string(wrong_calls + 1)}, {{"call", "wrong"}, {"most_blocks", most}}, wrong);
  session.world().free(window);
}

/// Symmetric memory in MPI's hands.
void check_mpi(Session& session) {
  if (!session.mpi_takes_device_memory() || session.processes() < 2) return;
  constexpr std::size_t count = 10000;
  Window window = session.world().allocate(2 * count * sizeof(double));
  auto* const doubles = reinterpret_cast<double*>(window.base);
  std::vector<double> data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<double>(i) + 0.5 * session.process();
  write_device(doubles, data);
  MPI_Datatype type;
  MPI_Type_vector(count / 2, 1, 2, MPI_DOUBLE, &type);
  MPI_Type_commit(&type);
  std::string wrong;
  if (session.process() < 2) {
    const int other = 1 - session.process();
    MPI_Sendrecv(doubles, 1, type, other, 0, doubles + count, 1, type, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    const auto seen = DeviceArray<double>::read_device(doubles + count, count);
    for (std::size_t i = 0; i < count; i += 2)
      if (seen[i] != static_cast<double>(i) + 0.5 * other || seen[i + 1] != 0) wrong = fmt::format("element {}", i);
  }
  MPI_Type_free(&type);
  session.row({"windows as buffers of MPI_Sendrecv", "1"}, {{"call", "mpi"}}, wrong);
  session.world().free(window);
}

void check_calls(Session& session, std::uint64_t seed) {
  if (session.processes() > 1) check_moves(session, seed);
  check_notifications(session);
  check_collectives(session);
  check_accumulations(session);
  if (session.processes() > 1) check_gaspi(session);
  check_wrong_calls(session);
  check_mpi_calls(session, seed + 200);
  check_mpi(session);
}

}  // namespace
}  // namespace gpudt::initiated::programs

int main(int argc, char** argv) {
  using namespace gpudt::initiated::programs;
  int seed = 1;
  gpudt::bench::CommandLine command(
      "Tests of communication that kernels start, on two GPUs.\nmpirun -np 2 -x LD_PRELOAD=libgpudt-pmpi.so "
      "gpudt-initiated-check");
  bool partitions = false;
  command.add("--seed", seed, "Of the random datatypes");
  command.add_flag("--partitions", partitions, "Only partitioned communication");
  return run("gpudt-initiated-check", command, argc, argv, {{"what", 44, true}, {"times", 9}, {"data", 8, true}}, {},
             [&](Session& session) {
               if (!partitions) check_calls(session, static_cast<std::uint64_t>(seed));
               check_partitions(session, static_cast<std::uint64_t>(seed) + 300);
             });
}

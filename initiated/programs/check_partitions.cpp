// Partitioned communication in kernels: random datatypes, partitions and orders on both sides, some rounds of each,
// against MPI_Pack and MPI_Unpack; and what is refused.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "initiated/programs/check_parts.hpp"
#include "initiated/programs/partition_kernels.hpp"
#include "pingpong/common/pattern.hpp"
#include "pingpong/common/program.hpp"
#include "tests/support/random_type.hpp"

namespace gpudt::initiated::programs {
namespace {

using test::RandomType;

/// A random divisor of `number`, which is not 0.
std::int64_t divisor_of(Random& random, std::int64_t number) {
  constexpr std::int64_t most_partitions = 64;
  for (;;)
    if (const std::int64_t some = random(1, std::min(number, most_partitions)); number % some == 0) return some;
}

/// One side of a message, in every process; its image lies in one of them.
struct PartitionSide {
  PartitionSide(Random& random, bool receives)
      : type(random.engine, {.max_span = 1024, .max_runs = 200, .unpack_safe = receives}) {}
  std::int64_t size() const { return in_bytes ? 1 : type.size(); }
  MPI_Datatype handle() const { return in_bytes ? MPI_BYTE : type.handle(); }
  std::int64_t elements() const { return partitions * count; }
  void choose_partitions(Random& random, std::int64_t bytes) {
    partitions = bytes == 0 ? random(1, 5) : divisor_of(random, bytes / size());
    count = bytes == 0 ? 0 : bytes / size() / partitions;
  }
  void draw(Random& random) {
    const std::int64_t low = in_bytes ? 0 : type.low(elements()), high = in_bytes ? elements() : type.high(elements());
    lead = guard + (random(0, 1) == 0 ? 0 : random(0, 16)) - low;
    image = random.bytes(lead + high + guard);
  }
  std::string text() const {
    return fmt::format("{} partitions of {} x {}", partitions, count,
                       in_bytes ? std::string("bytes") : type.description());
  }

  RandomType type;
  bool in_bytes = false;
  std::int64_t partitions = 1, count = 0, lead = 0;
  Bytes image;
};

/// A matched pair of requests. In the sender's arena the image of its side lies at `send_at`, in the receiver's ...
struct Link {
  Link(Random& random, int processes)
      : from(static_cast<int>(random(0, processes - 1))),
        to(static_cast<int>(random(0, processes - 1))),
        tag(static_cast<int>(random(0, 1))),
        send(random, false),
        receive(random, true) {
    constexpr std::int64_t most = 1 << 15;
    std::int64_t unit =
        std::lcm(std::max<std::int64_t>(send.type.size(), 1), std::max<std::int64_t>(receive.type.size(), 1));
    if (unit > most || random(0, 3) == 0) {
      (random(0, 1) == 0 ? send : receive).in_bytes = true;
      unit = std::max<std::int64_t>(std::lcm(send.size(), receive.size()), 1);
    }
    const bool empty = send.size() == 0 || receive.size() == 0 || random(0, 9) == 0;
    const std::int64_t bytes = empty ? 0 : unit * random(1, std::max<std::int64_t>(most / unit, 1));
    send.choose_partitions(random, bytes);
    receive.choose_partitions(random, bytes);
  }
  /// What a round makes of the receiver's image.
  void transfer() {
    const auto bytes = static_cast<int>(send.elements() * send.size());
    Bytes stream(static_cast<std::size_t>(bytes) + 1);
    int position = 0;
    PMPI_Pack(send.image.data() + send.lead, static_cast<int>(send.elements()), send.handle(), stream.data(), bytes,
              &position, MPI_COMM_SELF);
    position = 0;
    PMPI_Unpack(stream.data(), bytes, &position, receive.image.data() + receive.lead,
                static_cast<int>(receive.elements()), receive.handle(), MPI_COMM_SELF);
  }
  std::string text() const {
    return fmt::format("from {} to {}, tag {}: {} at {}, to {} at {}", from, to, tag, send.text(), send.lead,
                       receive.text(), receive.lead);
  }

  int from, to, tag;
  PartitionSide send, receive;
  std::int64_t send_at = 0, receive_at = 0;
};

/// Some links, and the requests of this process.
class Trial {
 public:
  Trial(Session& session, std::uint64_t seed) : session_(session), common_(seed), own_(seed * 64 + my_number()) {
    const std::int64_t links = common_(1, 5);
    for (std::int64_t i = 0; i < links; ++i) {
      Link& link = links_.emplace_back(common_, session.processes());
      link.send.draw(common_);
      link.receive.draw(common_);
      link.send_at = arena_;
      link.receive_at = link.send_at + aligned(link.send.image.size());
      arena_ = link.receive_at + aligned(link.receive.image.size());
    }
    memory_.emplace_back(static_cast<std::size_t>(arena_));
    const bool sends_first = own_(0, 1) == 0;
    for (const bool sends : {sends_first, !sends_first})
      for (const Link& link : links_) init(link, sends);
    session.world().match();
    for (const Request& request : requests_) kernels_.push_back(request.kernel());
  }

  /// What is wrong in this process after a round.
  std::string round() {
    for (Link& link : links_) {
      link.send.image = common_.bytes(static_cast<std::int64_t>(link.send.image.size()));
      if (is_me(link.from)) write_device(at(link.send_at), link.send.image);
      if (is_me(link.to)) write_device(at(link.receive_at), link.receive.image);
    }
    run();
    std::string wrong;
    for (Link& link : links_) link.transfer();
    for (const Link& link : links_) {
      if (!is_me(link.to)) continue;
      const auto seen = DeviceArray<std::byte>::read_device(at(link.receive_at), link.receive.image.size());
      const auto found = bench::first_difference(link.receive.image, seen);
      if (found) wrong = fmt::format("{}; {}", *found, link.text());
    }
    return wrong.empty() ? wrong_steps() : wrong;
  }

 private:
  static std::int64_t aligned(std::size_t bytes) { return (static_cast<std::int64_t>(bytes) + 511) / 256 * 256; }
  std::uint64_t my_number() const { return static_cast<std::uint64_t>(session_.process()) + 1; }
  bool is_me(int process) const { return process == session_.process(); }
  std::byte* at(std::int64_t offset) const { return memory_.front().data() + offset; }

  void init(const Link& link, bool sends) {
    const PartitionSide& side = sends ? link.send : link.receive;
    std::byte* const buffer = at((sends ? link.send_at : link.receive_at) + side.lead);
    const auto partitions = static_cast<int>(side.partitions);
    if (sends && is_me(link.from))
      requests_.push_back(
          session_.world().psend_init(buffer, partitions, side.count, side.handle(), link.to, link.tag));
    if (!sends && is_me(link.to))
      requests_.push_back(
          session_.world().precv_init(buffer, partitions, side.count, side.handle(), link.from, link.tag));
    if (requests_.size() == links_of_.size()) return;
    links_of_.push_back(&link);
    if (own_(0, 4) != 0) return;
    requests_.push_back(sends ? session_.world().psend_init(buffer, 3, 1, MPI_INT, MPI_PROC_NULL, link.tag)
                              : session_.world().precv_init(buffer, 3, 1, MPI_INT, MPI_PROC_NULL, link.tag));
    links_of_.push_back(nullptr);
  }

  PartitionStep step_of(std::size_t request, int partition) {
    PartitionStep step = {};
    step.request = static_cast<std::int32_t>(request);
    step.partition = partition;
    step.by = static_cast<By>(own_(0, 2));
    step.other_form = static_cast<std::int32_t>(own_(0, 1));
    const Link* const link = links_of_[request];
    const KernelRequest& kernel = kernels_[request];
    if (link == nullptr || kernel.sends != 0 || kernel.bytes == 0) return step;
    const PartitionSide& side = link->receive;  // its first byte
    const std::int64_t first = side.in_bytes ? 0 : side.type.map().front().displ;
    const std::int64_t extent = side.in_bytes ? 1 : side.type.extent();
    step.byte =
        reinterpret_cast<const char*>(at(link->receive_at + side.lead + partition * side.count * extent + first));
    return step;
  }
  void run() {
    steps_.clear();
    for (const int sends : {1, 0}) {
      const auto first = static_cast<std::ptrdiff_t>(steps_.size());
      for (std::size_t i = 0; i < kernels_.size(); ++i)
        for (int partition = 0; partition < kernels_[i].partitions && kernels_[i].sends == sends; ++partition)
          steps_.push_back(step_of(i, partition));
      std::shuffle(steps_.begin() + first, steps_.end(), own_.engine);
    }
    const DeviceArray<KernelRequest> requests(kernels_.empty() ? std::vector<KernelRequest>(1) : kernels_);
    const DeviceArray<PartitionStep> steps(steps_.empty() ? std::vector<PartitionStep>(1) : steps_);
    DeviceArray<char> seen(std::vector<char>(steps_.size() + 1, 0));
    DeviceArray<std::int32_t> statuses(std::vector<std::int32_t>(steps_.size() + 1, -1));
    const auto blocks = static_cast<int>(common_(1, 16)), threads = 32 * static_cast<int>(common_(1, 8));
    PartitionSteps p = {};
    p.world = session_.world().view(common_(0, 1) == 0 ? 1 : blocks);
    p.requests = requests.data();
    p.steps = steps.data();
    p.count = static_cast<std::int32_t>(steps_.size());
    p.seen = seen.data();
    p.statuses = statuses.data();
    Request::start_all(requests_);
    session_.world().run(partition_steps_kernel(), blocks, threads, &p);
    Request::wait_all(requests_);
    seen_ = seen.read();
    statuses_ = statuses.read();
  }
  /// What kernels have seen.
  std::string wrong_steps() const {
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const PartitionStep& step = steps_[i];
      if (statuses_[i] != 0)
        return fmt::format("a step by {}: {}", name_of(step.by), status_text(static_cast<Status>(statuses_[i])));
      if (step.byte == nullptr) continue;
      const Link& link = *links_of_[static_cast<std::size_t>(step.request)];
      const auto offset = reinterpret_cast<const std::byte*>(step.byte) - at(link.receive_at);
      if (static_cast<std::byte>(seen_[i]) != link.receive.image[static_cast<std::size_t>(offset)])
        return fmt::format("partition {} is not there when it has arrived, by {}; {}", step.partition, name_of(step.by),
                           link.text());
    }
    return "";
  }

  Session& session_;
  Random common_, own_;  ///< the same in all processes, and not
  std::vector<Link> links_;
  std::int64_t arena_ = 256;
  std::vector<DeviceArray<std::byte>> memory_;
  std::vector<Request> requests_;
  std::vector<const Link*> links_of_;  ///< [request]; null: MPI_PROC_NULL
  std::vector<KernelRequest> kernels_;
  std::vector<PartitionStep> steps_;
  std::vector<char> seen_;
  std::vector<std::int32_t> statuses_;
};

void check_random_partitions(Session& session, std::uint64_t seed) {
  const int trials = session.check() ? 12 : 60, rounds = 3;
  std::string wrong;
  for (int i = 0; i < trials && !bench::any_rank(!wrong.empty()); ++i) {
    Trial trial(session, seed + 1000 * static_cast<std::uint64_t>(i));
    for (int round = 0; round < rounds && !bench::any_rank(!wrong.empty()); ++round) {
      wrong = trial.round();
      if (!wrong.empty()) wrong = fmt::format("trial {}, round {}: {}", i, round, wrong);
    }
  }
  session.row({"partitions of random datatypes", std::to_string(trials * rounds)}, {{"call", "partitions"}}, wrong);
}

/// What is thrown, or "".
template <class Body>
std::string thrown_by(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string wrong_statuses(const std::vector<std::int32_t>& seen) {
  std::int32_t expected[refused_partition_calls];
  expected_partition_refusals(expected);
  for (std::size_t i = 0; i < refused_partition_calls; ++i)
    if (seen[i] != expected[i]) return fmt::format("call {}: {}", i, status_text(static_cast<Status>(seen[i])));
  const bool right = seen[refused_partition_calls] == 0 && seen[refused_partition_calls + 1] == 1 &&
                     seen[refused_partition_calls + 2] == 0;
  return right ? "" : "the flags of parrived()";
}

void check_refused_partitions(Session& session) {
  const DeviceArray<double> memory(32);
  DeviceArray<std::int32_t> statuses(std::vector<std::int32_t>(refused_partition_calls + refused_partition_flags, -1));
  World& world = session.world();
  const int me = session.process();
  Request send = world.psend_init(memory.data(), 3, 2, MPI_DOUBLE, me, 0);
  Request receive = world.precv_init(memory.data() + 8, 3, 2, MPI_DOUBLE, me, 0);
  const Request unstarted = world.psend_init(memory.data(), 1, 1, MPI_DOUBLE, me, 1);
  const Request other = world.precv_init(memory.data() + 16, 1, 1, MPI_DOUBLE, me, 1);
  std::string wrong;
  if (thrown_by([&] { send.start(); }).find("World::match comes first") == std::string::npos) wrong = "start first";
  world.match();
  send.start();
  receive.start();
  if (thrown_by([&] { send.start(); }).find("is active") == std::string::npos) wrong = "start twice";
  RefusedPartitions p = {};
  p.world = world.view(1);
  p.send = send.kernel();
  p.receive = receive.kernel();
  p.unstarted = unstarted.kernel();
  p.statuses = statuses.data();
  world.run(refused_partitions_kernel(), 1, 64, &p);
  if (const std::string found = wrong_statuses(statuses.read()); !found.empty()) wrong = found;
  if (send.test() || receive.test()) wrong = "complete with two partitions missing";
  const Request lonely = world.psend_init(memory.data(), 1, 1, MPI_DOUBLE, me, 2);
  if (thrown_by([&] { world.match(); }).find("1 calls of psend_init and 0 of precv_init") == std::string::npos)
    wrong = "match of one";
  session.row({"partitions that are refused", std::to_string(refused_partition_calls + 3)},
              {{"call", "refused partitions"}}, wrong);
}

}  // namespace

void check_partitions(Session& session, std::uint64_t seed) {
  if (!session.mpi_takes_device_memory()) return;
  check_random_partitions(session, seed);
  check_refused_partitions(session);
}

}  // namespace gpudt::initiated::programs

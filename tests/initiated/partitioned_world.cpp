// The host's side of partitioned communication (initiated/partitioned.cpp), on the simulated device: the process itself
// marks partitions ready, as kernels would. usage: mpirun -np 3 -x LD_PRELOAD=libgpudt-pmpi.so:libgpudt-sim.so
// partitioned-world [direct|proxy]
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string_view>

#include "initiated/world.hpp"
#include "tests/initiated/host_kernel.hpp"
#include "tests/support/owned_type.hpp"

namespace {

using namespace gpudt::initiated;
using gpudt::test::HostRing;
using gpudt::test::OwnedType;
using gpudt::test::read;
using gpudt::test::read_one;
using gpudt::test::require;
using gpudt::test::run_world_test;
using gpudt::test::write;

/// What partitions.hpp asks of memory.
struct CopyingAccess {
  static Ticket add(Ticket* counter, Ticket more) {
    const Ticket old = read_one(counter), now = old + more;
    write(counter, &now, sizeof now);
    return old;
  }
  static Ticket count_up(Ticket* counter) { return add(counter, 1); }
  static void count_down(Ticket* counter) { add(counter, ~Ticket{0}); }
  static std::uint64_t load(const std::uint64_t* word) { return read_one(word); }
  static void acquire() {}
  static void poll() { std::this_thread::yield(); }
};

class HostKernel {
 public:
  explicit HostKernel(const World& world) : kernel_(world.view(1)), ring_(kernel_) {}

  Status pready(const KernelRequest& send, int partition) {
    std::uint64_t round = 0;
    const Status status = claim_partition(send, partition, CopyingAccess(), round);
    if (status != Status::ok) return status;
    if (send.partner >= 0) {
      put(send, partition);
      const std::int64_t offset = partition * std::int64_t{8};
      if (send.arrived != nullptr)
        write(send.arrived + partition, &round, sizeof round);
      else
        ring_.word(send.partner, send.arrived_memory, send.arrived_offset + offset, round);
    }
    CopyingAccess::count_up(send.completed);
    return Status::ok;
  }
  static bool parrived(const KernelRequest& receive, int partition) {
    const CopyingAccess access;
    return have_arrived(receive, parts_of(receive, partition), access.load(receive.round), access, 0, 1);
  }

 private:
  /// A piece of a run at a time.
  void put(const KernelRequest& send, int partition) {
    const std::int64_t begin = partition * send.begin_step, end = begin + send.bytes;
    KernelLayout from_layout, to_layout;
    const SideMap from = {on_host(send.from_layout, from_layout), end}, to = {on_host(send.to_layout, to_layout), end};
    for (std::int64_t at = begin, bytes = 0; at < end; at += bytes) {
      const auto here = from.place(at, gpudt::device::NoTile()), there = to.place(at, gpudt::device::NoTile());
      bytes = std::min({here.left, there.left, end - at});
      const std::vector<char> data = read(send.from + partition * send.from_step + here.offset, bytes);
      const std::int64_t step = partition * send.to_step + there.offset;
      if (send.to != nullptr)
        write(send.to + step, data);
      else
        ring_.put(send.partner, send.to_memory, send.to_offset + step, data);
    }
  }
  static const KernelLayout* on_host(const KernelLayout* on_device, KernelLayout& copy) {
    if (on_device == nullptr) return nullptr;
    copy = read_one(on_device);
    return &copy;
  }

  KernelWorld kernel_;
  HostRing ring_;
};

/// One side of a message.
struct Side {
  MPI_Datatype type;
  int partitions, count;
  int elements() const { return partitions * count; }
};

/// A message of every process to the one `shift` further, and what comes from before; with memory of the GPU.
class Message {
 public:
  Message(World& world, int shift, int tag, Side send, Side receive)
      : send_(send),
        receive_(receive),
        from_((world.gpu() + 2 * world.gpus() - shift) % world.gpus()),
        me_(world.gpu()),
        image_(bytes, 'x') {
    check(cudaMalloc(&memory_, 2 * bytes), "cudaMalloc");
    const int to = (me_ + 2 * world.gpus() + shift) % world.gpus();
    requests.push_back(world.psend_init(out(), send.partitions, send.count, send.type, to, tag));
    requests.push_back(world.precv_init(in(), receive.partitions, receive.count, receive.type, from_, tag));
    write(in(), image_);
  }
  ~Message() {
    requests.clear();
    cudaFree(memory_);
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  void fill(int round) const { write(out(), data(me_, round)); }
  bool is_unchanged() const { return read(in(), bytes) == image_; }
  bool is_received(int round) {
    const std::vector<char> sent = data(from_, round);
    std::vector<char> packed(bytes);
    int end = 0, at = 0;
    PMPI_Pack(sent.data(), send_.elements(), send_.type, packed.data(), bytes, &end, MPI_COMM_SELF);
    PMPI_Unpack(packed.data(), end, &at, image_.data(), receive_.elements(), receive_.type, MPI_COMM_SELF);
    return is_unchanged();
  }
  bool all_parrived() const {
    for (int i = 0; i < receive_.partitions; ++i)
      if (!HostKernel::parrived(requests[1].kernel(), i)) return false;
    return true;
  }
  const KernelRequest& send() const { return requests[0].kernel(); }

  std::vector<Request> requests;

 private:
  static constexpr int bytes = 1024;
  char* out() const { return static_cast<char*>(memory_); }
  char* in() const { return out() + bytes; }
  static std::vector<char> data(int process, int round) {
    std::vector<char> made(bytes);
    for (int i = 0; i < bytes; ++i) made[static_cast<std::size_t>(i)] = static_cast<char>(i * 7 + 31 * process + round);
    return made;
  }

  Side send_, receive_;
  int from_, me_;
  std::vector<char> image_;
  void* memory_ = nullptr;
};

std::vector<Request> all_requests(const std::vector<std::unique_ptr<Message>>& messages) {
  std::vector<Request> all;
  for (const auto& message : messages) all.insert(all.end(), message->requests.begin(), message->requests.end());
  return all;
}

/// Process 1 starts late: nobody may write before.
void check_round(World& world, HostKernel& kernel, std::vector<std::unique_ptr<Message>>& messages, int round) {
  std::vector<Request> all = all_requests(messages);
  for (const auto& message : messages) message->fill(round);
  if (world.gpu() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    for (const auto& message : messages) require(message->is_unchanged(), "a buffer before start()");
  }
  for (const auto& message : messages) {
    require(message->requests[0].test(), "test() of a request that is not active");
    require(message->all_parrived(), "parrived() of a request that is not active");
  }
  Request::start_all(all);
  for (const auto& message : messages) {
    const KernelRequest& send = message->send();
    for (int i = send.partitions - 1; i > 0; --i) require(kernel.pready(send, i) == Status::ok, "pready");
    require(!message->requests[0].test(), "test() of a send before its last partition");
    require(kernel.pready(send, 0) == Status::ok, "pready of the last one");
    require(kernel.pready(send, 0) == Status::not_started, "pready twice");
    require(kernel.pready(send, send.partitions) == Status::bad_partition, "pready of a partition that there is not");
  }
  Request::wait_all(all);
  for (const auto& message : messages) {
    require(message->all_parrived(), "parrived");
    require(message->is_received(round), "data of round " + std::to_string(round));
  }
}

void check_messages(World& world, HostKernel& kernel) {
  OwnedType pairs = gpudt::test::vector(4, 2, 3, MPI_INT), singles = gpudt::test::vector(3, 1, 2, MPI_INT);
  pairs.commit();  // for MPI_Pack
  singles.commit();
  std::vector<std::unique_ptr<Message>> messages;
  const auto add = [&](int shift, int tag, Side send, Side receive) {
    messages.push_back(std::make_unique<Message>(world, shift, tag, send, receive));
  };
  add(1, 5, {pairs, 6, 2}, {MPI_DOUBLE, 4, 12});
  add(1, 5, {MPI_INT, 3, 5}, {singles, 5, 1});  // partitions end within elements, and within each other
  add(-1, 0, {MPI_INT, 7, 1}, {MPI_INT, 1, 7});
  add(0, 5, {singles, 2, 5}, {singles, 10, 1});
  add(1, 6, {MPI_INT, 2, 0}, {MPI_DOUBLE, 3, 0});
  world.match();
  for (int round = 1; round <= 3; ++round) check_round(world, kernel, messages, round);
}

/// Two columns of one matrix, whose bytes interleave, from the same process; and one that nobody sends.
void check_columns(World& world, HostKernel& kernel) {
  constexpr int rows = 16;
  const OwnedType column = gpudt::test::vector(rows, 1, 2, MPI_INT);
  void* memory = nullptr;
  check(cudaMalloc(&memory, 4 * rows * sizeof(int)), "cudaMalloc");
  int* const out = static_cast<int*>(memory);
  int* const matrix = out + 2 * rows;
  const int to = (world.gpu() + 1) % world.gpus(), from = (world.gpu() + world.gpus() - 1) % world.gpus();
  std::vector<Request> requests;
  for (const int i : {0, 1}) {
    requests.push_back(world.precv_init(matrix + i, 1, 1, column, from, 1));
    requests.push_back(world.psend_init(out + i * rows, 4, rows / 4, MPI_INT, to, 1));
  }
  requests.push_back(world.precv_init(matrix, 2, 1, MPI_INT, MPI_PROC_NULL, 1));
  requests.push_back(world.psend_init(matrix, 2, 1, MPI_INT, MPI_PROC_NULL, 1));
  world.match();
  std::vector<int> numbers(4 * rows);
  for (int i = 0; i < 2 * rows; ++i) numbers[static_cast<std::size_t>(i)] = i;
  write(memory, numbers.data(), numbers.size() * sizeof(int));
  Request::start_all(requests);
  for (const std::size_t i : {1, 3, 5})
    for (int partition = 0; partition < requests[i].kernel().partitions; ++partition)
      require(kernel.pready(requests[i].kernel(), partition) == Status::ok, "pready of a column");
  Request::wait_all(requests);
  for (int i = 0; i < 2 * rows; ++i)
    require(read_one(matrix + i) == i / 2 + i % 2 * rows, "column " + std::to_string(i % 2));
  requests.clear();
  check(cudaFree(memory), "cudaFree");
}

template <class Body>
void require_error(const std::string& text, Body body) {
  std::string seen;
  try {
    body();
  } catch (const Error& error) {
    seen = error.what();
  }
  require(seen.find(text) != std::string::npos, "an error \"" + text + "\", in place of \"" + seen + "\"");
}

void check_errors(World& world) {
  int host = 0;
  void* memory = nullptr;
  check(cudaMalloc(&memory, 64), "cudaMalloc");
  const int me = world.gpu();
  require_error("not in memory of this GPU", [&] { world.precv_init(&host, 1, 1, MPI_INT, me, 0); });
  require_error("there is no process", [&] { world.psend_init(memory, 1, 1, MPI_INT, world.gpus(), 0); });
  require_error("0 partitions", [&] { world.psend_init(memory, 0, 1, MPI_INT, me, 0); });
  require_error("tag -2", [&] { world.psend_init(memory, 1, 1, MPI_INT, me, -2); });
  Request send = world.psend_init(memory, 1, 4, MPI_INT, 0, 0);
  require_error("World::match comes first", [&] { send.start(); });
  require_error("calls of psend_init and 0 of precv_init", [&] { world.match(); });
  const Request two = world.psend_init(memory, 1, 2, MPI_INT, me, 0);
  const Request three = world.precv_init(memory, 3, 1, MPI_INT, me, 0);
  require_error("1 partitions of 8 bytes, and of the receive 3 of 4", [&] { world.match(); });
  require_error("World::match comes first", [&] { send.start(); });  // nor is it matched later
  world.match();                                                     // of nothing
  check(cudaFree(memory), "cudaFree");
}

void check_timeout(Options options) {
  options.timeout_seconds = 0.3;
  World world(MPI_COMM_WORLD, options);
  void* memory = nullptr;
  check(cudaMalloc(&memory, 64), "cudaMalloc");
  const Request send = world.psend_init(memory, 1, 4, MPI_INT, world.gpu(), 0);
  Request receive = world.precv_init(memory, 1, 4, MPI_INT, world.gpu(), 0);
  world.match();
  receive.start();
  require_error("timed out: not all partitions have arrived", [&] { receive.wait(); });
  world.barrier();
  check(cudaFree(memory), "cudaFree");
}

/// More receives than windows of some MPI libraries take pieces of memory.
void check_many(World& world, HostKernel& kernel) {
  constexpr int many = 100;
  void* memory = nullptr;
  check(cudaMalloc(&memory, 3 * many * sizeof(int)), "cudaMalloc");
  int* const out = static_cast<int*>(memory);
  int* const in = out + many;
  std::vector<int> numbers(many);
  for (int i = 0; i < many; ++i) numbers[static_cast<std::size_t>(i)] = i;
  write(out, numbers.data(), many * sizeof(int));
  std::vector<Request> sends, receives;
  for (int i = 0; i < many; ++i) {
    sends.push_back(world.psend_init(out + i, 1, 1, MPI_INT, (world.gpu() + 1) % world.gpus(), i));
    receives.push_back(world.precv_init(in + 2 * i, 1, 1, MPI_INT, (world.gpu() + world.gpus() - 1) % world.gpus(), i));
  }
  world.match();
  Request::start_all(receives);
  Request::start_all(sends);
  for (const Request& send : sends) require(kernel.pready(send.kernel(), 0) == Status::ok, "pready of many");
  Request::wait_all(receives);
  Request::wait_all(sends);
  for (int i = 0; i < many; ++i) require(read_one(in + 2 * i) == i, "one of many");
  sends.clear();
  receives.clear();
  check(cudaFree(memory), "cudaFree");
}

void check_world(const Options& options) {
  World world(MPI_COMM_WORLD, options);
  HostKernel kernel(world);
  check_messages(world, kernel);
  check_columns(world, kernel);
  check_many(world, kernel);
  check_messages(world, kernel);  // what was matched before is freed
  check_errors(world);
  if (world.gpu() == 0) std::printf("%d processes, %s: verified\n", world.gpus(), world.wire());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view way = argc > 1 ? argv[1] : "usual";
  return run_world_test(argc, argv, [&](Options options) {
    options.direct = way != "proxy";
    if (way == "proxy") options.wire = proxy_wire;
    check_world(options);
    check_timeout(options);
  });
}

// More is enqueued than the queue of a stream holds, so that the program waits in a launch for operations that the
// library carries out. All that these need for the first time, they need then. The simulated device has such queues
// with GPUDT_SIM_QUEUE.
#include <dlfcn.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <span>
#include <thread>

#include "tests/mpi/streams.hpp"

using namespace gpudt::test;

namespace {

bool on_gpu() {
  return dlsym(RTLD_DEFAULT, "gpudt_sim_api") == nullptr;
}

/// Launches beside those of the library.
class Others {
 public:
  explicit Others(cudaStream_t stream) : stream_(stream) {}
  void launch() {
    for (int i = 0; i < (on_gpu() ? 200 : 6); ++i)
      REQUIRE(cudaMemsetAsync(memory_.device(), 0, sizeof(double), stream_) == cudaSuccess);
  }

 private:
  cudaStream_t stream_;
  Numbers memory_{1};
};

/// Lets ranks with `late` begin when the streams of the others are full.
void begin(bool late) {
  MPI_Barrier(comm());
  if (late) std::this_thread::sleep_for(std::chrono::milliseconds(on_gpu() ? 1000 : 200));
}

constexpr std::array lengths{1, 100, 700, 3000, 9000, 40000, 130000, 300000};

/// A type for `length` of the numbers at its address, and how far they reach.
struct Form {
  const char* name;
  Type (*type)(int length);
  int spread;
  int (*place)(int number);
};

Type every_second(int length) {
  return vector(length, 1, 2);
}
/// Blocks whose places a kernel finds in a list.
int listed_place(int number) {
  return 3 * number + (number % 7 == 3 ? 1 : 0);
}
Type listed(int length) {
  std::vector<int> places;
  places.reserve(static_cast<std::size_t>(length));
  for (int i = 0; i < length; ++i) places.push_back(listed_place(i));
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Type_create_indexed_block(length, 1, places.data(), MPI_DOUBLE, &type);
  MPI_Type_commit(&type);
  return {type, "indexed"};
}
Type contiguous(int length) {
  return vector(1, length, length);
}

const std::array forms{
    Form{"listed ones", listed, 3, listed_place},
    Form{"every second", every_second, 2, [](int number) { return 2 * number; }},
    Form{"all", contiguous, 1, [](int number) { return number; }},
};

/// What a receiver has in the end, where it had -1e9, -1e9 + 1, ...
std::vector<double> received(const Form& form, std::span<const int> all) {
  std::vector<double> numbers;
  for (const int length : all) {
    std::vector<bool> moved(static_cast<std::size_t>(form.spread * length));
    for (int i = 0; i < length; ++i) moved[static_cast<std::size_t>(form.place(i))] = true;
    for (const bool is_moved : moved) {
      const auto at = static_cast<double>(numbers.size());
      numbers.push_back((is_moved ? 1000 : -1e9) + at);
    }
  }
  return numbers;
}

/// Does not print a million numbers.
bool same(const Numbers& numbers, const std::vector<double>& expected) {
  return numbers.values() == expected;
}

}  // namespace

TEST_CASE("CUDA has connections for all streams and loads kernels early where a program enqueues", "[streams]") {
  if (host_only()) return;
  CHECK(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS") != nullptr);
  CHECK(std::getenv("CUDA_MODULE_LOADING") != nullptr);
}

TEST_CASE("The queue of a stream is full before the first of its messages has begun", "[queue]") {
  if (!all_have_partners()) return;
  const bool sends = rank() % 2 == 0;
  const EnqueuingStream stream;
  Others others(stream.cuda());
  for (const Form& form : forms)
    for (const bool sender_late : {true, false}) {
      INFO(form.name << " of the numbers, " << (sender_late ? "the sender" : "the receiver") << " is late");
      step(std::string(form.name) + (sender_late ? ", late sender" : ", late receiver"));
      std::size_t all = 0;
      for (const int length : lengths) all += static_cast<std::size_t>(form.spread * length);
      Numbers data(all);
      data.write(stream.cuda(), sends ? 1000 : -1e9);
      stream.synchronize();
      begin(sends == sender_late);
      double* at = data.device();
      for (const int length : lengths) {
        const Type type = form.type(length);
        if (sends)
          MPI_OK(MPIX_Send_enqueue(at, 1, type, partner(), 1, stream.comm()));
        else
          MPI_OK(MPIX_Recv_enqueue(at, 1, type, partner(), 1, stream.comm(), MPI_STATUS_IGNORE));
        others.launch();
        at += form.spread * length;
      }
      data.read(stream.cuda());
      stream.synchronize();
      if (!sends) CHECK(same(data, received(form, lengths)));
    }
}

TEST_CASE("The queue of a stream is full of messages in memory of another GPU", "[queue]") {
  int gpus = 0, own = 0;
  REQUIRE(cudaGetDeviceCount(&gpus) == cudaSuccess);
  REQUIRE(cudaGetDevice(&own) == cudaSuccess);
  if (gpus < 2 || !all_have_partners()) return;
  const bool sends = rank() % 2 == 0;
  const EnqueuingStream stream;
  Others others(stream.cuda());
  REQUIRE(cudaSetDevice((own + 1) % gpus) == cudaSuccess);
  cudaStream_t away = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&away, cudaStreamNonBlocking) == cudaSuccess);
  const Form& form = forms.front();
  constexpr std::array length{50000};
  Numbers data(static_cast<std::size_t>(form.spread * length.front()));
  data.write(away, sends ? 1000 : -1e9);
  REQUIRE(cudaStreamSynchronize(away) == cudaSuccess);
  REQUIRE(cudaSetDevice(own) == cudaSuccess);
  begin(/*late=*/sends);
  const Type type = form.type(length.front());
  if (sends)
    MPI_OK(MPIX_Send_enqueue(data.device(), 1, type, partner(), 1, stream.comm()));
  else
    MPI_OK(MPIX_Recv_enqueue(data.device(), 1, type, partner(), 1, stream.comm(), MPI_STATUS_IGNORE));
  for (int i = 0; i < 8; ++i) others.launch();
  stream.synchronize();
  data.read(away);
  REQUIRE(cudaStreamSynchronize(away) == cudaSuccess);
  if (!sends) CHECK(same(data, received(form, length)));
  cudaStreamDestroy(away);
}

TEST_CASE("A message that the program has begun arrives while the queue of a stream is full", "[queue]") {
  if (!all_have_partners()) return;
  const bool sends = rank() % 2 == 0;
  const EnqueuingStream stream;
  Others others(stream.cuda());
  const Form& form = forms.front();
  constexpr std::array length{60000};
  Numbers first(static_cast<std::size_t>(form.spread * length.front())), second(10);
  first.write(stream.cuda(), sends ? 1000 : -1e9);
  second.clear(stream.cuda());
  stream.synchronize();
  const Type type = form.type(length.front());
  begin(/*late=*/sends);
  if (sends) {
    MPI_OK(MPI_Send(first.device(), 1, type, partner(), 2, comm()));
    MPI_OK(MPIX_Send_enqueue(second.device(), 10, MPI_DOUBLE, partner(), 1, stream.comm()));
    stream.synchronize();
    return;
  }
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_OK(MPI_Irecv(first.device(), 1, type, partner(), 2, comm(), &request));
  MPI_OK(MPIX_Recv_enqueue(second.device(), 10, MPI_DOUBLE, partner(), 1, stream.comm(), MPI_STATUS_IGNORE));
  for (int i = 0; i < 8; ++i) others.launch();
  stream.synchronize();
  MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  first.read(stream.cuda());
  stream.synchronize();
  CHECK(same(first, received(form, length)));
}

TEST_CASE("Many messages are under way when a launch waits for the first", "[queue]") {
  const EnqueuingStream stream;
  Others others(stream.cuda());
  constexpr int messages = 12, length = 200000;
  Numbers out(std::size_t{messages} * length), in(std::size_t{messages} * length);
  out.write(stream.cuda(), first_of(rank(), 0));
  in.clear(stream.cuda());
  stream.synchronize();
  begin(/*late=*/rank() == 0);
  std::array<MPI_Request, 2 * messages> requests{};
  for (int i = 0; i < messages; ++i) {
    const std::ptrdiff_t at = std::ptrdiff_t{i} * length;
    MPI_OK(MPIX_Irecv_enqueue(in.device() + at, length, MPI_DOUBLE, left(), i, stream.comm(),
                              &requests[static_cast<std::size_t>(2 * i)]));
    MPI_OK(MPIX_Isend_enqueue(out.device() + at, length, MPI_DOUBLE, right(), i, stream.comm(),
                              &requests[static_cast<std::size_t>(2 * i + 1)]));
  }
  MPI_OK(MPIX_Waitall_enqueue(2 * messages, requests.data(), MPI_STATUSES_IGNORE));
  others.launch();
  others.launch();
  in.read(stream.cuda());
  stream.synchronize();
  CHECK(same(in, counted(in.count(), first_of(left(), 0))));
}

TEST_CASE("The queue of a stream is full of nonblocking operations, collectives and accesses", "[queue]") {
  const EnqueuingStream stream;
  Others others(stream.cuda());
  constexpr std::size_t all = 140000;
  Numbers out(all), in(all), sum(all), memory(all);
  out.write(stream.cuda(), first_of(rank(), 0));
  memory.clear(stream.cuda());
  MPI_Win window = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create(memory.device(), all * sizeof(double), sizeof(double), MPI_INFO_NULL, stream.comm(), &window));
  MPI_OK(MPI_Win_lock_all(0, window));
  stream.synchronize();
  begin(/*late=*/rank() == 0);
  for (const int length : {100, 3000, 40000, 140000}) {
    std::array<MPI_Request, 2> requests{};
    MPI_OK(MPIX_Irecv_enqueue(in.device(), length, MPI_DOUBLE, left(), 1, stream.comm(), requests.data()));
    MPI_OK(MPIX_Isend_enqueue(out.device(), length, MPI_DOUBLE, right(), 1, stream.comm(), &requests[1]));
    others.launch();
    MPI_OK(MPIX_Waitall_enqueue(2, requests.data(), MPI_STATUSES_IGNORE));
    MPI_OK(MPIX_Put_enqueue(out.device(), length, MPI_DOUBLE, right(), 0, length, MPI_DOUBLE, window));
    MPI_OK(MPIX_Allreduce_enqueue(out.device(), sum.device(), length, MPI_DOUBLE, MPI_MAX, stream.comm()));
  }
  for (Numbers* const each : {&in, &sum, &memory}) each->read(stream.cuda());
  stream.synchronize();
  CHECK(same(in, counted(all, first_of(left(), 0))));
  CHECK(same(sum, counted(all, first_of(ranks() - 1, 0))));
  CHECK(same(memory, counted(all, first_of(left(), 0))));
  MPI_OK(MPI_Win_unlock_all(window));
  MPI_OK(MPI_Win_free(&window));
}

// Operations that are enqueued while a stream is being captured: each launch of the graph communicates anew.
#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>
#include <functional>
#include <thread>

#include "tests/mpi/stream_kernels.hpp"
#include "tests/mpi/streams.hpp"

using namespace gpudt::test;

namespace {

constexpr int launches = 100;

/// What a stream does while `work()` runs, as a graph.
class Graph {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& work) : stream_(stream) {
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    work();
    REQUIRE(cudaStreamEndCapture(stream, &graph_) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&executable_, graph_, 0) == cudaSuccess);
  }
  ~Graph() {
    cudaStreamSynchronize(stream_);
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch() const { REQUIRE(cudaGraphLaunch(executable_, stream_) == cudaSuccess); }
  /// Makes its launches do what `other` does.
  void update(const Graph& other) const {
    cudaGraphExecUpdateResultInfo result;
    REQUIRE(cudaGraphExecUpdate(executable_, other.graph_, &result) == cudaSuccess);
  }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

/// What kernels of a graph have seen, one number for each launch.
class Log {
 public:
  Log() : numbers_(4 * launches) {
    REQUIRE(cudaMalloc(reinterpret_cast<void**>(&entries_), sizeof(int)) == cudaSuccess);
    REQUIRE(cudaMemset(entries_, 0, sizeof(int)) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  }
  ~Log() { cudaFree(entries_); }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  void append(const Numbers& numbers, std::size_t step, cudaStream_t stream) const {
    launch_append(numbers.device(), numbers.count(), step, numbers_.device(), entries_, stream);
  }
  std::vector<double> entries(cudaStream_t stream) {
    int count = 0;
    numbers_.read(stream);
    REQUIRE(cudaMemcpyAsync(&count, entries_, sizeof count, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    const std::vector<double> all = numbers_.values();
    return {all.begin(), all.begin() + count};
  }

 private:
  Numbers numbers_;
  int* entries_ = nullptr;
};

/// first + 1, first + 2, ...: what launches see that each add 1 first.
std::vector<double> each_launch(double first, int count = launches) {
  return counted(static_cast<std::size_t>(count), first + 1);
}

/// Holds the thread that makes it up now and then for a moment, wherever it is, so that others come in between.
class Interruptions {
 public:
  Interruptions() {
    struct sigaction nap = {};
    nap.sa_handler = [](int) {
      constexpr timespec moment = {0, 20000};
      nanosleep(&moment, nullptr);
    };
    nap.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &nap, &before_);
    thread_ = std::thread([this, interrupted = pthread_self()] {
      while (!over_) {
        pthread_kill(interrupted, SIGUSR1);
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
  }
  ~Interruptions() {
    over_ = true;
    thread_.join();
    sigaction(SIGUSR1, &before_, nullptr);
  }
  Interruptions(const Interruptions&) = delete;
  Interruptions& operator=(const Interruptions&) = delete;

 private:
  struct sigaction before_ = {};
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace

TEST_CASE("Each launch of a graph sends and receives what the memory holds then", "[graphs]") {
  if (!all_have_partners()) return;
  const EnqueuingStream stream;
  for (const int numbers : {1, 128, 700, 40000})
    for (const bool strided : {false, true}) {
      INFO(numbers << (strided ? " numbers with gaps" : " numbers"));
      step(std::to_string(numbers));
      const Type type = strided ? vector(numbers, 1, 3) : plain(MPI_DOUBLE);
      const int count = strided ? 1 : numbers;
      const auto spanned = static_cast<std::size_t>(strided ? 3 * numbers - 2 : numbers);
      Numbers data(spanned);
      Log log;
      data.write(stream.cuda(), 1000.0 * (rank() + 1));
      stream.synchronize();
      const bool sends = rank() % 2 == 0;
      const Graph graph(stream.cuda(), [&] {
        if (sends) {
          launch_add(data.device(), spanned, 1, 20, stream.cuda());
          MPI_OK(MPIX_Send_enqueue(data.device(), count, type, partner(), 9, stream.comm()));
        } else {
          MPI_OK(MPIX_Recv_enqueue(data.device(), count, type, partner(), 9, stream.comm(), MPI_STATUS_IGNORE));
          log.append(data, strided ? 3 : 1, stream.cuda());
        }
      });
      for (int launch = 0; launch < launches; ++launch) graph.launch();
      stream.synchronize();
      if (!sends) CHECK(log.entries(stream.cuda()) == each_launch(1000.0 * (partner() + 1)));
    }
}

// Some hundred launches fill the queue. All lengths are new to the library, so that it needs memory for each.
TEST_CASE("Launches of a graph wait for room in the queue before its messages are matched", "[graphs][queue]") {
  if (!all_have_partners()) return;
  const EnqueuingStream stream;
  const bool sends = rank() % 2 == 0;
  for (const int numbers : {90000, 150000, 260000, 500000})
    for (const bool sender_late : {false, true}) {
      INFO(numbers << " numbers, " << (sender_late ? "the sender" : "the receiver") << " is late");
      step(std::to_string(numbers) + (sender_late ? ", late sender" : ", late receiver"));
      const bool strided = numbers == 150000;
      const Type type = strided ? vector(numbers, 1, 2) : plain(MPI_DOUBLE);
      const int count = strided ? 1 : numbers;
      Numbers data(static_cast<std::size_t>(strided ? 2 * numbers - 1 : numbers));
      Log log;
      data.write(stream.cuda(), 1000.0 * (rank() + 1));
      stream.synchronize();
      const Graph graph(stream.cuda(), [&] {
        if (sends) {
          launch_add(data.device(), data.count(), 1, 0, stream.cuda());
          MPI_OK(MPIX_Send_enqueue(data.device(), count, type, partner(), 9, stream.comm()));
        } else {
          MPI_OK(MPIX_Recv_enqueue(data.device(), count, type, partner(), 9, stream.comm(), MPI_STATUS_IGNORE));
          log.append(data, strided ? 2 : 1, stream.cuda());
        }
      });
      MPI_OK(MPI_Barrier(comm()));
      if (sends == sender_late) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      for (int launch = 0; launch < 3 * launches; ++launch) graph.launch();
      stream.synchronize();
      if (!sends) CHECK(log.entries(stream.cuda()) == each_launch(1000.0 * (partner() + 1), 3 * launches));
    }
}

TEST_CASE("A graph with nonblocking operations, a collective and work of its own", "[graphs]") {
  const EnqueuingStream stream;
  const int right = (rank() + 1) % ranks(), left = (rank() + ranks() - 1) % ranks();
  Numbers out(3000), in(3000), sum(3000);
  Log arrived, summed;
  out.write(stream.cuda(), 100.0 * (rank() + 1));
  stream.synchronize();
  MPI_Status status;
  const Graph graph(stream.cuda(), [&] {
    std::array<MPI_Request, 2> requests{};
    launch_add(out.device(), out.count(), 1, 0, stream.cuda());
    MPI_OK(MPIX_Irecv_enqueue(in.device(), 3000, MPI_DOUBLE, left, 1, stream.comm(), requests.data()));
    MPI_OK(MPIX_Isend_enqueue(out.device(), 3000, MPI_DOUBLE, right, 1, stream.comm(), &requests[1]));
    MPI_OK(MPIX_Wait_enqueue(requests.data(), &status));
    MPI_OK(MPIX_Waitall_enqueue(2, requests.data(), MPI_STATUSES_IGNORE));
    arrived.append(in, 1, stream.cuda());
    MPI_OK(MPIX_Allreduce_enqueue(out.device(), sum.device(), 3000, MPI_DOUBLE, MPI_MAX, stream.comm()));
    summed.append(sum, 1, stream.cuda());
  });
  for (int launch = 0; launch < launches; ++launch) {
    graph.launch();
    if (launch % 10 == 0) {  // beside calls that are not in the graph
      MPI_OK(MPIX_Allreduce_enqueue(out.device(), sum.device(), 3000, MPI_DOUBLE, MPI_MAX, stream.comm()));
    }
  }
  stream.synchronize();
  CHECK(status.MPI_SOURCE == left);
  CHECK(arrived.entries(stream.cuda()) == each_launch(100.0 * (left + 1)));
  CHECK(summed.entries(stream.cuda()) == each_launch(100.0 * ranks()));
}

TEST_CASE("A graph with starts of persistent requests, which are freed before its last launches", "[graphs]") {
  const EnqueuingStream stream;
  const int right = (rank() + 1) % ranks(), left = (rank() + ranks() - 1) % ranks();
  Numbers out(3000), in(3000);
  Log arrived;
  out.write(stream.cuda(), 100.0 * (rank() + 1));
  stream.synchronize();
  std::array<MPI_Request, 2> requests{};
  MPI_OK(MPI_Recv_init(in.device(), 3000, MPI_DOUBLE, left, 1, stream.comm(), requests.data()));
  MPI_OK(MPI_Send_init(out.device(), 3000, MPI_DOUBLE, right, 1, stream.comm(), &requests[1]));
  const Graph graph(stream.cuda(), [&] {
    launch_add(out.device(), out.count(), 1, 0, stream.cuda());
    MPI_OK(MPIX_Startall_enqueue(2, requests.data()));
    MPI_OK(MPIX_Waitall_enqueue(2, requests.data(), MPI_STATUSES_IGNORE));
    arrived.append(in, 1, stream.cuda());
  });
  for (int launch = 0; launch < launches / 2; ++launch) graph.launch();
  for (MPI_Request& request : requests) MPI_OK(MPI_Request_free(&request));
  for (int launch = launches / 2; launch < launches; ++launch) graph.launch();
  stream.synchronize();
  CHECK(arrived.entries(stream.cuda()) == each_launch(100.0 * (left + 1)));
}

// A message tells the target that the data have come, and another the origin that the target has seen them.
TEST_CASE("A graph with a put and a get", "[graphs]") {
  if (!all_have_partners()) return;
  const EnqueuingStream stream;
  const bool puts = rank() % 2 == 0;
  Numbers memory(700), data(700);
  Log seen;
  data.write(stream.cuda(), 1000.0 * (rank() + 1));
  MPI_Win window = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create(memory.device(), 700 * sizeof(double), sizeof(double), MPI_INFO_NULL, stream.comm(), &window));
  MPI_OK(MPI_Win_lock_all(0, window));
  stream.synchronize();
  const auto tell = [&] { MPI_OK(MPIX_Send_enqueue(nullptr, 0, MPI_BYTE, partner(), 9, stream.comm())); };
  const auto hear = [&] {
    MPI_OK(MPIX_Recv_enqueue(nullptr, 0, MPI_BYTE, partner(), 9, stream.comm(), MPI_STATUS_IGNORE));
  };
  {
    const Graph graph(stream.cuda(), [&] {
      if (puts) {
        launch_add(data.device(), data.count(), 1, 20, stream.cuda());
        MPI_OK(MPIX_Put_enqueue(data.device(), 700, MPI_DOUBLE, partner(), 0, 700, MPI_DOUBLE, window));
        tell();
        hear();
        MPI_OK(MPIX_Get_enqueue(data.device(), 700, MPI_DOUBLE, partner(), 0, 700, MPI_DOUBLE, window));
        seen.append(data, 1, stream.cuda());
      } else {
        hear();
        launch_add(memory.device(), memory.count(), 1, 20, stream.cuda());
        seen.append(memory, 1, stream.cuda());
        tell();
      }
    });
    for (int launch = 0; launch < launches / 2; ++launch) graph.launch();
    stream.synchronize();
  }
  std::vector<double> wanted = each_launch(0, launches / 2);  // each side adds 1
  for (double& number : wanted) number = 1000.0 * (puts ? rank() + 1 : partner() + 1) + 2 * number;
  CHECK(seen.entries(stream.cuda()) == wanted);
  MPI_OK(MPI_Win_unlock_all(window));
  MPI_OK(MPI_Win_free(&window));
}

TEST_CASE("A graph is updated by another, and both are destroyed", "[graphs]") {
  if (!all_have_partners()) return;
  const EnqueuingStream stream;
  const bool sends = rank() % 2 == 0;
  Numbers one(500), other(800);
  Log log;
  one.write(stream.cuda(), 1000);
  other.write(stream.cuda(), 5000);
  stream.synchronize();
  const auto work = [&](const Numbers& numbers, int tag) {
    return [&, tag] {
      const auto count = static_cast<int>(numbers.count());
      if (sends) {
        launch_add(numbers.device(), numbers.count(), 1, 0, stream.cuda());
        MPI_OK(MPIX_Send_enqueue(numbers.device(), count, MPI_DOUBLE, partner(), tag, stream.comm()));
      } else {
        MPI_OK(
            MPIX_Recv_enqueue(numbers.device(), count, MPI_DOUBLE, partner(), tag, stream.comm(), MPI_STATUS_IGNORE));
        log.append(numbers, 1, stream.cuda());
      }
    };
  };
  const Graph graph(stream.cuda(), work(one, 1));
  for (int launch = 0; launch < 10; ++launch) graph.launch();
  {
    const Graph source(stream.cuda(), work(other, 2));
    graph.update(source);
  }
  step("launches of an updated graph whose source is gone");
  for (int launch = 0; launch < 10; ++launch) graph.launch();
  stream.synchronize();
  if (sends) return;
  std::vector<double> wanted = each_launch(1000, 10);
  for (const double number : each_launch(5000, 10)) wanted.push_back(number);
  CHECK(log.entries(stream.cuda()) == wanted);
}

TEST_CASE("When a graph is gone, handles that it needed are freed", "[graphs]") {
  const EnqueuingStream stream;
  static std::atomic<int> deleted{0};
  deleted = 0;
  int keyval = MPI_KEYVAL_INVALID;
  MPI_Type_create_keyval(
      MPI_TYPE_NULL_COPY_FN,
      [](MPI_Datatype, int, void*, void*) {
        ++deleted;
        return int(MPI_SUCCESS);
      },
      &keyval, nullptr);
  Numbers numbers(100);
  {
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Type_contiguous(50, MPI_DOUBLE, &type);
    MPI_Type_commit(&type);
    MPI_Type_set_attr(type, keyval, nullptr);
    const Graph graph(stream.cuda(), [&] {
      std::array<MPI_Request, 2> requests{};
      MPI_OK(MPIX_Irecv_enqueue(numbers.device(), 1, type, rank(), 1, stream.comm(), requests.data()));
      MPI_OK(MPIX_Isend_enqueue(numbers.device() + 50, 1, type, rank(), 1, stream.comm(), &requests[1]));
      MPI_OK(MPIX_Waitall_enqueue(2, requests.data(), MPI_STATUSES_IGNORE));
    });
    MPI_OK(MPI_Type_free(&type));
    for (int launch = 0; launch < 3; ++launch) graph.launch();
    stream.synchronize();
    CHECK(deleted == 0);
  }
  CHECK(eventually([&] { return deleted == 1; }));
  MPI_Type_free_keyval(&keyval);
}

// The library's thread looks through the calls of all graphs, also of the one that is being captured.
TEST_CASE("Many calls are captured again and again while the library's thread is busy", "[graphs][busy]") {
  if (!all_have_partners()) return;
  constexpr int captures = 130, messages = 250, launches_each = 3;
  const EnqueuingStream stream;
  Numbers out(messages), in(messages);
  Log arrived;
  out.write(stream.cuda(), 1000.0 * (rank() + 1));
  stream.synchronize();
  for (int capture = 0; capture < captures; ++capture) {
    step("capture " + std::to_string(capture));
    const Graph graph(stream.cuda(), [&] {
      const Interruptions interruptions;
      std::array<MPI_Request, 2 * messages> requests{};
      launch_add(out.device(), messages, 1, 0, stream.cuda());
      for (int i = 0; i < messages; ++i) {
        MPI_OK(MPIX_Irecv_enqueue(in.device() + i, 1, MPI_DOUBLE, partner(), i, stream.comm(), &requests[2 * i]));
        MPI_OK(MPIX_Isend_enqueue(out.device() + i, 1, MPI_DOUBLE, partner(), i, stream.comm(), &requests[2 * i + 1]));
      }
      MPI_OK(MPIX_Waitall_enqueue(2 * messages, requests.data(), MPI_STATUSES_IGNORE));
      arrived.append(in, 1, stream.cuda());
    });
    for (int launch = 0; launch < launches_each; ++launch) graph.launch();
  }
  CHECK(arrived.entries(stream.cuda()) == each_launch(1000.0 * (partner() + 1), captures * launches_each));
}

// MPI_THREAD_MULTIPLE: several threads per rank, each with its own tags and its own communicator.
#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

constexpr int thread_count = 4;
constexpr int blocked_tag = 5000;

/// Catch2's assertions are for one thread: others leave their complaints here.
class Complaints {
 public:
  void expect(bool holds, const std::string& text) {
    if (holds) return;
    std::lock_guard lock(mutex_);
    if (first_.empty()) first_ = text;
  }
  std::string first() const { return first_; }

 private:
  std::mutex mutex_;
  std::string first_;
};

/// These tests are hidden: they need GPUDT_TEST_THREADS=1, and say so when asked for without it.
bool threads_allowed() {
  int level = MPI_THREAD_SINGLE;
  PMPI_Query_thread(&level);
  CHECK(level == MPI_THREAD_MULTIPLE);
  return level == MPI_THREAD_MULTIPLE && all_have_partners();
}

/// Runs `work(thread, its communicator, complaints)` in all threads at once.
void in_threads(const std::function<void(int, MPI_Comm, Complaints&)>& work) {
  std::vector<MPI_Comm> comms(thread_count, MPI_COMM_NULL);
  for (MPI_Comm& own : comms) PMPI_Comm_dup(comm(), &own);
  Complaints complaints;
  const int gpu = current_gpu();
  std::vector<std::thread> threads;
  for (int t = 0; t < thread_count; ++t)
    threads.emplace_back([&, t] {
      try {
        use_gpu(gpu);
        work(t, comms[static_cast<std::size_t>(t)], complaints);
      } catch (const std::exception& error) {
        complaints.expect(false, error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(complaints.first() == "");
  for (MPI_Comm& own : comms) PMPI_Comm_free(&own);
}

std::uint64_t key_of(int from, int thread, int number) {
  return mix(seed(), static_cast<std::uint64_t>((from * thread_count + thread) * 10000 + number));
}

}  // namespace

TEST_CASE("threads exchange messages, each in its own way", "[.][threads]") {
  if (!threads_allowed()) return;
  in_threads([](int thread, MPI_Comm own, Complaints& complaints) {
    auto random = random_numbers("thread " + std::to_string(thread));
    const MPI_Comm shared = comm();
    for (int i = 0; i < scaled(60); ++i) {
      const Pair pair = random_pair(random);
      const int count = 1 + static_cast<int>(random() % 20), tag = 100 * thread + i % 50;
      const Place send = basic_places[random() % 2], receive = basic_places[random() % 2];
      const MPI_Comm where = random() % 2 == 0 ? own : shared;
      const std::uint64_t way = random() % 3;
      const std::string text = "thread " + std::to_string(thread) + ", message " + std::to_string(i) + ", " +
                               Ends{pair.send, count, send, pair.receive, count, receive}.text();
      Buffer out(send, pair.send, count), in(receive, pair.receive, count);
      out.fill(key_of(rank(), thread, i));
      MPI_Status status{};
      int error = MPI_SUCCESS;
      MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
      if (way == 0) {
        error = MPI_Sendrecv(out.address(), count, pair.send, partner(), tag, in.address(), count, pair.receive,
                             partner(), tag, where, &status);
      } else if (way == 1) {
        MPI_Isend(out.address(), count, pair.send, partner(), tag, where, &requests[0]);
        error = MPI_Recv(in.address(), count, pair.receive, partner(), tag, where, &status);
        MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
      } else {
        MPI_Status both[2] = {};
        MPI_Irecv(in.address(), count, pair.receive, partner(), tag, where, &requests[0]);
        MPI_Isend(out.address(), count, pair.send, partner(), tag, where, &requests[1]);
        error = MPI_Waitall(2, requests, both);
        status = both[0];
      }
      complaints.expect(error == MPI_SUCCESS, text + ": " + error_text(error));
      complaints.expect(status.MPI_SOURCE == partner() && status.MPI_TAG == tag, text + ": status");
      in.expect(stream_of(pair.send, count, key_of(partner(), thread, i)));
      const std::string difference = in.difference();
      complaints.expect(difference.empty(), text + ": " + difference);
    }
  });
}

TEST_CASE("threads share one datatype, first used by all at once", "[.][threads]") {
  if (!threads_allowed()) return;
  for (int round = 0; round < 20; ++round) {
    step("round " + std::to_string(round));
    const Type type = named_layout(round % layout_count, 4000);
    in_threads([&](int thread, MPI_Comm own, Complaints& complaints) {
      Buffer out(Place::device, type, 1), in(Place::device, type, 1);
      out.fill(key_of(rank(), thread, round));
      const int error = MPI_Sendrecv(out.address(), 1, type, partner(), thread, in.address(), 1, type, partner(),
                                     thread, own, MPI_STATUS_IGNORE);
      complaints.expect(error == MPI_SUCCESS, error_text(error));
      in.expect(stream_of(type, 1, key_of(partner(), thread, round)));
      const std::string difference = in.difference();
      complaints.expect(difference.empty(), difference);
    });
  }
}

TEST_CASE("threads keep many requests in flight", "[.][threads]") {
  if (!threads_allowed()) return;
  in_threads([](int thread, MPI_Comm own, Complaints& complaints) {
    constexpr int many = 30;
    const Type type = vector(200 * (thread + 1), 1, 2);
    for (int round = 0; round < 5; ++round) {
      std::vector<Buffer> out, in;
      std::vector<MPI_Request> requests(2 * many);
      for (int i = 0; i < many; ++i) {
        out.emplace_back(basic_places[i % 2], type, 1);
        in.emplace_back(basic_places[(i / 2) % 2], type, 1);
        out.back().fill(key_of(rank(), thread, i));
        MPI_Irecv(in.back().address(), 1, type, partner(), i, own, &requests[static_cast<std::size_t>(i)]);
      }
      for (int i = 0; i < many; ++i)
        MPI_Isend(out[static_cast<std::size_t>(i)].address(), 1, type, partner(), i, own,
                  &requests[static_cast<std::size_t>(many + i)]);
      if (thread % 2 == 0) {
        MPI_Waitall(2 * many, requests.data(), MPI_STATUSES_IGNORE);
      } else {
        for (int i = 0, index = 0; i < 2 * many; ++i) MPI_Waitany(2 * many, requests.data(), &index, MPI_STATUS_IGNORE);
      }
      for (int i = 0; i < many; ++i) {
        Buffer& buffer = in[static_cast<std::size_t>(i)];
        buffer.expect(stream_of(type, 1, key_of(partner(), thread, i)));
        const std::string difference = buffer.difference();
        complaints.expect(difference.empty(), difference);
      }
    }
  });
}

TEST_CASE("threads send on one communicator with their own tags, in order", "[.][threads]") {
  if (!threads_allowed()) return;
  in_threads([](int thread, MPI_Comm, Complaints& complaints) {
    constexpr int many = 40;
    const MPI_Comm shared = comm();
    const Type large = vector(3000, 1, 2), small = vector(4, 1, 2);
    std::vector<Buffer> out;
    std::vector<MPI_Request> requests;
    for (int i = 0; i < many; ++i) {
      out.emplace_back(basic_places[i % 2], i % 3 == 0 ? large : small, 1);
      out.back().fill(key_of(rank(), thread, i));
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Isend(out.back().address(), 1, i % 3 == 0 ? large : small, partner(), thread, shared, &request);
      requests.push_back(request);
    }
    for (int i = 0; i < many; ++i) {
      const Type& type = i % 3 == 0 ? large : small;
      Buffer in(basic_places[(i / 2) % 2], large, 1);
      MPI_Status status{};
      const int error = MPI_Recv(in.address(), 1, large, partner(), thread, shared, &status);
      complaints.expect(error == MPI_SUCCESS, error_text(error));
      in.expect(stream_of(type, 1, key_of(partner(), thread, i)));
      const std::string difference = in.difference();
      complaints.expect(difference.empty(),
                        "thread " + std::to_string(thread) + ", message " + std::to_string(i) + ": " + difference);
    }
    MPI_Waitall(many, requests.data(), MPI_STATUSES_IGNORE);
  });
}

TEST_CASE("a thread blocked in a receive does not stop the others", "[.][threads]") {
  if (!threads_allowed()) return;
  std::atomic<int> finished{0};
  in_threads([&](int thread, MPI_Comm own, Complaints& complaints) {
    const Type type = vector(2000, 1, 2);
    if (thread == 0) {  // its message is sent when all others have finished, on the other rank
      Buffer in(Place::device, type, 1);
      const int error = MPI_Recv(in.address(), 1, type, partner(), blocked_tag, comm(), MPI_STATUS_IGNORE);
      complaints.expect(error == MPI_SUCCESS, error_text(error));
      in.expect(stream_of(type, 1, key_of(partner(), 0, 0)));
      complaints.expect(in.difference().empty(), in.difference());
      return;
    }
    for (int i = 0; i < 20; ++i) {
      Buffer out(Place::device, type, 1), in(Place::device, type, 1);
      out.fill(key_of(rank(), thread, i));
      MPI_Sendrecv(out.address(), 1, type, partner(), i, in.address(), 1, type, partner(), i, own, MPI_STATUS_IGNORE);
      in.expect(stream_of(type, 1, key_of(partner(), thread, i)));
      complaints.expect(in.difference().empty(), in.difference());
    }
    if (++finished < thread_count - 1) return;
    Buffer out(Place::device, type, 1);
    out.fill(key_of(rank(), 0, 0));
    MPI_Send(out.address(), 1, type, partner(), blocked_tag, comm());
  });
}

// Under MPI_THREAD_MULTIPLE sends of one thread are ordered among themselves. What another thread keeps adding, so that
// some message is always being packed, is none of its business: each of its sends waits for what is in flight at most.
// To be run with a long GPUDT_SIM_DELAY_US.
TEST_CASE("a thread that sends without end does not keep another from sending", "[.][threads-order]") {
  if (!threads_allowed()) return;
  constexpr int in_flight = 64, others = 5, patience = 3 * others * in_flight;
  const Type type = vector(100, 1, 2), one = plain(MPI_INT);
  Buffer out(Place::device, type, 1), in(Place::host, type, 1), small(Place::host, one, 1);
  if (rank() % 2 == 1) {  // takes all that comes, until the message of no elements
    MPI_Status status{};
    do {
      MPI_OK(MPI_Recv(in.address(), 1, type, partner(), MPI_ANY_TAG, comm(), &status));
    } while (status.MPI_TAG != 0);
    return;
  }
  MPI_Request requests[in_flight];
  int sends = 0;
  for (MPI_Request& request : requests) MPI_OK(MPI_Isend(out.address(), 1, type, partner(), 1, comm(), &request));
  std::atomic<bool> sent{false};
  std::thread other([&] {
    for (int i = 0; i < others; ++i) MPI_Send(small.address(), 1, one, partner(), 2, comm());
    sent = true;
  });
  while (!sent && ++sends < patience) {
    MPI_Request& oldest = requests[sends % in_flight];
    MPI_OK(MPI_Wait(&oldest, MPI_STATUS_IGNORE));
    MPI_OK(MPI_Isend(out.address(), 1, type, partner(), 1, comm(), &oldest));
  }
  CHECK(sent);
  MPI_OK(MPI_Waitall(in_flight, requests, MPI_STATUSES_IGNORE));
  other.join();
  MPI_OK(MPI_Send(small.address(), 0, one, partner(), 0, comm()));
}

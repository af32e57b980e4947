// MPI_THREAD_MULTIPLE: several threads per rank, each with its own tags and its own communicator.
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "tests/mpi/exchange.hpp"
#include "tests/mpi/threads.hpp"

using namespace gpudt::test;

namespace {

constexpr int blocked_tag = 5000;

std::uint64_t key_of(int from, int thread, int number) {
  return mix(seed(), static_cast<std::uint64_t>((from * thread_count + thread) * 10000 + number));
}

}  // namespace

TEST_CASE("threads exchange messages, each in its own way", "[.][threads]") {
  MPICH_CANNOT("it receives structs of elements of several sizes wrongly from a packed message");
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

namespace {

/// Messages of one thread, between this rank and its partner, half of them of device memory.
class Traffic {
 public:
  Traffic(const Type& type, int messages, int thread, MPI_Comm where) : type_(type), thread_(thread), comm_(where) {
    for (int i = 0; i < messages; ++i) {
      out_.emplace_back(basic_places[i % 2], type, 1);
      in_.emplace_back(basic_places[(i / 2) % 2], type, 1);
    }
  }
  int count() const { return static_cast<int>(out_.size()); }
  void refill(int round) {
    for (int i = 0; i < count(); ++i) {
      out_[static_cast<std::size_t>(i)].fill(key_of(rank(), thread_, 100 * round + i));
      in_[static_cast<std::size_t>(i)].poison();
    }
  }
  /// Starts all of them with `type`, or makes persistent requests.
  std::vector<MPI_Request> start(MPI_Datatype type, bool persistent) {
    std::vector<MPI_Request> requests;
    const auto receive = persistent ? MPI_Recv_init : MPI_Irecv;
    const auto send = persistent ? MPI_Send_init : MPI_Isend;
    for (int i = 0; i < count(); ++i) {
      MPI_Request pair[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
      receive(in_[static_cast<std::size_t>(i)].address(), 1, type, partner(), i, comm_, &pair[0]);
      send(out_[static_cast<std::size_t>(i)].address(), 1, type, partner(), i, comm_, &pair[1]);
      requests.insert(requests.end(), pair, pair + 2);
    }
    return requests;
  }
  void verify(int round, Complaints& complaints) {
    for (int i = 0; i < count(); ++i) {
      Buffer& buffer = in_[static_cast<std::size_t>(i)];
      buffer.expect(stream_of(type_, 1, key_of(partner(), thread_, 100 * round + i)));
      complaints.expect(buffer.difference().empty(), "thread " + std::to_string(thread_) + ", message " +
                                                         std::to_string(i) + ": " + buffer.difference());
    }
  }

 private:
  const Type& type_;
  int thread_;
  MPI_Comm comm_;
  std::vector<Buffer> out_, in_;
};

/// Completes requests in one of the ways that find some of them complete.
void complete(std::vector<MPI_Request>& requests, int way) {
  const int count = static_cast<int>(requests.size());
  std::vector<int> indices(requests.size());
  for (int left = count; left > 0;) {
    int completed = 0, index = MPI_UNDEFINED;
    switch (way % 4) {
      case 0:
        MPI_Waitany(count, requests.data(), &index, MPI_STATUS_IGNORE);
        completed = 1;
        break;
      case 1:
        MPI_Testany(count, requests.data(), &index, &completed, MPI_STATUS_IGNORE);
        break;
      case 2:
        MPI_Waitsome(count, requests.data(), &completed, indices.data(), MPI_STATUSES_IGNORE);
        break;
      default:
        MPI_Testsome(count, requests.data(), &completed, indices.data(), MPI_STATUSES_IGNORE);
    }
    left -= completed;
  }
}

}  // namespace

TEST_CASE("threads complete their requests each in another way", "[.][threads]") {
  if (!threads_allowed()) return;
  in_threads([](int thread, MPI_Comm own, Complaints& complaints) {
    const Type type = vector(400 * (thread + 1), 1, 2);
    for (int round = 0; round < 4; ++round) {
      Traffic traffic(type, 12, thread, own);
      traffic.refill(round);
      std::vector<MPI_Request> requests = traffic.start(type, false);
      complete(requests, thread + round);
      traffic.verify(round, complaints);
    }
  });
}

TEST_CASE("threads restart persistent requests", "[.][threads]") {
  if (!threads_allowed()) return;
  in_threads([](int thread, MPI_Comm own, Complaints& complaints) {
    const Type type = vector(300, 2, 3);
    Traffic traffic(type, 8, thread, own);
    std::vector<MPI_Request> requests = traffic.start(type, true);
    const int count = static_cast<int>(requests.size());
    for (int round = 0; round < 5; ++round) {
      traffic.refill(round);
      MPI_Startall(count, requests.data());
      if (round % 2 == 0) {
        MPI_Waitall(count, requests.data(), MPI_STATUSES_IGNORE);
      } else {
        for (int done = 0; done == 0;) MPI_Testall(count, requests.data(), &done, MPI_STATUSES_IGNORE);
      }
      traffic.verify(round, complaints);
    }
    for (MPI_Request& request : requests) MPI_Request_free(&request);
  });
}

TEST_CASE("threads restart persistent requests while another frees their communicator", "[.][threads]") {
  if (!threads_allowed()) return;
  in_threads([](int thread, MPI_Comm own, Complaints& complaints) {
    const Type type = vector(30, 2, 3);
    for (int time = 0; time < 10; ++time) {
      MPI_Comm gone = MPI_COMM_NULL;
      MPI_Comm_dup(own, &gone);
      Traffic traffic(type, 4, thread, gone);
      std::vector<MPI_Request> requests = traffic.start(type, true);
      const int count = static_cast<int>(requests.size());
      std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::microseconds(100 * time));
        MPI_Comm_free(&gone);
      });
      for (int round = 0; round < 5; ++round) {
        traffic.refill(round);
        int error = MPI_Startall(count, requests.data());
        complaints.expect(error == MPI_SUCCESS, "Startall: " + error_text(error));
        error = MPI_Waitall(count, requests.data(), MPI_STATUSES_IGNORE);
        complaints.expect(error == MPI_SUCCESS, "Waitall: " + error_text(error));
        traffic.verify(round, complaints);
      }
      other.join();
      for (MPI_Request& request : requests) MPI_Request_free(&request);
    }
  });
}

TEST_CASE("threads free datatypes of messages in flight, and make others", "[.][threads]") {
  if (!threads_allowed()) return;
  in_threads([](int thread, MPI_Comm own, Complaints& complaints) {
    for (int round = 0; round < 15; ++round) {
      const Type type = vector(50 + 10 * (round % 7), 1 + thread % 3, 5);
      Traffic traffic(type, 4, thread, own);
      traffic.refill(round);
      MPI_Datatype copy = MPI_DATATYPE_NULL;
      MPI_Type_dup(type, &copy);
      std::vector<MPI_Request> requests = traffic.start(copy, false);
      MPI_Type_free(&copy);
      MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
      traffic.verify(round, complaints);
    }
  });
}

TEST_CASE("threads run collectives on communicators of their own", "[.][threads]") {
  if (!threads_allowed()) return;
  in_threads([](int thread, MPI_Comm own, Complaints& complaints) {
    const Type type = vector(200, 2, 3), number = plain(MPI_INT);
    const auto verify = [&](Buffer& buffer, const char* call) {
      complaints.expect(buffer.difference().empty(), std::string(call) + ": " + buffer.difference());
    };
    for (int round = 0; round < 6; ++round) {
      const Place place = basic_places[(round + 1) % 2];
      Buffer one(Place::device, type, 1), all(place, type, ranks()), both(Place::device, type, 1);
      one.fill(key_of(rank(), thread, round));
      MPI_Allgather(one.address(), 1, type, all.address(), 1, type, own);
      Stream wanted;
      for (int from = 0; from < ranks(); ++from) {
        const Stream part = stream_of(type, 1, key_of(from, thread, round));
        wanted.insert(wanted.end(), part.begin(), part.end());
      }
      all.expect(wanted);
      verify(all, "Allgather");
      const int root = round % ranks();
      if (rank() == root) both.fill(key_of(root, thread, 100 + round));
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Ibcast(both.address(), 1, type, root, own, &request);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
      both.expect(stream_of(type, 1, key_of(root, thread, 100 + round)));
      verify(both, "Ibcast");
      Buffer given(Place::device, number, 500), least(place, number, 500);
      given.fill(key_of(rank(), thread, 200 + round));
      MPI_Allreduce(given.address(), least.address(), 500, MPI_INT, MPI_MIN, own);
      Stream result = stream_of(number, 500, key_of(0, thread, 200 + round));
      for (int from = 1; from < ranks(); ++from) {
        const Stream other = stream_of(number, 500, key_of(from, thread, 200 + round));
        PMPI_Reduce_local(other.data(), result.data(), 500, MPI_INT, MPI_MIN);
      }
      least.expect(result);
      verify(least, "Allreduce");
    }
  });
}

// The heap's end is looked at whenever a buffer may be there. UCX, where MPI has loaded it, moves it in sbrk(0).
TEST_CASE("a thread packs from the heap while it grows and shrinks", "[.][threads]") {
  if (!threads_allowed()) return;
  constexpr std::size_t blocks = 20, bytes = 60000;
  for (const int threshold : {M_MMAP_THRESHOLD, M_TRIM_THRESHOLD}) mallopt(threshold, 128 << 10);  // what they begin as
  const auto in_heap = std::make_unique<int>(0);
  std::atomic<bool> done{false};
  std::thread packs([&] {
    char packed[100];
    for (int position = 0; !done; position = 0)
      MPI_Pack(in_heap.get(), 1, MPI_INT, packed, sizeof packed, &position, comm());
  });
  bool right = true;
  for (int i = 0; i < scaled(100); ++i) {
    std::vector<std::vector<int>> memory(blocks);
    for (std::vector<int>& each : memory) each.assign(bytes / sizeof(int), i);
    for (const std::vector<int>& each : memory) right = right && each.front() == i && each.back() == i;
  }
  done = true;
  packs.join();
  CHECK(right);
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
  MPICH_CANNOT("it truncates some of the messages");
  if (!threads_allowed()) return;
  constexpr int in_flight = 64, others = 5, timeout = 3 * others * in_flight;
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
  while (!sent && ++sends < timeout) {
    MPI_Request& oldest = requests[sends % in_flight];
    MPI_OK(MPI_Wait(&oldest, MPI_STATUS_IGNORE));
    MPI_OK(MPI_Isend(out.address(), 1, type, partner(), 1, comm(), &oldest));
  }
  CHECK(sent);
  MPI_OK(MPI_Waitall(in_flight, requests, MPI_STATUSES_IGNORE));
  other.join();
  MPI_OK(MPI_Send(small.address(), 0, one, partner(), 0, comm()));
}

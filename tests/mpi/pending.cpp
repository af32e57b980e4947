// Receives into host memory that are pending by the thousand, to which messages from host and device memory come.
#include <time.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/mpi/exchange.hpp"
#include "tests/support/mpi_quirks.hpp"

using namespace gpudt::test;

namespace {

/// Calls that complete all of `requests`, and tell of each by `done(index, status)`.
struct Completion {
  const char* name;
  void (*complete)(std::vector<MPI_Request>& requests, std::vector<MPI_Status>& statuses);
};

const std::vector<Completion> completions = {
    {"Waitall",
     [](std::vector<MPI_Request>& requests, std::vector<MPI_Status>& statuses) {
       MPI_OK(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), statuses.data()));
     }},
    {"Wait, from the back",
     [](std::vector<MPI_Request>& requests, std::vector<MPI_Status>& statuses) {
       for (std::size_t i = requests.size(); i-- > 0;) MPI_OK(MPI_Wait(&requests[i], &statuses[i]));
     }},
    {"Test, one after the other",
     [](std::vector<MPI_Request>& requests, std::vector<MPI_Status>& statuses) {
       for (std::size_t left = requests.size(); left > 0;)
         for (std::size_t i = 0; i < requests.size(); ++i) {
           int flag = 0;
           if (requests[i] == MPI_REQUEST_NULL) continue;
           MPI_OK(MPI_Test(&requests[i], &flag, &statuses[i]));
           left -= flag != 0 ? 1 : 0;
         }
     }},
    {"Waitany",
     [](std::vector<MPI_Request>& requests, std::vector<MPI_Status>& statuses) {
       for (std::size_t left = requests.size(); left > 0; --left) {
         int index = MPI_UNDEFINED;
         MPI_Status status{};
         MPI_OK(MPI_Waitany(static_cast<int>(requests.size()), requests.data(), &index, &status));
         REQUIRE(index != MPI_UNDEFINED);
         statuses[static_cast<std::size_t>(index)] = status;
       }
     }},
    {"Waitsome and Testsome",
     [](std::vector<MPI_Request>& requests, std::vector<MPI_Status>& statuses) {
       std::vector<int> indices(requests.size());
       std::vector<MPI_Status> some(requests.size());
       bool waits = true;
       for (std::size_t left = requests.size(); left > 0; waits = !waits) {
         int done = 0;
         const auto complete = waits ? MPI_Waitsome : MPI_Testsome;
         MPI_OK(complete(static_cast<int>(requests.size()), requests.data(), &done, indices.data(), some.data()));
         REQUIRE(done != MPI_UNDEFINED);
         for (int i = 0; i < done; ++i)
           statuses[static_cast<std::size_t>(indices[static_cast<std::size_t>(i)])] = some[static_cast<std::size_t>(i)];
         left -= static_cast<std::size_t>(done);
       }
     }},
    {"Testall",
     [](std::vector<MPI_Request>& requests, std::vector<MPI_Status>& statuses) {
       for (int flag = 0; flag == 0;)
         MPI_OK(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &flag, statuses.data()));
     }},
};

/// Of this thread, in seconds.
double processor_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Receives of bytes from the partner, with tags from 0 on.
class Pending {
 public:
  Pending(int count, int bytes)
      : bytes_(bytes), data_(static_cast<std::size_t>(count) * size()), requests(count_of(count)) {
    for (int i = 0; i < count; ++i)
      MPI_OK(MPI_Irecv(at(i), bytes, MPI_BYTE, partner(), i, comm(), &requests[count_of(i)]));
  }
  ~Pending() {
    for (MPI_Request& request : requests) {
      if (request == MPI_REQUEST_NULL) continue;
      MPI_OK(MPI_Cancel(&request));
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
  }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  char* at(int i) { return data_.data() + count_of(i) * size(); }

 private:
  static std::size_t count_of(int i) { return static_cast<std::size_t>(i); }
  std::size_t size() const { return static_cast<std::size_t>(bytes_); }
  int bytes_;
  std::vector<char> data_;

 public:
  std::vector<MPI_Request> requests;
};

}  // namespace

TEST_CASE("a thousand receives into host memory, by every call that completes them", "[completion]") {
  if (!all_have_partners()) return;
  constexpr int many = 1000, bytes = 1001, from_device = 40;  // every so manyth; 515 to 769: as long as an RTS may be
  const Type type = vector(1, bytes, bytes, MPI_CHAR), as_rts = vector(1, 515, 515, MPI_CHAR);
  for (const Completion& completion : completions) {
    INFO(completion.name);
    step(completion.name);
    Pending pending(many, bytes);
    std::vector<int> order(many);
    std::iota(order.begin(), order.end(), 0);
    auto random = random_numbers(completion.name);
    std::shuffle(order.begin(), order.end(), random);
    const auto type_of = [&](int i) -> const Type& { return i % 7 == 0 ? as_rts : type; };
    std::vector<Buffer> out;
    std::vector<MPI_Request> sends(many);
    out.reserve(many);
    for (const int i : order) {
      out.emplace_back(i % from_device == 0 ? Place::device : Place::host, type_of(i), 1);
      out.back().fill(key_of(rank(), i));
      MPI_OK(MPI_Isend(out.back().address(), 1, type_of(i), partner(), i, comm(), &sends[static_cast<std::size_t>(i)]));
    }
    std::vector<MPI_Status> statuses(many);
    completion.complete(pending.requests, statuses);
    MPI_OK(MPI_Waitall(many, sends.data(), MPI_STATUSES_IGNORE));
    int wrong = 0;
    for (int i = 0; i < many; ++i) {
      const auto at = static_cast<std::size_t>(i);
      int received = 0;
      MPI_Get_count(&statuses[at], MPI_BYTE, &received);
      const Stream wanted = stream_of(type_of(i), 1, key_of(partner(), i));
      const bool right = pending.requests[at] == MPI_REQUEST_NULL && statuses[at].MPI_TAG == i &&
                         received == static_cast<int>(wanted.size()) &&
                         std::equal(wanted.begin(), wanted.end(), pending.at(i));
      if (!right) ++wrong;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("a test call takes no longer if thousands of receives into host memory are pending", "[completion]") {
  if (!all_have_partners()) return;
  const auto time_of_tests = [](int pending_receives) {
    constexpr int tests = 200;
    Pending pending(pending_receives, 1000);
    double least = 1e9;
    for (int attempt = 0; attempt < 5; ++attempt) {
      const double began = processor_time();
      for (int i = 0; i < tests; ++i) {
        int flag = 1;
        MPI_Test(&pending.requests[static_cast<std::size_t>(i % pending_receives)], &flag, MPI_STATUS_IGNORE);
      }
      least = std::min(least, processor_time() - began);
    }
    return least;
  };
  const double few = time_of_tests(5), many = time_of_tests(5000);
  INFO(few << " s, " << many << " s");
  if (!any_host_only()) CHECK(many < 15 * few);  // with a look at each of them 60 times
}

TEST_CASE("a device message comes to a pending receive into host memory while another call waits", "[progress]") {
  if (!all_have_partners()) return;
  const Type type = not_sent_before_received();
  for (const bool freed : {false, true}) {
    INFO((freed ? "freed" : "kept"));
    Pending others(300, 1000);
    Buffer in(Place::host, type, 1), out(Place::device, type, 1);
    MPI_Request request = MPI_REQUEST_NULL;
    out.fill(key_of(rank(), 1));
    const bool receives = rank() > partner();
    if (receives) {
      MPI_OK(MPI_Irecv(in.address(), 1, type, partner(), 9999, comm(), &request));
      if (freed) MPI_OK(MPI_Request_free(&request));
    }
    MPI_OK(MPI_Barrier(comm()));
    if (!receives) MPI_OK(MPI_Send(out.address(), 1, type, partner(), 9999, comm()));
    MPI_OK(MPI_Barrier(comm()));  // the send has ended
    if (!receives) continue;
    in.expect(stream_of(type, 1, key_of(partner(), 1)));
    if (freed) {
      CHECK(eventually([&] { return in.difference().empty(); }));
    } else {
      MPI_Status status{};
      MPI_OK(MPI_Wait(&request, &status));
      check_status(status, partner(), 9999, type, type.size());
    }
    CHECK(in.difference() == "");
  }
}

TEST_CASE("a receive into host memory is cancelled, or not any more", "[lifetime]") {
  if (!all_have_partners()) return;
  const Type type = vector(1, 5000, 5000, MPI_CHAR);
  for (const Place place : basic_places) {
    Pending pending(100, 5000);
    Buffer out(place, type, 1);
    out.fill(key_of(rank(), 50));
    MPI_Request send = MPI_REQUEST_NULL;
    MPI_OK(MPI_Isend(out.address(), 1, type, partner(), 50, comm(), &send));
    int came = 0;
    CHECK(eventually([&] {
      MPI_OK(MPI_Request_get_status(pending.requests[50], &came, MPI_STATUS_IGNORE));
      return came != 0;
    }));
    for (std::size_t i = 0; i < 100; ++i) {
      MPI_Status status{};
      int cancelled = -1;
      MPI_OK(MPI_Cancel(&pending.requests[i]));
      MPI_OK(MPI_Wait(&pending.requests[i], &status));
      MPI_OK(MPI_Test_cancelled(&status, &cancelled));
      CHECK(cancelled == (i == 50 ? 0 : 1));
    }
    const Stream wanted = stream_of(type, 1, key_of(partner(), 50));
    CHECK(std::equal(wanted.begin(), wanted.end(), pending.at(50)));
    MPI_OK(MPI_Wait(&send, MPI_STATUS_IGNORE));
  }
}

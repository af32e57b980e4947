// The Wait and Test families on arrays that mix host, device, persistent and null requests.
#include <algorithm>
#include <functional>

#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

std::uint64_t key_of(int from, int number) {
  return mix(seed(), static_cast<std::uint64_t>(from) * 1000 + static_cast<std::uint64_t>(number));
}

/// Receives and sends with the partner: device and host, plain and persistent, and null requests between them.
class Mixture {
 public:
  static constexpr int messages = 12;
  static constexpr int length = 3 * messages;  ///< per message a receive, a null request and a send

  Mixture() {
    const int sizes[] = {10, 300, 9000};
    for (const int size : sizes) types_.push_back(vector(size, 1, 2));
    for (int i = 0; i < messages; ++i) {
      in_.emplace_back(basic_places[i % 2], type(i), 2);
      out_.emplace_back(basic_places[(i / 2) % 2], type(i), 2);
      out_.back().fill(key_of(rank(), i));
    }
    for (int i = 0; i < messages; ++i) start(i);
  }
  ~Mixture() {
    for (MPI_Request& request : requests)
      if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  }
  Mixture(const Mixture&) = delete;
  Mixture& operator=(const Mixture&) = delete;

  /// The status of request `index`, now complete.
  void check(int index, const MPI_Status& status) {
    ++completed_[static_cast<std::size_t>(index)];
    const int i = index / 3;
    INFO("request " << index);
    if (index % 3 == 0) {
      check_status(status, partner(), i, type(i), sent(i) * type(i).size());
    } else if (index % 3 == 2) {
      int cancelled = 1;
      MPI_Test_cancelled(&status, &cancelled);
      CHECK(cancelled == 0);
    }
    CHECK((requests[index] == MPI_REQUEST_NULL) == !persistent(i));
  }
  /// Each request has been completed once, and the data is there.
  void check_all() {
    for (int index = 0; index < length; ++index)
      if (index % 3 != 1) CHECK(completed_[static_cast<std::size_t>(index)] == 1);
    for (int i = 0; i < messages; ++i) {
      Buffer& in = in_[static_cast<std::size_t>(i)];
      INFO("message " << i << ", " << type(i).text());
      Stream stream = stream_of(type(i), 2, key_of(partner(), i));
      stream.resize(static_cast<std::size_t>(sent(i) * type(i).size()));
      in.expect(stream);
      CHECK(in.difference() == "");
    }
  }
  static bool is_null(int index) { return index % 3 == 1; }

  MPI_Request requests[length];

 private:
  const Type& type(int i) const { return types_[static_cast<std::size_t>(i / 4)]; }
  static bool persistent(int i) { return i % 3 == 1; }
  static int sent(int i) { return i % 5 == 2 ? 1 : 2; }  ///< some messages are shorter than their receive

  void start(int i) {
    MPI_Request* const request = requests + static_cast<std::ptrdiff_t>(3) * i;
    void* const to = in_[static_cast<std::size_t>(i)].address();
    void* const from = out_[static_cast<std::size_t>(i)].address();
    request[1] = MPI_REQUEST_NULL;
    if (persistent(i)) {
      MPI_OK(MPI_Recv_init(to, 2, type(i), partner(), i, comm(), &request[0]));
      MPI_OK(MPI_Send_init(from, sent(i), type(i), partner(), i, comm(), &request[2]));
      MPI_OK(MPI_Start(&request[0]));
      MPI_OK(MPI_Start(&request[2]));
    } else {
      MPI_OK(MPI_Irecv(to, 2, type(i), i % 2 == 0 ? partner() : MPI_ANY_SOURCE, i, comm(), &request[0]));
      MPI_OK(MPI_Isend(from, sent(i), type(i), partner(), i, comm(), &request[2]));
    }
  }

  std::vector<Type> types_;
  std::vector<Buffer> in_, out_;
  int completed_[length] = {};
};

}  // namespace

TEST_CASE("Waitall of a mixture", "[completion]") {
  if (!all_have_partners()) return;
  Mixture mixture;
  MPI_Status statuses[Mixture::length];
  MPI_OK(MPI_Waitall(Mixture::length, mixture.requests, statuses));
  for (int i = 0; i < Mixture::length; ++i)
    if (!Mixture::is_null(i)) mixture.check(i, statuses[i]);
  mixture.check_all();
}

TEST_CASE("Testall of a mixture", "[completion]") {
  if (!all_have_partners()) return;
  Mixture mixture;
  MPI_Status statuses[Mixture::length];
  for (int flag = 0; flag == 0;) MPI_OK(MPI_Testall(Mixture::length, mixture.requests, &flag, statuses));
  for (int i = 0; i < Mixture::length; ++i)
    if (!Mixture::is_null(i)) mixture.check(i, statuses[i]);
  mixture.check_all();
}

TEST_CASE("Waitany of a mixture", "[completion]") {
  if (!all_have_partners()) return;
  Mixture mixture;
  for (int i = 0; i < 2 * Mixture::messages; ++i) {
    int index = -1;
    MPI_Status status{};
    MPI_OK(MPI_Waitany(Mixture::length, mixture.requests, &index, &status));
    REQUIRE(index >= 0);
    mixture.check(index, status);
  }
  int index = -1;
  MPI_OK(MPI_Waitany(Mixture::length, mixture.requests, &index, MPI_STATUS_IGNORE));
  CHECK(index == MPI_UNDEFINED);
  mixture.check_all();
}

TEST_CASE("Testany of a mixture", "[completion]") {
  if (!all_have_partners()) return;
  Mixture mixture;
  for (int i = 0; i < 2 * Mixture::messages;) {
    int index = -1, flag = 0;
    MPI_Status status{};
    MPI_OK(MPI_Testany(Mixture::length, mixture.requests, &index, &flag, &status));
    if (flag == 0) continue;
    REQUIRE(index >= 0);
    mixture.check(index, status);
    ++i;
  }
  mixture.check_all();
}

TEST_CASE("Waitsome and Testsome of a mixture", "[completion]") {
  if (!all_have_partners()) return;
  const auto some = [](auto call) {
    Mixture mixture;
    for (int i = 0; i < 2 * Mixture::messages;) {
      int done = 0, indices[Mixture::length];
      MPI_Status statuses[Mixture::length];
      MPI_OK(call(Mixture::length, mixture.requests, &done, indices, statuses));
      REQUIRE(done != MPI_UNDEFINED);
      for (int k = 0; k < done; ++k) mixture.check(indices[k], statuses[k]);
      i += done;
    }
    int done = 0, indices[Mixture::length];
    MPI_OK(call(Mixture::length, mixture.requests, &done, indices, MPI_STATUSES_IGNORE));
    CHECK(done == MPI_UNDEFINED);
    mixture.check_all();
  };
  step("Waitsome");
  some(MPI_Waitsome);
  step("Testsome");
  some(MPI_Testsome);
}

TEST_CASE("Wait and Test one by one, from the back", "[completion]") {
  if (!all_have_partners()) return;
  Mixture mixture;
  for (int i = Mixture::length - 1; i >= 0; --i) {
    MPI_Status status{};
    if (i % 2 == 0)
      MPI_OK(MPI_Wait(&mixture.requests[i], &status));
    else
      for (int flag = 0; flag == 0;) MPI_OK(MPI_Test(&mixture.requests[i], &flag, &status));
    if (!Mixture::is_null(i)) mixture.check(i, status);
  }
  mixture.check_all();
}

TEST_CASE("Request_get_status leaves the request as it is", "[completion]") {
  if (!all_have_partners()) return;
  Mixture mixture;
  for (int i = 0; i < Mixture::length; ++i) {
    if (Mixture::is_null(i)) continue;
    MPI_Status seen{}, status{};
    for (int flag = 0; flag == 0;) MPI_OK(MPI_Request_get_status(mixture.requests[i], &flag, &seen));
    CHECK(mixture.requests[i] != MPI_REQUEST_NULL);
    int flag = 0;
    MPI_OK(MPI_Request_get_status(mixture.requests[i], &flag, MPI_STATUS_IGNORE));
    CHECK(flag == 1);
    MPI_OK(MPI_Wait(&mixture.requests[i], &status));
    if (i % 3 == 0) {
      CHECK(seen.MPI_SOURCE == status.MPI_SOURCE);
      CHECK(seen.MPI_TAG == status.MPI_TAG);
      int seen_bytes = -1, bytes = -2;
      MPI_Get_count(&seen, MPI_BYTE, &seen_bytes);
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      CHECK(seen_bytes == bytes);
    }
    mixture.check(i, status);
  }
  mixture.check_all();
}

TEST_CASE("statuses may be ignored", "[completion]") {
  if (!all_have_partners()) return;
  Mixture all, any;
  MPI_OK(MPI_Waitall(Mixture::length, all.requests, MPI_STATUSES_IGNORE));
  for (int i = 0; i < 2 * Mixture::messages; ++i) {
    int index = -1;
    MPI_OK(MPI_Waitany(Mixture::length, any.requests, &index, MPI_STATUS_IGNORE));
    CHECK(index >= 0);
  }
}

TEST_CASE("the program's own generalized requests are left alone", "[completion]") {
  if (!all_have_partners()) return;
  Mixture mixture;
  static int freed = 0;
  freed = 0;
  const auto query = [](void* state, MPI_Status* status) {
    MPI_Status_set_elements(status, MPI_BYTE, *static_cast<int*>(state));
    MPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = 3;
    status->MPI_TAG = 4;
    return MPI_SUCCESS;
  };
  const auto free_state = [](void*) {
    ++freed;
    return MPI_SUCCESS;
  };
  const auto cancel = [](void*, int) { return MPI_SUCCESS; };
  int state = 17;
  MPI_Request requests[Mixture::length + 1];
  std::copy_n(mixture.requests, Mixture::length, requests);
  MPI_OK(MPI_Grequest_start(query, free_state, cancel, &state, &requests[Mixture::length]));
  MPI_OK(MPI_Grequest_complete(requests[Mixture::length]));
  MPI_Status statuses[Mixture::length + 1];
  MPI_OK(MPI_Waitall(Mixture::length + 1, requests, statuses));
  std::copy_n(requests, Mixture::length, mixture.requests);
  for (int i = 0; i < Mixture::length; ++i)
    if (!Mixture::is_null(i)) mixture.check(i, statuses[i]);
  mixture.check_all();
  int bytes = 0;
  MPI_Get_count(&statuses[Mixture::length], MPI_BYTE, &bytes);
  CHECK(bytes == 17);
  CHECK(freed == 1);
}

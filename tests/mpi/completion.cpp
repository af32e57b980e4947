// The Wait and Test families on arrays that mix host, device, persistent and null requests.
#include <algorithm>
#include <functional>

#include "tests/mpi/exchange.hpp"
#include "tests/support/mpi_quirks.hpp"

using namespace gpudt::test;

namespace {

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
  MPICH5_CANNOT("it takes the status away");
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
  const auto query = [](void* state, MPI_Status* status) -> int {
    MPI_Status_set_elements(status, MPI_BYTE, *static_cast<int*>(state));
    MPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = 3;
    status->MPI_TAG = 4;
    return MPI_SUCCESS;
  };
  const auto free_state = [](void*) -> int {
    ++freed;
    return MPI_SUCCESS;
  };
  const auto cancel = [](void*, int) -> int { return MPI_SUCCESS; };
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

namespace {

/// A call that tests, on the requests [0, count) of which `index` alone can be complete: whether it says so.
struct TestCall {
  const char* name;
  bool completes;  ///< the request, which otherwise stays as it is
  bool (*sees)(int count, MPI_Request* requests, int index);
};

const TestCall test_calls[] = {
    {"MPI_Test", true,
     [](int, MPI_Request* requests, int index) {
       int flag = 0;
       MPI_OK(MPI_Test(&requests[index], &flag, MPI_STATUS_IGNORE));
       return flag != 0;
     }},
    {"MPI_Testany", true,
     [](int count, MPI_Request* requests, int wanted) {
       int flag = 0, index = -1;
       MPI_OK(MPI_Testany(count, requests, &index, &flag, MPI_STATUS_IGNORE));
       return flag != 0 && index == wanted;
     }},
    {"MPI_Testall", true,
     [](int, MPI_Request* requests, int index) {
       int flag = 0;
       MPI_Request alone[] = {MPI_REQUEST_NULL, requests[index]};
       MPI_OK(MPI_Testall(2, alone, &flag, MPI_STATUSES_IGNORE));
       requests[index] = alone[1];
       return flag != 0;
     }},
    {"MPI_Testsome", true,
     [](int count, MPI_Request* requests, int index) {
       int done = 0;
       std::vector<int> indices(static_cast<std::size_t>(count));
       MPI_OK(MPI_Testsome(count, requests, &done, indices.data(), MPI_STATUSES_IGNORE));
       return done == 1 && indices[0] == index;
     }},
    {"MPI_Request_get_status", false,
     [](int, MPI_Request* requests, int index) {
       int flag = 0;
       MPI_OK(MPI_Request_get_status(requests[index], &flag, MPI_STATUS_IGNORE));
       return flag != 0;
     }},
};

/// Receives into host memory from this rank itself, which nobody has sent to yet.
class FromMyself {
 public:
  FromMyself(int count, const Type& type, bool persistent)
      : type_(type), persistent_(persistent), received_(static_cast<std::size_t>(count)) {
    for (int i = 0; i < count; ++i) {
      buffers_.emplace_back(Place::host, type, 1);
      MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
      const auto receive = persistent ? MPI_Recv_init : MPI_Irecv;
      MPI_OK(receive(buffers_.back().address(), 1, type, rank(), i, comm(), &request));
    }
    if (persistent) MPI_OK(MPI_Startall(count, requests_.data()));
  }
  /// The others are sent to, too.
  ~FromMyself() {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (!received_[i]) {
        send(static_cast<int>(i), Place::host);
        MPI_OK(MPI_Wait(&requests_[i], MPI_STATUS_IGNORE));
      }
      if (persistent_) MPI_Request_free(&requests_[i]);
    }
  }
  FromMyself(const FromMyself&) = delete;
  FromMyself& operator=(const FromMyself&) = delete;

  /// After a synchronous send to receive `index`, the first call sees it complete.
  void check(const TestCall& call, int index, Place from) {
    INFO(call.name << ", " << requests_.size() << (persistent_ ? " persistent" : "") << " receives of " << type_.size()
                   << " B from " << place_name(from));
    const int count = static_cast<int>(requests_.size());
    MPI_Request& request = requests_[static_cast<std::size_t>(index)];
    send(index, from);
    const bool seen = call.sees(count, requests_.data(), index);
    CHECK(seen);
    if (!seen || !call.completes) MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    CHECK((request == MPI_REQUEST_NULL) == !persistent_);
    Buffer& buffer = buffers_[static_cast<std::size_t>(index)];
    buffer.expect(stream_of(type_, 1, key_of(rank(), index)));
    CHECK(buffer.difference() == "");
  }

 private:
  void send(int index, Place from) {
    Buffer out(from, type_, 1);
    out.fill(key_of(rank(), index));
    MPI_OK(MPI_Ssend(out.address(), 1, type_, rank(), index, comm()));
    received_[static_cast<std::size_t>(index)] = true;
  }

  const Type& type_;
  const bool persistent_;
  std::vector<Buffer> buffers_;
  std::vector<MPI_Request> requests_;
  std::vector<bool> received_;
};

}  // namespace

TEST_CASE("a test call sees the receive that a synchronous send to oneself has completed", "[completion]") {
  if (!sees_completion_at_once()) return not_possible("another thread may be looking at what is pending");
  for (const int bytes : {64, 514, 515, 516, 517, 518, 519, 520, 770, 4096, 100'000}) {
    if (mpich5 && bytes == 100'000) continue;  // which it has not received by then
    const Type type = vector(1, bytes, bytes, MPI_CHAR);
    for (const Place from : basic_places)
      for (const bool persistent : {false, true})
        for (const TestCall& call : test_calls) FromMyself(2, type, persistent).check(call, 1, from);
  }
}

TEST_CASE("a test call sees it among many receives that are pending", "[completion]") {
  if (!sees_completion_at_once()) return not_possible("another thread may be looking at what is pending");
  constexpr int many = 300;
  const Type type = vector(1, 1000, 1000, MPI_CHAR);
  for (const bool persistent : {false, true})
    for (const TestCall& call : test_calls)
      for (const int index : {0, 100, many - 1}) FromMyself(many, type, persistent).check(call, index, Place::host);
}

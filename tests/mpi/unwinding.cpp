// What the program throws in functions that MPI calls, error handlers and operators, comes out of its MPI call, and the
// library goes on. tests/apps/unwinding.cpp has what ends threads.
#include <new>
#include <stdexcept>
#include <utility>

#include "tests/mpi/error_comm.hpp"
#include "tests/mpi/exchange.hpp"
#include "tests/mpi/ints.hpp"

using namespace gpudt::test;

namespace {

struct Thrown {};  ///< not a std::exception

enum class Throws { nothing, runtime_error, bad_alloc, other };
Throws throws = Throws::nothing;

void throw_wanted() {
  switch (std::exchange(throws, Throws::nothing)) {
    case Throws::nothing:
      return;
    case Throws::runtime_error:
      throw std::runtime_error("of the program");
    case Throws::bad_alloc:
      throw std::bad_alloc();
    case Throws::other:
      throw Thrown();
  }
}

/// What `call` has thrown; a call that returns throws nothing.
template <class Call>
Throws thrown_by(Call call) {
  try {
    call();
  } catch (const std::runtime_error& error) {
    return std::string(error.what()) == "of the program" ? Throws::runtime_error : Throws::nothing;
  } catch (const std::bad_alloc&) {
    return Throws::bad_alloc;
  } catch (const Thrown&) {
    return Throws::other;
  }
  return Throws::nothing;
}

constexpr Throws each_kind[] = {Throws::runtime_error, Throws::bad_alloc, Throws::other};

// The standard's signature has further, unspecified arguments.
void handle(MPI_Comm*, int*, ...) {
  throw_wanted();
}

/// A duplicate of comm() whose handler throws what is wanted.
class Throwing {
 public:
  Throwing() {
    MPI_Comm_dup(comm(), &comm_);
    PMPI_Barrier(comm_);  // from now on all know it, and messages are offered from the first one on
    set_handler(comm_, handle);
  }
  ~Throwing() { MPI_Comm_free(&comm_); }
  Throwing(const Throwing&) = delete;
  Throwing& operator=(const Throwing&) = delete;
  operator MPI_Comm() const { return comm_; }  // NOLINT(google-explicit-constructor): stands in for the handle

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// `call` fails, and throws all kinds that its handler throws.
template <class Call>
void fails_with_each(const char* name, Call call) {
  INFO(name);
  step(name);
  for (const Throws kind : each_kind) {
    throws = kind;
    CHECK(thrown_by(call) == kind);
  }
}

void check_usable(MPI_Comm comm) {
  const Type type = vector(300, 1, 2);
  for (const Place place : basic_places) {
    Buffer out(place, type, 1), in(place, type, 1);
    const auto key = [](int from) { return mix(seed(), static_cast<std::uint64_t>(from)); };
    out.fill(key(rank()));
    MPI_OK(MPI_Sendrecv(out.address(), 1, type, partner(), 9, in.address(), 1, type, partner(), 9, comm,
                        MPI_STATUS_IGNORE));
    in.expect(stream_of(type, 1, key(partner())));
    CHECK(in.difference() == "");
  }
}

}  // namespace

TEST_CASE("what an error handler throws comes out of calls that MPI refuses", "[handlers]") {
  if (!all_have_partners()) return;
  const Throwing comm;
  const int nobody = ranks();
  for (const Place place : basic_places) {
    INFO(place_name(place));
    const Type type = vector(300, 1, 2);
    Buffer buffer(place, type, 1);
    MPI_Request request = MPI_REQUEST_NULL;
    fails_with_each("MPI_Send", [&] { MPI_Send(buffer.address(), 1, type, nobody, 1, comm); });
    fails_with_each("MPI_Isend", [&] { MPI_Isend(buffer.address(), 1, type, nobody, 1, comm, &request); });
    fails_with_each("MPI_Recv", [&] { MPI_Recv(buffer.address(), 1, type, nobody, 1, comm, MPI_STATUS_IGNORE); });
    fails_with_each("MPI_Irecv", [&] { MPI_Irecv(buffer.address(), 1, type, nobody, 1, comm, &request); });
    fails_with_each("MPI_Bcast", [&] { MPI_Bcast(buffer.address(), 1, type, nobody, comm); });
    CHECK(request == MPI_REQUEST_NULL);
    check_usable(comm);
  }
}

TEST_CASE("what an error handler throws comes out of the call that completes a receive", "[handlers]") {
  if (!all_have_partners()) return;
  const Throwing comm;
  const Type type = vector(20, 1, 2);
  for (const Place place : basic_places)
    for (const Throws kind : each_kind) {
      INFO(place_name(place));
      Buffer out(place, type, 2), in(place, type, 1);
      if (rank() % 2 == 0) {
        for (int tag = 1; tag <= 4; ++tag) MPI_Send(out.address(), 2, type, partner(), tag, comm);
        check_usable(comm);
        continue;
      }
      throws = kind;
      step("MPI_Recv");
      CHECK(thrown_by([&] { MPI_Recv(in.address(), 1, type, partner(), 1, comm, MPI_STATUS_IGNORE); }) == kind);
      MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
      const auto start = [&](int tag, MPI_Request& request) {
        MPI_OK(MPI_Irecv(in.address(), 1, type, partner(), tag, comm, &request));
      };
      start(2, requests[0]);
      throws = kind;
      step("MPI_Wait");
      CHECK(thrown_by([&] { MPI_Wait(requests, MPI_STATUS_IGNORE); }) == kind);
      CHECK(requests[0] == MPI_REQUEST_NULL);
      start(3, requests[0]);
      start(4, requests[1]);
      throws = kind;
      step("MPI_Waitall");
      CHECK(thrown_by([&] { MPI_Waitall(2, requests, MPI_STATUSES_IGNORE); }) == kind);
      for (MPI_Request& request : requests)
        if (request != MPI_REQUEST_NULL) thrown_by([&] { MPI_Wait(&request, MPI_STATUS_IGNORE); });
      check_usable(comm);
    }
}

namespace {

void add_or_throw(void* from, void* to, int* count, MPI_Datatype*) {
  throw_wanted();
  for (int i = 0; i < *count; ++i) static_cast<int*>(to)[i] += static_cast<int*>(from)[i];
}

}  // namespace

TEST_CASE("what an operator throws comes out of the reduction", "[handlers]") {
  constexpr int count = 500;
  MPI_Op op = MPI_OP_NULL;
  MPI_OK(MPI_Op_create(add_or_throw, /*commute=*/1, &op));
  for (const Place place : basic_places) {
    INFO(place_name(place));
    Ints from(place, count), to(place, count);
    from.write(ints_of(0, count, 1));
    const auto add = [&] { MPI_Reduce_local(from.address(), to.address(), count, MPI_INT, op); };
    fails_with_each("MPI_Reduce_local", add);
    to.write(ints_of(1, count, 1));
    add();
    CHECK(to.read() == sum_of_all(2, count, 1));
  }
  MPI_OK(MPI_Op_free(&op));
}

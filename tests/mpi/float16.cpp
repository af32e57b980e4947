// float16 and bfloat16 (gpudt_mpi.h): reductions and accumulates of every kind, in memory of the host and of GPUs.
// tests/unit/float16.cpp checks the conversions from which the results that are expected here come.
#include "device/kernels/float16.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "include/gpudt_mpi.h"
#include "tests/mpi/collective_calls.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/mpi_quirks.hpp"

using namespace gpudt::test;
using gpudt::device::Bfloat16;
using gpudt::device::Float16;

namespace {

using Bits = std::uint16_t;
using Values = std::vector<Bits>;
constexpr int all_values = 1 << 16;

struct Kind {
  const char* name;
  int (*type)(MPI_Datatype*);
  float (*value)(Bits);
  Bits (*nearest)(float);

  MPI_Datatype handle() const {
    MPI_Datatype made = MPI_DATATYPE_NULL;
    MPI_OK(type(&made));
    return made;
  }
};
const Kind kinds[] = {
    {"float16", gpudt_type_float16, [](Bits bits) { return Float16{bits}.value(); },
     [](float value) { return Float16::nearest(value).bits; }},
    {"bfloat16", gpudt_type_bfloat16, [](Bits bits) { return Bfloat16{bits}.value(); },
     [](float value) { return Bfloat16::nearest(value).bits; }},
};

struct Operator {
  const char* name;
  MPI_Op handle;
  float (*combine)(float, float);
};
const Operator operators[] = {
    {"MPI_SUM", MPI_SUM, [](float a, float b) { return a + b; }},
    {"MPI_PROD", MPI_PROD, [](float a, float b) { return a * b; }},
    {"MPI_MIN", MPI_MIN, [](float a, float b) { return b < a ? b : a; }},
    {"MPI_MAX", MPI_MAX, [](float a, float b) { return b > a ? b : a; }},
};

Bits combined(const Kind& kind, const Operator& op, Bits a, Bits b) {
  return kind.nearest(op.combine(kind.value(a), kind.value(b)));
}

/// What a process gives. Of two processes, each value meets another one, so that rounding shows. Of more, small numbers
/// whose sums and products are exact, since MPI may combine them in any order.
Values input(const Kind& kind, int process, int count, int key) {
  Values values;
  for (int i = 0; i < count; ++i) {
    const unsigned mixed =
        static_cast<unsigned>(i + key) * (process == 0 ? 1U : 40503U) + 7U * static_cast<unsigned>(process);
    const Bits small = kind.nearest(static_cast<float>((i + process * 3 + key) % 3 + 1));
    values.push_back(ranks() == 2 ? static_cast<Bits>(mixed) : small);
  }
  return values;
}

/// All processes' inputs from `first` to `last`, combined.
Values result(const Kind& kind, const Operator& op, int last, int count, int key) {
  Values values = input(kind, 0, count, key);
  for (int process = 1; process <= last; ++process) {
    const Values next = input(kind, process, count, key);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = combined(kind, op, values[i], next[i]);
  }
  return values;
}

/// The first value that is not right; empty if there is none. MPI_MIN and MPI_MAX may give either of two values that
/// are equal or are not ordered.
std::string wrong(const Kind& kind, const Operator& op, const Values& found, const Values& wanted) {
  const bool selects = op.handle == MPI_MIN || op.handle == MPI_MAX;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (found[i] == wanted[i]) continue;
    const float got = kind.value(found[i]), expected = kind.value(wanted[i]);
    if (selects && (got == expected || std::isnan(got) || std::isnan(expected))) continue;
    return "element " + std::to_string(i) + " is " + std::to_string(found[i]) + ", not " + std::to_string(wanted[i]);
  }
  return "";
}

class Elements {
 public:
  Elements(Place place, int count) : memory_(place, static_cast<std::size_t>(std::max(count, 1)) * sizeof(Bits)) {}
  void write(const Values& values) { memory_.write(values.data(), values.size() * sizeof(Bits)); }
  Values read(std::size_t count) const {
    Values values(count);
    memory_.read(values.data(), count * sizeof(Bits));
    return values;
  }
  void* address() const { return memory_.data(); }

 private:
  Memory memory_;
};

/// Where a process has its buffers.
enum class Arrangement { host, device, mixed };
const Arrangement arrangements[] = {Arrangement::host, Arrangement::device, Arrangement::mixed};
Place place_in(Arrangement arrangement, int turn) {
  if (arrangement == Arrangement::mixed) return (rank() + turn) % 2 == 0 ? Place::device : Place::host;
  return arrangement == Arrangement::host ? Place::host : Place::device;
}

const std::vector<const char*> reductions = {"Reduce",         "Allreduce", "Reduce_scatter_block",
                                             "Reduce_scatter", "Scan",      "Exscan"};

/// What this process gets from a reduction of `count` elements, `count` for each process where it scatters.
Values expected(const Operation& operation, const Kind& kind, const Operator& op, int count, int key) {
  const bool scatters = operation.flow == Flow::reduce_scatter, exclusive = operation.name == std::string("Exscan");
  const int last = operation.flow == Flow::scan ? rank() - (exclusive ? 1 : 0) : ranks() - 1;
  if (last < 0 || (operation.flow == Flow::reduce && rank() != 0)) return {};
  const Values all = result(kind, op, last, scatters ? count * ranks() : count, key);
  if (!scatters) return all;
  const auto first = all.begin() + std::ptrdiff_t{count} * rank();
  return {first, first + count};
}

void complete(const Operation& operation, const Arguments& arguments, Form form) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_OK(operation.call(arguments, form, &request));
  if (form == Form::blocking) return;
  if (form == Form::persistent) MPI_OK(MPI_Start(&request));
  MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  if (form == Form::persistent) MPI_OK(MPI_Request_free(&request));
}

void check_reduction(const Operation& operation, Form form, const Kind& kind, const Operator& op,
                     Arrangement arrangement, int count) {
  static int key = 0;
  ++key;
  const int given = operation.flow == Flow::reduce_scatter ? count * ranks() : count;
  INFO(kind.name << ", " << op.name << ", " << operation.name << " " << form_name(form) << ", " << count
                 << " elements, arrangement " << static_cast<int>(arrangement));
  step(std::string(operation.name) + " " + form_name(form) + " of " + kind.name);
  Elements in(place_in(arrangement, 0), given), out(place_in(arrangement, key % 2), count);
  in.write(input(kind, rank(), given, key));
  Arguments arguments;
  arguments.sendbuf = in.address();
  arguments.recvbuf = out.address();
  arguments.recvcount = count;
  arguments.recvcounts.assign(static_cast<std::size_t>(ranks()), count);
  arguments.recvtype = kind.handle();
  arguments.op = op.handle;
  arguments.comm = comm();
  complete(operation, arguments, form);
  const Values wanted = expected(operation, kind, op, count, key);
  CHECK(wrong(kind, op, out.read(wanted.size()), wanted) == "");
}

}  // namespace

TEST_CASE("every reduction of float16 and bfloat16", "[float16]") {
  for (const Kind& kind : kinds)
    for (const Operator& op : operators)
      for (const Arrangement arrangement : arrangements)
        for (const char* const name : reductions)
          for (const Form form : forms_of(operation(name)))
            for (const int count : {1, 1031}) check_reduction(operation(name), form, kind, op, arrangement, count);
}

TEST_CASE("sums, products and extremes of all values of float16 and bfloat16", "[float16]") {
  for (const Kind& kind : kinds)
    for (const Operator& op : operators)
      for (const Arrangement arrangement : arrangements)
        check_reduction(operation("Allreduce"), Form::blocking, kind, op, arrangement, all_values);
}

TEST_CASE("reductions of float16 and bfloat16 in place", "[float16]") {
  constexpr int count = 5000;
  for (const Kind& kind : kinds)
    for (const Arrangement arrangement : arrangements) {
      Elements buffer(place_in(arrangement, 0), count);
      buffer.write(input(kind, rank(), count, 1));
      MPI_OK(MPI_Allreduce(MPI_IN_PLACE, buffer.address(), count, kind.handle(), MPI_SUM, comm()));
      CHECK(wrong(kind, operators[0], buffer.read(count), result(kind, operators[0], ranks() - 1, count, 1)) == "");
    }
}

TEST_CASE("MPI_Reduce_local of float16 and bfloat16", "[float16]") {
  for (const Kind& kind : kinds)
    for (const Operator& op : operators)
      for (const Place place : basic_places)
        for (const Place other : basic_places) {
          Elements in(place, all_values), inout(other, all_values);
          Values a, b, wanted;
          for (unsigned i = 0; i < all_values; ++i) {
            a.push_back(static_cast<Bits>(i));
            b.push_back(static_cast<Bits>(i * 40503 + 7));
            wanted.push_back(combined(kind, op, a.back(), b.back()));
          }
          in.write(a);
          inout.write(b);
          INFO(kind.name << ", " << op.name << ", " << place_name(place) << " and " << place_name(other));
          MPI_OK(MPI_Reduce_local(in.address(), inout.address(), all_values, kind.handle(), op.handle));
          CHECK(wrong(kind, op, inout.read(all_values), wanted) == "");
        }
}

namespace {

/// Puts twice the sum in place of the second operand.
void doubled_sum(void* in, void* inout, int* count, MPI_Datatype*) {
  auto* const a = static_cast<Bits*>(in);
  auto* const b = static_cast<Bits*>(inout);
  for (int i = 0; i < *count; ++i) b[i] = Float16::nearest(2 * (Float16{a[i]}.value() + Float16{b[i]}.value())).bits;
}

}  // namespace

TEST_CASE("operators of the program's own take float16", "[float16]") {
  constexpr int count = 3000;
  MPI_Op op = MPI_OP_NULL;
  MPI_OK(MPI_Op_create(doubled_sum, 1, &op));
  Values a, b, wanted;
  for (int i = 0; i < count; ++i) {
    a.push_back(Float16::nearest(static_cast<float>(i % 50)).bits);
    b.push_back(Float16::nearest(static_cast<float>(i % 7)).bits);
    wanted.push_back(Float16::nearest(static_cast<float>(2 * (i % 50 + i % 7))).bits);
  }
  for (const Place place : basic_places) {
    Elements in(place, count), inout(place, count);
    in.write(a);
    inout.write(b);
    MPI_OK(MPI_Reduce_local(in.address(), inout.address(), count, kinds[0].handle(), op));
    CHECK((inout.read(count) == wanted));
  }
  MPI_OK(MPI_Op_free(&op));
}

TEST_CASE("what MPI refuses with MPI_FLOAT it refuses with float16 and bfloat16", "[float16]") {
  const std::vector<MPI_Op> others = {MPI_LAND, MPI_LOR, MPI_LXOR, MPI_BAND, MPI_BOR, MPI_BXOR, MPI_MINLOC, MPI_MAXLOC};
  constexpr int count = 2000;
  for (const Kind& kind : kinds)
    for (const Place place : basic_places) {
      Elements in(place, count), out(place, count);
      MPI_Datatype three = MPI_DATATYPE_NULL;
      for (const MPI_Op op : others) {
        MPI_FAILS(MPI_Allreduce(in.address(), out.address(), count, kind.handle(), op, comm()), MPI_ERR_OP);
        MPI_FAILS(MPI_Scan(in.address(), out.address(), count, kind.handle(), op, comm()), MPI_ERR_OP);
      }
      MPI_OK(MPI_Type_contiguous(3, kind.handle(), &three));
      MPI_OK(MPI_Type_commit(&three));
      MPI_FAILS(MPI_Allreduce(in.address(), out.address(), 1, three, MPI_SUM, comm()), MPI_ERR_OP);
      MPI_OK(MPI_Type_free(&three));
    }
}

TEST_CASE("the types of float16 and bfloat16 are like predefined ones", "[float16]") {
  CHECK((kinds[0].handle() != kinds[1].handle()));
  for (const Kind& kind : kinds) {
    const MPI_Datatype first = kind.handle();
    int size = 0;
    MPI_Aint lb = -1, extent = 0;
    MPI_OK(MPI_Type_size(first, &size));
    MPI_OK(MPI_Type_get_extent(first, &lb, &extent));
    CHECK((size == 2 && lb == 0 && extent == 2));
    MPI_Datatype freed = first;
    MPI_OK(MPI_Type_free(&freed));
    CHECK((freed == MPI_DATATYPE_NULL && kind.handle() == first));
    check_reduction(operation("Allreduce"), Form::blocking, kind, operators[0], Arrangement::device, 100);
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_FAILS(gpudt_type_float16(nullptr), MPI_ERR_ARG);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

TEST_CASE("messages of float16 and of types made of it", "[float16]") {
  if (!all_have_partners()) return;
  constexpr int blocks = 700, step_between = 3;
  const Type strided = vector(blocks, 1, step_between, kinds[0].handle());
  for (const Place place : basic_places) {
    Elements out(place, blocks * step_between), in(place, blocks * step_between);
    Values sent(blocks * step_between), wanted(blocks * step_between, 9);
    for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<Bits>(i * 5 + static_cast<std::size_t>(rank()));
    for (std::size_t i = 0; i < wanted.size(); i += step_between)
      wanted[i] = static_cast<Bits>(i * 5 + static_cast<std::size_t>(partner()));
    out.write(sent);
    in.write(Values(wanted.size(), 9));
    MPI_OK(MPI_Sendrecv(out.address(), 1, strided, partner(), 0, in.address(), 1, strided, partner(), 0, comm(),
                        MPI_STATUS_IGNORE));
    CHECK((in.read(wanted.size()) == wanted));
  }
}

#if defined(MPIX_C_FLOAT16)  // MPICH
TEST_CASE("MPICH's types of 16 bits are reduced like gpudt's", "[float16]") {
  constexpr MPI_Datatype mpix_bfloat16 = 0x4c00024c;  // the header of MPICH 4 lacks it
  if (!runs_mpich5()) return not_possible("MPICH 4.0 aborts as it copies them");
  const Kind native[] = {{"MPIX_C_FLOAT16",
                          [](MPI_Datatype* type) {
                            *type = MPIX_C_FLOAT16;
                            return int(MPI_SUCCESS);
                          },
                          kinds[0].value, kinds[0].nearest},
                         {"MPIX_BFLOAT16",
                          [](MPI_Datatype* type) {
                            *type = mpix_bfloat16;
                            return int(MPI_SUCCESS);
                          },
                          kinds[1].value, kinds[1].nearest}};
  for (const Kind& kind : native)
    for (const Operator& op : operators)
      for (const Arrangement arrangement : arrangements)
        check_reduction(operation("Allreduce"), Form::blocking, kind, op, arrangement, all_values);
}
#endif

// --- accumulates -----------------------------------------------------------------------------------------------------

namespace {

class Window {
 public:
  Window(void* base, int count) {
    MPI_OK(
        MPI_Win_create(base, MPI_Aint{count} * MPI_Aint{sizeof(Bits)}, sizeof(Bits), MPI_INFO_NULL, comm(), &handle_));
    MPI_Win_set_errhandler(handle_, MPI_ERRORS_RETURN);
  }
  ~Window() { MPI_Win_free(&handle_); }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  operator MPI_Win() const { return handle_; }  // NOLINT(google-explicit-constructor): stands in for the handle

 private:
  MPI_Win handle_ = MPI_WIN_NULL;
};

constexpr int window_count = 3000;

/// Each process accumulates to the next one, all elements or every third one, and gets what was there before.
void check_accumulates(const Kind& kind, const Operator& op, Place there, Place here, bool strided) {
  INFO(kind.name << ", " << op.name << ", from " << place_name(here) << " to " << place_name(there)
                 << (strided ? ", strided" : ""));
  step(std::string("accumulates of ") + kind.name);
  const Type third = vector(window_count / 3, 1, 3, kind.handle());
  const int count = strided ? 1 : window_count, stride = strided ? 3 : 1, target = (rank() + 1) % ranks();
  const MPI_Datatype type = strided ? MPI_Datatype(third) : kind.handle();
  const Values before = input(kind, 0, window_count, 0), given = input(kind, 1, window_count, 0);
  Values once = before, twice;
  for (std::size_t i = 0; i < once.size(); i += static_cast<std::size_t>(stride))
    once[i] = combined(kind, op, given[i], before[i]);
  twice = once;
  for (std::size_t i = 0; i < once.size(); i += static_cast<std::size_t>(stride))
    twice[i] = combined(kind, op, given[i], once[i]);
  twice[1] = combined(kind, op, given[0], twice[1]);

  Elements memory(there, window_count), origin(here, window_count), fetched(here, window_count), one(here, 1);
  memory.write(before);
  origin.write(given);
  fetched.write(Values(window_count, 0));
  Window window(memory.address(), window_count);
  MPI_OK(MPI_Win_fence(0, window));
  MPI_OK(MPI_Accumulate(origin.address(), count, type, target, 0, count, type, op.handle, window));
  MPI_OK(MPI_Get_accumulate(origin.address(), count, type, fetched.address(), count, type, target, 0, count, type,
                            op.handle, window));
  MPI_OK(MPI_Fetch_and_op(origin.address(), one.address(), kind.handle(), target, 1, op.handle, window));
  MPI_OK(MPI_Win_fence(0, window));
  CHECK(wrong(kind, op, memory.read(window_count), twice) == "");
  Values old(window_count, 0);
  for (std::size_t i = 0; i < old.size(); i += static_cast<std::size_t>(stride)) old[i] = once[i];
  CHECK(wrong(kind, op, fetched.read(window_count), old) == "");
  CHECK(wrong(kind, op, one.read(1), {strided ? before[1] : combined(kind, op, given[1], once[1])}) == "");
}

}  // namespace

TEST_CASE("accumulates of float16 and bfloat16 to memory of GPUs", "[float16][accumulate]") {
  for (const Kind& kind : kinds)
    for (const Operator& op : operators)
      for (const Place here : basic_places)
        for (const bool strided : {false, true}) check_accumulates(kind, op, Place::device, here, strided);
}

TEST_CASE("windows with memory of a GPU on one rank accumulate float16", "[float16][accumulate]") {
  for (const Place here : basic_places)
    check_accumulates(kinds[0], operators[0], rank() == 0 ? Place::device : Place::host, here, /*strided=*/false);
}

TEST_CASE("accumulates of float16 by operators that do not take it", "[float16][accumulate]") {
  Elements memory(Place::device, window_count), origin(Place::host, window_count);
  memory.write(Values(window_count, 3));
  origin.write(Values(window_count, 5));
  Window window(memory.address(), window_count);
  const MPI_Datatype type = kinds[0].handle();
  MPI_OK(MPI_Win_fence(0, window));
  for (const MPI_Op op : {MPI_BAND, MPI_LAND, MPI_BXOR})
    MPI_FAILS(MPI_Accumulate(origin.address(), 4, type, 0, 0, 4, type, op, window), MPI_ERR_OP);
  Elements old(Place::host, 1);
  if (rank() == 0) {
    MPI_OK(MPI_Accumulate(origin.address(), 4, type, 0, 0, 4, type, MPI_REPLACE, window));
    MPI_OK(MPI_Fetch_and_op(origin.address(), old.address(), type, 0, 5, MPI_REPLACE, window));
  }
  MPI_OK(MPI_Win_fence(0, window));
  if (rank() != 0) return;
  CHECK((memory.read(7) == Values{5, 5, 5, 5, 3, 5, 3}));
  CHECK((old.read(1) == Values{3}));
}

TEST_CASE("windows of the host's memory refuse to accumulate float16", "[float16][accumulate]") {
  std::vector<char> own;
  MPI_Win window = MPI_WIN_NULL;
  char* const base = make_host_window(64, comm(), own, &window);
  std::memset(base, 0, 64);
  MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN);
  Elements host(Place::host, 8), device(Place::device, 8);
  const MPI_Datatype type = kinds[0].handle();
  const Type strided = vector(2, 1, 2, type);
  MPI_OK(MPI_Win_fence(0, window));
  for (const Elements* const buffer : {&host, &device}) {
    void* const at = buffer->address();
    MPI_FAILS(MPI_Accumulate(at, 4, type, 0, 0, 4, type, MPI_SUM, window), MPI_ERR_OP);
    MPI_FAILS(MPI_Accumulate(at, 1, strided, 0, 0, 1, strided, MPI_MAX, window), MPI_ERR_OP);
    MPI_FAILS(MPI_Accumulate(at, 4, type, 0, 0, 4, type, MPI_BAND, window), MPI_ERR_OP);
    MPI_FAILS(MPI_Get_accumulate(at, 1, type, at, 1, type, 0, 0, 1, type, MPI_SUM, window), MPI_ERR_OP);
    MPI_FAILS(MPI_Fetch_and_op(at, at, type, 0, 0, MPI_SUM, window), MPI_ERR_OP);
  }
  const Values given = {1, 2, 3, 4, 5, 6, 7, 8};
  host.write(given);
  if (rank() == 0) MPI_OK(MPI_Accumulate(host.address(), 8, type, ranks() - 1, 0, 8, type, MPI_REPLACE, window));
  MPI_OK(MPI_Win_fence(0, window));
  Elements old(Place::host, 1);
  if (rank() == 0) MPI_OK(MPI_Fetch_and_op(host.address(), old.address(), type, ranks() - 1, 0, MPI_NO_OP, window));
  MPI_OK(MPI_Win_fence(0, window));
  if (rank() == 0) CHECK((old.read(1) == Values{given[0]}));
  if (rank() == ranks() - 1) CHECK(std::memcmp(base, given.data(), 16) == 0);
  MPI_OK(MPI_Win_free(&window));
}

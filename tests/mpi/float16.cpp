// float16 and bfloat16 (gpudt_mpi.h): reductions of every kind, in memory of the host and of GPUs.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/mpi/collective_calls.hpp"
#include "tests/mpi/float16_values.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/mpi_quirks.hpp"

using namespace gpudt::test;
using gpudt::device::Float16;

namespace {

/// Where a process has its buffers.
enum class Arrangement { host, device, mixed };
const Arrangement arrangements[] = {Arrangement::host, Arrangement::device, Arrangement::mixed};
Place place_in(Arrangement arrangement, int turn) {
  if (arrangement == Arrangement::mixed) return (rank() + turn) % 2 == 0 ? Place::device : Place::host;
  return arrangement == Arrangement::host ? Place::host : Place::device;
}

const std::vector<const char*> reductions = {"Reduce",         "Allreduce", "Reduce_scatter_block",
                                             "Reduce_scatter", "Scan",      "Exscan"};

/// What this process gets from a reduction of `count` elements, `count` for each process where it scatters. The last
/// rank is the root.
Values expected(const Operation& operation, const Half& kind, const HalfOperator& op, int count, int key) {
  const bool scatters = operation.flow == Flow::reduce_scatter, exclusive = operation.name == std::string("Exscan");
  const int last = operation.flow == Flow::scan ? rank() - (exclusive ? 1 : 0) : ranks() - 1;
  if (last < 0 || (operation.flow == Flow::reduce && rank() != last_rank())) return {};
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

void check_reduction(const Operation& operation, Form form, const Half& kind, const HalfOperator& op,
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
  arguments.root = last_rank();
  arguments.comm = comm();
  complete(operation, arguments, form);
  const Values wanted = expected(operation, kind, op, count, key);
  CHECK(wrong(out.read(wanted.size()), wanted) == "");
}

}  // namespace

TEST_CASE("every reduction of float16 and bfloat16", "[float16]") {
  for (const Half& kind : kinds)
    for (const HalfOperator& op : operators)
      for (const Arrangement arrangement : arrangements)
        for (const char* const name : reductions)
          for (const Form form : forms_of(operation(name)))
            for (const int count : {0, 1, 1031}) check_reduction(operation(name), form, kind, op, arrangement, count);
}

TEST_CASE("sums, products and extremes of all values of float16 and bfloat16", "[float16]") {
  for (const Half& kind : kinds)
    for (const HalfOperator& op : operators)
      for (const Arrangement arrangement : arrangements)
        check_reduction(operation("Allreduce"), Form::blocking, kind, op, arrangement, all_values);
}

TEST_CASE("reductions of float16 and bfloat16 in place", "[float16]") {
  constexpr int count = 1000;  // beyond 2048 bytes MPICH 4.0 crashes at roots other than 0
  for (const Half& kind : kinds)
    for (const Arrangement arrangement : arrangements)
      for (const char* const name : reductions) {
        INFO(kind.name << ", " << name << ", arrangement " << static_cast<int>(arrangement));
        const Operation& reduction = operation(name);
        const int all = reduction.flow == Flow::reduce_scatter ? count * ranks() : count;
        Elements buffer(place_in(arrangement, 0), all);
        buffer.write(input(kind, rank(), all, 1));
        Arguments arguments;
        const bool gives = reduction.flow == Flow::reduce && rank() != last_rank();
        arguments.sendbuf = gives ? buffer.address() : MPI_IN_PLACE;
        arguments.recvbuf = buffer.address();
        arguments.recvcount = count;
        arguments.recvcounts.assign(static_cast<std::size_t>(ranks()), count);
        arguments.recvtype = kind.handle();
        arguments.root = last_rank();
        arguments.comm = comm();
        complete(reduction, arguments, Form::blocking);
        const Values wanted = expected(reduction, kind, operators[0], count, 1);
        CHECK(wrong(buffer.read(wanted.size()), wanted) == "");
      }
}

TEST_CASE("reductions of float16 between two groups", "[float16]") {
  if (ranks() < 2) return;
  constexpr int count = 300;
  const int side = rank() % 2;
  MPI_Comm own = MPI_COMM_NULL, both = MPI_COMM_NULL;
  MPI_OK(MPI_Comm_split(comm(), side, rank(), &own));
  MPI_OK(MPI_Intercomm_create(own, 0, comm(), 1 - side, 5, &both));
  int others = 0;
  MPI_OK(MPI_Comm_remote_size(both, &others));
  for (const Arrangement arrangement : arrangements) {
    Elements in(place_in(arrangement, 0), count), out(place_in(arrangement, 1), count);
    in.write(Values(count, kinds[0].nearest(1.5F)));
    MPI_OK(MPI_Allreduce(in.address(), out.address(), count, kinds[0].handle(), MPI_SUM, both));
    CHECK((out.read(count) == Values(count, kinds[0].nearest(1.5F * static_cast<float>(others)))));
  }
  MPI_OK(MPI_Comm_free(&both));
  MPI_OK(MPI_Comm_free(&own));
}

TEST_CASE("MPI_Reduce_local of float16 and bfloat16", "[float16]") {
  for (const Half& kind : kinds)
    for (const HalfOperator& op : operators)
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
          CHECK(wrong(inout.read(all_values), wanted) == "");
        }
}

#ifdef GPUDT_MPI_LARGE_COUNTS
// MPI calls a function of gpudt's with the count. With GPUDT_TEST_HUGE, since it takes 8 GB.
TEST_CASE("MPI_Reduce_local_c of more than 2^31 elements of float16", "[float16]") {
  if (!huge_wanted() || rank() != 0) return;
  constexpr MPI_Count count = (MPI_Count(1) << 31) + 5;
  constexpr Bits one = 0x3c00, two = 0x4000;
  Values in(static_cast<std::size_t>(count), one), inout = in;
  MPI_OK(MPI_Reduce_local_c(in.data(), inout.data(), count, kinds[0].handle(), MPI_SUM));
  CHECK(std::ranges::count(inout, two) == count);
}
#endif

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
  for (const Half& kind : kinds)
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
      MPI_OK(MPI_Type_dup(kind.handle(), &three));
      MPI_FAILS(MPI_Allreduce(in.address(), out.address(), 1, three, MPI_SUM, comm()), MPI_ERR_OP);
      MPI_OK(MPI_Type_free(&three));
    }
}

TEST_CASE("the types of float16 and bfloat16 are like predefined ones", "[float16]") {
  CHECK((kinds[0].handle() != kinds[1].handle()));
  for (const Half& kind : kinds) {
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

#if defined(MPICH_VERSION) && defined(MPIX_C_FLOAT16)
TEST_CASE("MPICH's types of 16 bits are reduced like gpudt's", "[float16]") {
  constexpr MPI_Datatype mpix_bfloat16 = 0x4c00024c;  // the header of MPICH 4 lacks it
  if (!runs_mpich5()) return not_possible("MPICH 4.0 aborts as it copies them");
  const Half native[] = {{"MPIX_C_FLOAT16",
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
  for (const Half& kind : native)
    for (const HalfOperator& op : operators)
      for (const Arrangement arrangement : arrangements)
        check_reduction(operation("Allreduce"), Form::blocking, kind, op, arrangement, all_values);
}
#endif

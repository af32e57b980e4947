// What is kept on datatypes: for how long, for which ones, and the packed types.
#include <climits>
#include <memory>
#include <thread>
#include <vector>

#include "datatype/basic.hpp"
#include "datatype/decode.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/owned_type.hpp"

using namespace gpudt::datatype;
using namespace gpudt::test;

namespace {

int errors_seen = 0;

void count_error(MPI_Comm*, int*, ...) {
  ++errors_seen;
}

void check_twin(MPI_Datatype type) {
  const TypeInfoRef info = type_info(type);
  REQUIRE(info);
  MPI_Count size = 0, lb = 0, extent = 0;
  MPI_Type_size_x(info->packed_type(), &size);
  CHECK(size == info->layout().size());
  MPI_Type_get_extent_x(info->packed_type(), &lb, &extent);
  CHECK(lb == 0);
  CHECK(extent == size);
  CHECK(decode(info->packed_type())->shape(2).kind == ShapeKind::contiguous);
  CHECK(type_info(info->packed_type()) != nullptr);  // so it is committed
}

}  // namespace

TEST_CASE("a layout is made once and freed with its datatype", "[datatype][cache]") {
  OwnedType type = vector(3, 1, 2, MPI_INT);
  type.commit();
  std::weak_ptr<const TypeInfo> seen = type_info(type);
  CHECK(type_info(type) == seen.lock());
  CHECK(seen.lock()->layout().size() == 12);
  type.free();
  CHECK(seen.expired());
}

TEST_CASE("a layout in use survives MPI_Type_free", "[datatype][cache]") {
  OwnedType type = vector(3, 1, 2, MPI_INT);
  const TypeInfoRef held = type_info(type.commit());
  type.free();
  CHECK(held->layout().size() == 12);
  int size = 0;
  MPI_Type_size(held->packed_type(), &size);
  CHECK(size == 12);
}

TEST_CASE("a layout in use survives the cache", "[datatype][cache]") {
  OwnedType type = vector(3, 1, 2, MPI_INT);
  TypeInfoRef held = type_info(type.commit()), predefined = type_info(MPI_INT);
  type.free();
  cache_stop();
  CHECK(predefined->layout().size() == 4);
  held.reset();
  predefined.reset();
  MPI_Comm self = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_SELF, &self);
  cache_start(self);
  CHECK(type_info(MPI_INT)->layout().size() == 4);
}

TEST_CASE("a duplicate has a layout of its own", "[datatype][cache]") {
  OwnedType type = vector(3, 1, 2, MPI_INT);
  const TypeInfoRef info = type_info(type.commit());
  OwnedType copy = make_type(MPI_Type_dup, static_cast<MPI_Datatype>(type));
  const TypeInfoRef other = type_info(copy);
  REQUIRE(other);
  CHECK(other != info);
  type.free();
  CHECK(type_info(copy) == other);
}

TEST_CASE("predefined datatypes are cached, and none is taken for one", "[datatype][cache]") {
  CHECK(type_info(MPI_DOUBLE) == type_info(MPI_DOUBLE));
  CHECK(type_info(MPI_SHORT_INT)->layout().size() == 6);
  MPI_Datatype real = MPI_DATATYPE_NULL;
  MPI_Type_create_f90_real(6, 30, &real);
  CHECK(type_info(real) == type_info(real));
  std::weak_ptr<const TypeInfo> seen;
  {
    OwnedType nothing = structure({}, {}, {});  // no datatypes inside, yet not predefined
    seen = type_info(nothing.commit());
    CHECK(seen.lock()->packed_type() == MPI_DATATYPE_NULL);
  }
  CHECK(seen.expired());
}

TEST_CASE("basic types are known by their handles, others are not", "[datatype][cache]") {
  for (const MPI_Datatype type : {MPI_BYTE, MPI_CHAR, MPI_INT, MPI_LONG, MPI_INT64_T, MPI_FLOAT, MPI_DOUBLE,
                                  MPI_C_DOUBLE_COMPLEX, MPI_2INT, MPI_FLOAT_INT}) {
    int size = 0;
    MPI_Type_size(type, &size);
    CHECK(basic_types.size(type) == size);
  }
  for (const MPI_Datatype type : element_types()) {
    int size = 0;
    if (type != MPI_DATATYPE_NULL) MPI_Type_size(type, &size);
    if (size == 0) continue;  // an MPI library without Fortran
    const bool plain = decode(type)->shape(2).kind == ShapeKind::contiguous;
    CHECK(basic_types.size(type) == (plain ? size : 0));
  }
  for (const MPI_Datatype type : {MPI_DATATYPE_NULL, MPI_DOUBLE_INT, MPI_SHORT_INT}) CHECK(basic_types.size(type) == 0);
  CHECK(basic_types.size(vector(3, 1, 2, MPI_INT).commit()) == 0);
  CHECK(basic_types.size(contiguous(1, MPI_INT).commit()) == 0);
}

TEST_CASE("what MPI must refuse has no layout", "[datatype][cache]") {
  MPI_Errhandler counting = MPI_ERRHANDLER_NULL, former = MPI_ERRHANDLER_NULL;
  MPI_Comm_create_errhandler(count_error, &counting);
  MPI_Comm_get_errhandler(MPI_COMM_SELF, &former);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, counting);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, counting);
  OwnedType type = vector(3, 1, 2, MPI_INT);
  CHECK(type_info(MPI_DATATYPE_NULL) == nullptr);
  CHECK(type_info(type) == nullptr);
  CHECK(type_info(type) == nullptr);
  type.commit();
  CHECK(type_info(type) != nullptr);
  CHECK(errors_seen == 0);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, former);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, former);
  MPI_Errhandler_free(&former);
  MPI_Errhandler_free(&counting);
}

TEST_CASE("packed_types describe packed elements", "[datatype][cache]") {
  check_twin(MPI_DOUBLE);
  check_twin(OwnedType(vector(3, 1, 2, MPI_INT)).commit());
  const OwnedType block = contiguous(1 << 30, MPI_SHORT);  // 2 GiB
  check_twin(OwnedType(vector(3, 1, 2, block)).commit());
  check_twin(OwnedType(structure({1, 3}, {0, MPI_Aint(1) << 33}, {block, MPI_CHAR})).commit());
  check_twin(OwnedType(contiguous(INT_MAX, MPI_BYTE)).commit());
  OwnedType nothing = contiguous(0, MPI_INT);
  CHECK(type_info(nothing.commit())->packed_type() == MPI_DATATYPE_NULL);
}

TEST_CASE("threads that ask for the same datatype get the same layout", "[datatype][cache]") {
  int provided = 0;
  MPI_Query_thread(&provided);
  if (provided < MPI_THREAD_MULTIPLE) return;
  for (int round = 0; round < 50; ++round) {
    OwnedType type = vector(100 + round, 1, 2, MPI_INT);
    type.commit();
    std::vector<TypeInfoRef> seen(4);
    std::vector<std::thread> threads;
    threads.reserve(seen.size());
    for (TypeInfoRef& info : seen)
      threads.emplace_back([&info, handle = static_cast<MPI_Datatype>(type)] { info = type_info(handle); });
    for (std::thread& thread : threads) thread.join();
    for (const TypeInfoRef& info : seen) {
      CHECK(info != nullptr);
      CHECK(info == seen[0]);
    }
  }
}

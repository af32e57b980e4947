// Random datatypes: two arrangements of one signature on the two sides, in every mix of memory.
#include <algorithm>

#include "tests/mpi/exchange.hpp"
#include "tests/support/random_type.hpp"

using namespace gpudt::test;

namespace {

Type duplicate_of(const RandomType& random_type) {
  MPI_Datatype made = MPI_DATATYPE_NULL;
  PMPI_Type_dup(random_type.handle(), &made);
  return {made, random_type.description()};
}

}  // namespace

// MPI_PACKED matches every signature, so that these trees need no partner of equal signature.
TEST_CASE("random types of every combiner, packed on the other side", "[random]") {
  MPICH_CANNOT("it receives structs of elements of several sizes wrongly from a packed message");
  if (!all_have_partners()) return;
  auto random = random_numbers("every combiner");
  const Type packed = plain(MPI_PACKED);
  for (int i = 0; i < scaled(300); ++i) {
    RandomTypeLimits limits;
    limits.unpack_safe = i % 2 == 1;
    const Type type = duplicate_of(RandomType(random, limits));
    const int count = 1 + static_cast<int>(random() % 8), bytes = static_cast<int>(type.size()) * count;
    const Place place = basic_places[random() % 4 == 0 ? 0 : 1], other = basic_places[random() % 2];
    if (limits.unpack_safe)
      exchange_both_ways({packed, bytes, other, type, count, place}, 10);
    else
      exchange_both_ways({type, count, place, packed, bytes, other}, 20);
  }
}

TEST_CASE("random types of equal signature", "[random]") {
  MPICH_CANNOT("it receives structs of elements of several sizes wrongly from a packed message");
  if (!all_have_partners()) return;
  auto random = random_numbers("equal signature");
  for (int i = 0; i < scaled(300); ++i) {
    const Pair pair = random_pair(random);
    const int count = static_cast<int>(random() % 4) == 0 ? 1 : static_cast<int>(random() % 40);
    const std::size_t skew = random() % 3 == 0 ? random() % 16 : 0;
    const Place send = basic_places[random() % 2], receive = basic_places[random() % 2];
    exchange_both_ways({pair.send, count, send, pair.receive, count, receive, skew}, 10);
  }
}

TEST_CASE("random types, every send and receive mode", "[random]") {
  MPICH_CANNOT("it receives structs of elements of several sizes wrongly from a packed message");
  if (!all_have_partners()) return;
  auto random = random_numbers("modes");
  BsendBuffer attached(16 << 20);
  const int low = std::min(rank(), partner());
  for (int i = 0; i < scaled(300); ++i) {
    const Pair pair = random_pair(random);
    const int count = 1 + static_cast<int>(random() % 20);
    const SendMode& mode = send_modes[random() % send_modes.size()];
    const ReceiveMode& receive_mode = receive_modes[mode.needs_posted_receive ? 1 : random() % receive_modes.size()];
    const Place send = basic_places[random() % 2], receive = basic_places[random() % 2];
    const Ends ends{pair.send, count, send, pair.receive, count, receive};
    const int from = low + static_cast<int>(random() % 2);
    exchange(mode, receive_mode, ends, from, from ^ 1, 20);
  }
}

TEST_CASE("random types are packed and unpacked", "[random]") {
  auto random = random_numbers("pack");
  for (int i = 0; i < scaled(300); ++i) {
    const Pair pair = random_pair(random);
    const int count = 1 + static_cast<int>(random() % 30);
    const Place user = basic_places[random() % 2], packed = basic_places[random() % 2];
    const std::string text = std::string(place_name(user)) + "/" + place_name(packed) + " " + std::to_string(count) +
                             " x " + pair.send.text() + " and " + pair.receive.text();
    INFO(text);
    step(text);
    const Stream stream = stream_of(pair.send, count, seed());
    const int size = static_cast<int>(stream.size());
    const Type byte = plain(MPI_BYTE);
    Buffer from(user, pair.send, count), wire(packed, byte, size), to(user, pair.receive, count);
    from.fill(seed());
    int position = 0;
    MPI_OK(MPI_Pack(from.address(), count, pair.send, wire.address(), size, &position, comm()));
    wire.expect(stream);
    CHECK(wire.difference() == "");
    position = 0;
    MPI_OK(MPI_Unpack(wire.address(), size, &position, to.address(), count, pair.receive, comm()));
    to.expect(stream);
    CHECK(to.difference() == "");
  }
}

TEST_CASE("a datatype and its duplicate are used one after the other", "[random]") {
  if (!all_have_partners()) return;
  const Type type = named_layout(5, 2000);
  MPI_Datatype copy = MPI_DATATYPE_NULL;
  exchange_both_ways({type, 2, Place::device, type, 2, Place::device}, 30);  // whatever is cached, is cached now
  MPI_OK(MPI_Type_dup(type, &copy));
  const Type duplicate(copy, "dup of " + type.text());
  exchange_both_ways({duplicate, 2, Place::device, type, 2, Place::device}, 40);
  MPI_Datatype on_top = MPI_DATATYPE_NULL;
  MPI_OK(MPI_Type_contiguous(2, duplicate, &on_top));
  const Type twice(on_top, "contiguous of dup");
  exchange_both_ways({twice, 1, Place::device, type, 2, Place::device}, 50);
}

TEST_CASE("a program's own attributes on datatypes and communicators are its own", "[random]") {
  const Type type = vector(100, 1, 2);
  int type_key = MPI_KEYVAL_INVALID, comm_key = MPI_KEYVAL_INVALID, value = 42, found = 0;
  int* attribute = nullptr;
  MPI_OK(MPI_Type_create_keyval(MPI_TYPE_DUP_FN, MPI_TYPE_NULL_DELETE_FN, &type_key, nullptr));
  MPI_OK(MPI_Comm_create_keyval(MPI_COMM_DUP_FN, MPI_COMM_NULL_DELETE_FN, &comm_key, nullptr));
  MPI_OK(MPI_Type_set_attr(type, type_key, &value));
  MPI_OK(MPI_Comm_set_attr(comm(), comm_key, &value));
  Buffer out(Place::device, type, 1), in(Place::device, type, 1);
  out.fill(seed());
  MPI_OK(MPI_Sendrecv(out.address(), 1, type, rank(), 1, in.address(), 1, type, rank(), 1, comm(), MPI_STATUS_IGNORE));
  in.expect(stream_of(type, 1, seed()));
  CHECK(in.difference() == "");
  MPI_OK(MPI_Type_get_attr(type, type_key, &attribute, &found));
  CHECK(found != 0);
  CHECK(attribute == &value);
  MPI_OK(MPI_Comm_get_attr(comm(), comm_key, &attribute, &found));
  CHECK(found != 0);
  MPI_Datatype copy = MPI_DATATYPE_NULL;
  MPI_OK(MPI_Type_dup(type, &copy));
  MPI_OK(MPI_Type_get_attr(copy, type_key, &attribute, &found));
  CHECK(found != 0);
  MPI_OK(MPI_Type_free(&copy));
  MPI_OK(MPI_Type_delete_attr(type, type_key));
  MPI_OK(MPI_Comm_delete_attr(comm(), comm_key));
  MPI_OK(MPI_Type_free_keyval(&type_key));
  MPI_OK(MPI_Comm_free_keyval(&comm_key));
}

// MPI_Pack and its relatives, with each of the two buffers in host or device memory.
#include <algorithm>

#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

constexpr const char* external32 = "external32";

template <class Do>
void for_each_pair_of_places(Do&& run) {
  for (const Place user : basic_places)
    for (const Place packed : basic_places) {
      const std::string text = std::string("user ") + place_name(user) + ", packed " + place_name(packed);
      INFO(text);
      step(text);
      run(user, packed);
    }
}

/// Host bytes as a Buffer of MPI_BYTE sees them after its guard.
Stream bytes_of(const Image& image, std::size_t count) {
  return Stream(image.base(), image.base() + count);
}

}  // namespace

TEST_CASE("Pack and Unpack of one message", "[pack]") {
  for (int layout = 0; layout < layout_count; ++layout)
    for (const int bytes : {40, 5000, 300000}) {
      const Type type = named_layout(layout, bytes), byte = plain(MPI_BYTE);
      INFO(type.text());
      for_each_pair_of_places([&](Place user, Place packed) {
        const Stream stream = stream_of(type, 3, seed());
        const int size = static_cast<int>(stream.size());
        Buffer from(user, type, 3), to(user, type, 3), wire(packed, byte, size + 20);
        from.fill(seed());
        int position = 0;
        MPI_OK(MPI_Pack(from.address(), 3, type, wire.address(), size + 20, &position, comm()));
        CHECK(position == size);
        wire.expect(stream);
        CHECK(wire.difference() == "");
        CHECK(from.difference() == "");
        position = 0;
        MPI_OK(MPI_Unpack(wire.address(), size + 20, &position, to.address(), 3, type, comm()));
        CHECK(position == size);
        to.expect(stream);
        CHECK(to.difference() == "");
        CHECK(wire.difference() == "");
      });
    }
}

TEST_CASE("Pack and Unpack go on from a position", "[pack]") {
  const Type byte = plain(MPI_BYTE);
  const Type types[] = {vector(33, 1, 2), plain(MPI_CHAR), named_layout(4, 900), named_layout(6, 700)};
  for_each_pair_of_places([&](Place user, Place packed) {
    Image expected(byte, 8192);
    Buffer wire(packed, byte, 8192);
    int position = 13, reference = 13;  // not aligned to anything
    for (const Type& type : types) {
      Buffer from(user, type, 3, 5);
      from.fill(seed());
      const Stream stream = stream_of(type, 3, seed());
      MPI_OK(MPI_Pack(from.address(), 3, type, wire.address(), 8192, &position, comm()));
      std::copy(stream.begin(), stream.end(), expected.base() + reference);
      reference += static_cast<int>(stream.size());
      CHECK(position == reference);
    }
    wire.expect(bytes_of(expected, 8192));
    CHECK(wire.difference() == "");
    position = 13;
    for (const Type& type : types) {
      Buffer to(user, type, 3, 3);
      MPI_OK(MPI_Unpack(wire.address(), 8192, &position, to.address(), 3, type, comm()));
      to.expect(stream_of(type, 3, seed()));
      CHECK(to.difference() == "");
    }
    CHECK(position == reference);
  });
}

TEST_CASE("Pack refuses what does not fit", "[pack]") {
  const Type type = vector(16, 1, 2), byte = plain(MPI_BYTE);
  for_each_pair_of_places([&](Place user, Place packed) {
    Buffer from(user, type, 1), wire(packed, byte, 200);
    from.fill(seed());
    if (!pack_checks_room && (host_only() || (user == Place::host && packed == Place::host))) return;
    int position = 100;
    MPI_FAILS(MPI_Pack(from.address(), 1, type, wire.address(), 200, &position, comm()), MPI_ERR_TRUNCATE);
    CHECK(position == 100);
    CHECK(wire.difference() == "");
    MPI_FAILS(MPI_Unpack(wire.address(), 200, &position, from.address(), 1, type, comm()), MPI_ERR_TRUNCATE);
    CHECK(position == 100);
    CHECK(from.difference() == "");
  });
}

// To be run with a small GPUDT_STAGING_LIMIT. Within a GPU, and to pinned memory, none is needed.
TEST_CASE("no staging memory for Pack and Unpack", "[.][staging-limit]") {
  const Type type = vector(1 << 14, 1, 2), byte = plain(MPI_BYTE);  // 128 KiB
  const int size = static_cast<int>(type.size());
  Buffer host(Place::host, type, 1), device(Place::device, type, 1), wire(Place::host, byte, size),
      device_wire(Place::device, byte, size);
  int position = 0;
  MPI_FAILS(MPI_Pack(device.address(), 1, type, wire.address(), size, &position, comm()), MPI_ERR_NO_MEM);
  MPI_FAILS(MPI_Pack(host.address(), 1, type, device_wire.address(), size, &position, comm()), MPI_ERR_NO_MEM);
  MPI_FAILS(MPI_Unpack(wire.address(), size, &position, device.address(), 1, type, comm()), MPI_ERR_NO_MEM);
  MPI_FAILS(MPI_Unpack(device_wire.address(), size, &position, host.address(), 1, type, comm()), MPI_ERR_NO_MEM);
  CHECK(position == 0);
  for (const Buffer* buffer : {&host, &device, &wire, &device_wire}) CHECK(buffer->difference() == "");
  device.fill(seed());
  MPI_OK(MPI_Pack(device.address(), 1, type, device_wire.address(), size, &position, comm()));
  device_wire.expect(stream_of(type, 1, seed()));
  CHECK(device_wire.difference() == "");
}

TEST_CASE("Pack of nothing", "[pack]") {
  const Type type = vector(16, 1, 2), byte = plain(MPI_BYTE);
  for_each_pair_of_places([&](Place user, Place packed) {
    Buffer from(user, type, 1), wire(packed, byte, 200);
    int position = 100;
    MPI_OK(MPI_Pack(from.address(), 0, type, wire.address(), 200, &position, comm()));
    MPI_OK(MPI_Unpack(wire.address(), 200, &position, from.address(), 0, type, comm()));
    CHECK(position == 100);
    CHECK(wire.difference() == "");
    CHECK(from.difference() == "");
  });
}

TEST_CASE("Pack_external and Unpack_external", "[pack]") {
  MPICH_CANNOT("MPI_Pack_external_size crashes");
  const Type byte = plain(MPI_BYTE);
  for (int layout = 0; layout < layout_count; ++layout) {
    const Type type = named_layout(layout, 3000);
    INFO(type.text());
    MPI_Aint size = 0;
    MPI_OK(MPI_Pack_external_size(external32, 2, type, &size));
    Image reference(type, 2);
    reference.fill(seed());
    Stream external(static_cast<std::size_t>(size));
    MPI_Aint end = 0;
    MPI_OK(PMPI_Pack_external(external32, reference.base(), 2, type, external.data(), size, &end));
    external.resize(static_cast<std::size_t>(end));
    for_each_pair_of_places([&](Place user, Place packed) {
      Buffer from(user, type, 2), to(user, type, 2), wire(packed, byte, size);
      from.fill(seed());
      MPI_Aint position = 0;
      MPI_OK(MPI_Pack_external(external32, from.address(), 2, type, wire.address(), size, &position));
      CHECK(position == end);
      wire.expect(external);
      CHECK(wire.difference() == "");
      position = 0;
      MPI_OK(MPI_Unpack_external(external32, wire.address(), size, &position, to.address(), 2, type));
      CHECK(position == end);
      to.expect(stream_of(type, 2, seed()));
      CHECK(to.difference() == "");
    });
  }
}

TEST_CASE("Pack_external goes on from a position", "[pack]") {
  const Type type = vector(20, 1, 3, MPI_INT), byte = plain(MPI_BYTE);
  for_each_pair_of_places([&](Place user, Place packed) {
    Buffer from(user, type, 1), to(user, type, 1), wire(packed, byte, 400);
    from.fill(seed());
    MPI_Aint position = 7;
    MPI_OK(MPI_Pack_external(external32, from.address(), 1, type, wire.address(), 400, &position));
    MPI_OK(MPI_Pack_external(external32, from.address(), 1, type, wire.address(), 400, &position));
    CHECK(position == 7 + 160);
    position = 7 + 80;
    MPI_OK(MPI_Unpack_external(external32, wire.address(), 400, &position, to.address(), 1, type));
    to.expect(stream_of(type, 1, seed()));
    CHECK(to.difference() == "");
  });
}

TEST_CASE("Pack_size is an upper bound that Pack accepts", "[pack]") {
  const Type type = named_layout(10, 3000);
  int size = 0, reference = 0, position = 0;
  MPI_OK(MPI_Pack_size(3, type, comm(), &size));
  MPI_OK(PMPI_Pack_size(3, type, comm(), &reference));
  CHECK(size == reference);
  Buffer from(Place::device, type, 3), wire(Place::device, plain(MPI_BYTE), size);
  from.fill(seed());
  MPI_OK(MPI_Pack(from.address(), 3, type, wire.address(), size, &position, comm()));
  CHECK(position <= size);
}

TEST_CASE("packed messages travel as MPI_PACKED", "[pack]") {
  if (!all_have_partners()) return;
  const Type type = named_layout(4, 20000), packed_type = plain(MPI_PACKED);
  for_each_pair_of_places([&](Place user, Place packed) {
    const auto mine = mix(seed(), static_cast<std::uint64_t>(rank()));
    const auto theirs = mix(seed(), static_cast<std::uint64_t>(partner()));
    const int size = static_cast<int>(type.size());
    Buffer from(user, type, 1), wire(packed, packed_type, size), to(user, type, 1), again(user, type, 1);
    from.fill(mine);
    int position = 0;
    MPI_OK(MPI_Pack(from.address(), 1, type, wire.address(), size, &position, comm()));
    MPI_Status status{};
    // Packed at the sender, typed at the receiver; then the other way round.
    MPI_OK(MPI_Sendrecv(wire.address(), position, MPI_PACKED, partner(), 1, to.address(), 1, type, partner(), 1, comm(),
                        &status));
    to.expect(stream_of(type, 1, theirs));
    CHECK(to.difference() == "");
    check_status(status, partner(), 1, type, size);
    MPI_OK(MPI_Sendrecv(from.address(), 1, type, partner(), 2, wire.address(), size, MPI_PACKED, partner(), 2, comm(),
                        &status));
    position = 0;
    MPI_OK(MPI_Unpack(wire.address(), size, &position, again.address(), 1, type, comm()));
    again.expect(stream_of(type, 1, theirs));
    CHECK(again.difference() == "");
  });
}

// The large-count functions of MPI-4 (suffix _c) and MPI_Isendrecv, on device memory with derived datatypes. Those that
// take counts go to the functions with int counts, which the other tests are about: here it is the arguments that
// count. And datatypes that were made with large counts.
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "tests/mpi/exchange.hpp"
#include "tests/support/random_type.hpp"

using namespace gpudt::test;

namespace {

constexpr int tag = 11;

Type spread() {
  return vector(60, 2, 5);
}

/// Both buffers of the exchange are host memory. (MPICH's own MPI_Isendrecv crashes.)
bool by_mpi_alone = false;

/// Every process sends to the next and receives from the one before by `exchange(out, in, type, to, from)`.
template <class Exchange>
void around(const char* name, Exchange exchange) {
  for (const Place send : basic_places)
    for (const Place receive : basic_places) {
      const std::string text = std::string(name) + ", " + place_name(send) + " to " + place_name(receive);
      INFO(text);
      step(text);
      const int to = (rank() + 1) % ranks(), from = (rank() + ranks() - 1) % ranks();
      by_mpi_alone = host_only() || (send == Place::host && receive == Place::host);
      const Type type = spread();
      Buffer out(send, type, 3), in(receive, type, 3);
      out.fill(key_of(rank()));
      exchange(out.address(), in.address(), type, to, from);
      in.expect(stream_of(type, 3, key_of(from)));
      CHECK(in.difference() == "");
      CHECK(out.difference() == "");
    }
}

using Isend = int (*)(const void*, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request*);
using Send = int (*)(const void*, MPI_Count, MPI_Datatype, int, int, MPI_Comm);

/// The rest of a matter: `started` goes on to its end, `receive` at the other one.
void finish(MPI_Request* requests, bool persistent) {
  if (persistent) MPI_OK(MPI_Startall(2, requests));
  MPI_OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
  if (!persistent) return;
  MPI_OK(MPI_Startall(2, requests));  // again
  MPI_OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
  for (int i = 0; i < 2; ++i) MPI_OK(MPI_Request_free(&requests[i]));
}

}  // namespace

TEST_CASE("large-count sends and receives", "[large-count]") {
  BsendBuffer attached(1 << 16);
  const Send sends[] = {MPI_Send_c, MPI_Bsend_c, MPI_Ssend_c, MPI_Rsend_c};
  for (const Send send : sends)
    around("Send_c", [&](void* out, void* in, const Type& type, int to, int from) {
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_OK(MPI_Irecv_c(in, 3, type, from, tag, comm(), &request));
      lock_step();
      MPI_OK(send(out, 3, type, to, tag, comm()));
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    });
  const Isend isends[] = {MPI_Isend_c, MPI_Ibsend_c, MPI_Issend_c, MPI_Irsend_c};
  for (const Isend isend : isends)
    around("Isend_c", [&](void* out, void* in, const Type& type, int to, int from) {
      MPI_Request requests[2];
      MPI_OK(MPI_Irecv_c(in, 3, type, from, tag, comm(), &requests[0]));
      lock_step();
      MPI_OK(isend(out, 3, type, to, tag, comm(), &requests[1]));
      finish(requests, false);
    });
  const Isend inits[] = {MPI_Send_init_c, MPI_Bsend_init_c, MPI_Ssend_init_c};
  for (const Isend init : inits)
    around("Send_init_c", [&](void* out, void* in, const Type& type, int to, int from) {
      MPI_Request requests[2];
      MPI_OK(MPI_Recv_init_c(in, 3, type, from, tag, comm(), &requests[0]));
      MPI_OK(init(out, 3, type, to, tag, comm(), &requests[1]));
      finish(requests, true);
    });
  around("Recv_c", [&](void* out, void* in, const Type& type, int to, int from) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Isend_c(out, 3, type, to, tag, comm(), &request));
    MPI_OK(MPI_Recv_c(in, 3, type, from, tag, comm(), MPI_STATUS_IGNORE));
    MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  });
  for (const bool blocking : {true, false})
    around("Mrecv_c", [&](void* out, void* in, const Type& type, int to, int from) {
      MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_OK(MPI_Isend_c(out, 3, type, to, tag, comm(), &requests[0]));
      MPI_OK(MPI_Mprobe(from, tag, comm(), &message, MPI_STATUS_IGNORE));
      if (blocking)
        MPI_OK(MPI_Mrecv_c(in, 3, type, &message, MPI_STATUS_IGNORE));
      else
        MPI_OK(MPI_Imrecv_c(in, 3, type, &message, &requests[1]));
      finish(requests, false);
    });
  around("Sendrecv_c", [&](void* out, void* in, const Type& type, int to, int from) {
    MPI_OK(MPI_Sendrecv_c(out, 3, type, to, tag, in, 3, type, from, tag, comm(), MPI_STATUS_IGNORE));
  });
}

namespace {

constexpr std::int64_t guard = 64;

/// `count` elements of a random type in device memory.
class RandomMessage {
 public:
  RandomMessage(const RandomType& type, int count, std::mt19937_64& random)
      : type_(type), count_(count), low_(type.low(count) - guard) {
    image_.resize(static_cast<std::size_t>(type.high(count) + guard - low_));
    for (char& byte : image_) byte = static_cast<char>(random());
    memory_.emplace(Place::device, image_.size());
    memory_->write(image_.data(), image_.size());
  }

  /// Its bytes in order, by the type map.
  Stream stream() {
    Stream packed;
    each_run([&](char* run, std::int64_t length) { packed.insert(packed.end(), run, run + length); });
    return packed;
  }

  Stream packed_by_mpi() {
    Stream packed(static_cast<std::size_t>(count_ * type_.size()) + 1);
    int position = 0;
    PMPI_Pack(image_.data() - low_, count_, type_.handle(), packed.data(), static_cast<int>(packed.size()), &position,
              comm());
    packed.resize(static_cast<std::size_t>(position));
    return packed;
  }

  Stream packed_by_us() {
    Stream packed(static_cast<std::size_t>(count_ * type_.size()) + 1);
    MPI_Count position = 0;
    MPI_OK(MPI_Pack_c(memory_->data() - low_, count_, type_.handle(), packed.data(),
                      static_cast<MPI_Count>(packed.size()), &position, comm()));
    packed.resize(static_cast<std::size_t>(position));
    return packed;
  }

  /// Whether the memory holds, after an unpack of `packed`, what it should.
  bool unpacks(const Stream& packed) {
    const char* next = packed.data();
    each_run([&](char* run, std::int64_t length) {
      std::memcpy(run, next, static_cast<std::size_t>(length));
      next += length;
    });
    MPI_Count position = 0;
    MPI_OK(MPI_Unpack_c(packed.data(), static_cast<MPI_Count>(packed.size()), &position, memory_->data() - low_, count_,
                        type_.handle(), comm()));
    std::vector<char> found(image_.size());
    memory_->read(found.data(), found.size());
    return found == image_;
  }

 private:
  template <class Use>
  void each_run(Use use) {
    for (int i = 0; i < count_; ++i)
      for (const MapRun& run : type_.map()) use(image_.data() - low_ + run.displ + i * type_.extent(), run.length);
  }

  const RandomType& type_;
  const int count_;
  const std::int64_t low_;
  std::vector<char> image_;
  std::optional<Memory> memory_;
};

/// MPICH 4.0 mistakes the true bounds of arrays of types that do not begin at 0.
bool bounds_are_right(const RandomType& type) {
  MPI_Count low = 0, extent = 0;
  PMPI_Type_get_true_extent_x(type.handle(), &low, &extent);
  return type.size() == 0 || (low == type.low(1) && low + extent == type.high(1));
}

}  // namespace

TEST_CASE("random datatypes made with large counts", "[large-count]") {
  if (host_only()) return;  // there is nothing to be tested
  auto random = random_numbers("large-count types");
  for (int i = 0; i < scaled(300); ++i) {
    RandomTypeLimits limits;
    limits.large_counts = true;
    limits.unpack_safe = i % 2 == 0;
    const RandomType type(random, limits);
    INFO("tree " << i << ": " << type.description());
    if (!bounds_are_right(type)) continue;
    const int count = 1 + static_cast<int>(random() % 3);
    RandomMessage message(type, count, random);
    const Stream stream = message.stream();
    CHECK((message.packed_by_us() == stream));
    // MPICH leaves the padding of long doubles alone, and packs some types with negative extents wrongly.
    if (limits.unpack_safe && type.description().find("LONG_DOUBLE") == std::string::npos)
      CHECK((message.packed_by_mpi() == stream));
    if (type.overlaps()) continue;
    Stream sent(stream.size());
    for (char& byte : sent) byte = static_cast<char>(random());
    CHECK(message.unpacks(sent));
  }
}

TEST_CASE("Isendrecv and Isendrecv_replace", "[large-count]") {
  for (const bool large : {false, true}) {
    around("Isendrecv", [&](void* out, void* in, const Type& type, int to, int from) {
      if (by_mpi_alone) {
        MPI_OK(MPI_Sendrecv(out, 3, type, to, tag, in, 3, type, from, tag, comm(), MPI_STATUS_IGNORE));
        return;
      }
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Status status{};
      MPI_OK(large ? MPI_Isendrecv_c(out, 3, type, to, tag, in, 3, type, from, tag, comm(), &request)
                   : MPI_Isendrecv(out, 3, type, to, tag, in, 3, type, from, tag, comm(), &request));
      MPI_OK(MPI_Wait(&request, &status));
      check_status(status, from, tag, type, 3 * type.size());
    });
    const int to = (rank() + 1) % ranks(), from = (rank() + ranks() - 1) % ranks();
    const Type type = spread();
    Buffer buffer(Place::device, type, 3);
    buffer.fill(key_of(rank()));
    if (host_only()) {
      MPI_OK(MPI_Sendrecv_replace(buffer.address(), 3, type, to, tag, from, tag, comm(), MPI_STATUS_IGNORE));
    } else {
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_OK(large ? MPI_Isendrecv_replace_c(buffer.address(), 3, type, to, tag, from, tag, comm(), &request)
                   : MPI_Isendrecv_replace(buffer.address(), 3, type, to, tag, from, tag, comm(), &request));
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
    buffer.expect(stream_of(type, 3, key_of(from)));
    CHECK(buffer.difference() == "");
  }
}

TEST_CASE("large-count packs", "[large-count]") {
  for (const Place user : basic_places)
    for (const Place packed : basic_places) {
      INFO(place_name(user) << ", " << place_name(packed));
      const Type type = spread(), byte = plain(MPI_BYTE);
      Buffer from(user, type, 3), wire(packed, byte, 8192), to(user, type, 3);
      from.fill(key_of(1));
      MPI_Count position = 16, back = 16;
      MPI_OK(MPI_Pack_c(from.address(), 3, type, wire.address(), 8192, &position, comm()));
      CHECK(position == 16 + 3 * type.size());
      MPI_OK(MPI_Unpack_c(wire.address(), 8192, &back, to.address(), 3, type, comm()));
      CHECK(back == position);
      to.expect(stream_of(type, 3, key_of(1)));
      CHECK(to.difference() == "");
    }
}

TEST_CASE("large-count collectives", "[large-count]") {
  const Type type = spread();
  const auto n = static_cast<std::size_t>(ranks());
  const auto collect = [&](const char* name, auto call) {
    INFO(name);
    step(name);
    Buffer out(Place::device, type, 1), in(Place::device, type, ranks());
    out.fill(key_of(rank()));
    MPI_OK(call(out.address(), in.address()));
    Stream all;
    for (int from = 0; from < ranks(); ++from) {
      const Stream one = stream_of(type, 1, key_of(from));
      all.insert(all.end(), one.begin(), one.end());
    }
    in.expect(all);
    CHECK(in.difference() == "");
  };
  const std::vector<MPI_Count> ones(n, 1);
  std::vector<MPI_Aint> places(n);
  for (std::size_t i = 0; i < n; ++i) places[i] = static_cast<MPI_Aint>(i);
  collect("Allgather_c", [&](void* out, void* in) { return MPI_Allgather_c(out, 1, type, in, 1, type, comm()); });
  collect("Allgatherv_c", [&](void* out, void* in) {
    return MPI_Allgatherv_c(out, 1, type, in, ones.data(), places.data(), type, comm());
  });
  collect("Iallgatherv_c", [&](void* out, void* in) {
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = MPI_Iallgatherv_c(out, 1, type, in, ones.data(), places.data(), type, comm(), &request);
    return code == MPI_SUCCESS ? MPI_Wait(&request, MPI_STATUS_IGNORE) : code;
  });
  collect("Allgatherv_init_c", [&](void* out, void* in) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Allgatherv_init_c(out, 1, type, in, ones.data(), places.data(), type, comm(), MPI_INFO_NULL, &request));
    for (int round = 0; round < 2; ++round) {
      MPI_OK(MPI_Start(&request));
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
    return MPI_Request_free(&request);
  });
  const Type ints = plain(MPI_INT);
  Buffer sum(Place::device, ints, 10), mine(Place::device, ints, 10);
  mine.fill(key_of(3));  // the same everywhere
  MPI_OK(MPI_Allreduce_c(mine.address(), sum.address(), 10, MPI_INT, MPI_BAND, comm()));
  sum.expect(stream_of(ints, 10, key_of(3)));
  CHECK(sum.difference() == "");
}

namespace {

constexpr MPI_Count huge = (MPI_Count(1) << 31) + 5;  ///< bytes, one by one

/// Every byte of a huge buffer hangs on its place and a key.
void fill_huge(Memory& memory, std::size_t key) {
  std::vector<char> chunk(std::size_t(64) << 20);
  for (std::size_t begin = 0; begin < memory.bytes(); begin += chunk.size()) {
    chunk.resize(std::min(chunk.size(), memory.bytes() - begin));
    for (std::size_t i = 0; i < chunk.size(); ++i) chunk[i] = static_cast<char>((begin + i + key) % 251);
    memory.write(chunk.data(), chunk.size(), begin);
  }
}

std::size_t wrong_bytes(const Memory& memory, std::size_t key) {
  std::size_t wrong = 0;
  std::vector<char> chunk(std::size_t(64) << 20);
  for (std::size_t begin = 0; begin < memory.bytes(); begin += chunk.size()) {
    chunk.resize(std::min(chunk.size(), memory.bytes() - begin));
    memory.read(chunk.data(), chunk.size(), begin);
    for (std::size_t i = 0; i < chunk.size(); ++i)
      wrong += chunk[i] != static_cast<char>((begin + i + key) % 251) ? 1 : 0;
  }
  return wrong;
}

}  // namespace

TEST_CASE("a count beyond 2^31 in a message", "[huge-count]") {
  if (!huge_wanted() || !all_have_partners()) return;
  Memory memory(Place::device, static_cast<std::size_t>(huge));
  if (rank() % 2 == 0) {
    fill_huge(memory, 3);
    MPI_OK(MPI_Send_c(memory.data(), huge, MPI_BYTE, partner(), tag, comm()));
  } else {
    MPI_Status status{};
    MPI_OK(MPI_Recv_c(memory.data(), huge, MPI_BYTE, partner(), tag, comm(), &status));
    MPI_Count count = 0;
    MPI_OK(MPI_Get_count_c(&status, MPI_BYTE, &count));
    CHECK(count == huge);
    CHECK(wrong_bytes(memory, 3) == 0);
  }
}

TEST_CASE("counts beyond 2^31 in Pack, Allreduce and Allgatherv", "[huge-count]") {
  if (!huge_wanted() || ranks() != 1) return;
  Memory from(Place::device, static_cast<std::size_t>(huge)), to(Place::device, static_cast<std::size_t>(huge));
  fill_huge(from, 5);
  const MPI_Aint nowhere = 0;
  step("Pack");
  MPI_Count position = 0;
  MPI_OK(MPI_Pack_c(from.data(), huge, MPI_BYTE, to.data(), huge, &position, comm()));
  CHECK(position == huge);
  CHECK(wrong_bytes(to, 5) == 0);
  step("Allgatherv");
  fill_huge(from, 6);
  MPI_OK(MPI_Allgatherv_c(from.data(), huge, MPI_BYTE, to.data(), &huge, &nowhere, MPI_BYTE, comm()));
  CHECK(wrong_bytes(to, 6) == 0);
  step("Allreduce");
  fill_huge(from, 7);
  MPI_OK(MPI_Allreduce_c(from.data(), to.data(), huge, MPI_BYTE, MPI_BOR, comm()));
  CHECK(wrong_bytes(to, 7) == 0);
}

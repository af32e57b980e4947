// Datatypes that reach over several memories: from host memory into a GPU's and back, and over two GPUs.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

using Places = std::vector<Place>;

std::string text_of(const Places& places) {
  std::string text;
  for (const Place place : places) text += std::string(text.empty() ? "" : ", ") + place_name(place);
  return text;
}

/// A message of `count` elements, each of which has a member in each of several buffers: element after element, and
/// within it memory after memory.
class Mixed {
 public:
  /// By absolute addresses, or from the address of the first buffer.
  enum class Base { bottom, first };

  Mixed(const Places& places, const Type& member, int count, Base base = packs_from_bottom ? Base::bottom : Base::first)
      : member_(&member), count_(count) {
    for (const Place place : places) buffers_.push_back(std::make_unique<Buffer>(place, member, count));
    MPI_Aint origin = 0;
    if (base == Base::first) PMPI_Get_address(buffers_[0]->address(), &origin);
    address_ = base == Base::first ? buffers_[0]->address() : MPI_BOTTOM;
    const std::vector<int> ones(places.size(), 1);
    const std::vector<MPI_Datatype> members(places.size(), member);
    std::vector<MPI_Aint> displs(places.size());
    for (std::size_t i = 0; i < places.size(); ++i) {
      PMPI_Get_address(buffers_[i]->address(), &displs[i]);
      displs[i] -= origin;
    }
    MPI_Datatype all = MPI_DATATYPE_NULL, spaced = MPI_DATATYPE_NULL;
    PMPI_Type_create_struct(static_cast<int>(places.size()), ones.data(), displs.data(), members.data(), &all);
    PMPI_Type_create_resized(all, 0, member.extent(), &spaced);
    PMPI_Type_commit(&spaced);
    PMPI_Type_free(&all);
    type_ = std::make_unique<Type>(spaced, "members in several memories");
  }

  void* address() const { return address_; }
  int count() const { return count_; }
  const Type& type() const { return *type_; }
  int bytes() const { return static_cast<int>(count_ * type_->size()); }

  void fill(std::uint64_t key) {
    for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i]->fill(mix(key, i));
  }
  void poison() {
    for (const auto& buffer : buffers_) buffer->poison();
  }
  /// What it sends after fill(key): MPI_Pack's bytes of each member on the host.
  Stream stream(std::uint64_t key) const {
    std::vector<Stream> parts;
    for (std::size_t i = 0; i < buffers_.size(); ++i) parts.push_back(stream_of(*member_, count_, mix(key, i)));
    Stream whole;
    for (int element = 0; element < count_; ++element)
      for (const Stream& part : parts) {
        const auto from = part.begin() + element * member_->size();
        whole.insert(whole.end(), from, from + member_->size());
      }
    return whole;
  }
  /// The memory should now hold this message, or as much of it as there is.
  void expect(const Stream& stream) {
    std::vector<Stream> parts(buffers_.size());
    const auto each = static_cast<std::size_t>(member_->size());
    for (std::size_t at = 0, i = 0; at < stream.size(); at += each, i = (i + 1) % parts.size()) {
      const auto from = stream.begin() + static_cast<std::ptrdiff_t>(at);
      const auto bytes = static_cast<std::ptrdiff_t>(std::min(each, stream.size() - at));
      parts[i].insert(parts[i].end(), from, from + bytes);
    }
    for (std::size_t i = 0; i < parts.size(); ++i) buffers_[i]->expect(parts[i]);
  }
  std::string difference() const {
    for (std::size_t i = 0; i < buffers_.size(); ++i)
      if (const std::string found = buffers_[i]->difference(); !found.empty())
        return "member " + std::to_string(i) + ": " + found;
    return "";
  }

 private:
  const Type* member_;
  int count_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  void* address_ = nullptr;
  std::unique_ptr<Type> type_;
};

/// Else the message is MPI's own.
bool any_gpu(const Places& places) {
  return std::any_of(places.begin(), places.end(),
                     [](Place place) { return place != Place::host && place != Place::pinned; });
}

const std::vector<Places>& combinations() {
  static const std::vector<Places> list = {
      {Place::host, Place::device},
      {Place::device, Place::host},
      {Place::device, Place::other_gpu},
      {Place::host, Place::device, Place::host, Place::other_gpu, Place::device},
      {Place::pinned, Place::managed, Place::device},
      {Place::managed, Place::host},
      {Place::host, Place::pinned},
      {Place::device, Place::device},
  };
  return list;
}

/// Runs `run(places, member, count)` for each combination of memories, of short and of long messages.
template <class Run>
void for_each_message(const char* name, Run&& run) {
  const Type members[] = {plain(MPI_DOUBLE), vector(5, 2, 3), vector(3000, 1, 2), named_layout(5, 3000)};
  for (const Places& places : combinations())
    for (const Type& member : members)
      for (const int count : {1, 3}) {
        const std::string text =
            std::string(name) + ", " + text_of(places) + ", " + std::to_string(count) + " of " + member.text();
        INFO(text);
        step(text);
        run(places, member, count);
      }
}

/// The same memories the other way round.
Places reversed(Places places) {
  std::reverse(places.begin(), places.end());
  return places;
}

Stream from_partner(const Mixed& like) {
  return like.stream(key_of(partner()));
}

/// The status of a message from the partner that is as long as `like`.
void check_envelope(const MPI_Status& status, int tag, const Mixed& like) {
  CHECK(status.MPI_SOURCE == partner());
  CHECK(status.MPI_TAG == tag);
  MPI_Count got = 0;
  PMPI_Get_elements_x(&status, MPI_BYTE, &got);
  CHECK(got == like.bytes());
}

}  // namespace

TEST_CASE("Pack and Unpack of several memories", "[mixed]") {
  const Type byte = plain(MPI_BYTE);
  for_each_message("Pack", [&](const Places& places, const Type& member, int count) {
    for (const Mixed::Base base : {Mixed::Base::bottom, Mixed::Base::first})
      for (const Place packed : {Place::host, Place::device}) {
        if (base == Mixed::Base::bottom && !packs_from_bottom) continue;
        Mixed out(places, member, count, base), in(places, member, count, base);
        Buffer wire(packed, byte, out.bytes() + 9);
        out.fill(seed());
        const Stream stream = out.stream(seed());
        int position = 0;
        MPI_OK(MPI_Pack(out.address(), count, out.type(), wire.address(), out.bytes() + 9, &position, comm()));
        CHECK(position == out.bytes());
        wire.expect(stream);
        CHECK(wire.difference() == "");
        CHECK(out.difference() == "");
        position = 0;
        MPI_OK(MPI_Unpack(wire.address(), out.bytes() + 9, &position, in.address(), count, in.type(), comm()));
        CHECK(position == in.bytes());
        in.expect(stream);
        CHECK(in.difference() == "");
      }
  });
}

TEST_CASE("external32 of several memories", "[mixed]") {
  if (!leaves_addresses()) return not_possible("there is no range of addresses that is large enough");
  constexpr const char* external32 = "external32";
  const Type member = vector(5, 2, 3);
  for (const Places& places : combinations()) {
    INFO(text_of(places));
    step("external32, " + text_of(places));
    Mixed out(places, member, 1), in(places, member, 1);
    Mixed plain_out(Places(places.size(), Place::host), member, 1);
    out.fill(seed());
    plain_out.fill(seed());
    MPI_Aint size = 0, position = 0, plain_position = 0;
    PMPI_Pack_external_size(external32, 1, out.type(), &size);
    std::vector<char> wire(static_cast<std::size_t>(size)), expected(wire);
    MPI_OK(MPI_Pack_external(external32, out.address(), 1, out.type(), wire.data(), size, &position));
    PMPI_Pack_external(external32, plain_out.address(), 1, plain_out.type(), expected.data(), size, &plain_position);
    CHECK(wire == expected);
    CHECK(position == plain_position);
    position = 0;
    MPI_OK(MPI_Unpack_external(external32, wire.data(), size, &position, in.address(), 1, in.type()));
    in.expect(in.stream(seed()));
    CHECK(in.difference() == "");
  }
}

TEST_CASE("messages from and to several memories, in every mode", "[mixed]") {
  if (!all_have_partners()) return;
  BsendBuffer attached(1 << 20);
  for_each_message("message", [&](const Places& places, const Type& member, int count) {
    int tag = 10;
    for (const SendMode& mode : send_modes)
      for (const ReceiveMode& receive_mode : receive_modes) {
        if (!receive_mode.nonblocking) continue;  // both ways at once: the receive comes first
        INFO(mode.name << " to " << receive_mode.name);
        Mixed out(places, member, count), in(reversed(places), member, count);
        out.fill(key_of(rank()));
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_OK(receive_mode.start({in.address(), count, in.type(), partner(), tag, comm()}, &request));
        lock_step();
        MPI_OK(mode.send({out.address(), count, out.type(), partner(), tag, comm()}));
        MPI_Status status{};
        MPI_OK(MPI_Wait(&request, &status));
        if (request != MPI_REQUEST_NULL) MPI_OK(MPI_Request_free(&request));
        check_envelope(status, tag, in);
        in.expect(from_partner(in));
        CHECK(in.difference() == "");
        CHECK(out.difference() == "");
        ++tag;
      }
  });
}

TEST_CASE("several memories on one side, one on the other", "[mixed]") {
  if (!all_have_partners()) return;
  for_each_message("one side", [&](const Places& places, const Type& member, int count) {
    const Type byte = plain(MPI_BYTE);
    for (const Place other : {Place::host, Place::device})
      for (const bool mixed_sends : {true, false}) {
        Mixed mixed(places, member, count);
        Buffer whole(other, byte, mixed.bytes());
        const int low = std::min(rank(), partner());
        const bool sends = rank() == low;
        const Stream stream = mixed.stream(key_of(low));
        const Message of_mixed{mixed.address(), count, mixed.type(), partner(), 3, comm()};
        const Message of_whole{whole.address(), mixed.bytes(), byte, partner(), 3, comm()};
        const Message& mine = sends == mixed_sends ? of_mixed : of_whole;
        if (sends && mixed_sends) mixed.fill(key_of(low));
        if (sends && !mixed_sends) whole.expect(stream);
        if (sends && !mixed_sends) {
          int position = 0;  // fills the buffer, wherever it lies
          mixed.fill(key_of(low));
          MPI_OK(MPI_Pack(mixed.address(), count, mixed.type(), whole.address(), mixed.bytes(), &position, comm()));
        }
        MPI_Status status{};
        if (sends) {
          MPI_OK(MPI_Send(mine.buffer, mine.count, mine.type, partner(), 3, comm()));
          continue;
        }
        MPI_OK(MPI_Recv(mine.buffer, mine.count, mine.type, partner(), 3, comm(), &status));
        check_envelope(status, 3, mixed);
        if (mixed_sends) {
          whole.expect(stream);
          CHECK(whole.difference() == "");
        } else {
          mixed.expect(stream);
          CHECK(mixed.difference() == "");
        }
      }
  });
}

TEST_CASE("short messages leave the rest of several memories alone", "[mixed]") {
  if (!all_have_partners()) return;
  for_each_message("short", [&](const Places& places, const Type& member, int count) {
    const auto part = static_cast<int>(member.size());
    if (!receives_parts_of_elements && !any_gpu(places)) return;
    Mixed in(places, member, count);
    for (const int bytes : {0, part / 2, part, part + part / 2, in.bytes() - 1, in.bytes()}) {
      INFO(bytes << " B");
      const Stream all = in.stream(key_of(partner()));
      Stream mine = in.stream(key_of(rank()));
      in.poison();
      const int to = partner();
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_OK(MPI_Irecv(in.address(), count, in.type(), to, 4, comm(), &request));
      MPI_OK(MPI_Send(mine.data(), bytes, MPI_BYTE, to, 4, comm()));
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
      in.expect(Stream(all.begin(), all.begin() + bytes));
      CHECK(in.difference() == "");
    }
  });
}

TEST_CASE("Sendrecv, Sendrecv_replace and persistent requests of several memories", "[mixed]") {
  if (!all_have_partners()) return;
  for_each_message("Sendrecv", [&](const Places& places, const Type& member, int count) {
    Mixed out(places, member, count), in(reversed(places), member, count);
    out.fill(key_of(rank()));
    MPI_OK(MPI_Sendrecv(out.address(), count, out.type(), partner(), 5, in.address(), count, in.type(), partner(), 5,
                        comm(), MPI_STATUS_IGNORE));
    in.expect(from_partner(in));
    CHECK(in.difference() == "");

    MPI_OK(
        MPI_Sendrecv_replace(out.address(), count, out.type(), partner(), 6, partner(), 6, comm(), MPI_STATUS_IGNORE));
    out.expect(from_partner(out));
    CHECK(out.difference() == "");

    MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    MPI_OK(MPI_Recv_init(in.address(), count, in.type(), partner(), 7, comm(), &requests[0]));
    MPI_OK(MPI_Send_init(out.address(), count, out.type(), partner(), 7, comm(), &requests[1]));
    for (int round = 0; round < 2; ++round) {
      out.fill(key_of(rank()));
      in.poison();
      MPI_OK(MPI_Startall(2, requests));
      MPI_OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
      in.expect(from_partner(in));
      CHECK(in.difference() == "");
    }
    for (MPI_Request& request : requests) MPI_OK(MPI_Request_free(&request));
  });
}

TEST_CASE("collectives on several memories", "[mixed]") {
  const auto all = static_cast<std::size_t>(ranks());
  for_each_message("collective", [&](const Places& places, const Type& member, int count) {
    Mixed mine(places, member, count), got(reversed(places), member, count);
    const Type byte = plain(MPI_BYTE);
    for (int root = 0; root < ranks(); ++root) {
      mine.poison();
      if (rank() == root) mine.fill(key_of(root));
      MPI_OK(MPI_Bcast(mine.address(), count, mine.type(), root, comm()));
      if (rank() != root) mine.expect(mine.stream(key_of(root)));
      CHECK(mine.difference() == "");
    }

    mine.fill(key_of(rank()));
    for (const Place place : {Place::host, Place::device}) {
      Buffer gathered(place, byte, std::int64_t{mine.bytes()} * ranks());
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_OK(
          MPI_Igather(mine.address(), count, mine.type(), gathered.address(), mine.bytes(), byte, 0, comm(), &request));
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
      Stream expected;
      for (int sender = 0; sender < ranks(); ++sender) {
        const Stream stream = mine.stream(key_of(sender));
        expected.insert(expected.end(), stream.begin(), stream.end());
      }
      if (rank() == 0) gathered.expect(expected);
      CHECK(gathered.difference() == "");

      got.poison();
      MPI_OK(MPI_Scatter(gathered.address(), mine.bytes(), byte, got.address(), count, got.type(), 0, comm()));
      got.expect(got.stream(key_of(rank())));
      CHECK(got.difference() == "");
    }

    // The block for the partner, or for oneself, lies in several memories; there are no others.
    const int other = partner() == MPI_PROC_NULL ? rank() : partner();
    std::vector<int> counts(all, 0), displs(all, 0);
    std::vector<MPI_Datatype> sendtypes(all, MPI_BYTE), recvtypes(all, MPI_BYTE);
    counts[static_cast<std::size_t>(other)] = count;
    sendtypes[static_cast<std::size_t>(other)] = mine.type();
    recvtypes[static_cast<std::size_t>(other)] = got.type();
    got.poison();
    MPI_OK(MPI_Alltoallw(mine.address(), counts.data(), displs.data(), sendtypes.data(), got.address(), counts.data(),
                         displs.data(), recvtypes.data(), comm()));
    got.expect(got.stream(key_of(other)));
    CHECK(got.difference() == "");
    got.poison();
    Mixed again(places, member, count);
    MPI_OK(MPI_Alltoallv(mine.address(), counts.data(), displs.data(), mine.type(), again.address(), counts.data(),
                         displs.data(), again.type(), comm()));
    again.expect(again.stream(key_of(other)));
    CHECK(again.difference() == "");
  });
}

TEST_CASE("blocks of Alltoallw far apart, from MPI_BOTTOM", "[mixed]") {
  // Displacements of int reach from one buffer to the other only in memory that the library chooses itself.
  const Type member = vector(40, 1, 2);
  const Type byte = plain(MPI_BYTE);
  const auto all = static_cast<std::size_t>(ranks());
  for (const Places& places : combinations()) {
    INFO(text_of(places));
    step("Alltoallw far apart, " + text_of(places));
    std::vector<std::unique_ptr<Mixed>> out, in;
    std::vector<int> ones(all, 1), displs(all, 0);
    std::vector<MPI_Datatype> sendtypes, recvtypes;
    for (int peer = 0; peer < ranks(); ++peer) {  // each in one memory, but not all in the same one
      const Place place = places[static_cast<std::size_t>(peer) % places.size()];
      out.push_back(std::make_unique<Mixed>(Places{place}, member, 1, Mixed::Base::bottom));
      in.push_back(std::make_unique<Mixed>(Places{place}, member, 1, Mixed::Base::bottom));
      out.back()->fill(mix(key_of(rank()), static_cast<std::uint64_t>(peer)));
      sendtypes.push_back(out.back()->type());
      recvtypes.push_back(in.back()->type());
    }
    MPI_OK(MPI_Alltoallw(MPI_BOTTOM, ones.data(), displs.data(), sendtypes.data(), MPI_BOTTOM, ones.data(),
                         displs.data(), recvtypes.data(), comm()));
    for (int peer = 0; peer < ranks(); ++peer) {
      Mixed& block = *in[static_cast<std::size_t>(peer)];
      block.expect(block.stream(mix(key_of(peer), static_cast<std::uint64_t>(rank()))));
      CHECK(block.difference() == "");
    }
  }
}

TEST_CASE("windows and files with several memories at the origin", "[mixed]") {
  for_each_message("origin", [&](const Places& places, const Type& member, int count) {
    Mixed out(places, member, count, Mixed::Base::bottom), in(reversed(places), member, count, Mixed::Base::bottom);
    const Type byte = plain(MPI_BYTE);
    const int bytes = out.bytes();
    out.fill(key_of(rank()));
    const Stream stream = out.stream(key_of(rank()));
    for (const Place place : {Place::host, Place::device}) {
      Buffer memory(place, byte, bytes);
      MPI_Win window = MPI_WIN_NULL;
      std::vector<char> own;
      if (place == Place::host)
        make_host_window(bytes, comm(), own, &window);
      else
        MPI_OK(MPI_Win_create(memory.address(), bytes, 1, MPI_INFO_NULL, comm(), &window));
      in.poison();
      MPI_OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank(), 0, window));
      MPI_OK(MPI_Put(out.address(), count, out.type(), rank(), 0, bytes, byte, window));
      MPI_OK(MPI_Win_unlock(rank(), window));
      MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, rank(), 0, window));
      MPI_OK(MPI_Get(in.address(), count, in.type(), rank(), 0, bytes, byte, window));
      MPI_OK(MPI_Win_unlock(rank(), window));
      in.expect(stream);
      CHECK(in.difference() == "");
      if (place != Place::host) memory.expect(stream);
      CHECK(memory.difference() == "");
      MPI_OK(MPI_Win_free(&window));
    }

    const std::string name = "/tmp/gpudt-mixed-" + std::to_string(seed()) + "-" + std::to_string(rank());
    MPI_File file = MPI_FILE_NULL;
    MPI_OK(MPI_File_open(MPI_COMM_SELF, name.c_str(), MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE,
                         MPI_INFO_NULL, &file));
    in.poison();
    MPI_OK(MPI_File_write_at(file, 0, out.address(), count, out.type(), MPI_STATUS_IGNORE));
    MPI_OK(MPI_File_read_at(file, 0, in.address(), count, in.type(), MPI_STATUS_IGNORE));
    in.expect(stream);
    CHECK(in.difference() == "");
    MPI_OK(MPI_File_close(&file));
  });
}

namespace {

/// Adds doubles of the members of a message, which it finds by the addresses in `places_added`.
std::vector<MPI_Aint> places_added;
void add_members(void* in, void* inout, int* count, MPI_Datatype* type) {
  MPI_Aint lb = 0, extent = 0;
  PMPI_Type_get_extent(*type, &lb, &extent);
  for (int i = 0; i < *count; ++i)
    for (const MPI_Aint place : places_added) {
      const auto at = [&](void* base) {
        return reinterpret_cast<double*>(reinterpret_cast<std::uintptr_t>(base) +
                                         static_cast<std::uintptr_t>(place + i * extent));
      };
      *at(inout) += *at(in);
    }
}

}  // namespace

TEST_CASE("an operator of the program's own on several memories", "[mixed]") {
  if (!leaves_addresses()) return not_possible("there is no range of addresses that is large enough");
  const Type number = plain(MPI_DOUBLE);
  for (const Places& places : {Places{Place::host, Place::device}, Places{Place::device, Place::other_gpu}}) {
    INFO(text_of(places));
    step("reduction, " + text_of(places));
    std::vector<std::unique_ptr<Memory>> memories;
    std::vector<int> ones;
    std::vector<MPI_Datatype> members;
    places_added.clear();
    for (const Place place : places) {
      memories.push_back(std::make_unique<Memory>(place, sizeof(double)));
      const double value = rank() + 1.0;
      memories.back()->write(&value, sizeof value);
      PMPI_Get_address(memories.back()->data(), &places_added.emplace_back());
      ones.push_back(1);
      members.push_back(MPI_DOUBLE);
    }
    MPI_Datatype type = MPI_DATATYPE_NULL;
    PMPI_Type_create_struct(static_cast<int>(ones.size()), ones.data(), places_added.data(), members.data(), &type);
    PMPI_Type_commit(&type);
    MPI_Op add = MPI_OP_NULL;
    PMPI_Op_create(add_members, 1, &add);
    // MPI_Reduce_local has the same displacements in both buffers, so that from MPI_BOTTOM they are the same.
    MPI_OK(MPI_Reduce_local(MPI_BOTTOM, MPI_BOTTOM, 1, type, add));
    for (const auto& memory : memories) {
      double value = 0;
      memory->read(&value, sizeof value);
      CHECK(value == 2 * (rank() + 1.0));
    }
    PMPI_Op_free(&add);
    PMPI_Type_free(&type);
  }
}

TEST_CASE("memories that alternate too often are an error", "[mixed]") {
  if (host_only()) return;
  const Type number = plain(MPI_DOUBLE);
  constexpr int count = 1 << 16;
  Mixed out({Place::host, Place::device}, number, count), few({Place::host, Place::device}, number, 1000);
  int position = 0;
  std::vector<char> wire(static_cast<std::size_t>(out.bytes()), 'x'), untouched(wire);
  MPI_FAILS(MPI_Pack(out.address(), count, out.type(), wire.data(), out.bytes(), &position, comm()), MPI_ERR_TYPE);
  CHECK(position == 0);
  CHECK(wire == untouched);
  MPI_FAILS(MPI_Send(out.address(), count, out.type(), rank(), 0, comm()), MPI_ERR_TYPE);
  few.fill(seed());
  MPI_OK(MPI_Pack(few.address(), 1000, few.type(), wire.data(), out.bytes(), &position, comm()));
  wire.resize(static_cast<std::size_t>(few.bytes()));
  CHECK(wire == few.stream(seed()));
}

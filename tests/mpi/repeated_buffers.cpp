// The same buffers sent again and again, for which both sides remember what was described before
// (transport/peer/descriptors.hpp), while memory and datatypes come and go.
#include <algorithm>
#include <optional>
#include <vector>

#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

/// Numbers that both partners draw alike.
class CommonDice {
 public:
  explicit CommonDice(std::uint64_t seed) : state_(seed) {}
  int below(int most) { return static_cast<int>((state_ = mix(state_, 1)) % static_cast<std::uint64_t>(most)); }

 private:
  std::uint64_t state_;
};

/// A buffer on each side, whose memory and datatype are replaced from time to time: the new ones mostly have the
/// addresses and handles of the old.
struct SentBuffers {
  std::optional<Type> type;
  std::optional<Buffer> out, in;

  void replace_memory(Place from) {
    out.reset();
    in.reset();
    out.emplace(from, *type, 1);
    in.emplace(Place::device, *type, 1);
  }
  void replace_type(int blocks, int length, int gap, Place from) {
    out.reset();
    in.reset();
    type.reset();
    type.emplace(vector(blocks, length, length + gap));
    replace_memory(from);
  }
};

void send_in_turn(int rounds, int pairs_at_once, Place from) {
  constexpr int pairs = 7;
  CommonDice dice(seed());
  SentBuffers all[pairs];
  for (SentBuffers& each : all) each.replace_type(100, 1, 3, from);
  for (int round = 0; round < rounds; ++round) {
    std::vector<MPI_Request> requests;
    const int first = dice.below(pairs);
    for (int i = 0; i < pairs_at_once; ++i) {
      SentBuffers& each = all[(first + i) % pairs];
      const int change = dice.below(10);
      if (change == 0) each.replace_type(1 + dice.below(300), 1 + dice.below(9), dice.below(3), from);
      if (change == 1) each.replace_memory(from);
      each.out->fill(key_of(rank(), round));
      each.in->expect(stream_of(*each.type, 1, key_of(partner(), round)));
      MPI_OK(MPI_Irecv(each.in->address(), 1, *each.type, partner(), i, comm(), &requests.emplace_back()));
      MPI_OK(MPI_Isend(each.out->address(), 1, *each.type, partner(), i, comm(), &requests.emplace_back()));
    }
    MPI_OK(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
    INFO(place_name(from) << ", " << pairs_at_once << " at once, round " << round);
    for (int i = 0; i < pairs_at_once; ++i) CHECK(all[(first + i) % pairs].in->difference() == "");
  }
}

}  // namespace

TEST_CASE("buffers sent again, with other memory and datatypes at the same addresses", "[peer]") {
  if (!all_have_partners() || any_host_only()) return;
  for (const Place from : {Place::device, Place::shareable, Place::stream_ordered})
    for (const int at_once : {1, 3}) send_in_turn(scaled(60), at_once, from);
}

namespace {

/// So many doubles, in blocks of different lengths and with different gaps.
Type irregular(CommonDice& dice, int elements) {
  std::vector<int> lengths, displs;
  for (int left = elements, at = 0; left > 0;) {
    lengths.push_back(std::min(left, 1 + dice.below(9)));
    displs.push_back(at);
    at += lengths.back() + 1 + dice.below(4);
    left -= lengths.back();
  }
  MPI_Datatype made = MPI_DATATYPE_NULL;
  MPI_OK(MPI_Type_indexed(static_cast<int>(lengths.size()), lengths.data(), displs.data(), MPI_DOUBLE, &made));
  MPI_OK(MPI_Type_commit(&made));
  return {made, "irregular"};
}

/// So many doubles: contiguous, in equal blocks, or irregular.
Type some_type(CommonDice& dice, int elements) {
  constexpr int lengths[] = {1, 2, 3, 4, 5, 6, 8};
  const int kind = dice.below(4);
  if (kind == 0) return vector(1, elements, elements);
  if (kind == 1) return irregular(dice, elements);
  const int length = lengths[dice.below(7)];
  return vector(elements / length, length, length + dice.below(3));
}

}  // namespace

TEST_CASE("one buffer sent again, received into other buffers of other datatypes", "[peer]") {
  if (!all_have_partners() || any_host_only()) return;
  constexpr int elements = 720;  // more than a sender copies away when the receiver is late
  CommonDice dice(seed());
  std::optional<Type> sent, type;
  std::optional<Buffer> out, in;
  int count = 0;
  for (int round = 0; round < scaled(200); ++round) {
    const int change = in ? dice.below(8) : 0;
    if (change == 0 && dice.below(3) == 0) {  // new ones mostly have the addresses and handles of the old
      out.reset();
      sent.reset();
    }
    if (change < 3) in.reset();
    if (change < 2) type.reset();
    if (!sent) sent.emplace(some_type(dice, elements));
    if (!out) out.emplace(Place::device, *sent, 1);
    if (!type) type.emplace(some_type(dice, elements));
    if (!in) {
      count = 1 + dice.below(2);
      in.emplace(Place::device, *type, count, static_cast<std::size_t>(dice.below(3)) * sizeof(double));
    }
    out->fill(key_of(rank(), round));
    in->expect(stream_of(*sent, 1, key_of(partner(), round)));
    MPI_Request requests[2];
    MPI_OK(MPI_Irecv(in->address(), count, *type, partner(), 5, comm(), &requests[0]));
    MPI_OK(MPI_Isend(out->address(), 1, *sent, partner(), 5, comm(), &requests[1]));
    MPI_OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
    INFO("round " << round);
    CHECK(in->difference() == "");
  }
}

TEST_CASE("one buffer sent to several processes in turn", "[peer][matching]") {
  if (any_host_only() || ranks() < 2) return;
  const Type type = vector(200, 2, 3);
  Buffer out(Place::device, type, 1);
  for (int round = 0; round < 30; ++round) {
    const int root = round % ranks();
    if (rank() == root) {
      out.fill(key_of(root, round));
      for (int to = 0; to < ranks(); ++to)
        if (to != root) MPI_OK(MPI_Send(out.address(), 1, type, to, 3, comm()));
    } else {
      Buffer in(Place::device, type, 1);
      in.expect(stream_of(type, 1, key_of(root, round)));
      MPI_OK(MPI_Recv(in.address(), 1, type, root, 3, comm(), MPI_STATUS_IGNORE));
      CHECK(in.difference() == "");
    }
  }
}

// Broadcasts, gathers, scatters and exchanges against the same calls on host memory.
#include "tests/mpi/collective_exchange.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <regex>
#include <set>
#include <string_view>
#include <utility>

#include "tests/support/catch.hpp"
#include "tests/support/mpi_quirks.hpp"
#include "tests/support/random_type.hpp"

namespace gpudt::test {
namespace {

std::vector<int> everybody() {
  std::vector<int> list(static_cast<std::size_t>(ranks()));
  std::iota(list.begin(), list.end(), 0);
  return list;
}

}  // namespace

// --- who talks to whom -----------------------------------------------------------------------------------------------

Peers::Peers(MPI_Comm comm, std::string text, std::vector<int> to, std::vector<int> from, bool inter)
    : comm_(comm), text_(std::move(text)), to_(std::move(to)), from_(std::move(from)), inter_(inter) {
  PMPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
}

Peers::Peers(Peers&& other) noexcept
    : comm_(std::exchange(other.comm_, MPI_COMM_NULL)),
      text_(std::move(other.text_)),
      to_(std::move(other.to_)),
      from_(std::move(other.from_)),
      inter_(other.inter_) {}

Peers::~Peers() {
  if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
}

Peers Peers::all() {
  MPI_Comm made = MPI_COMM_NULL;
  MPI_Comm_dup(gpudt::test::comm(), &made);
  return {made, "all", everybody(), everybody()};
}

Peers Peers::reversed() {
  MPI_Comm made = MPI_COMM_NULL;
  MPI_Comm_split(gpudt::test::comm(), 0, -rank(), &made);
  std::vector<int> list = everybody();
  std::reverse(list.begin(), list.end());
  return {made, "all in reverse", list, list};
}

Peers Peers::intercommunicator(int first) {
  const bool in_first = rank() < first;
  MPI_Comm local = MPI_COMM_NULL, made = MPI_COMM_NULL;
  MPI_Comm_split(gpudt::test::comm(), in_first ? 0 : 1, rank(), &local);
  MPI_Intercomm_create(local, 0, gpudt::test::comm(), in_first ? first : 0, 7, &made);
  MPI_Comm_free(&local);
  const std::vector<int> list = everybody();
  const std::vector<int> others = in_first ? std::vector<int>(list.begin() + first, list.end())
                                           : std::vector<int>(list.begin(), list.begin() + first);
  return {made, "intercommunicator of " + std::to_string(first) + " and others", others, others, true};
}

Peers Peers::ring() {
  const int dims[1] = {ranks()};
  return cartesian(1, dims, 1, "ring");
}

Peers Peers::grid() {
  int dims[2] = {0, 0};
  MPI_Dims_create(ranks(), 2, dims);
  return cartesian(2, dims, 0, "grid");
}

Peers Peers::cartesian(int dimensions, const int* dims, int periodic, std::string text) {
  const std::vector<int> periods(static_cast<std::size_t>(dimensions), periodic);
  MPI_Comm made = MPI_COMM_NULL;
  MPI_Cart_create(gpudt::test::comm(), dimensions, dims, periods.data(), 0, &made);
  std::vector<int> list;
  for (int dim = 0; dim < dimensions; ++dim) {
    int before = MPI_PROC_NULL, after = MPI_PROC_NULL;
    MPI_Cart_shift(made, dim, 1, &before, &after);
    for (const int neighbour : {before, after}) list.push_back(neighbour == MPI_PROC_NULL ? nobody : neighbour);
  }
  return {made, std::move(text), list, list};
}

Peers Peers::star() {
  std::vector<int> index, edges, neighbours;
  for (int other = 1; other < ranks(); ++other) edges.push_back(other);
  for (int process = 0; process < ranks(); ++process) {
    if (process > 0) edges.push_back(0);
    index.push_back(static_cast<int>(edges.size()));
  }
  const int begin = rank() == 0 ? 0 : index[static_cast<std::size_t>(rank() - 1)];
  neighbours.assign(edges.begin() + begin, edges.begin() + index[static_cast<std::size_t>(rank())]);
  MPI_Comm made = MPI_COMM_NULL;
  MPI_Graph_create(gpudt::test::comm(), ranks(), index.data(), edges.data(), 0, &made);
  return {made, "star", neighbours, neighbours};
}

Peers Peers::directed() {
  const auto edge = [](int from, int to) { return (from == 0 && to == 0) || (from != to && (from + 2 * to) % 3 != 0); };
  std::vector<int> from, to;
  for (const int other : everybody()) {
    if (edge(other, rank())) from.push_back(other);
    if (edge(rank(), other)) to.push_back(other);
  }
  std::reverse(to.begin(), to.end());
  MPI_Comm made = MPI_COMM_NULL;
  MPI_Dist_graph_create_adjacent(gpudt::test::comm(), static_cast<int>(from.size()), from.data(), MPI_UNWEIGHTED,
                                 static_cast<int>(to.size()), to.data(), MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &made);
  return {made, "directed graph", to, from};
}

bool Peers::near(int process) const {
  return !inter_ || std::find(to_.begin(), to_.end(), process) == to_.end();
}

int Peers::root_argument(int process) const {
  if (inter_ && near(process)) return process == rank() ? MPI_ROOT : MPI_PROC_NULL;
  return static_cast<int>(std::find(to_.begin(), to_.end(), process) - to_.begin());
}

// --- the arguments of a call -----------------------------------------------------------------------------------------

namespace {

/// One side of a call: what MPI is told of its blocks, and where they lie.
struct Side {
  std::vector<Region::Block> blocks;
  std::vector<std::size_t> order{};  ///< of v and w forms: which of the counts each block has
  int count = 0;
  MPI_Datatype type = MPI_DATATYPE_NULL;
  std::vector<int> counts, displs;
  std::vector<MPI_Aint> displs_bytes;
  std::vector<MPI_Datatype> types;
};

MPI_Aint extent_of(MPI_Datatype type) {
  MPI_Aint lb = 0, extent = 0;
  PMPI_Type_get_extent(type, &lb, &extent);
  return extent;
}

/// Places blocks one behind the other, in reverse order on odd processes, with gaps of whole elements.
void place_v(Side& side) {
  const std::size_t blocks = side.counts.size();
  side.displs.resize(blocks);
  int next = 1;
  for (std::size_t n = 0; n < blocks; ++n) {
    const std::size_t i = rank() % 2 == 0 ? n : blocks - 1 - n;
    side.displs[i] = next;
    next += side.counts[i] + static_cast<int>(n % 2);
    side.blocks.push_back({side.displs[i] * extent_of(side.type), side.counts[i], side.type});
    side.order.push_back(i);
  }
}

void place_w(Side& side) {
  const std::size_t blocks = side.counts.size();
  side.displs.resize(blocks);
  MPI_Aint next = 16;
  for (std::size_t n = 0; n < blocks; ++n) {
    const std::size_t i = rank() % 2 == 0 ? blocks - 1 - n : n;
    MPI_Aint low = 0, width = 0;
    PMPI_Type_get_true_extent(side.types[i], &low, &width);
    const MPI_Aint last = std::max(0, side.counts[i] - 1) * extent_of(side.types[i]);
    const MPI_Aint displ = next - low - std::min<MPI_Aint>(0, last);
    side.displs[i] = static_cast<int>(displ);
    next += width + std::abs(last) + (n % 2 == 0 ? 8 : 3);
    side.blocks.push_back({displ, side.counts[i], side.types[i]});
    side.order.push_back(i);
  }
  side.displs_bytes.assign(side.displs.begin(), side.displs.end());
}

int size_of(MPI_Datatype type) {
  int size = 0;
  PMPI_Type_size(type, &size);
  return size;
}

/// The same blocks one behind the other, as bytes.
Side packed(Side side) {
  side.count *= size_of(side.type);
  side.type = MPI_BYTE;
  int next = 0;
  for (std::size_t n = 0; n < side.order.size(); ++n) {
    const std::size_t i = side.order[n];
    side.counts[i] = static_cast<int>(side.blocks[n].count) * size_of(side.blocks[n].type);
    side.displs[i] = next;
    next += side.counts[i];
  }
  side.displs_bytes.assign(side.displs.begin(), side.displs.end());
  side.types.assign(side.types.size(), MPI_BYTE);
  return side;
}

class Builder {
 public:
  explicit Builder(const Exchange& exchange) : e_(exchange), flow_(exchange.operation.flow) {}

  bool is_root() const { return rank() == e_.root; }
  bool gives() const {
    if (flow_ == Flow::broadcast) return false;
    if (flow_ == Flow::gather) return !e_.peers.inter() || !e_.peers.near(e_.root);
    return flow_ != Flow::scatter || is_root();
  }
  bool takes() const {
    if (flow_ == Flow::gather) return is_root();
    const bool served = !e_.peers.inter() || !e_.peers.near(e_.root);
    if (flow_ == Flow::scatter) return served;
    return flow_ != Flow::broadcast || served || is_root();
  }
  bool send_in_place() const {
    return e_.in_place && (flow_ == Flow::gather ? is_root() : flow_ == Flow::allgather || flow_ == Flow::alltoall);
  }
  bool receive_in_place() const { return e_.in_place && flow_ == Flow::scatter && is_root(); }

  Side sending() const {
    const bool one = flow_ == Flow::gather || flow_ == Flow::allgather;
    const auto blocking = one ? Blocking::equal : e_.operation.blocking;
    return side(
        one ? std::vector<int>{rank()} : e_.peers.to(), blocking,
        [&](int to) {
          return Edge{rank(), to};
        },
        &Pair::send);
  }

  Side receiving() const {
    const bool one = flow_ == Flow::scatter || flow_ == Flow::broadcast;
    const auto blocking = one ? Blocking::equal : e_.operation.blocking;
    const bool root_of_bcast = flow_ == Flow::broadcast && is_root();
    return side(
        one ? std::vector<int>{rank()} : e_.peers.from(), blocking,
        [&](int from) {
          return Edge{from, rank()};
        },
        root_of_bcast ? &Pair::send : &Pair::receive);
  }

 private:
  struct Edge {
    int from, to;
  };

  template <class EdgeOf>
  Side side(const std::vector<int>& partners, Blocking blocking, EdgeOf edge_of, Type Pair::*which) const {
    Side made;
    for (const int partner : partners) {
      const Edge edge = edge_of(partner);
      made.counts.push_back(count(edge));
      made.types.push_back(e_.types[blocking == Blocking::w ? index(edge, e_.types.size()) : 0].*which);
    }
    made.type = e_.types[0].*which;
    made.count = made.counts.empty() ? e_.counts[0] : made.counts[0];
    if (blocking == Blocking::equal)
      made.blocks = {{0, std::int64_t(made.count) * static_cast<std::int64_t>(partners.size()), made.type}};
    else if (blocking == Blocking::v)
      place_v(made);
    else
      place_w(made);
    return made;
  }

  /// Both ends agree; the same for both directions, as MPI_IN_PLACE needs it.
  static std::size_t index(const Edge& edge, std::size_t size) {
    const int from = std::max(0, edge.from), to = std::max(0, edge.to);
    return static_cast<std::size_t>(from + to + 3 * from * to) % size;
  }

  int count(const Edge& edge) const {
    if (e_.operation.blocking == Blocking::equal) return e_.counts[0];
    if (flow_ == Flow::gather || flow_ == Flow::allgather) return e_.counts[index({edge.from, 0}, e_.counts.size())];
    if (flow_ == Flow::scatter) return e_.counts[index({0, edge.to}, e_.counts.size())];
    return e_.counts[index(edge, e_.counts.size())];
  }

  const Exchange& e_;
  Flow flow_;
};

constexpr int insignificant_count = 4096;  ///< bytes

Arguments arguments_of(const Exchange& e, const Builder& builder, const Side& out, const Side& in, const void* sendbuf,
                       void* recvbuf) {
  Arguments a;
  a.comm = e.peers.comm();
  a.root = e.peers.root_argument(e.root);
  a.sendbuf = builder.send_in_place() ? MPI_IN_PLACE : sendbuf;
  // What means nothing on this process asks for more than its buffer has room for.
  a.sendcount = builder.gives() ? out.count : insignificant_count;
  a.sendtype = builder.gives() ? out.type : MPI_BYTE;
  a.sendcounts = out.counts;
  a.sdispls = out.displs;
  a.sdispls_bytes = out.displs_bytes;
  a.sendtypes = out.types;
  a.recvbuf = builder.receive_in_place() ? MPI_IN_PLACE : recvbuf;
  a.recvcount = builder.takes() ? in.count : insignificant_count;
  a.recvtype = builder.takes() ? in.type : MPI_BYTE;
  a.recvcounts = in.counts;
  a.rdispls = in.displs;
  a.rdispls_bytes = in.displs_bytes;
  a.recvtypes = in.types;
  return a;
}

/// By their first letters.
std::string places_text(const std::vector<Place>& places) {
  std::string text;
  for (const Place place : places) text += place_name(place)[0];
  return text;
}

}  // namespace

std::string Exchange::text() const {
  std::string list;
  for (const int count : counts) list += " " + std::to_string(count);
  return std::string(operation.name) + " " + form_name(form) + ", " + peers.text() + ", root " + std::to_string(root) +
         (in_place ? ", in place" : "") + ", counts" + list + ", places " + places_text(send_places) + " to " +
         places_text(receive_places) + ", " + types[0].send.text() + " to " + types[0].receive.text();
}

Prepared prepare(const Exchange& e) {
  const Builder builder(e);
  const Side out = builder.sending(), in = builder.receiving();
  const auto me = static_cast<std::size_t>(rank());
  using Blocks = std::vector<Region::Block>;
  Region send(e.send_places[me], builder.gives() ? out.blocks : Blocks(), 8 * (me % 3));
  Region receive(e.receive_places[me], builder.takes() ? in.blocks : Blocks(), 4 * (me % 2));
  Arguments arguments = arguments_of(e, builder, out, in, send.address(), receive.address());
  Arguments reference = arguments_of(e, builder, out, in, send.reference(), receive.reference());
  return {std::move(send), std::move(receive), std::move(arguments), std::move(reference)};
}

namespace {

/// Makes the call with packed data, and accepts what comes.
int refer_packed(const Exchange& e, Prepared& call) {
  const Builder builder(e);
  const Stream out = call.send.packed();
  Stream in = call.receive.packed();
  const Arguments arguments =
      arguments_of(e, builder, packed(builder.sending()), packed(builder.receiving()), out.data(), in.data());
  const int code = e.operation.call(arguments, Form::reference, nullptr);
  call.receive.accept(in);
  return code;
}

}  // namespace

void Prepared::fill(int round) {
  const std::uint64_t key = mix(seed(), static_cast<std::uint64_t>(rank() * 4 + round));
  send.fill(key);
  receive.fill(key + 2);
}

void exchange(const Exchange& e) {
  const std::string text = e.text();
  INFO(text);
  step(text);
  Prepared call = prepare(e);
  const auto refer = [&] {
    const int code = e.operation.call(call.reference, Form::reference, nullptr);
    return code != MPI_SUCCESS || moves_long_blocks ? code : refer_packed(e, call);
  };
  perform(e.operation, e.form, call.arguments, refer, call.send, call.receive, [&](int round) { call.fill(round); });
}

namespace {

Type duplicate(const RandomType& type) {
  MPI_Datatype made = MPI_DATATYPE_NULL;
  PMPI_Type_dup(type.handle(), &made);
  return {made, type.description()};
}

}  // namespace

namespace {

/// MPICH 4.0 receives structs of elements of several sizes wrongly if they were sent packed, as from device memory, and
/// its MPI_Unpack, by which a Region knows its data, leaves the padding of long doubles alone. `text` describes the
/// type.
bool is_possible(const std::string& text) {
  if (!mpich) return true;
  const std::regex basic("[A-Z0-9_]*[A-Z][A-Z0-9_]+");
  std::set<std::string> names;
  for (std::sregex_iterator at(text.begin(), text.end(), basic), end; at != end; ++at) names.insert(at->str());
  const auto has = [&](const char* part) { return names.begin()->find(part) != std::string::npos; };
  return names.size() <= 1 && (names.empty() || (!has("LONG_DOUBLE") && !has("_INT")));
}

Pair any_types(std::mt19937_64& random) {
  if (random() % 3 != 0) return random_pair(random);
  RandomTypeLimits limits;
  limits.unpack_safe = true;
  while (true) {
    const RandomType type(random, limits);
    if (type.size() == 0) continue;
    Type send = duplicate(type);
    return {std::move(send), duplicate(type)};
  }
}

}  // namespace

/// Types of equal signature: different ones, or any tree twice. A tree has some bytes: Open MPI 4.1 crashes in
/// persistent gathers of types that have none.
Pair random_types(std::mt19937_64& random) {
  while (true) {
    Pair types = any_types(random);
    if (is_possible(types.send.text()) && is_possible(types.receive.text())) return types;
  }
}

std::vector<Place> mixed(std::mt19937_64& random) {
  // As many of the two basic kinds as of all others.
  constexpr std::size_t choices = std::size(all_places) + 4;
  std::vector<Place> list;
  for (int i = 0; i < ranks(); ++i) {
    const std::size_t choice = random() % choices;
    list.push_back(choice < std::size(all_places) ? all_places[choice] : basic_places[choice % 2]);
  }
  return list;
}

namespace {

std::vector<Place> same(Place place) {
  return std::vector<Place>(static_cast<std::size_t>(ranks()), place);
}

/// MPI_IN_PLACE has a meaning. (MPICH 4.0 takes the size of another rank's type in MPI_Ialltoallw.)
bool may_be_in_place(const Operation& operation, Form form, const Peers& peers) {
  if (mpich && form != Form::blocking && operation.name == std::string_view("Alltoallw")) return false;
  return !peers.inter() && !operation.neighbours && operation.flow != Flow::broadcast;
}

}  // namespace

void exchange_all(const Operation& operation, const Peers& peers, std::mt19937_64& random, int random_cases) {
  int number = 0;
  for (const Form form : forms_of(operation, peers.inter())) {
    std::vector<std::pair<std::vector<Place>, std::vector<Place>>> places = {
        {same(Place::device), same(Place::device)},
        {same(Place::device), same(Place::host)},
        {same(Place::host), same(Place::device)},
        {same(Place::device), same(Place::other_gpu)},
    };
    for (int i = 0; i < random_cases; ++i) {
      auto send = mixed(random);
      places.emplace_back(std::move(send), mixed(random));
    }
    for (std::size_t i = 0; i < places.size(); ++i) {
      const auto& [send_places, receive_places] = places[i];
      std::vector<Pair> types;
      for (int i = 0; i < 3; ++i) types.push_back(random_types(random));
      // One call in four: so every form is once in place with device memory alone.
      const bool in_place = i % 4 == 0 && may_be_in_place(operation, form, peers);
      // Open MPI 4.1 damages the data of MPI_Ialltoallv in place where some counts are 0.
      const bool all_some = in_place && operation.flow == Flow::alltoall;
      const auto count = [&] { return static_cast<int>(random() % 4) + (all_some ? 1 : 0); };
      const std::vector<int> counts = {number == 2 ? 0 : 1 + count(), count(), count()};
      exchange({operation, form, peers, types, counts, number % ranks(), in_place, send_places, receive_places});
      ++number;
    }
  }
}

}  // namespace gpudt::test

using namespace gpudt::test;

namespace {

bool moves_data(const Operation& operation) {
  return operation.flow <= Flow::alltoall;
}

void run_all(const Peers& peers, bool neighbours, int random_cases) {
  std::mt19937_64 random = random_numbers(peers.text());
  for (const Operation& operation : operations)
    if (moves_data(operation) && operation.neighbours == neighbours)
      exchange_all(operation, peers, random, scaled(random_cases));
}

}  // namespace

TEST_CASE("exchanges among all processes", "[collective]") {
  run_all(Peers::all(), false, 3);
}

TEST_CASE("exchanges with ranks in another order", "[collective]") {
  run_all(Peers::reversed(), false, 1);
}

TEST_CASE("exchanges between groups", "[collective][intercomm]") {
  for (int first = 1; first < ranks(); ++first) run_all(Peers::intercommunicator(first), false, 1);
}

TEST_CASE("exchanges with neighbours on a ring", "[collective][neighbour]") {
  if (ranks() > 2) run_all(Peers::ring(), true, 2);
}

TEST_CASE("exchanges with neighbours on a grid with borders", "[collective][neighbour]") {
  run_all(Peers::grid(), true, 2);
}

TEST_CASE("exchanges with neighbours on a graph", "[collective][neighbour]") {
  run_all(Peers::star(), true, 2);
}

TEST_CASE("exchanges with neighbours on a directed graph", "[collective][neighbour]") {
  run_all(Peers::directed(), true, 2);
}

TEST_CASE("exchanges of large messages", "[collective]") {
  const Peers peers = Peers::all();
  std::mt19937_64 random = random_numbers("large");
  int layout = 0;
  for (const Operation& operation : operations) {
    if (!moves_data(operation) || operation.neighbours) continue;
    for (const Form form : forms_of(operation)) {
      std::vector<Pair> types;
      types.push_back({named_layout(layout, 150000), named_layout(layout, 150000)});
      layout = (layout + 1) % layout_count;
      exchange({operation, form, peers, types, {1, 2}, layout % ranks(), false, same(Place::device), mixed(random)});
    }
  }
}

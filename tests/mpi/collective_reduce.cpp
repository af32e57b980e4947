// Reductions against the same calls on host memory: predefined and user-defined operators, on types with and without
// gaps.
#include <complex>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string_view>
#include <utility>

#include "tests/mpi/collective_exchange.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/mpi_quirks.hpp"

using namespace gpudt::test;

namespace {

// --- what is reduced -------------------------------------------------------------------------------------------------

template <class T>
void append(Stream& packed, T value) {
  char bytes[sizeof value] = {};
  std::memcpy(bytes, &value, sizeof value);
  packed.insert(packed.end(), bytes, bytes + sizeof bytes);
}

/// A datatype that an operator takes, and how one element of a small value looks when packed.
struct DeviceBuffer {
  MPI_Datatype type;
  void (*put)(Stream& packed, int value);
};

template <class T>
void put_number(Stream& packed, int value) {
  append(packed, static_cast<T>(value));
}

/// The padding of a long double is 0.
void put_long_double(Stream& packed, int value) {
  const std::size_t begin = packed.size();
  append(packed, static_cast<long double>(value));
  constexpr std::size_t used = 10;
  std::memset(packed.data() + begin + used, 0, sizeof(long double) - used);
}

/// Close to the real axis: no part of a product of some is 0, whose sign would depend on the order of the factors.
/// Smaller where there are many factors: float has the product of eight exactly.
template <class T>
void put_complex(Stream& packed, int value) {
  const int least = ranks() > 4 ? 2 : 8;
  append(packed, std::complex<T>(static_cast<T>(least + value), static_cast<T>(1 + value % 2)));
}

template <class T>
void put_pair(Stream& packed, int value) {
  append(packed, static_cast<T>(value / 2));
  append(packed, value + rank());
}

struct Family {
  const char* name;
  std::vector<DeviceBuffer> operands;
  std::vector<MPI_Op> operators;
};

/// The operators of MPI-4.1 section 6.9.2 with the C types that each is for.
std::vector<Family> families() {
  return {
      {"integer",
       {{MPI_INT, put_number<int>},
        {MPI_LONG, put_number<long>},
        {MPI_SHORT, put_number<short>},
        {MPI_UNSIGNED_SHORT, put_number<unsigned short>},
        {MPI_UNSIGNED, put_number<unsigned>},
        {MPI_UNSIGNED_LONG, put_number<unsigned long>},
        {MPI_LONG_LONG, put_number<long long>},
        {MPI_UNSIGNED_LONG_LONG, put_number<unsigned long long>},
        {MPI_SIGNED_CHAR, put_number<signed char>},
        {MPI_UNSIGNED_CHAR, put_number<unsigned char>},
        {MPI_INT8_T, put_number<std::int8_t>},
        {MPI_INT16_T, put_number<std::int16_t>},
        {MPI_INT32_T, put_number<std::int32_t>},
        {MPI_INT64_T, put_number<std::int64_t>},
        {MPI_UINT8_T, put_number<std::uint8_t>},
        {MPI_UINT16_T, put_number<std::uint16_t>},
        {MPI_UINT32_T, put_number<std::uint32_t>},
        {MPI_UINT64_T, put_number<std::uint64_t>},
        {MPI_AINT, put_number<MPI_Aint>},
        {MPI_OFFSET, put_number<MPI_Offset>},
        {MPI_COUNT, put_number<MPI_Count>}},
       {MPI_MAX, MPI_MIN, MPI_SUM, MPI_PROD, MPI_LAND, MPI_LOR, MPI_LXOR, MPI_BAND, MPI_BOR, MPI_BXOR}},
      {"floating point",
       {{MPI_FLOAT, put_number<float>}, {MPI_DOUBLE, put_number<double>}, {MPI_LONG_DOUBLE, put_long_double}},
       {MPI_MAX, MPI_MIN, MPI_SUM, MPI_PROD}},
      {"complex",
       {{MPI_C_FLOAT_COMPLEX, put_complex<float>}, {MPI_C_DOUBLE_COMPLEX, put_complex<double>}},
       {MPI_SUM, MPI_PROD}},
      {"logical", {{MPI_C_BOOL, put_number<bool>}}, {MPI_LAND, MPI_LOR, MPI_LXOR}},
      {"byte", {{MPI_BYTE, put_number<unsigned char>}}, {MPI_BAND, MPI_BOR, MPI_BXOR}},
      {"pair",
       {{MPI_FLOAT_INT, put_pair<float>},
        {MPI_DOUBLE_INT, put_pair<double>},
        {MPI_LONG_INT, put_pair<long>},
        {MPI_2INT, put_pair<int>},
        {MPI_SHORT_INT, put_pair<short>},
        {MPI_LONG_DOUBLE_INT,
         [](Stream& packed, int value) {
           put_long_double(packed, value / 2);
           append(packed, value + rank());
         }}},
       {MPI_MINLOC, MPI_MAXLOC}},
  };
}

// --- operators of the program's own ----------------------------------------------------------------------------------

bool other_type_given = false;  ///< an operator has been given something else than the program's datatype
bool misaligned_given = false;  ///< an operator has been given operands less aligned than the program's buffers

/// The operands of an operator are of the program's type, and a member of type T at `place` is aligned.
template <class T>
void check_operands(const void* in, const void* inout, MPI_Datatype type, MPI_Aint extent, MPI_Aint place) {
  MPI_Aint lb = 0, found = 0;
  PMPI_Type_get_extent(type, &lb, &found);
  const auto aligned = [place](const void* address) {
    return (reinterpret_cast<std::uintptr_t>(address) + static_cast<std::uintptr_t>(place)) % alignof(T) == 0;
  };
  if (found != extent) other_type_given = true;
  if (!aligned(in) || !aligned(inout)) misaligned_given = true;
}

constexpr MPI_Aint matrix_extent = 40, matrix_step = 8;

/// Products of 2 x 2 matrices modulo a prime: associative, not commutative.
void multiply(void* in, void* inout, int* count, MPI_Datatype* type) {
  constexpr std::int64_t prime = 10007;
  check_operands<std::int32_t>(in, inout, *type, matrix_extent, 0);
  for (int n = 0; n < *count; ++n) {
    std::int64_t a[4], b[4];
    const auto place = [n](void* base, int i) {
      return static_cast<char*>(base) + n * matrix_extent + i * matrix_step;
    };
    for (int i = 0; i < 4; ++i) {
      std::int32_t element = 0;
      std::memcpy(&element, place(in, i), sizeof element);
      a[i] = element;
      std::memcpy(&element, place(inout, i), sizeof element);
      b[i] = element;
    }
    const std::int64_t product[4] = {a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3], a[2] * b[0] + a[3] * b[2],
                                     a[2] * b[1] + a[3] * b[3]};
    for (int i = 0; i < 4; ++i) {
      const auto element = static_cast<std::int32_t>(product[i] % prime);
      std::memcpy(place(inout, i), &element, sizeof element);
    }
  }
}

constexpr MPI_Aint record_extent = 48, record_double = 16, record_short = 6;

/// Sums of records of a short and a double, whose first byte lies beyond the element's address.
/// Adds a T at `place` in one record to that in another, aligned or not: Open MPI misaligns buffers of its own.
template <class T>
void add_member(char* to, const char* from, MPI_Aint place) {
  T sum{}, other{};
  std::memcpy(&sum, to + place, sizeof sum);
  std::memcpy(&other, from + place, sizeof other);
  sum = static_cast<T>(sum + other);
  std::memcpy(to + place, &sum, sizeof sum);
}

void add_records(void* in, void* inout, int* count, MPI_Datatype* type) {
  check_operands<double>(in, inout, *type, record_extent, record_double);
  for (int n = 0; n < *count; ++n) {
    const auto* const from = static_cast<const char*>(in) + n * record_extent;
    auto* const to = static_cast<char*>(inout) + n * record_extent;
    add_member<double>(to, from, record_double);
    add_member<short>(to, from, record_short);
  }
}

/// Sums of an int and a double that follow one another, but do not begin where the element does.
constexpr MPI_Aint tight_extent = 16, tight_int = 4, tight_double = 8;

void add_tight(void* in, void* inout, int* count, MPI_Datatype* type) {
  check_operands<double>(in, inout, *type, tight_extent, tight_double);
  for (int n = 0; n < *count; ++n) {
    const auto* const from = static_cast<const char*>(in) + n * tight_extent;
    auto* const to = static_cast<char*>(inout) + n * tight_extent;
    add_member<double>(to, from, tight_double);
    add_member<int>(to, from, tight_int);
  }
}

Type tight_type() {
  const int lengths[] = {1, 1};
  const MPI_Aint places[] = {tight_int, tight_double};
  const MPI_Datatype types[] = {MPI_INT, MPI_DOUBLE};
  MPI_Datatype record = MPI_DATATYPE_NULL, made = MPI_DATATYPE_NULL;
  PMPI_Type_create_struct(2, lengths, places, types, &record);
  PMPI_Type_create_resized(record, 0, tight_extent, &made);
  PMPI_Type_free(&record);
  return {made, "int and double"};
}

void put_tight(Stream& packed, int value) {
  append(packed, value);
  append(packed, value * 0.25);
}

Type matrix_type() {
  MPI_Datatype vector = MPI_DATATYPE_NULL, made = MPI_DATATYPE_NULL;
  PMPI_Type_create_hvector(4, 1, matrix_step, MPI_INT32_T, &vector);
  PMPI_Type_create_resized(vector, 0, matrix_extent, &made);
  PMPI_Type_free(&vector);
  return {made, "matrix with gaps"};
}

Type record_type() {
  const int lengths[] = {1, 1};
  const MPI_Aint places[] = {record_double, record_short};
  const MPI_Datatype types[] = {MPI_DOUBLE, MPI_SHORT};
  MPI_Datatype record = MPI_DATATYPE_NULL, made = MPI_DATATYPE_NULL;
  PMPI_Type_create_struct(2, lengths, places, types, &record);
  PMPI_Type_create_resized(record, record_short, record_extent, &made);
  PMPI_Type_free(&record);
  return {made, "record with gaps"};
}

void put_matrix(Stream& packed, int value) {
  for (const int element : {value + 1, value, 2 * value + 3, 7 - value}) append(packed, std::int32_t(element));
}

void put_record(Stream& packed, int value) {
  append(packed, value * 0.5);
  append(packed, static_cast<short>(value));
}

/// An operator, predefined or not, with a type for it.
class Reducer {
 public:
  Reducer(Type type, void (*put)(Stream&, int), MPI_Op op) : type_(std::move(type)), put_(put), op_(op), own_(false) {}
  Reducer(Type type, void (*put)(Stream&, int), MPI_User_function* function, bool commutative)
      : type_(std::move(type)), put_(put), own_(true) {
    MPI_Op_create(function, commutative ? 1 : 0, &op_);
  }
  Reducer(Reducer&& other) noexcept
      : type_(std::move(other.type_)), put_(other.put_), op_(other.op_), own_(std::exchange(other.own_, false)) {}
  Reducer& operator=(Reducer&&) = delete;
  ~Reducer() {
    if (own_) MPI_Op_free(&op_);
  }

  const Type& type() const { return type_; }
  MPI_Op op() const { return op_; }
  /// `elements` elements that depend on `key`.
  Stream data(int elements, std::uint64_t key) const {
    Stream packed;
    for (int i = 0; i < elements; ++i) put_(packed, static_cast<int>(mix(key, static_cast<std::uint64_t>(i)) % 4));
    return packed;
  }

 private:
  Type type_;
  void (*put_)(Stream&, int);
  MPI_Op op_ = MPI_OP_NULL;
  bool own_;
};

std::vector<Reducer> reducers() {
  std::vector<Reducer> list;
  list.emplace_back(plain(MPI_INT), put_number<int>, MPI_SUM);
  list.emplace_back(plain(MPI_DOUBLE_INT), put_pair<double>, MPI_MAXLOC);
  list.emplace_back(matrix_type(), put_matrix, multiply, false);
  list.emplace_back(record_type(), put_record, add_records, true);
  list.emplace_back(tight_type(), put_tight, add_tight, true);
  return list;
}

// --- calls -----------------------------------------------------------------------------------------------------------

struct Reduction {
  const Operation& operation;
  Form form;
  const Peers& peers;
  const Reducer& reducer;
  int count;  ///< of Reduce and its like; of all processes together where the result is scattered
  int root;
  bool in_place;
  Place send_place, receive_place;

  std::string text() const {
    return std::string(operation.name) + " " + form_name(form) + ", " + peers.text() + ", " + std::to_string(count) +
           " " + reducer.type().text() + ", root " + std::to_string(root) + (in_place ? ", in place, " : ", ") +
           place_name(send_place) + " to " + place_name(receive_place);
  }
};

/// Elements of the result on each process, some without.
std::vector<int> shares(const Reduction& r) {
  int size = 0;
  PMPI_Comm_size(r.peers.comm(), &size);
  std::vector<int> list(static_cast<std::size_t>(size), r.count / size);
  if (r.operation.blocking == Blocking::v && size > 1) list.back() += std::exchange(list.front(), 0);
  list.back() += r.count - std::accumulate(list.begin(), list.end(), 0);
  return list;
}

/// What this process' part in a reduction is.
struct Part {
  bool gives = true, takes = true, in_place = false;
  int given = 0, taken = 0;  ///< elements
};

Part part_in(const Reduction& r) {
  int me = 0;
  PMPI_Comm_rank(r.peers.comm(), &me);
  Part part;
  part.in_place = r.in_place;
  part.given = part.taken = r.count;
  if (r.operation.flow == Flow::reduce) {
    part.takes = rank() == r.root;
    part.gives = !r.peers.inter() || !r.peers.near(r.root);
    part.in_place = r.in_place && part.takes;
  }
  if (r.operation.flow == Flow::reduce_scatter) part.taken = shares(r)[static_cast<std::size_t>(me)];
  const bool first_of_exscan = std::string(r.operation.name) == "Exscan" && me == 0;
  if (first_of_exscan && !r.in_place) part.takes = false;
  return part;
}

void reduce(const Reduction& r) {
  MPI_Aint first_byte = 0, extent = 0;
  PMPI_Type_get_true_extent(r.reducer.type(), &first_byte, &extent);
  if (!reduces_any_type && r.operation.flow == Flow::reduce && first_byte != 0) return;
  const std::string text = r.text();
  INFO(text);
  step(text);
  const Part part = part_in(r);
  using Blocks = std::vector<Region::Block>;
  // In place the result is shorter than the input; MPI does not say what becomes of the rest.
  const auto blocks = [&](bool any, int elements, int rest = 0) {
    const MPI_Datatype type = r.reducer.type();
    return any ? Blocks{{0, elements, type}, {elements * r.reducer.type().extent(), rest, type, true}} : Blocks();
  };
  // A buffer that means nothing on this process has no room for a message.
  const bool sends = part.gives && !part.in_place;
  const bool aligned = r.count % 24 == 0;
  Region send(r.send_place, blocks(sends, part.given), aligned ? 0 : 8);
  Region receive(r.receive_place, blocks(part.takes, part.taken, part.in_place ? part.given - part.taken : 0),
                 aligned ? 32 : 24);

  Arguments arguments;
  arguments.comm = r.peers.comm();
  arguments.root = r.peers.root_argument(r.root);
  arguments.op = r.reducer.op();
  arguments.recvtype = r.reducer.type();
  arguments.recvcounts = shares(r);
  arguments.recvcount = r.operation.flow == Flow::reduce_scatter ? arguments.recvcounts[0] : r.count;
  arguments.sendbuf = part.in_place ? MPI_IN_PLACE : send.address();
  arguments.recvbuf = receive.address();
  Arguments reference = arguments;
  if (!part.in_place) reference.sendbuf = send.reference();
  reference.recvbuf = receive.reference();

  const auto refer = [&] { return r.operation.call(reference, Form::reference, nullptr); };
  perform(r.operation, r.form, arguments, refer, send, receive, [&](int round) {
    const std::uint64_t key = mix(seed(), static_cast<std::uint64_t>(rank() * 2 + round));
    send.fill(key);
    receive.fill(key + 1);
    if (sends) send.put(r.reducer.data(part.given, key));
    if (part.takes && part.in_place) receive.put(r.reducer.data(part.given, key));
  });
}

constexpr std::pair<Place, Place> mixes[] = {{Place::device, Place::device}, {Place::device, Place::host},
                                             {Place::host, Place::device},   {Place::managed, Place::stream_ordered},
                                             {Place::pinned, Place::device}, {Place::device, Place::registered},
                                             {Place::mapped, Place::device}, {Place::device, Place::other_gpu}};

bool is_reduction(const Operation& operation) {
  return operation.flow > Flow::alltoall;
}

/// MPICH 4.0 writes beyond its own memory where types have gaps.
bool is_possible(const Operation& operation, const Reducer& reducer) {
  return !mpich || operation.name != std::string_view("Reduce_scatter_block") ||
         reducer.type().size() == reducer.type().extent();
}

/// A multiple of the numbers of processes on both sides, among which a result may be scattered.
int multiple_of_groups(const Peers& peers) {
  const int others = static_cast<int>(peers.to().size());
  return std::lcm(12, std::lcm(others, peers.inter() ? ranks() - others : ranks()));
}

void reduce_all(const Peers& peers) {
  other_type_given = misaligned_given = false;
  int number = 0;
  const int multiple = multiple_of_groups(peers);
  for (const Operation& operation : operations) {
    if (!is_reduction(operation) || (peers.inter() && operation.flow == Flow::scan)) continue;
    for (const Form form : forms_of(operation, peers.inter()))
      for (const Reducer& reducer : reducers())
        for (const int count : {0, 1, multiple, 10 * multiple}) {
          if (count == 1 && operation.flow == Flow::reduce_scatter) continue;
          if (!is_possible(operation, reducer)) continue;
          const bool in_place = !peers.inter() && number % 3 == 1;
          // Some processes have their data elsewhere.
          const auto [send, receive] = mixes[static_cast<std::size_t>(number + rank() / 2) % std::size(mixes)];
          reduce({operation, form, peers, reducer, count, number % ranks(), in_place, send, receive});
          ++number;
        }
  }
  CHECK(!other_type_given);
}

}  // namespace

TEST_CASE("reductions among all processes", "[collective][reduce]") {
  reduce_all(Peers::all());
}

TEST_CASE("reductions with ranks in another order", "[collective][reduce]") {
  reduce_all(Peers::reversed());
}

TEST_CASE("reductions between groups", "[collective][reduce][intercomm]") {
  for (int first = 1; first < ranks(); ++first) reduce_all(Peers::intercommunicator(first));
}

TEST_CASE("every predefined operator on every type it is for", "[collective][reduce]") {
  const Peers peers = Peers::all();
  int number = 0;
  for (const Family& family : families())
    for (const DeviceBuffer& operand : family.operands)
      for (const MPI_Op op : family.operators) {
        INFO(family.name);
        const Reducer reducer(plain(operand.type), operand.put, op);
        const auto [send, receive] = mixes[static_cast<std::size_t>(number) % std::size(mixes)];
        const Form form = forms[static_cast<std::size_t>(number) % forms.size()];
        reduce({operation("Allreduce"), form, peers, reducer, 37, 0, number % 4 == 3, send, receive});
        ++number;
      }
}

TEST_CASE("every predefined operator on every type in device memory", "[collective][reduce]") {
  const Peers peers = Peers::all();
  constexpr const char* names[] = {"Allreduce", "Reduce", "Scan", "Exscan", "Reduce_scatter", "Reduce_scatter_block"};
  int number = 0;
  for (const Family& family : families())
    for (const DeviceBuffer& operand : family.operands)
      for (const MPI_Op op : family.operators) {
        INFO(family.name);
        const Reducer reducer(plain(operand.type), operand.put, op);
        const Operation& called = operation(names[static_cast<std::size_t>(number) % std::size(names)]);
        const int count = multiple_of_groups(peers) * (1 + number % 60);
        const bool in_place = number % 4 == 3 && !(mpich && called.flow == Flow::reduce);  // MPICH 4.0 may crash
        if (is_possible(called, reducer))
          reduce({called, Form::blocking, peers, reducer, count, number % ranks(), in_place, Place::device,
                  Place::device});
        ++number;
      }
}

TEST_CASE("Reduce_local", "[collective][reduce]") {
  other_type_given = misaligned_given = false;
  for (const Reducer& reducer : reducers())
    for (const auto& [in_place, inout_place] : mixes)
      for (const int count : {0, 1, 50, 1001}) {
        const std::string text = reducer.type().text() + ", " + std::to_string(count) + ", " + place_name(in_place) +
                                 " to " + place_name(inout_place);
        INFO(text);
        step(text);
        Region in(in_place, {{0, count, reducer.type()}}, 8), inout(inout_place, {{0, count, reducer.type()}}, 16);
        in.fill(seed());
        inout.fill(seed() + 1);
        in.put(reducer.data(count, seed()));
        inout.put(reducer.data(count, seed() + 1));
        MPI_OK(PMPI_Reduce_local(in.reference(), inout.reference(), count, reducer.type(), reducer.op()));
        MPI_OK(MPI_Reduce_local(in.address(), inout.address(), count, reducer.type(), reducer.op()));
        CHECK(in.difference() == "");
        CHECK(inout.difference() == "");
      }
  CHECK(!other_type_given);
  CHECK(!misaligned_given);
}

TEST_CASE("reductions of large messages", "[collective][reduce]") {
  const Peers peers = Peers::all();
  for (const Operation& operation : operations)
    if (is_reduction(operation))
      for (const Reducer& reducer : reducers())
        if (is_possible(operation, reducer))
          reduce({operation, Form::blocking, peers, reducer, 12000, 0, false, Place::device, Place::device});
}

// MPI's calls in kernels: random datatypes and counts on both sides, against MPI_Pack and MPI_Unpack, in windows of all
// kinds; all operators on all elements; and what is refused.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <string>

#include "initiated/programs/check_calls_kernels.hpp"
#include "initiated/programs/check_parts.hpp"
#include "pingpong/common/pattern.hpp"
#include "pingpong/common/program.hpp"
#include "pingpong/kinds_memory.hpp"
#include "tests/support/owned_type.hpp"
#include "tests/support/random_type.hpp"

namespace gpudt::initiated::programs {
namespace {

using test::OwnedType;
using test::RandomType;

// --- windows --------------------------------------------------------------------------------------------------------

enum class Kind { allocated, created, mapped, dynamic };
constexpr Kind all_kinds[] = {Kind::allocated, Kind::created, Kind::mapped, Kind::dynamic};
const char* name_of(Kind kind) {
  constexpr const char* names[] = {"World::allocate", "MPI_Win_create", "of cuMemCreate", "dynamic"};
  return names[static_cast<int>(kind)];
}

/// A window of one kind, and in each process an area of it of which GPU 1's is the target.
class CallsWindow {
 public:
  CallsWindow(Session& session, Kind kind) : session_(session), kind_(kind) {
    if (kind == Kind::allocated) allocate();
    if (kind == Kind::created) create();
    if (kind == Kind::mapped) create_mapped();
    if (kind == Kind::dynamic) create_dynamic();
  }
  ~CallsWindow() {
    session_.world().free(window_);
    if (win_ != MPI_WIN_NULL) MPI_Win_free(&win_);
  }
  CallsWindow(const CallsWindow&) = delete;
  CallsWindow& operator=(const CallsWindow&) = delete;

  const Window& window() const { return window_; }
  char* area() const { return area_; }
  int unit() const { return unit_; }
  /// Of the place `lead` bytes behind process 1's area; `lead` is a multiple of the unit.
  std::int64_t displacement(std::int64_t lead) const { return (targets_begin_ + lead) / unit_; }
  bool is_allocated() const { return kind_ == Kind::allocated; }

 private:
  void allocate() {
    window_ = session_.world().allocate(2 * window_bytes);
    area_ = window_.base;
  }
  void create() {
    memory_.emplace_back(static_cast<std::size_t>(2 * window_bytes + 4096));
    unit_ = 8;
    area_ = reinterpret_cast<char*>(memory_.front().data()) + 256 * session_.process();
    MPI_Win_create(area_, 2 * window_bytes, unit_, MPI_INFO_NULL, MPI_COMM_WORLD, &win_);
    window_ = session_.world().attach(win_);
  }
  /// The area begins shortly before the second of two pieces.
  void create_mapped() {
    constexpr std::int64_t piece = 3 * window_bytes, before = 1 << 16;  // on GPUs with pages of 2 MiB
    mapped_ = bench::make_kind_buffer("exportable", 4 * window_bytes, current_device());
    unit_ = 4;
    auto* const begin = static_cast<char*>(mapped_->address());
    area_ = begin + piece - before;
    targets_begin_ = piece - before;
    MPI_Win_create(begin, 4 * window_bytes, unit_, MPI_INFO_NULL, MPI_COMM_WORLD, &win_);
    window_ = session_.world().attach(win_);
  }
  /// Three regions; the area is in the last one of device memory.
  void create_dynamic() {
    memory_.emplace_back(static_cast<std::size_t>(3 * window_bytes));
    auto* const begin = reinterpret_cast<char*>(memory_.front().data());
    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &win_);
    MPI_Win_attach(win_, begin + 256, window_bytes - 256);
    MPI_Win_attach(win_, begin + 2 * window_bytes, window_bytes);
    MPI_Win_attach(win_, host_.data(), static_cast<MPI_Aint>(host_.size()));
    window_ = session_.world().attach(win_);
    area_ = begin + 2 * window_bytes + 4096 * (session_.process() + 1);
    MPI_Aint address = 0;
    MPI_Get_address(area_, &address);
    MPI_Bcast(&address, 1, MPI_AINT, session_.processes() > 1 ? 1 : 0, MPI_COMM_WORLD);
    targets_begin_ = address;
  }
  static int current_device() {
    int device = 0;
    initiated::check(cudaGetDevice(&device), "cudaGetDevice");
    return device;
  }

  Session& session_;
  Kind kind_;
  std::vector<DeviceArray<std::byte>> memory_;
  std::unique_ptr<bench::KindBuffer> mapped_;
  std::vector<std::byte> host_ = std::vector<std::byte>(4096);
  MPI_Win win_ = MPI_WIN_NULL;
  Window window_;
  char* area_ = nullptr;
  int unit_ = 1;
  std::int64_t targets_begin_ = 0;
};

// --- put and get ----------------------------------------------------------------------------------------------------

/// One side of an access: elements of a random type, or bytes; and its image with guards.
struct End {
  End(Random& random, bool unpack_safe)
      : type(random.engine, {.max_span = 2048, .max_runs = 300, .unpack_safe = unpack_safe}) {}
  std::int64_t size() const { return in_bytes ? 1 : type.size(); }
  MPI_Datatype handle() const { return in_bytes ? MPI_BYTE : type.handle(); }
  std::int64_t most() const {
    const std::int64_t bytes = std::max<std::int64_t>(type.size(), 1);
    const std::int64_t extent = std::max<std::int64_t>(std::abs(type.extent()), 1);
    return std::clamp<std::int64_t>(std::min(most_bytes / bytes, (window_bytes / 4) / extent), 1, 3000);
  }
  /// The image, and where the buffer's address is in it: a multiple of `unit`.
  void draw(Random& random, int unit) {
    const std::int64_t low = in_bytes ? 0 : type.low(count), high = in_bytes ? count : type.high(count);
    lead = (guard + (random(0, 1) == 0 ? 0 : random(0, 16)) - low + unit - 1) / unit * unit;
    image = random.bytes(lead + high + guard);
  }
  std::string text() const {
    return fmt::format("{} x {}", count, in_bytes ? std::string("bytes") : type.description());
  }

  RandomType type;
  bool in_bytes = false;
  std::int64_t count = 0, lead = 0;
  Bytes image;
};

/// Counts with which both sides have as many bytes; one side of bytes where the types cannot.
void choose_counts(Random& random, End& origin, End& target) {
  if (random(0, 2) != 0 && origin.type.size() > 0 && target.type.size() > 0) {
    const std::int64_t both = std::lcm(origin.type.size(), target.type.size());
    const std::int64_t a = both / origin.type.size(), b = both / target.type.size();
    const std::int64_t most = std::min(origin.most() / a, target.most() / b);
    if (most > 0) {
      const std::int64_t times = random(1, random(0, 1) == 0 ? most : 1);
      origin.count = times * a;
      target.count = times * b;
      return;
    }
  }
  End& typed = random(0, 1) == 0 ? origin : target;
  End& bytes = &typed == &origin ? target : origin;
  bytes.in_bytes = true;
  typed.count =
      random(0, 9) == 0 ? 0 : random(1, random(0, 1) == 0 ? typed.most() : std::min<std::int64_t>(typed.most(), 3));
  bytes.count = typed.count * typed.type.size();
}

/// What the access makes of the image of the side that is written.
void transfer(const End& from, End& to) {
  const auto bytes = static_cast<int>(from.count * from.size());
  Bytes stream(static_cast<std::size_t>(bytes) + 1);
  int position = 0;
  PMPI_Pack(from.image.data() + from.lead, static_cast<int>(from.count), from.handle(), stream.data(), bytes, &position,
            MPI_COMM_SELF);
  position = 0;
  PMPI_Unpack(stream.data(), bytes, &position, to.image.data() + to.lead, static_cast<int>(to.count), to.handle(),
              MPI_COMM_SELF);
}

const char* name_of(AccessKind kind) {
  constexpr const char* names[] = {"put and flush", "get", "put_notify"};
  return names[static_cast<int>(kind)];
}
class Accesses {
 public:
  Accesses(Session& session, const CallsWindow& window)
      : session_(session), window_(window), memory_(2 * window_bytes), status_(1) {}

  /// What is wrong in this process with a random access; all processes make the same random numbers.
  std::string once(Random& random, AccessKind kind, By by, bool direct) {
    const bool gets = kind == AccessKind::get;
    End origin(random, gets), target(random, !gets);
    choose_counts(random, origin, target);
    origin.draw(random, 1);
    target.draw(random, window_.unit());
    const Datatype origin_type(origin.handle()), target_type(target.handle());
    OneAccess p = {};
    p.world = session_.world().view(1);
    if (!direct) p.world.direct = p.world.reaches_all = 0;
    p.window = window_.window();
    p.origin = origin_type.kernel();
    p.target = target_type.kernel();
    p.memory = reinterpret_cast<char*>(memory_.data()) + origin.lead;
    p.origin_count = origin.count;
    p.target_count = target.count;
    p.target_disp = window_.displacement(target.lead);
    p.by = by;
    p.kind = kind;
    p.status = status_.data();
    const bool first = session_.process() == 0;
    char* const mine = first ? reinterpret_cast<char*>(memory_.data()) : window_.area();
    write_device(mine, first ? origin.image : target.image);
    session_.world().barrier();
    session_.world().run(one_access_kernel(), by == By::grid ? 20 : 2, 256, &p);
    session_.world().barrier();
    gets ? transfer(target, origin) : transfer(origin, target);
    return session_.process() > 1 ? "" : difference(mine, origin, target);
  }

 private:
  std::string difference(const char* mine, const End& origin, const End& target) const {
    const bool first = session_.process() == 0;
    const Bytes& expected = first ? origin.image : target.image;
    const auto found = bench::first_difference(expected, DeviceArray<std::byte>::read_device(mine, expected.size()));
    const int status = first ? status_.read()[0] : 0;
    if (!found && status == 0) return "";
    return fmt::format("{} (status {}: {}); {} at {} and {} at {}", found.value_or("data"), status,
                       status_text(static_cast<Status>(status)), origin.text(), origin.lead, target.text(),
                       target.lead);
  }

  Session& session_;
  const CallsWindow& window_;
  DeviceArray<std::byte> memory_;
  DeviceArray<std::int32_t> status_;
};

void check_accesses(Session& session, std::uint64_t seed, Kind kind) {
  const CallsWindow window(session, kind);
  Accesses accesses(session, window);
  const int pairs = session.check() ? 8 : 40;
  for (const bool direct : window.is_allocated() ? session.direct_or_not() : std::vector<bool>{true})
    for (const AccessKind access : {AccessKind::put, AccessKind::get, AccessKind::put_notify})
      for (const By by : {By::thread, By::warp, By::block, By::grid}) {
        std::string wrong;
        Random random(seed + static_cast<std::uint64_t>(by) + 10 * static_cast<std::uint64_t>(access));
        for (int i = 0; i < pairs && !bench::any_rank(!wrong.empty()); ++i)
          wrong = accesses.once(random, access, by, direct);
        session.row(
            {fmt::format("MPI's {} by {}, {}{}", name_of(access), name_of(by), name_of(kind), direct ? "" : ", packed"),
             std::to_string(pairs)},
            {{"call", std::string("MPI's ") + name_of(access)},
             {"by", name_of(by)},
             {"window", name_of(kind)},
             {"direct", direct}},
            wrong);
      }
}

// --- accumulate -----------------------------------------------------------------------------------------------------

template <class T>
T apply(Op op, T there, T given) {
  switch (op) {
    case Op::sum:
      return there + given;
    case Op::product:
      return there * given;
    case Op::minimum:
      return std::min(there, given);
    case Op::maximum:
      return std::max(there, given);
    case Op::replace:
      return given;
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    if (op == Op::bit_and) return there & given;
    if (op == Op::bit_or) return there | given;
    if (op == Op::bit_xor) return there ^ given;
  }
  return there;
}

// Where element `i` lies on both sides, in elements: of 8 x vector(4, 3, 5) and 48 x vector(2, 1, 2).
std::size_t origin_place(std::size_t i) {
  return i / 12 * 18 + i % 12 / 3 * 5 + i % 3;
}
std::size_t target_place(std::size_t i) {
  return i / 2 * 3 + i % 2 * 2;
}

template <class T>
std::string wrong_combination(Session& session, Window& window, MPI_Datatype type, Op op) {
  constexpr int ranks = 8, first = 5;  // the target's place in the window
  std::vector<T> given(8 * 18), there(first + 48 * 3 + 5);
  for (std::size_t i = 0; i < there.size(); ++i) there[i] = static_cast<T>(i % 13 + 1);
  for (std::size_t i = 0; i < combined_elements; ++i) given[origin_place(i)] = static_cast<T>(i % 3 + 1);
  const DeviceArray<T> source(given);
  const DeviceArray<std::int32_t> status(std::vector<std::int32_t>(1, 0));
  const OwnedType from = test::vector(4, 3, 5, type), to = test::vector(2, 1, 2, type);
  const Datatype from_type(from), to_type(to);
  write_device(window.base, there);
  Combination p = {};
  p.world = session.world().view(ranks);
  p.window = window;
  p.origin = from_type.kernel();
  p.target = to_type.kernel();
  p.memory = reinterpret_cast<char*>(source.data());
  p.origin_count = 8;
  p.target_count = 48;
  p.target_disp = first * static_cast<std::int64_t>(sizeof(T));
  p.op = op;
  p.status = status.data();
  session.world().barrier();
  session.world().run(combination_kernel(), ranks, 128, &p);
  session.world().barrier();
  if (const int found = status.read()[0]; found != 0) return status_text(static_cast<Status>(found));
  if (session.process() != 1) return "";
  for (std::size_t i = 0; i < combined_elements; ++i)
    for (int rank = 0; rank < ranks; ++rank) {
      T& element = there[first + target_place(i)];
      element = apply(op, element, given[origin_place(i)]);
    }
  const auto seen = DeviceArray<T>::read_device(window.base, there.size());
  for (std::size_t i = 0; i < there.size(); ++i)
    if (seen[i] != there[i])
      return fmt::format("operator {}, element {}: {}, not {}", static_cast<int>(op), i, seen[i], there[i]);
  return "";
}

template <class T>
void check_combinations(Session& session, Window& window, const char* name, MPI_Datatype type) {
  std::string wrong;
  int ops = 0;
  for (const Op op :
       {Op::sum, Op::product, Op::minimum, Op::maximum, Op::bit_and, Op::bit_or, Op::bit_xor, Op::replace}) {
    if (!std::is_integral_v<T> && op >= Op::bit_and && op <= Op::bit_xor) continue;
    const std::string found = wrong_combination<T>(session, window, type, op);
    if (wrong.empty()) wrong = found;
    ++ops;
  }
  session.row({fmt::format("MPI's accumulate of {}", name), std::to_string(ops)},
              {{"call", "MPI's accumulate"}, {"element", name}}, wrong);
}

/// Only loads and stores combine.
void check_combinations(Session& session) {
  if (!session.world().reaches_all()) return;
  Window window = session.world().allocate(4096);
  check_combinations<std::int32_t>(session, window, "MPI_INT", MPI_INT);
  check_combinations<std::uint32_t>(session, window, "MPI_UINT32_T", MPI_UINT32_T);
  check_combinations<std::int64_t>(session, window, "MPI_INT64_T", MPI_INT64_T);
  check_combinations<std::uint64_t>(session, window, "MPI_UINT64_T", MPI_UINT64_T);
  check_combinations<float>(session, window, "MPI_FLOAT", MPI_FLOAT);
  check_combinations<double>(session, window, "MPI_DOUBLE", MPI_DOUBLE);
  session.world().free(window);
}

// --- what is refused ------------------------------------------------------------------------------------------------

void check_refusals(Session& session) {
  constexpr std::size_t bytes = 4096;
  const DeviceArray<std::byte> memory(Random(7).bytes(2 * bytes));
  DeviceArray<std::int32_t> statuses(std::vector<std::int32_t>(refused_calls, -1));
  const OwnedType three = test::vector(3, 1, 2, MPI_DOUBLE);
  const Datatype doubles(three);
  MPI_Win win = MPI_WIN_NULL;
  MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &win);
  MPI_Win_attach(win, memory.data(), bytes);
  RefusedCalls p = {};
  p.world = session.world().view(1);
  p.window = session.world().allocate(bytes);
  p.dynamic = session.world().attach(win);
  p.begin = reinterpret_cast<std::intptr_t>(memory.data());
  p.end = p.begin + static_cast<std::int64_t>(bytes);
  p.doubles = doubles.kernel();
  p.memory = reinterpret_cast<char*>(memory.data()) + bytes;
  p.statuses = statuses.data();
  session.world().run(refused_calls_kernel(), 1, 64, &p);
  std::int32_t expected[refused_calls];
  expected_refusals(expected);
  std::string wrong;
  const std::vector<std::int32_t> seen = statuses.read();
  for (std::size_t i = 0; i < refused_calls; ++i)
    if (seen[i] != expected[i]) wrong = fmt::format("call {}: {}", i, status_text(static_cast<Status>(seen[i])));
  if (DeviceArray<double>::read_device(p.window.base + 8, 1) != DeviceArray<double>::read_device(p.memory, 1))
    wrong = "the call that is right: its data";
  session.row({"MPI's calls that are refused", std::to_string(refused_calls)}, {{"call", "MPI's refused"}}, wrong);
  session.world().free(p.dynamic);
  session.world().free(p.window);
  MPI_Win_free(&win);
}

/// What attach() says of a window, or "" if it takes it; frees both.
std::string refusal_of(Session& session, MPI_Win win) {
  std::string said;
  try {
    Window window = session.world().attach(win);
    session.world().free(window);
  } catch (const Error& error) {
    said = error.what();
  }
  MPI_Win_free(&win);
  return said;
}

void check_refused_windows(Session& session) {
  constexpr MPI_Aint bytes = 1 << 16;
  int windows = 1;
  void* base = nullptr;
  MPI_Win win = MPI_WIN_NULL;
  MPI_Win_allocate(bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, static_cast<void*>(&base), &win);
  std::string wrong, said = refusal_of(session, win);
  if (said.find("MPI_Win_allocate") == std::string::npos) wrong = "MPI_Win_allocate: " + said;
  if (session.processes() > 1) {  // nobody else can map it
    const auto managed = bench::make_kind_buffer("managed", bytes, 0);
    MPI_Win_create(managed->address(), bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    said = refusal_of(session, win);
    if (said.find("that this GPU reaches: it takes") == std::string::npos) wrong = "managed memory: " + said;
    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    MPI_Win_attach(win, managed->address(), bytes);
    said = refusal_of(session, win);
    if (said.find("which this GPU does not reach: it takes") == std::string::npos)
      wrong = "managed memory, attached: " + said;
    windows = 3;
  }
  session.row({"windows that are refused", std::to_string(windows)}, {{"call", "refused windows"}}, wrong);
}

/// Dynamic windows reach no other node.
bool is_one_node() {
  MPI_Comm node = MPI_COMM_NULL;
  int here = 0, all = 0;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_size(node, &here);
  MPI_Comm_size(MPI_COMM_WORLD, &all);
  MPI_Comm_free(&node);
  return here == all;
}

}  // namespace

void check_mpi_calls(Session& session, std::uint64_t seed) {
  const bool one_node = is_one_node();
  if (session.processes() > 1) {
    for (const Kind kind : all_kinds)
      if (kind == Kind::allocated || (session.mpi_takes_device_memory() && (one_node || kind != Kind::dynamic)))
        check_accesses(session, seed + 100 * static_cast<std::uint64_t>(kind), kind);
    check_combinations(session);
  }
  if (!session.mpi_takes_device_memory()) return;
  if (one_node) check_refusals(session);
  check_refused_windows(session);
}

}  // namespace gpudt::initiated::programs

// device.hpp over the process's engine: made by start(), ended by stop(), and by nothing else, so that no static
// destructor touches a GPU.
#include "device/device.hpp"

#include <link.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <vector>

#include "device/kernels/copy_blocks.hpp"
#include "device/kernels/reduction.hpp"
#include "device/memory/division.hpp"
#include "device/transfer/engine.hpp"

/// Where the heap ends, as glibc has it; not there in other C libraries.
extern void* const volatile current_break __asm__("__curbrk") __attribute__((weak));

namespace gpudt::device {
namespace {

std::atomic<Engine*> engine{nullptr};

Engine& current() {
  Engine* const now = engine.load(std::memory_order_acquire);
  if (!now) throw Error(Failure::runtime, "no GPU runtime is in use");
  return *now;
}

/// Where no other memory can be: the kernel keeps the heap's place free, and a gap below the first stack; what has been
/// loaded of the program itself is never unmapped.
struct ProgramMemory {
  std::uintptr_t heap_begin = UINTPTR_MAX;
  std::uintptr_t stack_begin = 0, stack_end = 0;
  std::uintptr_t static_begin = 0, static_end = 0;
};

constexpr std::uintptr_t stack_bytes = 8 << 20;  ///< the usual limit; the gap is larger

/// The segment of the program, the first object that is visited, that can be written to: its variables.
int find_static_memory(dl_phdr_info* object, std::size_t, void* found) {
  auto& memory = *static_cast<ProgramMemory*>(found);
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) == 0) continue;
    memory.static_begin = object->dlpi_addr + segment.p_vaddr;
    memory.static_end = memory.static_begin + segment.p_memsz;
  }
  return 1;
}

/// From /proc/self/stat, counted behind the program's name, which is in parentheses and may contain anything.
ProgramMemory find_program_memory() {
  constexpr std::size_t start_stack = 28 - 3, start_brk = 47 - 3;  // proc(5); the first one behind is the third
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::istringstream behind(text.substr(std::min(text.rfind(')'), text.size() - 1) + 1));
  const std::vector<std::string> fields{std::istream_iterator<std::string>(behind), {}};
  if (fields.size() <= start_brk) return {};
  const auto number = [&](std::size_t field) { return std::strtoull(fields[field].c_str(), nullptr, 10); };
  ProgramMemory memory;
  if (number(start_brk) != 0) memory.heap_begin = number(start_brk);
  memory.stack_end = number(start_stack);
  memory.stack_begin = memory.stack_end > stack_bytes ? memory.stack_end - stack_bytes : memory.stack_end;
  dl_iterate_phdr(find_static_memory, &memory);
  return memory;
}

ProgramMemory program_memory;

struct Addresses {
  std::uintptr_t begin, end;
  bool hold(std::uintptr_t address) const { return address >= begin && address < end; }
};

Addresses stack() {
  return {program_memory.stack_begin, program_memory.stack_end};
}
Addresses static_memory() {
  return {program_memory.static_begin, program_memory.static_end};
}
/// Not by sbrk(0): where UCX has put its own in its place, that sets the end to what it was a moment before, while
/// another thread's malloc() moves it.
std::uintptr_t heap_end() {
  if (&current_break != nullptr) return reinterpret_cast<std::uintptr_t>(current_break);
  return static_cast<std::uintptr_t>(syscall(SYS_brk, nullptr));
}
/// To be asked last: it may take a call.
Addresses heap() {
  return {program_memory.heap_begin, heap_end()};
}

std::unique_ptr<Runtime> make_runtime(Choice choice) {
  std::unique_ptr<Runtime> runtime;
  std::string why;
  if (choice == Choice::sim || choice == Choice::automatic) runtime = make_sim_runtime(&why);
  if (!runtime && (choice == Choice::cuda || choice == Choice::automatic)) runtime = make_cuda_runtime(&why);
  if (!runtime && choice == Choice::sim) throw Error(Failure::runtime, "GPUDT_DEVICE=sim: " + why);
  if (!runtime && choice == Choice::cuda) throw Error(Failure::runtime, "GPUDT_DEVICE=cuda: " + why);
  return runtime;
}

}  // namespace

namespace detail {

std::atomic<bool> active{false};
std::atomic<std::size_t> granule{0};

Location classify_active(const void* address) noexcept {
  const Engine* const now = engine.load(std::memory_order_acquire);
  return now ? now->runtime().classify(address) : Location{};
}

}  // namespace detail

std::uint64_t allocation_id(const void* address) noexcept {
  const Engine* const now = engine.load(std::memory_order_acquire);
  return now ? now->runtime().allocation_id(address) : 0;
}

void detail::launch_queued() noexcept {
  if (Engine* const now = engine.load(std::memory_order_acquire)) now->launch_queued();
}

void about_to_wait(WaitKind kind) noexcept {
  if (Engine* const now = engine.load(std::memory_order_acquire)) now->about_to_wait(kind);
}

void shared_with_others(int ordinal, bool yields) noexcept {
  if (Engine* const now = engine.load(std::memory_order_acquire)) now->shared_with_others(ordinal, yields);
}

void start(const Config& config) {
  if (engine.load()) throw Error(Failure::runtime, "the GPU runtime is already in use");
  std::unique_ptr<Runtime> runtime = make_runtime(config.choice);
  if (!runtime) return;
  program_memory = find_program_memory();
  detail::granule.store(runtime->granule());
  engine.store(new Engine(std::move(runtime), config), std::memory_order_release);
  detail::active.store(true, std::memory_order_release);
}

bool surely_host(const void* address) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  return stack().hold(at) || static_memory().hold(at) || (at >= program_memory.heap_begin && heap().hold(at));
}

bool surely_host(std::uintptr_t first, std::uintptr_t last) noexcept {
  if (stack().hold(first)) return stack().hold(last);
  if (static_memory().hold(first)) return static_memory().hold(last);
  return first >= program_memory.heap_begin && heap().hold(first) && heap().hold(last);
}

bool in_use() noexcept {
  const Engine* const now = engine.load(std::memory_order_acquire);
  return now && now->runtime().in_use();
}

Region region_of(const void* address) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  for (const Addresses& addresses : {stack(), static_memory(), heap()})
    if (addresses.hold(at)) return {addresses.begin, addresses.end, {}};
  const Engine* const now = engine.load(std::memory_order_acquire);
  if (!now || !now->runtime().in_use()) return {0, UINTPTR_MAX, {}};
  return region_of(address, now->runtime().classify(address));
}

Region region_of(const void* address, const Location& location) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const Engine* const now = engine.load(std::memory_order_acquire);
  Allocation allocation;
  if (now && location.on_device() && now->runtime().allocation_of(address, allocation) && at >= allocation.base &&
      at - allocation.base < allocation.size)
    return {allocation.base, allocation.base + allocation.size, location};
  const std::uintptr_t begin = at & ~(std::uintptr_t{granule()} - 1);
  return {begin, begin + granule(), location};
}

void stop() noexcept {
  detail::active.store(false);
  detail::granule.store(0);
  delete engine.exchange(nullptr);
}

const char* runtime_name() noexcept {
  const Engine* const now = engine.load(std::memory_order_acquire);
  return now ? now->runtime().name() : "none";
}

Staging acquire(StagingKind kind, int ordinal, std::size_t bytes) {
  static_cast<void>(current().gpu(ordinal));  // whose context may have ended
  return current().staging().acquire(kind, ordinal, bytes);
}

Staging try_acquire(StagingKind kind, int ordinal, std::size_t bytes) {
  static_cast<void>(current().gpu(ordinal));  // as above
  return current().staging().try_acquire(kind, ordinal, bytes);
}

void* register_host(int ordinal, void* address, std::size_t bytes) noexcept try {
  return current().register_host(ordinal, address, bytes);
} catch (const std::exception&) {
  return nullptr;
}

StagingStatistics staging_statistics(StagingKind kind) noexcept {
  const Engine* const now = engine.load(std::memory_order_acquire);
  return now ? now->staging().statistics(kind) : StagingStatistics{};
}

std::size_t staging_room() noexcept {
  const Engine* const now = engine.load(std::memory_order_acquire);
  return now ? now->staging().room() : 0;
}

StreamMark mark_default_stream(int ordinal) {
  DefaultStream* const stream = current().default_stream(ordinal);
  return stream != nullptr ? StreamMark(ordinal, stream->mark()) : StreamMark();
}

bool keeps_order() noexcept {
  const Engine* const now = engine.load(std::memory_order_acquire);
  return now != nullptr && now->keeps_order();
}

bool default_stream_idle(int ordinal) {
  return current().runtime().default_stream_idle(ordinal, /*while_capturing=*/true);
}

StreamMark StreamMark::late(int ordinal) {
  return current().default_stream(ordinal) != nullptr ? StreamMark(ordinal, unmade) : StreamMark();
}

void StreamMark::make() const {
  if (!made()) number_ = current().default_stream(ordinal_)->mark();
}

bool StreamMark::reached() const {
  make();
  return number_ == 0 || current().default_stream(ordinal_)->reached(number_);
}

void StreamMark::wait() const {
  while (!reached()) std::this_thread::yield();
}

Transfer::Transfer() noexcept = default;
Transfer::Transfer(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Transfer::Transfer(Transfer&&) noexcept = default;
Transfer& Transfer::operator=(Transfer&&) noexcept = default;
Transfer::~Transfer() = default;

bool Transfer::done() {
  return !state_ || state_->done();
}

void Transfer::wait() {
  if (state_) state_->wait();
}

Way Transfer::way() const {
  return state_ ? state_->way : Way::automatic;
}

Movements movements() noexcept {
  const Engine* const now = engine.load(std::memory_order_acquire);
  return now ? now->movements() : Movements{};
}

std::vector<std::string> cost_sources() {
  const Engine* const now = engine.load(std::memory_order_acquire);
  return now ? now->cost_sources() : std::vector<std::string>{};
}

std::vector<UsedGpu> used_gpus() {
  const Engine* const now = engine.load(std::memory_order_acquire);
  return now ? now->used_gpus() : std::vector<UsedGpu>{};
}

Transfer start(Direction direction, int ordinal, const datatype::Layout& layout, std::int64_t count, void* user,
               std::int64_t begin, std::int64_t end, void* packed, std::optional<MemoryKind> packed_kind,
               const StreamMark& after) {
  return current().start(direction, ordinal, layout, count, user, begin, end, packed, packed_kind, after);
}

Transfer copy(int ordinal, void* to, const void* from, std::size_t bytes, const StreamMark& after) {
  return current().copy(ordinal, to, from, bytes, after);
}

bool export_memory(int ordinal, const void* address, Exported& exported) noexcept try {
  return current().peers().export_memory(ordinal, current().gpu(ordinal).traits.id, address, exported);
} catch (const std::exception&) {
  return false;  // no memory, or a GPU that has failed: whatever is tried next says it
}

Mapping import_memory(int ordinal, std::uint64_t exporter, const Exported& exported, std::string* why) {
  static_cast<void>(current().gpu(ordinal));  // as above
  return current().peers().import_memory(ordinal, exporter, exported, why);
}

Mapping imported_memory(int ordinal, std::uint64_t exporter, const Exported& exported) {
  static_cast<void>(current().gpu(ordinal));  // as above
  return current().peers().imported_memory(ordinal, exporter, exported);
}

PeerStatistics peer_statistics() noexcept {
  const Engine* const now = engine.load(std::memory_order_acquire);
  return now ? now->peers().statistics() : PeerStatistics{};
}

Transfer transfer(int ordinal, const Side& from, const Side& to, std::int64_t begin, std::int64_t end,
                  const StreamMark& after, bool within) {
  return current().transfer(ordinal, from, to, begin, end, after, within);
}

Transfer reduce(int ordinal, const Reduction& reduction) {
  return current().reduce(ordinal, reduction);
}

Transfer copy_blocks(int ordinal, std::span<const BlockCopy> copies) {
  return current().copy_blocks(ordinal, copies);
}

std::int64_t least_copy_calls(const datatype::Layout& layout, std::int64_t count) {
  const datatype::Shape shape = layout.shape(count);
  return least_calls(shape, shape.total, &layout);
}

bool kernels_late(int ordinal) {
  return current().gpu(ordinal).channel(Direction::unpack).kernels.seen_us() != 0;
}

bool yields_turns(int ordinal) {
  return current().gpu(ordinal).channel(Direction::unpack).kernels.yields();
}

double expected_packing_us(int ordinal, const datatype::Layout& layout, std::int64_t count) {
  return packing_cost_us(current().gpu(ordinal).tuning.model, layout, count);
}

bool better_fetched_packed(int ordinal, const datatype::Layout& layout, std::int64_t count) {
  return better_packed_for_peers(current().gpu(ordinal).tuning.model, layout.shape(count), layout.span(count));
}

}  // namespace gpudt::device

#include "device/memory/addresses.hpp"

#include <link.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "device/runtime/runtime.hpp"

/// glibc's end of the heap; other C libraries have no such variable.
extern void* const volatile current_break __asm__("__curbrk") __attribute__((weak));

namespace gpudt::device {

std::atomic<Runtime*> detail::runtime_asked{nullptr};

namespace {

/// Addresses at which no other memory can be: the system keeps those of the heap free, and a gap below the first stack;
/// the program's own segments are never unmapped.
struct ProgramMemory {
  std::uintptr_t heap_begin = UINTPTR_MAX;
  std::uintptr_t stack_begin = 0, stack_end = 0;
  std::uintptr_t static_begin = 0, static_end = 0;
};

constexpr std::uintptr_t stack_bytes = 8 << 20;  ///< the usual limit; the gap is larger

/// Finds the writable segment of the program, the first object that is visited: it holds the variables.
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

/// Reads /proc/self/stat, whose fields are counted behind the program's name: that may contain anything.
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
/// Not by sbrk(0): UCX replaces it by a function that sets the end to its value of a moment before, which another
/// thread's malloc() may have moved since.
std::uintptr_t heap_end() {
  if (&current_break != nullptr) return reinterpret_cast<std::uintptr_t>(current_break);
  return static_cast<std::uintptr_t>(syscall(SYS_brk, nullptr));
}
/// The most expensive range to look up: it may take a system call.
Addresses heap() {
  return {program_memory.heap_begin, heap_end()};
}

}  // namespace

void ask_about_addresses(Runtime* runtime) {
  if (runtime != nullptr) program_memory = find_program_memory();
  detail::runtime_asked.store(runtime, std::memory_order_release);
}

Location detail::classify_by_runtime(const void* address) noexcept {
  Runtime* const runtime = runtime_asked.load(std::memory_order_acquire);
  return runtime != nullptr ? runtime->classify(address) : Location{};
}

std::uint64_t allocation_id(const void* address) noexcept {
  Runtime* const runtime = detail::runtime_asked.load(std::memory_order_acquire);
  return runtime != nullptr ? runtime->allocation_id(address) : 0;
}

std::size_t granule() noexcept {
  const Runtime* const runtime = detail::runtime_asked.load(std::memory_order_acquire);
  return runtime != nullptr ? runtime->granule() : 0;
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
  Runtime* const runtime = detail::runtime_asked.load(std::memory_order_acquire);
  return runtime != nullptr && runtime->in_use();
}

Region region_of(const void* address) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  for (const Addresses& addresses : {stack(), static_memory(), heap()})
    if (addresses.hold(at)) return {addresses.begin, addresses.end, {}};
  if (!in_use()) return {0, UINTPTR_MAX, {}};
  return region_of(address, classify(address));
}

namespace {

/// `single`: no allocation of several pieces, which may be memory of several GPUs.
Region region_of(const void* address, const Location& location, bool single) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  Runtime* const runtime = detail::runtime_asked.load(std::memory_order_acquire);
  Allocation allocation;
  if (runtime != nullptr && location.on_device() && runtime->allocation_of(address, allocation) &&
      at >= allocation.base && at - allocation.base < allocation.size && (allocation.exportable || !single))
    return {allocation.base, allocation.base + allocation.size, location};
  const std::uintptr_t begin = at & ~(std::uintptr_t{granule()} - 1);
  return {begin, begin + granule(), {location.kind, location.ordinal}};
}

}  // namespace

Region region_of(const void* address, const Location& location) noexcept {
  return region_of(address, location, /*single=*/false);
}

Region allocation_of(const void* address, const Location& location) noexcept {
  return region_of(address, location, /*single=*/true);
}

}  // namespace gpudt::device

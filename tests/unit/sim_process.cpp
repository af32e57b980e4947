// The simulated device between and around processes: export to others, environment, exit, preloading. The other
// process is this program run again in a role, which a constructor plays instead of main().
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "datatype/decode.hpp"
#include "device/device.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/owned_type.hpp"

namespace {

using namespace gpudt;
using gpudt::test::OwnedType;
using gpudt::test::vector;

using Setting = std::pair<const char*, std::string>;
constexpr char role_variable[] = "GPUDT_TEST_ROLE";
constexpr char data_variable[] = "GPUDT_TEST_DATA";
constexpr int no_such_role = 99;

std::string to_text(const void* data, std::size_t size) {
  std::string text;
  char digits[3];
  for (std::size_t i = 0; i < size; ++i) {
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(static_cast<const unsigned char*>(data)[i]));
    text += digits;
  }
  return text;
}

std::vector<std::byte> bytes_from_text(const std::string& text) {
  std::vector<std::byte> bytes(text.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return bytes;
}

template <class Plain>
std::string to_text(const Plain& plain) {
  return to_text(&plain, sizeof plain);
}

template <class Plain>
Plain from_text(const std::string& text) {
  Plain plain;
  std::memcpy(&plain, bytes_from_text(text).data(), sizeof plain);
  return plain;
}

// --- roles: 0 is good, other numbers say where it went wrong --------------------------------------------------------

constexpr std::size_t shared_bytes = 5000;
constexpr std::size_t block_bytes = 8;  // of the vector that `peer` receives: every other block

/// Of this process.
std::ptrdiff_t mappings() {
  std::ifstream maps("/proc/self/maps");
  return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
}

/// Opens memory twice, checks that each byte is its index times 3, fills it with 9, closes it; which leaves no mappings
/// behind.
int importer(const char* data) {
  const auto handle = from_text<cudaIpcMemHandle_t>(data);
  void *first = nullptr, *second = nullptr;
  if (cudaIpcOpenMemHandle(&first, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess) return 1;
  if (cudaIpcOpenMemHandle(&second, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess || second != first) return 2;
  cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, static_cast<char*>(first) + shared_bytes - 1) != cudaSuccess ||
      attributes.type != cudaMemoryTypeDevice || attributes.device != 1)
    return 3;
  cudaIpcMemHandle_t again;
  if (cudaIpcGetMemHandle(&again, first) != cudaErrorInvalidValue) return 4;
  std::vector<char> read(shared_bytes);
  if (cudaMemcpy(read.data(), first, shared_bytes, cudaMemcpyDeviceToHost) != cudaSuccess) return 5;
  for (std::size_t i = 0; i < shared_bytes; ++i)
    if (read[i] != static_cast<char>(i * 3)) return 6;
  if (cudaMemset(first, 9, shared_bytes) != cudaSuccess) return 7;
  if (cudaFree(first) != cudaErrorInvalidValue) return 8;
  if (cudaIpcCloseMemHandle(first) != cudaSuccess || cudaIpcCloseMemHandle(first) != cudaSuccess) return 9;
  if (cudaIpcCloseMemHandle(first) != cudaErrorInvalidValue) return 10;
  const auto mappings_before = mappings();
  for (int i = 0; i < 20; ++i)
    if (cudaIpcOpenMemHandle(&first, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess ||
        cudaIpcCloseMemHandle(first) != cudaSuccess)
      return 11;
  return mappings() < mappings_before + 10 ? 0 : 12;
}

/// What the parent's memory holds by its layout arrives in memory of this process.
int peer(const char* data) {
  const std::string text = data;
  const auto exported = from_text<device::Exported>(text);
  const auto layout = datatype::Layout::from_bytes(bytes_from_text(text.substr(2 * sizeof exported)));
  if (!layout) return 1;
  device::Config config;
  config.choice = device::Choice::sim;
  device::start(config);
  int result = 0;
  {
    std::string why;
    const device::Mapping mapping = device::import_memory(0, 1, exported, &why);
    if (!mapping) {
      std::puts(why.c_str());
      std::fflush(stdout);
      return 2;
    }
    void* memory = nullptr;
    if (cudaMalloc(&memory, shared_bytes) != cudaSuccess || cudaMemset(memory, 9, shared_bytes) != cudaSuccess ||
        cudaDeviceSynchronize() != cudaSuccess)
      return 3;
    const device::Side from = {layout.get(), 1, mapping.at(exported.base)}, to = {layout.get(), 1, memory};
    device::transfer(0, from, to, 0, layout->size()).wait();
    std::vector<char> read(shared_bytes);
    if (cudaMemcpy(read.data(), memory, shared_bytes, cudaMemcpyDeviceToHost) != cudaSuccess) return 4;
    for (std::size_t i = 0; i < shared_bytes; ++i)
      if (read[i] != static_cast<char>(i / block_bytes % 2 == 0 ? i * 3 : 9)) result = 5;
    if (device::import_memory(0, 1, exported, &why).at(exported.base) != from.user) result = 6;
    device::Exported again;
    if (device::export_memory(0, from.user, again)) result = 7;  // another process's
  }
  if (device::peer_statistics().imports != 1) result = 8;
  device::stop();
  return result;
}

/// Waits for an event of the parent, on the host and on a stream.
int event_waiter(const char* data) {
  cudaEvent_t event = nullptr;
  if (cudaIpcOpenEventHandle(&event, from_text<cudaIpcEventHandle_t>(data)) != cudaSuccess) return 1;
  if (cudaEventQuery(event) != cudaErrorNotReady) return 2;
  cudaStream_t stream = nullptr;
  if (cudaStreamCreate(&stream) != cudaSuccess || cudaStreamWaitEvent(stream, event, 0) != cudaSuccess) return 3;
  if (cudaStreamQuery(stream) != cudaErrorNotReady) return 4;
  std::puts("waiting");
  std::fflush(stdout);
  if (cudaStreamSynchronize(stream) != cudaSuccess || cudaEventSynchronize(event) != cudaSuccess) return 5;
  return cudaEventQuery(event) == cudaSuccess && cudaEventDestroy(event) == cudaSuccess ? 0 : 6;
}

/// Writes and reads device memory as host memory.
int host_access(const char*) {
  void* memory = nullptr;
  if (cudaMalloc(&memory, 100) != cudaSuccess || cudaMemset(memory, 3, 100) != cudaSuccess) return 1;
  char* plain = static_cast<char*>(memory);
  if (plain[99] != 3) return 2;
  plain[98] = 4;
  char read = 0;
  if (cudaMemcpy(&read, plain + 98, 1, cudaMemcpyDeviceToHost) != cudaSuccess || read != 4) return 3;
  cudaPointerAttributes attributes;
  return cudaPointerGetAttributes(&attributes, memory) == cudaSuccess && attributes.type == cudaMemoryTypeDevice ? 0
                                                                                                                 : 4;
}

int no_devices(const char*) {
  int count = -1;
  void* memory = nullptr;
  if (cudaGetDeviceCount(&count) != cudaErrorNoDevice || count != 0) return 1;
  return cudaMalloc(&memory, 1) == cudaErrorNoDevice ? 0 : 2;
}

int three_devices(const char*) {
  int count = -1;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count != 3) return 1;
  return cudaSetDevice(2) == cudaSuccess && cudaSetDevice(3) == cudaErrorInvalidDevice ? 0 : 2;
}

/// A copy is not done before the delay of 0.3 s.
int delayed(const char*) {
  void *device = nullptr, *pinned = nullptr;
  cudaStream_t stream = nullptr;
  if (cudaMalloc(&device, 1) != cudaSuccess || cudaMallocHost(&pinned, 1) != cudaSuccess ||
      cudaStreamCreate(&stream) != cudaSuccess)
    return 1;
  const auto start = std::chrono::steady_clock::now();
  if (cudaMemcpyAsync(device, pinned, 1, cudaMemcpyHostToDevice, stream) != cudaSuccess) return 2;
  if (cudaStreamQuery(stream) != cudaErrorNotReady) return 3;
  if (cudaStreamSynchronize(stream) != cudaSuccess) return 4;
  return std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(300) ? 0 : 5;
}

/// Goes through exit() with memory, streams and work left.
int leaver(const char*) {
  void *device = nullptr, *pinned = nullptr;
  cudaStream_t stream = nullptr;
  if (cudaMalloc(&device, 1 << 20) != cudaSuccess || cudaMallocHost(&pinned, 1 << 20) != cudaSuccess ||
      cudaStreamCreate(&stream) != cudaSuccess)
    return 1;
  for (int i = 0; i < 1000; ++i)
    if (cudaMemcpyAsync(device, pinned, 1 << 20, cudaMemcpyHostToDevice, stream) != cudaSuccess) return 2;
  std::exit(0);
}

struct Role {
  const char* name;
  int (*play)(const char* data);
};
constexpr Role roles[] = {{"peer", peer},
                          {"importer", importer},
                          {"event_waiter", event_waiter},
                          {"host_access", host_access},
                          {"no_devices", no_devices},
                          {"three_devices", three_devices},
                          {"delayed", delayed},
                          {"leaver", leaver}};

__attribute__((constructor)) void play_role() {
  const char* name = std::getenv(role_variable);
  if (!name) return;
  std::signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would exit instead
  const char* data = std::getenv(data_variable);
  for (const Role& role : roles)
    if (std::strcmp(role.name, name) == 0) _exit(role.play(data ? data : ""));
  _exit(no_such_role);
}

// --- the other side -------------------------------------------------------------------------------------------------

/// A program in another process; its standard output can be read.
class Process {
 public:
  Process(const char* program, const std::vector<Setting>& environment) {
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    id_ = fork();
    REQUIRE(id_ >= 0);
    if (id_ == 0) {
      std::signal(SIGSEGV, SIG_DFL);
      for (const auto& [name, value] : environment) setenv(name, value.c_str(), 1);
      dup2(ends[1], STDOUT_FILENO);
      execl(program, program, static_cast<char*>(nullptr));
      _exit(98);
    }
    close(ends[1]);
    output_ = ends[0];
  }
  explicit Process(const char* role, const std::string& data = "", std::vector<Setting> more = {})
      : Process("/proc/self/exe", with_role(role, data, std::move(more))) {}
  ~Process() { close(output_); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// Waits for some output, or for the end.
  std::string read_some() const {
    char text[4096];
    const ssize_t bytes = read(output_, text, sizeof text);
    return bytes > 0 ? std::string(text, static_cast<std::size_t>(bytes)) : "";
  }
  /// The exit status, or minus the signal.
  int wait() const {
    int status = 0;
    REQUIRE(waitpid(id_, &status, 0) == id_);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  static std::vector<Setting> with_role(const char* role, const std::string& data, std::vector<Setting> more) {
    more.emplace_back(role_variable, role);
    more.emplace_back(data_variable, data);
    return more;
  }
  pid_t id_ = -1;
  int output_ = -1;
};

}  // namespace

TEST_CASE("sim: memory is exported to another process", "[sim]") {
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, shared_bytes) == cudaSuccess);
  std::vector<char> data(shared_bytes);
  for (std::size_t i = 0; i < shared_bytes; ++i) data[i] = static_cast<char>(i * 3);
  REQUIRE(cudaMemcpy(memory, data.data(), shared_bytes, cudaMemcpyHostToDevice) == cudaSuccess);
  cudaIpcMemHandle_t handle;
  REQUIRE(cudaIpcGetMemHandle(&handle, static_cast<char*>(memory) + 100) == cudaSuccess);
  void* own = nullptr;
  CHECK(cudaIpcOpenMemHandle(&own, handle, cudaIpcMemLazyEnablePeerAccess) == cudaErrorDeviceUninitialized);
  cudaGetLastError();

  CHECK(Process("importer", to_text(handle)).wait() == 0);
  REQUIRE(cudaMemcpy(data.data(), memory, shared_bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(data == std::vector<char>(shared_bytes, 9));

  SECTION("a handle whose memory is freed opens to other contents at most") {
    REQUIRE(cudaFree(memory) == cudaSuccess);
    CHECK(Process("importer", to_text(handle)).wait() == 6);
  }
  SECTION("a damaged handle does not open") {
    handle.reserved[0] = static_cast<char>(handle.reserved[0] + 1);
    CHECK(Process("importer", to_text(handle)).wait() == 1);
    REQUIRE(cudaFree(memory) == cudaSuccess);
  }
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
}

TEST_CASE("sim: a transfer from another process's memory", "[sim]") {
  device::Config config;
  config.choice = device::Choice::sim;
  device::start(config);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, shared_bytes) == cudaSuccess);
  std::vector<char> data(shared_bytes);
  for (std::size_t i = 0; i < shared_bytes; ++i) data[i] = static_cast<char>(i * 3);
  REQUIRE(cudaMemcpy(memory, data.data(), shared_bytes, cudaMemcpyHostToDevice) == cudaSuccess);
  device::Exported exported;
  REQUIRE(device::export_memory(1, static_cast<char*>(memory) + 17, exported));
  CHECK(exported.base == reinterpret_cast<std::uintptr_t>(memory));
  OwnedType type = vector((shared_bytes + block_bytes) / (2 * block_bytes), block_bytes, 2 * block_bytes, MPI_CHAR);
  const std::vector<std::byte> layout = datatype::decode(type.commit())->to_bytes();
  const auto play = [&](std::vector<Setting> more = {}) {
    return Process("peer", to_text(exported) + to_text(layout.data(), layout.size()), std::move(more));
  };
  CHECK(play().wait() == 0);
  SECTION("GPUs that do not reach each other") {
    const Process isolated = play({{"GPUDT_SIM_PEERS", "0"}});
    CHECK(isolated.read_some() == "GPU 0 cannot access memory of GPU 1\n");
    CHECK(isolated.wait() == 2);
  }
  SECTION("a damaged handle") {
    ++exported.handle[0];
    CHECK(play().wait() == 2);
  }
  SECTION("an allocation of another time") {
    const device::Exported before = exported;
    REQUIRE(cudaFree(memory) == cudaSuccess);
    REQUIRE(cudaMalloc(&memory, shared_bytes) == cudaSuccess);
    REQUIRE(cudaMemcpy(memory, data.data(), shared_bytes, cudaMemcpyHostToDevice) == cudaSuccess);
    REQUIRE(device::export_memory(1, memory, exported));
    CHECK(exported.buffer_id != before.buffer_id);
    CHECK(play().wait() == 0);
  }
  device::stop();
  REQUIRE(cudaFree(memory) == cudaSuccess);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
}

TEST_CASE("sim: what is not exported", "[sim]") {
  device::Config config;
  config.choice = device::Choice::sim;
  device::start(config);
  void *pinned = nullptr, *managed = nullptr, *pool = nullptr;
  int host = 0;
  REQUIRE(cudaMallocHost(&pinned, 100) == cudaSuccess);
  REQUIRE(cudaMallocManaged(&managed, 100, cudaMemAttachGlobal) == cudaSuccess);
  REQUIRE(cudaMallocAsync(&pool, 100, nullptr) == cudaSuccess);
  for (const void* address : {static_cast<const void*>(&host), static_cast<const void*>(pinned),
                              static_cast<const void*>(managed), static_cast<const void*>(pool)}) {
    device::Exported exported;
    CHECK_FALSE(device::export_memory(0, address, exported));
  }
  device::stop();
  REQUIRE(cudaFreeHost(pinned) == cudaSuccess);
  REQUIRE(cudaFree(managed) == cudaSuccess);
  REQUIRE(cudaFreeAsync(pool, nullptr) == cudaSuccess);
}

TEST_CASE("sim: events between processes", "[sim]") {
  cudaEvent_t event = nullptr;
  CHECK(cudaEventCreateWithFlags(&event, cudaEventInterprocess) == cudaErrorInvalidValue);
  cudaGetLastError();
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming) == cudaSuccess);
  cudaIpcEventHandle_t handle;
  REQUIRE(cudaIpcGetEventHandle(&handle, event) == cudaSuccess);
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  std::atomic<bool> go{false};
  const auto hold = [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); };
  REQUIRE(cudaLaunchHostFunc(stream, hold, &go) == cudaSuccess);
  REQUIRE(cudaEventRecord(event, stream) == cudaSuccess);
  {
    const Process waiter("event_waiter", to_text(handle));
    CHECK(waiter.read_some() == "waiting\n");
    go = true;
    go.notify_all();
    CHECK(waiter.wait() == 0);
  }
  CHECK(cudaEventQuery(event) == cudaSuccess);
  REQUIRE(cudaEventDestroy(event) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}

TEST_CASE("sim: a forked child cannot use the device", "[sim]") {
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, 1) == cudaSuccess);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(cudaFree(memory) == cudaErrorInitializationError ? 0 : 1);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(cudaFree(memory) == cudaSuccess);
}

TEST_CASE("sim: environment", "[sim]") {
  CHECK(Process("host_access", "", {{"GPUDT_SIM_HOST_ACCESS", "1"}}).wait() == 0);
  CHECK(Process("host_access", "", {{"GPUDT_SIM_HOST_ACCESS", "0"}}).wait() == -SIGSEGV);
  CHECK(Process("no_devices", "", {{"GPUDT_SIM_DEVICES", "0"}}).wait() == 0);
  CHECK(Process("three_devices", "", {{"GPUDT_SIM_DEVICES", "3"}}).wait() == 0);
  CHECK(Process("delayed", "", {{"GPUDT_SIM_DELAY_US", "300000"}}).wait() == 0);
  CHECK(Process("delayed", "", {{"GPUDT_SIM_DELAY_US", "300000-310000"}}).wait() == 0);
}

TEST_CASE("sim: a process may end with everything in use", "[sim]") {
  CHECK(Process("leaver", "", {{"GPUDT_SIM_DELAY_US", "100"}}).wait() == 0);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("sim: preloaded into a program that is not concerned", "[sim]") {
  Dl_info info;
  REQUIRE(dladdr(dlsym(RTLD_DEFAULT, "gpudt_sim_api"), &info) != 0);
  const Process ls("/bin/ls", {{"LD_PRELOAD", info.dli_fname}});
  CHECK_FALSE(ls.read_some().empty());
  CHECK(ls.wait() == 0);
}
#endif

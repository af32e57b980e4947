// The engine: packs, unpacks and copies of whatever device there is (the simulated one if it is loaded), their
// completion, and its starts and stops. What a pack should give is what MPI_Pack gives on a host copy.
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "datatype/decode.hpp"
#include "device/device.hpp"
#include "tests/support/catch.hpp"

namespace {

using namespace gpudt;
using device::Direction;
using device::Staging;
using device::StagingKind;
using device::Transfer;

constexpr unsigned char poison = 0xa5;

/// The engine, while it lives.
struct EngineSession {
  explicit EngineSession(const device::Config& config = {}) { device::start(config); }
  ~EngineSession() { device::stop(); }
  EngineSession(const EngineSession&) = delete;
  EngineSession& operator=(const EngineSession&) = delete;
};

/// device::start() from or to staging memory.
Transfer start(Direction direction, const datatype::Layout& layout, std::int64_t count, void* user, std::int64_t begin,
               std::int64_t end, const Staging& packed) {
  return device::start(direction, 0, layout, count, user, begin, end, packed.data(), packed.memory_kind());
}

/// Device memory and a host copy of it.
class EngineBuffer {
 public:
  explicit EngineBuffer(std::size_t bytes) : host(bytes, poison) {
    REQUIRE(cudaMalloc(&address_, bytes) == cudaSuccess);
    put();
  }
  ~EngineBuffer() { cudaFree(address_); }
  EngineBuffer(const EngineBuffer&) = delete;
  EngineBuffer& operator=(const EngineBuffer&) = delete;
  char* device() const { return static_cast<char*>(address_); }
  /// cudaMemcpy from pageable memory may return before the bytes are where other streams see them.
  void put() const {
    REQUIRE(cudaMemcpy(address_, host.data(), host.size(), cudaMemcpyHostToDevice) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
  }
  std::vector<unsigned char> get() const {
    std::vector<unsigned char> bytes(host.size());
    REQUIRE(cudaMemcpy(bytes.data(), address_, bytes.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
    return bytes;
  }
  void number(unsigned seed) {
    for (std::size_t i = 0; i < host.size(); ++i)
      host[i] = static_cast<unsigned char>((i * 2654435761u + seed * 40503u) >> 13);
    put();
  }
  std::vector<unsigned char> host;

 private:
  void* address_ = nullptr;
};

class Type {
 public:
  explicit Type(MPI_Datatype type) : type_(type) { MPI_Type_commit(&type_); }
  ~Type() { MPI_Type_free(&type_); }
  Type(const Type&) = delete;
  Type& operator=(const Type&) = delete;
  MPI_Datatype get() const { return type_; }

 private:
  MPI_Datatype type_;
};

MPI_Datatype contiguous(int bytes) {
  MPI_Datatype type;
  MPI_Type_contiguous(bytes, MPI_BYTE, &type);
  return type;
}

MPI_Datatype vector_of(int count, int block, int stride) {
  MPI_Datatype type;
  MPI_Type_vector(count, block, stride, MPI_INT, &type);
  return type;
}

MPI_Datatype indexed(int count) {
  std::vector<int> lengths, places;
  for (int i = 0, place = 0; i < count; ++i) {
    lengths.push_back(1 + i * i % 5);
    places.push_back(place);
    place += lengths.back() + 1 + i % 3;
  }
  MPI_Datatype type;
  MPI_Type_indexed(count, lengths.data(), places.data(), MPI_INT, &type);
  return type;
}

/// A structure of a list and a vector, so that nothing but the general traversal does.
MPI_Datatype structure_type() {
  MPI_Datatype parts[3] = {indexed(7), MPI_CHAR, vector_of(5, 2, 3)};
  const int lengths[3] = {2, 3, 1};
  const MPI_Aint places[3] = {0, 400, 500};
  MPI_Datatype type;
  MPI_Type_create_struct(3, lengths, places, parts, &type);
  MPI_Type_free(&parts[0]);
  MPI_Type_free(&parts[2]);
  return type;
}

struct EngineCase {
  const char* name;
  std::function<MPI_Datatype()> make;
  int count;
};

const EngineCase cases[] = {
    {"contiguous", [] { return contiguous(1000); }, 3},
    {"contiguous, by the copy engine", [] { return contiguous(1 << 20); }, 3},
    {"vector", [] { return vector_of(40, 3, 7); }, 5},
    {"indexed", [] { return indexed(300); }, 4},
    {"structure", structure_type, 9},
};

std::vector<unsigned char> packed_by_mpi(const void* user, int count, MPI_Datatype type) {
  int bytes = 0, position = 0;
  MPI_Pack_size(count, type, MPI_COMM_SELF, &bytes);
  std::vector<unsigned char> packed(static_cast<std::size_t>(bytes));
  MPI_Pack(user, count, type, packed.data(), bytes, &position, MPI_COMM_SELF);
  packed.resize(static_cast<std::size_t>(position));
  return packed;
}

/// `user` with packed bytes [begin, end) of `packed` in their places.
std::vector<unsigned char> unpacked(std::vector<unsigned char> user, int count, MPI_Datatype type,
                                    const std::vector<unsigned char>& packed, std::int64_t begin, std::int64_t end) {
  std::vector<unsigned char> whole = packed_by_mpi(user.data(), count, type);
  std::copy(packed.begin() + begin, packed.begin() + end, whole.begin() + begin);
  int position = 0;
  MPI_Unpack(whole.data(), static_cast<int>(whole.size()), &position, user.data(), count, type, MPI_COMM_SELF);
  return user;
}

std::size_t user_bytes(const datatype::Layout& layout, int count) {
  return static_cast<std::size_t>(layout.true_ub() + (count - 1) * layout.extent());
}

void read_staging(const Staging& staging, StagingKind kind, std::vector<unsigned char>& into) {
  if (kind == StagingKind::mapped)
    std::memcpy(into.data(), staging.data(), into.size());
  else
    REQUIRE(cudaMemcpy(into.data(), staging.data(), into.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
}

void write_staging(const Staging& staging, StagingKind kind, const std::vector<unsigned char>& from) {
  if (kind == StagingKind::device) {
    REQUIRE(cudaMemcpy(staging.data(), from.data(), from.size(), cudaMemcpyHostToDevice) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
  } else {
    std::memcpy(staging.data(), from.data(), from.size());
  }
}

void check_pack(EngineBuffer& user, const EngineCase& which, const Type& type, const datatype::Layout& layout,
                StagingKind kind, std::int64_t begin, std::int64_t end) {
  constexpr std::size_t guard = 64;
  const auto expected = packed_by_mpi(user.host.data(), which.count, type.get());
  const auto bytes = static_cast<std::size_t>(end - begin);
  const Staging staging = device::acquire(kind, 0, bytes + guard);
  std::vector<unsigned char> got(bytes + guard, poison), want = got;
  write_staging(staging, kind, got);
  std::copy(expected.begin() + begin, expected.begin() + end, want.begin());
  Transfer transfer = start(Direction::pack, layout, which.count, user.device(), begin, end, staging);
  transfer.wait();
  CHECK(transfer.done());
  read_staging(staging, kind, got);
  CHECK(got == want);
}

void check_unpack(EngineBuffer& user, const EngineCase& which, const Type& type, const datatype::Layout& layout,
                  StagingKind kind, std::int64_t begin, std::int64_t end) {
  std::vector<unsigned char> stream(static_cast<std::size_t>(layout.size() * which.count));
  for (std::size_t i = 0; i < stream.size(); ++i) stream[i] = static_cast<unsigned char>(i * 31 + 7);
  const Staging staging = device::acquire(kind, 0, stream.size());
  write_staging(staging, kind, {stream.begin() + begin, stream.begin() + end});
  const auto want = unpacked(user.host, which.count, type.get(), stream, begin, end);
  start(Direction::unpack, layout, which.count, user.device(), begin, end, staging).wait();
  const auto got = user.get();
  CHECK(got == want);
  user.put();
}

bool simulated() {
  return std::string(device::runtime_name()) == "sim";
}

TEST_CASE("memory that is surely the host's", "[device]") {
  const EngineSession session;
  if (std::string(device::runtime_name()) == "none") return;
  const int on_stack = 0;  // of the first thread, on which the tests run
  CHECK(device::surely_host(&on_stack));
  static int initialized = 1, zero = 0;
  CHECK(device::surely_host(&initialized));
  CHECK(device::surely_host(&zero));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose heaps are elsewhere
  // More than glibc keeps for a thread, which may come from another thread's arena, and less than it maps by itself.
  const std::vector<char> in_heap(1 << 14);
  CHECK(device::surely_host(in_heap.data()));
#endif
  void* const mapped = mmap(nullptr, 1, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK_FALSE(device::surely_host(mapped));
  munmap(mapped, 1);
  CHECK_FALSE(device::surely_host(nullptr));
  const EngineBuffer buffer(1 << 20);
  CHECK_FALSE(device::surely_host(buffer.device()));
}

}  // namespace

TEST_CASE("engine: packs and unpacks every form, whole and in part", "[device]") {
  const EngineSession session;
  REQUIRE(std::string(device::runtime_name()) != "none");
  for (const EngineCase& which : cases) {
    const Type type(which.make());
    const datatype::LayoutRef layout = datatype::decode(type.get());
    EngineBuffer user(user_bytes(*layout, which.count));
    user.number(1);
    const std::int64_t total = layout->size() * which.count;
    for (const StagingKind kind : {StagingKind::mapped, StagingKind::device}) {
      for (const auto& [begin, end] : {std::pair{std::int64_t(0), total}, {total / 3 + 1, total - 5}, {1, 2}}) {
        INFO(which.name << ", bytes " << begin << " to " << end << ", "
                        << (kind == StagingKind::mapped ? "mapped" : "device") << " staging");
        check_pack(user, which, type, *layout, kind, begin, end);
        check_unpack(user, which, type, *layout, kind, begin, end);
      }
    }
  }
}

TEST_CASE("engine: messages beyond the caches of a GPU, within it", "[device]") {
  const EngineSession session;
  constexpr int megabytes = 52;
  const EngineCase beyond[] = {
      {"long rows", [] { return vector_of(megabytes * 2048, 128, 160); }, 1},
      {"short rows", [] { return vector_of(megabytes << 15, 8, 12); }, 1},
      {"words of four bytes", [] { return vector_of(megabytes << 15, 8, 13); }, 1},
      {"irregular", [] { return indexed(1000); }, megabytes << 20 >> 12},
  };
  for (const EngineCase& which : beyond) {
    // One processor takes long, and does all alike but for what tells the end.
    if (simulated() && &which != &beyond[1]) continue;
    const Type type(which.make());
    const datatype::LayoutRef layout = datatype::decode(type.get());
    EngineBuffer user(user_bytes(*layout, which.count));
    user.number(1);
    const std::int64_t total = layout->size() * which.count;
    for (const auto& [begin, end] : {std::pair{std::int64_t(0), total}, {total / 128 * 4, total - 4}, {7, total - 5}}) {
      if (simulated() && begin != 7) continue;
      INFO(which.name << ", bytes " << begin << " to " << end);
      check_pack(user, which, type, *layout, StagingKind::device, begin, end);
      check_unpack(user, which, type, *layout, StagingKind::device, begin, end);
    }
  }
}

TEST_CASE("engine: absolute addresses", "[device]") {
  const EngineSession session;
  EngineBuffer first(100), second(200);
  first.number(1);
  second.number(2);
  const int lengths[2] = {30, 50};
  const MPI_Aint places[2] = {reinterpret_cast<MPI_Aint>(second.device() + 7),
                              reinterpret_cast<MPI_Aint>(first.device() + 3)};
  MPI_Datatype made;
  MPI_Type_create_hindexed(2, lengths, places, MPI_BYTE, &made);
  const Type type(made);
  const datatype::LayoutRef layout = datatype::decode(type.get());
  const Staging staging = device::acquire(StagingKind::mapped, 0, 80);
  start(Direction::pack, *layout, 1, MPI_BOTTOM, 0, 80, staging).wait();
  CHECK(std::memcmp(staging.data(), &second.host[7], 30) == 0);
  CHECK(std::memcmp(static_cast<char*>(staging.data()) + 30, &first.host[3], 50) == 0);
  std::memset(staging.data(), 9, 80);
  start(Direction::unpack, *layout, 1, MPI_BOTTOM, 0, 80, staging).wait();
  std::fill_n(second.host.begin() + 7, 30, static_cast<unsigned char>(9));
  std::fill_n(first.host.begin() + 3, 50, static_cast<unsigned char>(9));
  CHECK(first.get() == first.host);
  CHECK(second.get() == second.host);
}

TEST_CASE("engine: copies between all kinds of memory", "[device]") {
  const EngineSession session;
  for (const std::size_t bytes : {std::size_t(1), std::size_t(777), std::size_t(3) << 20}) {
    EngineBuffer a(bytes), b(bytes);
    std::vector<unsigned char> pageable(bytes);
    void* allocated = nullptr;
    REQUIRE(cudaMallocHost(&allocated, bytes) == cudaSuccess);
    auto* pinned = static_cast<unsigned char*>(allocated);

    a.number(static_cast<unsigned>(bytes));
    device::copy(0, b.device(), a.device(), bytes).wait();
    CHECK(b.get() == a.host);
    device::copy(0, pinned, b.device(), bytes).wait();
    CHECK(std::memcmp(pinned, a.host.data(), bytes) == 0);
    device::copy(0, pageable.data(), b.device(), bytes).wait();
    CHECK(pageable == a.host);
    for (unsigned char& byte : pageable) byte = static_cast<unsigned char>(~byte);
    device::copy(0, a.device(), pageable.data(), bytes).wait();
    CHECK(a.get() == pageable);
    device::copy(0, a.device(), pinned, bytes).wait();
    CHECK(a.get() == a.host);
    REQUIRE(cudaFreeHost(allocated) == cudaSuccess);
  }
  CHECK(device::copy(0, nullptr, nullptr, 0).done());
}

TEST_CASE("engine: copies between GPUs", "[device]") {
  int gpus = 0;
  REQUIRE(cudaGetDeviceCount(&gpus) == cudaSuccess);
  if (gpus < 2) return;
  const EngineSession session;
  EngineBuffer here(5000);
  here.number(5);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  EngineBuffer there(5000);
  CHECK(device::classify(there.device()).ordinal == 1);
  device::copy(0, there.device(), here.device(), 5000).wait();
  CHECK(there.get() == here.host);
  // More than there is: refused, and not given to a kernel, which may not reach the other GPU.
  if (simulated()) CHECK_THROWS_AS(device::copy(0, there.device(), here.device(), 1 << 20), device::Error);
  int current = -1;
  CHECK(cudaGetDevice(&current) == cudaSuccess);
  CHECK(current == 1);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
}

TEST_CASE("engine: an empty range is done at once", "[device]") {
  const EngineSession session;
  const Type type(vector_of(2, 1, 2));
  const datatype::LayoutRef layout = datatype::decode(type.get());
  Transfer transfer = device::start(Direction::pack, 0, *layout, 1, nullptr, 4, 4, nullptr, device::MemoryKind::pinned);
  CHECK(transfer.done());
  CHECK_FALSE(transfer);
}

TEST_CASE("engine: the first work of a stream does not tell how late work begins", "[device]") {
  const EngineSession session;
  const Type type(vector_of(2, 1, 2));
  const datatype::LayoutRef layout = datatype::decode(type.get());
  const EngineBuffer user(64);
  const Staging staging = device::acquire(StagingKind::mapped, 0, 64);
  for (const Direction direction : {Direction::pack, Direction::unpack}) {
    start(direction, *layout, 1, user.device(), 0, 8, staging).wait();
    CHECK(device::movements().late == 0);
  }
}

TEST_CASE("engine: any number of transfers at a time", "[device]") {
  const EngineSession session;
  constexpr int many = 10000, bytes = 24;
  const Type type(vector_of(3, 2, 4));
  const datatype::LayoutRef layout = datatype::decode(type.get());
  EngineBuffer user(static_cast<std::size_t>(many) * 40);
  user.number(3);
  const Staging staging = device::acquire(StagingKind::mapped, 0, many * bytes);
  std::memset(staging.data(), poison, many * bytes);
  std::vector<Transfer> transfers;
  transfers.reserve(many);
  for (int i = 0; i < many; ++i)
    transfers.push_back(device::start(Direction::pack, 0, *layout, 1, user.device() + i * 40, 0, bytes,
                                      static_cast<char*>(staging.data()) + i * bytes, staging.memory_kind()));
  int wrong = 0;
  for (int i = 0; i < many; ++i) {
    transfers[static_cast<std::size_t>(i)].wait();
    const auto expected = packed_by_mpi(&user.host[static_cast<std::size_t>(i) * 40], 1, type.get());
    if (std::memcmp(static_cast<char*>(staging.data()) + i * bytes, expected.data(), bytes) != 0) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("engine: a transfer that is destroyed has been waited for", "[device]") {
  const EngineSession session;
  const Type type(vector_of(100, 1, 2));
  const datatype::LayoutRef layout = datatype::decode(type.get());
  EngineBuffer user(800);
  user.number(4);
  const auto expected = packed_by_mpi(user.host.data(), 1, type.get());
  const Staging staging = device::acquire(StagingKind::mapped, 0, 400);
  int wrong = 0;
  for (int i = 0; i < 100; ++i) {
    std::memset(staging.data(), poison, 400);
    { const Transfer first = start(Direction::pack, *layout, 1, user.device(), 0, 400, staging); }
    if (std::memcmp(staging.data(), expected.data(), 400) != 0) ++wrong;
    std::memset(staging.data(), poison, 400);
    Transfer second = start(Direction::pack, *layout, 1, user.device(), 0, 400, staging);
    second = Transfer();
    if (std::memcmp(staging.data(), expected.data(), 400) != 0) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("engine: work of one direction runs in the order it was started", "[device]") {
  const EngineSession session;
  const Type small(vector_of(64, 1, 2)), large(vector_of(1 << 18, 1, 2));
  const datatype::LayoutRef small_layout = datatype::decode(small.get()), large_layout = datatype::decode(large.get());
  EngineBuffer user(8 << 18);
  user.number(6);
  const Staging a = device::acquire(StagingKind::mapped, 0, 4 << 18), b = device::acquire(StagingKind::mapped, 0, 256);
  Transfer first = start(Direction::pack, *large_layout, 1, user.device(), 0, 4 << 18, a);
  Transfer second = start(Direction::pack, *small_layout, 1, user.device(), 0, 256, b);
  second.wait();
  CHECK(first.done());
}

TEST_CASE("engine: an unpack waits for its layout even if that is uploaded behind packs", "[device]") {
  const EngineSession session;
  const Type plain(vector_of(64, 1, 2)), listed(indexed(300));
  const datatype::LayoutRef plain_layout = datatype::decode(plain.get()), layout = datatype::decode(listed.get());
  const auto bytes = static_cast<std::size_t>(layout->size());
  EngineBuffer source(512), user(user_bytes(*layout, 1));
  user.number(7);
  std::vector<unsigned char> stream(bytes);
  for (std::size_t i = 0; i < bytes; ++i) stream[i] = static_cast<unsigned char>(i * 5 + 1);
  const Staging in = device::acquire(StagingKind::mapped, 0, bytes),
                out = device::acquire(StagingKind::mapped, 0, bytes);
  const Staging idle = device::acquire(StagingKind::mapped, 0, 256);
  std::memcpy(in.data(), stream.data(), bytes);
  std::vector<Transfer> before;
  before.reserve(300);
  for (int i = 0; i < 300; ++i)
    before.push_back(start(Direction::pack, *plain_layout, 1, source.device(), 0, 256, idle));
  EngineBuffer other(user_bytes(*layout, 1));
  Transfer pack = start(Direction::pack, *layout, 1, other.device(), 0, layout->size(), out);
  start(Direction::unpack, *layout, 1, user.device(), 0, layout->size(), in).wait();
  CHECK(user.get() == unpacked(user.host, 1, listed.get(), stream, 0, layout->size()));
  pack.wait();
}

TEST_CASE("engine: threads share layouts, GPUs and staging", "[device]") {
  const EngineSession session;
  std::atomic<int> wrong{0};
  const Type shared(indexed(200));
  const datatype::LayoutRef layout = datatype::decode(shared.get());
  const auto bytes = static_cast<std::size_t>(layout->size());
  std::vector<std::unique_ptr<EngineBuffer>> sources, targets;
  for (int i = 0; i < 8; ++i) {
    sources.push_back(std::make_unique<EngineBuffer>(user_bytes(*layout, 1)));
    sources.back()->number(static_cast<unsigned>(i));
    targets.push_back(std::make_unique<EngineBuffer>(user_bytes(*layout, 1)));
  }
  std::vector<std::thread> threads;
  for (std::size_t number = 0; number < 8; ++number) {
    threads.emplace_back([&, number] {
      try {
        const auto expected = packed_by_mpi(sources[number]->host.data(), 1, shared.get());
        for (int round = 0; round < 100; ++round) {
          const Staging staging = device::acquire(StagingKind::mapped, 0, bytes);
          start(Direction::pack, *layout, 1, sources[number]->device(), 0, layout->size(), staging).wait();
          if (std::memcmp(staging.data(), expected.data(), bytes) != 0) ++wrong;
          start(Direction::unpack, *layout, 1, targets[number]->device(), 0, layout->size(), staging).wait();
        }
      } catch (const device::Error&) {
        ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  for (std::size_t i = 0; i < 8; ++i) {
    const auto packed = packed_by_mpi(sources[i]->host.data(), 1, shared.get());
    const auto want = unpacked(targets[i]->host, 1, shared.get(), packed, 0, layout->size());
    CHECK(targets[i]->get() == want);
  }
}

TEST_CASE("engine: started and stopped again and again, with layouts that outlive it", "[device]") {
  const Type old_type(structure_type());
  const datatype::LayoutRef kept = datatype::decode(old_type.get());
  datatype::LayoutRef late;
  EngineBuffer user(user_bytes(*kept, 1));
  user.number(8);
  const auto expected = packed_by_mpi(user.host.data(), 1, old_type.get());
  Staging outlives;
  std::size_t first_free = 0;
  for (int round = 0; round < 5; ++round) {
    const datatype::LayoutRef within = datatype::decode(old_type.get());
    late = datatype::decode(old_type.get());  // the last round's is destroyed here, after its engine
    CHECK_FALSE(device::classify(user.device()).on_device());
    {
      const EngineSession session;
      CHECK(device::classify(user.device()).on_device());
      CHECK(device::classify(&round).kind == device::MemoryKind::host);
      for (const datatype::LayoutRef& layout : {kept, within, late}) {
        Staging staging = device::acquire(StagingKind::mapped, 0, expected.size());
        start(Direction::pack, *layout, 1, user.device(), 0, layout->size(), staging).wait();
        CHECK(std::memcmp(staging.data(), expected.data(), expected.size()) == 0);
        outlives = std::move(staging);
      }
    }
    if (std::size_t free = 0, total = 0; cudaMemGetInfo(&free, &total) == cudaSuccess) {
      if (round == 0) first_free = free;
      CHECK(free == first_free);
    }
  }
}

TEST_CASE("engine: transfers and staging that outlive it", "[device]") {
  const Type type(vector_of(100, 1, 2));
  const datatype::LayoutRef layout = datatype::decode(type.get());
  EngineBuffer user(800);
  user.number(9);
  void* packed = nullptr;
  REQUIRE(cudaMallocHost(&packed, 400) == cudaSuccess);
  std::vector<Transfer> transfers;
  Staging staging;
  {
    const EngineSession session;
    staging = device::acquire(StagingKind::device, 0, 100);
    for (int i = 0; i < 300; ++i)
      transfers.push_back(
          device::start(Direction::pack, 0, *layout, 1, user.device(), 0, 400, packed, device::MemoryKind::pinned));
    transfers.push_back(device::copy(0, packed, user.device(), 0));
  }
  const auto expected = packed_by_mpi(user.host.data(), 1, type.get());
  CHECK(std::memcmp(packed, expected.data(), 400) == 0);  // stop() has waited
  for (Transfer& transfer : transfers) CHECK(transfer.done());
  transfers.clear();
  staging = {};
  REQUIRE(cudaFreeHost(packed) == cudaSuccess);
}

TEST_CASE("engine: without a runtime", "[device]") {
  const EngineSession session({device::Choice::none});
  CHECK(std::string(device::runtime_name()) == "none");
  int gpus = 0;
  REQUIRE(cudaGetDeviceCount(&gpus) == cudaSuccess);
  const EngineBuffer buffer(1);
  CHECK(device::classify(buffer.device()).kind == device::MemoryKind::host);
  CHECK_THROWS_AS(device::acquire(StagingKind::mapped, 0, 1), device::Error);
  CHECK(device::staging_statistics(StagingKind::mapped).allocated == 0);
}

TEST_CASE("engine: classification", "[device]") {
  const EngineSession session;
  const EngineBuffer buffer(1000);
  void *pinned = nullptr, *managed = nullptr;
  REQUIRE(cudaMallocHost(&pinned, 1000) == cudaSuccess);
  REQUIRE(cudaMallocManaged(&managed, 1000, cudaMemAttachGlobal) == cudaSuccess);
  std::vector<char> plain(1000);
  CHECK(device::classify(buffer.device() + 999).kind == device::MemoryKind::device);
  CHECK(device::classify(buffer.device()).ordinal == 0);
  CHECK(device::classify(static_cast<char*>(pinned) + 999).kind == device::MemoryKind::pinned);
  CHECK(device::classify(static_cast<char*>(managed) + 999).kind == device::MemoryKind::managed);
  CHECK(device::classify(plain.data()).kind == device::MemoryKind::host);
  CHECK(device::classify(nullptr).kind == device::MemoryKind::host);
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
  CHECK(cudaFree(managed) == cudaSuccess);
}

TEST_CASE("engine: the limit on staging memory", "[device]") {
  device::Config config;
  config.staging_limit = 1 << 20;
  const EngineSession session(config);
  const Staging held = device::acquire(StagingKind::mapped, 0, 1 << 19);
  std::optional<device::Failure> failure;
  try {
    device::acquire(StagingKind::device, 0, 3 << 18);
  } catch (const device::Error& error) {
    failure = error.failure();
    CHECK(std::string(error.what()).find("GPUDT_STAGING_LIMIT") != std::string::npos);
  }
  CHECK(failure == device::Failure::out_of_memory);
  CHECK(device::staging_statistics(StagingKind::mapped).in_use == 1 << 19);
}

TEST_CASE("engine: a failed kernel is reported, not waited for", "[device]") {
  std::optional<EngineSession> session(std::in_place);
  if (!simulated()) return;  // a real GPU would be lost to the tests that follow
  const Type type(vector_of(100, 1, 2));
  const datatype::LayoutRef layout = datatype::decode(type.get());
  void* freed = nullptr;
  REQUIRE(cudaMalloc(&freed, 800) == cudaSuccess);
  REQUIRE(cudaFree(freed) == cudaSuccess);
  const Staging staging = device::acquire(StagingKind::mapped, 0, 400);
  {
    Transfer transfer = start(Direction::pack, *layout, 1, freed, 0, 400, staging);
    CHECK_THROWS_AS(transfer.wait(), device::Error);
  }
  CHECK_THROWS_AS(start(Direction::pack, *layout, 1, freed, 0, 400, staging), device::Error);
  session.reset();
  REQUIRE(cudaDeviceReset() == cudaSuccess);
}

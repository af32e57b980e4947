// MPI_Put and MPI_Rput from device memory into windows of host memory, with every kind of synchronisation.
#include <algorithm>

#include "tests/mpi/exchange.hpp"
#include "tests/mpi/rma.hpp"

using namespace gpudt::test;

namespace {

/// A window over host memory that holds `slots` buffers of (count, type), with guards.
class Window {
 public:
  Window(const Type& type, int count, int slots) : type_(&type), count_(count) {
    for (int i = 0; i < slots; ++i) images_.emplace_back(type, count);
    stride_ = images_[0].bytes().size();
    for (const Image& image : images_) expected_.insert(expected_.end(), image.bytes().begin(), image.bytes().end());
    memory_ = make_host_window(static_cast<MPI_Aint>(expected_.size()), comm(), own_, &window_);
    std::copy(expected_.begin(), expected_.end(), memory_);
    PMPI_Barrier(comm());
    PMPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN);
  }
  ~Window() { MPI_Win_free(&window_); }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  operator MPI_Win() const { return window_; }  // NOLINT(google-explicit-constructor): stands in for the handle
  MPI_Aint displacement(int slot) const {
    return static_cast<MPI_Aint>(stride_) * slot + images_[static_cast<std::size_t>(slot)].origin();
  }
  /// What should now be in a slot, over what was there.
  void expect(int slot, const Stream& stream) {
    Image& image = images_[static_cast<std::size_t>(slot)];
    unpack_into(image, *type_, count_, stream);
    std::copy(image.bytes().begin(), image.bytes().end(),
              expected_.begin() + static_cast<std::ptrdiff_t>(stride_) * slot);
  }
  bool matches() const { return std::equal(expected_.begin(), expected_.end(), memory_); }

 private:
  const Type* type_;
  int count_;
  std::vector<Image> images_;
  std::size_t stride_ = 0;
  std::vector<char> own_, expected_;
  char* memory_ = nullptr;
  MPI_Win window_ = MPI_WIN_NULL;
};

constexpr int slots = 3;

}  // namespace

TEST_CASE("Put from device memory, with every synchronisation", "[put]") {
  const int right = (rank() + 1) % ranks(), left = (rank() + ranks() - 1) % ranks();
  for (const int bytes : {400, 60000})
    for (const int layout : {0, 1, 4, 10}) {
      const Type type = named_layout(layout, bytes);
      for (const Epoch& epoch : epochs) {
        const std::string text = std::string(epoch.name) + ", " + type.text();
        INFO(text);
        step(text);
        Window window(type, 1, slots);
        std::vector<Buffer> out;
        for (int slot = 0; slot < slots; ++slot) {
          out.emplace_back(slot == 1 ? Place::host : Place::device, type, 1);
          out.back().fill(key_of(rank(), slot));
        }
        lock_step();
        epoch.open(window, right, left);
        for (int slot = 0; slot < slots; ++slot)
          MPI_OK(MPI_Put(out[static_cast<std::size_t>(slot)].address(), 1, type, right, window.displacement(slot), 1,
                         type, window));
        if (epoch.completes_early) {
          epoch.complete(window, right);
          for (Buffer& buffer : out) buffer.poison();  // the origin buffers are the program's again
        }
        epoch.close(window, right);
        for (Buffer& buffer : out) buffer.poison();
        lock_step();
        for (int slot = 0; slot < slots; ++slot) window.expect(slot, stream_of(type, 1, key_of(left, slot)));
        // A lock lets the target look only under a lock of its own.
        MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, rank(), 0, window));
        CHECK(window.matches());
        MPI_OK(MPI_Win_unlock(rank(), window));
        lock_step();
      }
    }
}

TEST_CASE("Rput completes with its request", "[put]") {
  const int right = (rank() + 1) % ranks(), left = (rank() + ranks() - 1) % ranks();
  for (const int bytes : {400, 60000}) {
    const Type type = vector(bytes / 16, 2, 3);
    Window window(type, 1, slots);
    std::vector<Buffer> out;
    MPI_OK(MPI_Win_lock_all(0, window));
    std::vector<MPI_Request> requests(slots, MPI_REQUEST_NULL);
    for (int slot = 0; slot < slots; ++slot) {
      out.emplace_back(slot == 1 ? Place::host : Place::device, type, 1);
      out.back().fill(key_of(rank(), slot));
      MPI_OK(MPI_Rput(out.back().address(), 1, type, right, window.displacement(slot), 1, type, window,
                      &requests[static_cast<std::size_t>(slot)]));
    }
    MPI_OK(MPI_Waitall(slots, requests.data(), MPI_STATUSES_IGNORE));
    for (Buffer& buffer : out) buffer.poison();
    MPI_OK(MPI_Win_unlock_all(window));
    lock_step();
    for (int slot = 0; slot < slots; ++slot) window.expect(slot, stream_of(type, 1, key_of(left, slot)));
    MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, rank(), 0, window));
    CHECK(window.matches());
    MPI_OK(MPI_Win_unlock(rank(), window));
    lock_step();
  }
}

TEST_CASE("Put with unlike types at origin and target", "[put]") {
  const int right = (rank() + 1) % ranks(), left = (rank() + ranks() - 1) % ranks();
  auto random = random_numbers("put");
  for (int i = 0; i < scaled(60); ++i) {
    const Pair pair = random_pair(random);
    INFO(pair.send.text() << " to " << pair.receive.text());
    step(pair.send.text() + " to " + pair.receive.text());
    Window window(pair.receive, 2, 1);
    Buffer out(Place::device, pair.send, 2);
    out.fill(key_of(rank(), i));
    MPI_OK(MPI_Win_fence(MPI_MODE_NOPRECEDE, window));
    MPI_OK(MPI_Put(out.address(), 2, pair.send, right, window.displacement(0), 2, pair.receive, window));
    MPI_OK(MPI_Win_fence(MPI_MODE_NOSUCCEED, window));
    window.expect(0, stream_of(pair.send, 2, key_of(left, i)));
    CHECK(window.matches());
    CHECK(out.difference() == "");
  }
}

TEST_CASE("Put to self, to nobody and of nothing", "[put]") {
  const Type type = vector(100, 1, 2);
  Window window(type, 1, slots);
  Buffer out(Place::device, type, 1);
  out.fill(key_of(rank(), 0));
  MPI_OK(MPI_Win_lock_all(0, window));
  MPI_OK(MPI_Put(out.address(), 1, type, rank(), window.displacement(0), 1, type, window));
  MPI_OK(MPI_Put(out.address(), 1, type, MPI_PROC_NULL, window.displacement(1), 1, type, window));
  MPI_OK(MPI_Put(out.address(), 0, type, rank(), window.displacement(2), 0, type, window));
  MPI_OK(MPI_Win_unlock_all(window));
  window.expect(0, stream_of(type, 1, key_of(rank(), 0)));
  CHECK(window.matches());
}

TEST_CASE("many Puts in one epoch", "[put]") {
  const int right = (rank() + 1) % ranks(), left = (rank() + ranks() - 1) % ranks();
  constexpr int many = 100;
  const Type type = vector(50, 1, 2);
  Window window(type, 1, many);
  Buffer out(Place::device, type, 1);
  MPI_OK(MPI_Win_lock_all(0, window));
  for (int i = 0; i < many; ++i) {
    out.fill(key_of(rank(), i));
    MPI_OK(MPI_Put(out.address(), 1, type, right, window.displacement(i), 1, type, window));
    MPI_OK(MPI_Win_flush_local(right, window));
  }
  MPI_OK(MPI_Win_unlock_all(window));
  lock_step();
  for (int i = 0; i < many; ++i) window.expect(i, stream_of(type, 1, key_of(left, i)));
  MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, rank(), 0, window));
  CHECK(window.matches());
  MPI_OK(MPI_Win_unlock(rank(), window));
  lock_step();
}

TEST_CASE("a window freed with a Put of its last epoch behind it", "[put]") {
  const int right = (rank() + 1) % ranks(), left = (rank() + ranks() - 1) % ranks();
  const Type type = vector(5000, 1, 2);
  Buffer out(Place::device, type, 1);
  for (int i = 0; i < 10; ++i) {
    Window window(type, 1, 1);
    out.fill(key_of(rank(), i));
    MPI_OK(MPI_Win_fence(0, window));
    MPI_OK(MPI_Put(out.address(), 1, type, right, window.displacement(0), 1, type, window));
    MPI_OK(MPI_Win_fence(0, window));
    window.expect(0, stream_of(type, 1, key_of(left, i)));
    CHECK(window.matches());
  }
}

namespace {

int type_copies = 0;

int refuse_copy(MPI_Datatype, int, void*, void*, void*, int*) {
  ++type_copies;
  return MPI_ERR_OTHER;
}

}  // namespace

TEST_CASE("Put and Accumulate copy no attributes of the program's datatype", "[put]") {
  const int right = (rank() + 1) % ranks(), left = (rank() + ranks() - 1) % ranks();
  int keyval = MPI_KEYVAL_INVALID, value = 7;
  MPI_OK(MPI_Type_create_keyval(refuse_copy, MPI_TYPE_NULL_DELETE_FN, &keyval, nullptr));
  Type type = vector(100, 1, 2);
  MPI_OK(MPI_Type_set_attr(type, keyval, &value));
  Window window(type, 1, 2);
  Buffer out(Place::device, type, 1);
  out.fill(key_of(rank(), 0));
  MPI_OK(MPI_Win_fence(0, window));
  MPI_OK(MPI_Put(out.address(), 1, type, right, window.displacement(0), 1, type, window));
  MPI_OK(MPI_Accumulate(out.address(), 1, type, right, window.displacement(1), 1, type, MPI_REPLACE, window));
  MPI_OK(MPI_Win_fence(0, window));
  for (const int slot : {0, 1}) window.expect(slot, stream_of(type, 1, key_of(left, 0)));
  CHECK(window.matches());
  CHECK(type_copies == 0);
  MPI_OK(MPI_Type_free_keyval(&keyval));
}

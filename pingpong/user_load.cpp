#include "pingpong/user_load.hpp"

#include <algorithm>
#include <cmath>

#if GPUDT_BY_HAND
#include "pingpong/load_kernels.hpp"
#endif

namespace gpudt::bench {

const char* const load_help = R"(Loads:
  long   a kernel that fills all multiprocessors, with blocks that last as long as itself
  short  the same with blocks of about 10 us
  add    a vector addition: short blocks that need the memory's bandwidth
  up     one copy from pinned memory to the device (at most 512 MiB)
  down   one copy from the device to pinned memory
)";

const std::vector<std::string>& load_names() {
  static const std::vector<std::string> names = {"long", "short", "add", "up", "down"};
  return names;
}

UserLoad::UserLoad() {
  cuda_check(cudaEventCreate(&begin_), "cudaEventCreate");
  cuda_check(cudaEventCreate(&end_), "cudaEventCreate");
}

UserLoad::~UserLoad() {
  cudaEventDestroy(begin_);
  cudaEventDestroy(end_);
}

void UserLoad::start() {
  cuda_check(cudaEventRecord(begin_, stream_.get()), "cudaEventRecord");
  queue(amount_, stream_.get());
  cuda_check(cudaEventRecord(end_, stream_.get()), "cudaEventRecord");
}

double UserLoad::wait() {
  float milliseconds = 0;
  cuda_check(cudaEventSynchronize(end_), "cudaEventSynchronize");
  cuda_check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
  return 1000.0 * milliseconds;
}

double UserLoad::microseconds_for(std::int64_t amount) {
  amount_ = amount;
  start();
  return wait();
}

void UserLoad::calibrate(double microseconds) {
  constexpr double enough = 100;  // microseconds, beside which the launch counts for little
  std::int64_t amount = 1;
  double taken = microseconds_for(amount);  // the first time also loads the kernel
  for (taken = microseconds_for(amount); taken < enough; taken = microseconds_for(amount)) amount *= 2;
  amount_ = std::max<std::int64_t>(1, std::llround(static_cast<double>(amount) * microseconds / taken));
}

#if GPUDT_BY_HAND

namespace {

constexpr std::size_t copied_unit = std::size_t{1} << 20;
constexpr std::size_t most_copied = std::size_t{512} << 20;
constexpr std::int64_t added_floats = std::int64_t{32} << 20;

class LongBlocks final : public UserLoad {
 public:
  LongBlocks() : blocks_(resident_burn_blocks()) { sink_.reserve(sizeof(float)); }

 private:
  void queue(std::int64_t amount, cudaStream_t stream) override {
    constexpr std::int64_t unit = 1000;
    launch_burn(blocks_, amount * unit, reinterpret_cast<float*>(sink_.data()), stream);
  }
  std::int64_t blocks_;
  Buffer sink_{Place::device};
};

class ShortBlocks final : public UserLoad {
 public:
  ShortBlocks() : blocks_(resident_burn_blocks()) { sink_.reserve(sizeof(float)); }

 private:
  void queue(std::int64_t amount, cudaStream_t stream) override {
    constexpr std::int64_t steps = 1000;  // 64 warps of a multiprocessor, 128 lanes: about 10 us
    launch_burn(amount * blocks_, steps, reinterpret_cast<float*>(sink_.data()), stream);
  }
  std::int64_t blocks_;
  Buffer sink_{Place::device};
};

class VectorAddition final : public UserLoad {
 public:
  VectorAddition() {
    for (Buffer* array : {&a_, &b_, &sum_}) {
      array->reserve(added_floats * sizeof(float));
      array->fill(std::byte{0}, added_floats * sizeof(float));
    }
  }

 private:
  void queue(std::int64_t amount, cudaStream_t stream) override {
    launch_add(floats(a_), floats(b_), floats(sum_), added_floats, amount, stream);
  }
  static float* floats(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }
  Buffer a_{Place::device}, b_{Place::device}, sum_{Place::device};
};

class Copies final : public UserLoad {
 public:
  explicit Copies(bool up) : up_(up) {
    for (Buffer* buffer : {&host_, &device_}) {
      buffer->reserve(most_copied);
      buffer->fill(std::byte{0}, most_copied);
    }
  }

 private:
  /// One copy, which nothing can interrupt.
  void queue(std::int64_t amount, cudaStream_t stream) override {
    const Buffer &from = up_ ? host_ : device_, &to = up_ ? device_ : host_;
    const std::size_t bytes = std::min(static_cast<std::size_t>(amount) * copied_unit, most_copied);
    cuda_check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
  }
  bool up_;
  Buffer host_{Place::pinned}, device_{Place::device};
};

std::unique_ptr<UserLoad> uncalibrated(const std::string& name) {
  if (name == "long") return std::make_unique<LongBlocks>();
  if (name == "short") return std::make_unique<ShortBlocks>();
  if (name == "add") return std::make_unique<VectorAddition>();
  return std::make_unique<Copies>(name == "up");
}

}  // namespace

std::unique_ptr<UserLoad> make_load(const std::string& name, double microseconds) {
  std::unique_ptr<UserLoad> load = uncalibrated(name);
  load->calibrate(microseconds);
  return load;
}

#else

std::unique_ptr<UserLoad> make_load(const std::string&, double) {
  return nullptr;
}

#endif

}  // namespace gpudt::bench

#include "tests/calls/recorder.hpp"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <vector>

namespace gpudt::test {

/// All functions called so far; writes them down when the process ends.
class Book {
 public:
  void add(Recorder* recorder) {
    std::lock_guard lock(mutex_);
    recorders_.push_back(recorder);
  }
  ~Book() {
    const char* folder = std::getenv("GPUDT_CALLS_FOLDER");
    if (folder == nullptr || recorders_.empty()) return;
    std::ofstream file(std::string(folder) + "/" + std::to_string(getpid()));
    for (const Recorder* recorder : recorders_)
      file << recorder->name_ << '\t' << recorder->calls_ << '\t' << recorder->device_ << '\t' << recorder->both_
           << '\t' << recorder->test_case_ << '\n';
  }

 private:
  std::mutex mutex_;
  std::vector<Recorder*> recorders_;
};

namespace {

Book book;

}  // namespace

Recorder::Recorder(const char* name) : name_(name) {
  book.add(this);
}

void Recorder::note(bool device, bool derived) {
  ++calls_;
  if (!device) return;
  ++device_;
  if (!derived || both_++ > 0) return;
  const char* test_case = std::getenv("GPUDT_TEST_CASE");
  std::lock_guard lock(mutex_);
  test_case_ = test_case != nullptr ? test_case : "";
}

bool on_device(const void* buffer) {
  // Looked up, since the simulated device may stand in for the CUDA runtime.
  static const auto get =
      reinterpret_cast<decltype(&cudaPointerGetAttributes)>(dlsym(RTLD_DEFAULT, "cudaPointerGetAttributes"));
  cudaPointerAttributes attributes = {};
  return get != nullptr && get(&attributes, buffer) == cudaSuccess &&
         (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged);
}

bool on_device(const void* buffer, MPI_Datatype type) {
  MPI_Aint low = 0, extent = 0;
  if (type != MPI_DATATYPE_NULL) PMPI_Type_get_true_extent(type, &low, &extent);
  return on_device(static_cast<const char*>(buffer) + low);
}

}  // namespace gpudt::test

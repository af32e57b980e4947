#include <chrono>
#include <numeric>
#include <thread>

#include "tests/mpi/streams.hpp"

namespace gpudt::test {
namespace {

void some_time(void*) {
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

}  // namespace

EnqueuingStream::EnqueuingStream(unsigned flags, MPI_Comm of) {
  REQUIRE(cudaStreamCreateWithFlags(&cuda_, flags) == cudaSuccess);
  MPI_Info info = MPI_INFO_NULL;
  MPI_Info_create(&info);
  MPI_Info_set(info, "type", "cudaStream_t");
  MPI_OK(MPIX_Info_set_hex(info, "value", &cuda_, sizeof cuda_));
  MPI_OK(MPIX_Stream_create(info, &stream_));
  MPI_Info_free(&info);
  MPI_OK(MPIX_Stream_comm_create(of, stream_, &comm_));
}

EnqueuingStream::~EnqueuingStream() {
  cudaStreamSynchronize(cuda_);
  MPI_Comm_free(&comm_);
  MPIX_Stream_free(&stream_);
  cudaStreamDestroy(cuda_);
}

void EnqueuingStream::delay() const {
  REQUIRE(cudaLaunchHostFunc(cuda_, some_time, nullptr) == cudaSuccess);
}

Numbers::Numbers(std::size_t count) : count_(count) {
  REQUIRE(cudaMalloc(reinterpret_cast<void**>(&device_), bytes()) == cudaSuccess);
  REQUIRE(cudaMallocHost(reinterpret_cast<void**>(&host_), bytes()) == cudaSuccess);
}

Numbers::~Numbers() {
  cudaFree(device_);
  cudaFreeHost(host_);
}

void Numbers::write(cudaStream_t stream, double first) {
  std::iota(host_, host_ + count_, first);
  REQUIRE(cudaMemcpyAsync(device_, host_, bytes(), cudaMemcpyHostToDevice, stream) == cudaSuccess);
}

void Numbers::read(cudaStream_t stream) {
  REQUIRE(cudaMemcpyAsync(host_, device_, bytes(), cudaMemcpyDeviceToHost, stream) == cudaSuccess);
}

void Numbers::clear(cudaStream_t stream) {
  REQUIRE(cudaMemsetAsync(device_, 0, bytes(), stream) == cudaSuccess);
}

std::vector<double> counted(std::size_t count, double first) {
  std::vector<double> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

double first_of(int from, int round) {
  return 1e6 * (from + 1) + 1000 * round;
}

std::vector<double> every(std::size_t step, const std::vector<double>& numbers) {
  std::vector<double> some;
  for (std::size_t i = 0; i < numbers.size(); i += step) some.push_back(numbers[i]);
  return some;
}

int right() {
  return (rank() + 1) % ranks();
}
int left() {
  return (rank() + ranks() - 1) % ranks();
}

}  // namespace gpudt::test

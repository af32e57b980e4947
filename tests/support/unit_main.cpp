// main() of the unit tests: MPI around one Catch2 session.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>

#include "datatype/decode.hpp"
#include "tests/support/catch_session.hpp"
#include "tests/support/unit.hpp"

namespace gpudt::test {
namespace {

std::uint64_t environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace

std::uint64_t unit_seed() {
  static const std::uint64_t seed = environment("GPUDT_TEST_SEED", std::random_device{}());
  return seed;
}

std::int64_t unit_trees(std::int64_t otherwise) {
  return static_cast<std::int64_t>(environment("GPUDT_TEST_TREES", static_cast<std::uint64_t>(otherwise)));
}

std::mt19937_64 unit_random(std::uint64_t index) {
  return std::mt19937_64(unit_seed() * 0x9e3779b97f4a7c15u + index);
}

}  // namespace gpudt::test

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm self = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_SELF, &self);
  gpudt::datatype::cache_start(self);
  std::printf("GPUDT_TEST_SEED=%llu\n", static_cast<unsigned long long>(gpudt::test::unit_seed()));
  std::fflush(stdout);
  const int result = gpudt::test::run_catch(argc, argv);
  gpudt::datatype::cache_stop();
  MPI_Finalize();
  return result;
}

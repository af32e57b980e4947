// Whether the program's data are where it says, after a failure of the GPU. On the simulated device, where no
// allocation follows another one at once.
#include <cuda_runtime_api.h>
#include <mpi.h>

#include <optional>
#include <string_view>

#include "datatype/decode.hpp"
#include "device/device.hpp"
#include "tests/support/catch.hpp"

namespace {

using namespace gpudt;
using device::Failure;
using device::UserData;

constexpr std::int64_t allocated_bytes = 4096;  ///< bytes of the allocation: a page

/// The engine, while it lives, with a GPU that it has used, and an allocation there.
class UserSession {
 public:
  UserSession() {
    device::start({});
    is_simulated = std::string_view(device::runtime_name()) == "sim";
    static_cast<void>(device::acquire(device::StagingKind::mapped, 0, 1));
    REQUIRE(cudaMalloc(&memory, allocated_bytes) == cudaSuccess);
  }
  ~UserSession() {
    cudaFree(memory);
    device::stop();
  }
  UserSession(const UserSession&) = delete;
  UserSession& operator=(const UserSession&) = delete;

  UserData data(const datatype::LayoutRef& layout, std::int64_t count, std::int64_t bytes) const {
    return {0, {layout.get(), count, memory}, bytes};
  }
  UserData contiguous(std::int64_t bytes) const { return data(bytes_, bytes, bytes); }

  void* memory = nullptr;
  bool is_simulated = false;

 private:
  datatype::LayoutRef bytes_ = datatype::decode(MPI_BYTE);
};

/// Blocks of 8 bytes, 1024 apart.
datatype::LayoutRef spaced_blocks(int count) {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Type_create_hvector(count, 8, 1024, MPI_BYTE, &type);
  MPI_Type_commit(&type);
  datatype::LayoutRef layout = datatype::decode(type);
  MPI_Type_free(&type);
  return layout;
}

/// How moving() ends if `data` fail to be moved for that reason.
std::optional<Failure> failure_of_moving(const UserData& data, Failure why) {
  try {
    device::moving(data, [&] { throw device::Error(why, "failed"); });
  } catch (const device::Error& error) {
    return error.failure();
  }
  return std::nullopt;
}

}  // namespace

TEST_CASE("user data: beyond their allocation", "[device]") {
  const UserSession session;
  CHECK_FALSE(session.contiguous(allocated_bytes).is_missing());
  CHECK_FALSE(session.data(spaced_blocks(4), 1, 32).is_missing());
  if (!session.is_simulated) return;
  CHECK(session.contiguous(allocated_bytes + 1).is_missing());
  CHECK(session.contiguous(1 << 20).is_missing());  // perhaps other memory of this GPU follows
  const datatype::LayoutRef five = spaced_blocks(5);
  CHECK(session.data(five, 1, 40).is_missing());
  CHECK(session.data(five, 1, 33).is_missing());
  CHECK_FALSE(session.data(five, 1, 32).is_missing());  // a shorter message
  CHECK_FALSE(UserData{-1, session.contiguous(allocated_bytes + 1).side, allocated_bytes + 1}.is_missing());
}

TEST_CASE("user data: freed memory, and a runtime that knows no memory at all", "[device]") {
  UserSession session;
  const UserData data = session.contiguous(allocated_bytes);
  if (!session.is_simulated) return;
  REQUIRE(cudaFree(session.memory) == cudaSuccess);
  session.memory = nullptr;
  CHECK(data.is_missing());
  REQUIRE(cudaDeviceReset() == cudaSuccess);
  CHECK_FALSE(data.is_missing());
}

TEST_CASE("user data: only failures of the GPU are blamed on them", "[device]") {
  const UserSession session;
  CHECK(failure_of_moving(session.contiguous(allocated_bytes), Failure::runtime) == Failure::runtime);
  if (!session.is_simulated) return;
  const UserData missing = session.contiguous(allocated_bytes + 1);
  CHECK(failure_of_moving(missing, Failure::runtime) == Failure::no_such_memory);
  CHECK(failure_of_moving(missing, Failure::out_of_memory) == Failure::out_of_memory);
  CHECK(device::moving(missing, [] { return 7; }) == 7);
}

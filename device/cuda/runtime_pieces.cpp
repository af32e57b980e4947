// CudaRuntime's functions for memory in pieces: memory from cuMemCreate whose handles can be exported as file
// descriptors (PyTorch's expandable segments, the heaps of NVSHMEM and NCCL). Such memory belongs to no context.
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "device/cuda/runtime.hpp"

namespace gpudt::device {
namespace {

void check_driver(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  const Failure failure = result == CUDA_ERROR_OUT_OF_MEMORY ? Failure::out_of_memory : Failure::runtime;
  throw Error(failure, std::string(call) + ": error " + std::to_string(static_cast<int>(result)) + " of the driver");
}

/// Owns a handle of physical memory; the destructor releases it. place(): where a driver call is to write the handle.
class Physical {
 public:
  explicit Physical(const cuda::Driver& driver) : driver_(driver) {}
  ~Physical() {
    if (held_) driver_.mem_release(handle_);
  }
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;
  void take(CUresult result, const char* call) {
    check_driver(result, call);
    held_ = true;
  }
  CUmemGenericAllocationHandle* place() { return &handle_; }
  CUmemGenericAllocationHandle get() const { return handle_; }

 private:
  const cuda::Driver& driver_;
  CUmemGenericAllocationHandle handle_ = 0;
  bool held_ = false;
};

}  // namespace

/// A piece is what one handle is mapped to, which MAPPING_BASE_ADDR and MAPPING_SIZE tell: RANGE_START_ADDR tells where
/// the whole reservation of addresses begins. MEMORY_BLOCK_ID identifies the physical memory; BUFFER_ID may identify
/// the reservation.
bool CudaRuntime::piece_of(const void* address, Piece& piece) noexcept {
  unsigned type = 0, managed = 0, handle_types = 0;
  int ordinal = -1;
  unsigned long long id = 0;
  CUdeviceptr base = 0;
  std::size_t size = 0;
  CUmemoryPool pool = nullptr;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,          CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                      CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                      CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID,      CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
                                      CU_POINTER_ATTRIBUTE_MAPPING_SIZE,         CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
  void* values[] = {&type, &managed, &handle_types, &ordinal, &id, &base, &size, static_cast<void*>(&pool)};
  if (driver_->pointer_get_attributes(8, attributes, values, reinterpret_cast<CUdeviceptr>(address)) != CUDA_SUCCESS ||
      type != CU_MEMORYTYPE_DEVICE || managed != 0 || pool != nullptr || id == 0 || base == 0 || size == 0 ||
      (handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0)
    return false;
  piece = {id, base, size, ordinal};
  return true;
}

/// The calls need no context: none is created if this library has none on the GPU (any more).
int CudaRuntime::share_piece(int ordinal, std::uint64_t base) {
  std::optional<Current> current;
  if (contexts_[static_cast<std::size_t>(ordinal)].load() != nullptr) current.emplace(*this, ordinal);
  Physical physical(*driver_);
  physical.take(driver_->mem_retain_allocation_handle(physical.place(), reinterpret_cast<void*>(base)),
                "cuMemRetainAllocationHandle");
  int file = -1;
  check_driver(
      driver_->mem_export_to_shareable_handle(&file, physical.get(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "cuMemExportToShareableHandle");
  return file;
}

void* CudaRuntime::map_pieces(int ordinal, std::span<const SharedPiece> pieces) {
  const Current current(*this, ordinal);
  std::uint64_t bytes = 0, mapped = 0;
  for (const SharedPiece& piece : pieces) bytes += piece.size;
  CUdeviceptr address = 0;
  check_driver(driver_->mem_address_reserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve");
  try {
    for (const SharedPiece& piece : pieces) {
      Physical physical(*driver_);
      physical.take(driver_->mem_import_from_shareable_handle(
                        physical.place(), reinterpret_cast<void*>(static_cast<std::intptr_t>(piece.file)),
                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                    "cuMemImportFromShareableHandle");
      check_driver(driver_->mem_map(address + mapped, piece.size, 0, physical.get(), 0), "cuMemMap");
      mapped += piece.size;
    }
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = ordinal;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    check_driver(driver_->mem_set_access(address, bytes, &access, 1), "cuMemSetAccess");
  } catch (const Error&) {
    if (mapped != 0) driver_->mem_unmap(address, mapped);
    driver_->mem_address_free(address, bytes);
    throw;
  }
  return reinterpret_cast<void*>(address);
}

/// Creates no context, like share_piece().
void CudaRuntime::unmap_pieces(int ordinal, void* address, std::uint64_t bytes) noexcept try {
  std::optional<Current> current;
  if (contexts_[static_cast<std::size_t>(ordinal)].load() != nullptr) current.emplace(*this, ordinal);
  const auto at = reinterpret_cast<CUdeviceptr>(address);
  check_driver(driver_->mem_unmap(at, bytes), "cuMemUnmap");
  check_driver(driver_->mem_address_free(at, bytes), "cuMemAddressFree");
} catch (const std::exception&) {
  // The memory stays mapped, or its addresses stay reserved.
}

}  // namespace gpudt::device

#include "interpose/support/nvtx.hpp"

#ifdef GPUDT_HAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace gpudt::interpose {

bool nvtx_wanted = false;

#ifdef GPUDT_HAVE_NVTX

namespace {

/// Never destroyed: ranges may last until the process ends.
nvtxDomainHandle_t domain = nullptr;

nvtxEventAttributes_t attributes_of(const char* name) {
  nvtxEventAttributes_t attributes = {};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  return attributes;
}

}  // namespace

bool nvtx_start() {
  domain = nvtxDomainCreateA("gpudt");
  nvtx_wanted = true;
  return true;
}

namespace detail {

void nvtx_push(const char* name) noexcept {
  const nvtxEventAttributes_t attributes = attributes_of(name);
  nvtxDomainRangePushEx(domain, &attributes);
}

void nvtx_pop() noexcept {
  nvtxDomainRangePop(domain);
}

std::uint64_t nvtx_begin(const char* name, std::int64_t bytes) noexcept {
  nvtxEventAttributes_t attributes = attributes_of(name);
  attributes.payloadType = NVTX_PAYLOAD_TYPE_INT64;
  attributes.payload.llValue = bytes;
  return nvtxDomainRangeStartEx(domain, &attributes);
}

void nvtx_end(std::uint64_t range) noexcept {
  nvtxDomainRangeEnd(domain, range);
}

}  // namespace detail

#else

bool nvtx_start() {
  return false;
}

namespace detail {

void nvtx_push(const char*) noexcept {}
void nvtx_pop() noexcept {}
std::uint64_t nvtx_begin(const char*, std::int64_t) noexcept {
  return 0;
}
void nvtx_end(std::uint64_t) noexcept {}

}  // namespace detail

#endif

}  // namespace gpudt::interpose

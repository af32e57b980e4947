// How kernels read and write global memory.
#pragma once

#include <cuda_runtime.h>

#include "device/kernels/kernel_body.hpp"

namespace gpudt::device::cuda {
namespace {

/// ld/st through global memory with one predicate for each caching policy: no branches, so that a thread's loads are
/// issued one after the other. `kept`: the usual policy; `streamed`: evict first. If both are false: no access.
template <class Word>
struct Access;

#define GPUDT_ACCESS(WORD, SUFFIX, REGISTER, CONSTRAINT)                                              \
  template <>                                                                                         \
  struct Access<WORD> {                                                                               \
    static __device__ __forceinline__ void load(Address from, bool kept, bool streamed, WORD& word) { \
      REGISTER value = word;                                                                          \
      asm volatile(                                                                                   \
          "{.reg .pred k, s; setp.ne.u32 k, %2, 0; setp.ne.u32 s, %3, 0;"                             \
          "@k ld.global.ca." SUFFIX " %0, [%1]; @s ld.global.cs." SUFFIX " %0, [%1];}"                \
          : "+" CONSTRAINT(value)                                                                     \
          : "l"(from), "r"(static_cast<unsigned>(kept)), "r"(static_cast<unsigned>(streamed)));       \
      word = static_cast<WORD>(value);                                                                \
    }                                                                                                 \
    static __device__ __forceinline__ void store(Address to, bool kept, bool streamed, WORD word) {   \
      const REGISTER value = word;                                                                    \
      asm volatile(                                                                                   \
          "{.reg .pred k, s; setp.ne.u32 k, %2, 0; setp.ne.u32 s, %3, 0;"                             \
          "@k st.global.wb." SUFFIX " [%0], %1; @s st.global.cs." SUFFIX " [%0], %1;}" ::"l"(to),     \
          CONSTRAINT(value), "r"(static_cast<unsigned>(kept)), "r"(static_cast<unsigned>(streamed))   \
          : "memory");                                                                                \
    }                                                                                                 \
  }

GPUDT_ACCESS(std::uint8_t, "u8", std::uint32_t, "r");
GPUDT_ACCESS(std::uint16_t, "u16", std::uint32_t, "r");
GPUDT_ACCESS(std::uint32_t, "u32", std::uint32_t, "r");
GPUDT_ACCESS(std::uint64_t, "u64", std::uint64_t, "l");
#undef GPUDT_ACCESS

template <>
struct Access<Word16> {
  static __device__ __forceinline__ void load(Address from, bool kept, bool streamed, Word16& word) {
    asm volatile(
        "{.reg .pred k, s; setp.ne.u32 k, %5, 0; setp.ne.u32 s, %6, 0;"
        "@k ld.global.ca.v4.u32 {%0, %1, %2, %3}, [%4]; @s ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];}"
        : "+r"(word.lane[0]), "+r"(word.lane[1]), "+r"(word.lane[2]), "+r"(word.lane[3])
        : "l"(from), "r"(static_cast<unsigned>(kept)), "r"(static_cast<unsigned>(streamed)));
  }
  static __device__ __forceinline__ void store(Address to, bool kept, bool streamed, const Word16& word) {
    asm volatile(
        "{.reg .pred k, s; setp.ne.u32 k, %5, 0; setp.ne.u32 s, %6, 0;"
        "@k st.global.wb.v4.u32 [%4], {%0, %1, %2, %3}; @s st.global.cs.v4.u32 [%4], {%0, %1, %2, %3};}" ::"r"(
            word.lane[0]),
        "r"(word.lane[1]), "r"(word.lane[2]), "r"(word.lane[3]), "l"(to), "r"(static_cast<unsigned>(kept)),
        "r"(static_cast<unsigned>(streamed))
        : "memory");
  }
};

/// Global memory; data beyond the caches are marked as not to be kept there.
struct DeviceMemory {
  bool streaming_loads = false, streaming_stores = false;

  /// Accesses nothing unless `inside`.
  template <class Word>
  __device__ __forceinline__ void load_if(bool inside, Address address, Word& word) const {
    Access<Word>::load(address, inside && !streaming_loads, inside && streaming_loads, word);
  }
  template <class Word>
  __device__ __forceinline__ void store_if(bool inside, Address address, const Word& word) const {
    Access<Word>::store(address, inside && !streaming_stores, inside && streaming_stores, word);
  }
  template <class Word>
  __device__ __forceinline__ Word load(Address address) const {
    Word word = {};
    load_if(true, address, word);
    return word;
  }
  template <class Word>
  __device__ __forceinline__ void store(Address address, const Word& word) const {
    store_if(true, address, word);
  }
};

}  // namespace
}  // namespace gpudt::device::cuda

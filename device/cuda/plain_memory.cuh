// Plain loads and stores, for kernels that read each word once and do not know which processor reads the results.
#pragma once

#include "device/kernels/kernel_args.hpp"

namespace gpudt::device::cuda {

struct PlainMemory {
  template <class Word>
  __device__ __forceinline__ Word load(Address address) const {
    return *reinterpret_cast<const Word*>(address);
  }
  template <class Word>
  __device__ __forceinline__ void store(Address address, const Word& word) const {
    *reinterpret_cast<Word*>(address) = word;
  }
};

}  // namespace gpudt::device::cuda

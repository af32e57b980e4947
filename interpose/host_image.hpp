// Host memory in the user's own layout: for what only MPI can do with the data, which needs its datatype (reductions
// with user-defined operators, changes of representation).
#pragma once

#include <cstddef>
#include <memory>

#include "interpose/operand.hpp"

namespace gpudt::interpose {

class HostImage {
 public:
  /// Memory for the span of `operand`; undefined contents. May throw std::bad_alloc.
  explicit HostImage(const Operand& operand);

  /// The address that stands for the user's buffer argument.
  void* buffer() const;
  /// Copies the operand's data here, or back; gaps between blocks are not touched. May throw device::Error.
  void fill() const;
  void spill() const;

 private:
  Operand operand_;
  std::int64_t low_ = 0;
  std::unique_ptr<std::byte[]> memory_;
};

}  // namespace gpudt::interpose

// Failures of the GPU for which the program's buffer is to blame: it reaches beyond its memory, or that has been freed.
#pragma once

#include <cstdint>
#include <utility>

#include "device/runtime/error.hpp"
#include "device/transfer/transfer.hpp"

namespace gpudt::device {

/// The first `bytes` packed bytes of a buffer of the program.
struct UserData {
  int ordinal = -1;  ///< the GPU whose memory it is; negative: it lies in several memories, or in none of a GPU
  Side side{};
  std::int64_t bytes = 0;

  /// For failures: whether some of them certainly lie in no memory that the runtime knows. False where that cannot be
  /// told, as where the runtime has ceased to answer. Takes some time. Thread-safe.
  bool is_missing() const noexcept;
};

namespace detail {
[[noreturn]] void throw_again(const Error& error, const UserData& data);
}

inline const UserData& user_data(const UserData& data) {
  return data;
}

/// Runs `body`, which moves user_data(data). Throws a failure of the GPU as Failure::no_such_memory if they are
/// missing; only then it is asked what they are.
template <class Data, class Body>
decltype(auto) moving(const Data& data, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const Error& error) {
    detail::throw_again(error, user_data(data));
  }
}

}  // namespace gpudt::device

// Packing and unpacking on the host, any byte range of the packed stream. Plain; it checks the kernels and carries the
// simulated device.
#pragma once

#include "datatype/layout.hpp"

namespace gpudt::datatype {

/// Copies packed bytes [begin, end) of `count` elements at `user` to `packed`, which receives byte `begin` first.
/// Needs 0 <= begin <= end <= count * layout.size().
void pack(const Layout& layout, std::int64_t count, const void* user, std::int64_t begin, std::int64_t end,
          void* packed);

/// The inverse of pack(): writes no byte of `user` outside the range's own.
void unpack(const Layout& layout, std::int64_t count, void* user, std::int64_t begin, std::int64_t end,
            const void* packed);

}  // namespace gpudt::datatype

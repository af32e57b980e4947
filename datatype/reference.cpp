// Packing and unpacking on the host, one contiguous run at a time.
#include "datatype/reference.hpp"

#include <cstring>

#include "datatype/runs.hpp"

namespace gpudt::datatype {
namespace {

/// Through integers: `user` may be MPI_BOTTOM, from which no pointer arithmetic starts.
char* address(const void* user, std::int64_t offset) {
  return reinterpret_cast<char*>(reinterpret_cast<std::uintptr_t>(user) + static_cast<std::uintptr_t>(offset));
}

}  // namespace

void pack(const Layout& layout, [[maybe_unused]] std::int64_t count, const void* user, std::int64_t begin,
          std::int64_t end, void* packed) {
  for_each_run(layout, begin, end, [&](std::int64_t offset, std::int64_t pos, std::int64_t length) {
    std::memcpy(static_cast<char*>(packed) + pos, address(user, offset), static_cast<std::size_t>(length));
  });
}

void unpack(const Layout& layout, [[maybe_unused]] std::int64_t count, void* user, std::int64_t begin, std::int64_t end,
            const void* packed) {
  for_each_run(layout, begin, end, [&](std::int64_t offset, std::int64_t pos, std::int64_t length) {
    std::memcpy(address(user, offset), static_cast<const char*>(packed) + pos, static_cast<std::size_t>(length));
  });
}

}  // namespace gpudt::datatype

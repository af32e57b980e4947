// Packing and unpacking by the point-based traversal, one contiguous piece at a time.
#include "datatype/reference.hpp"

#include <algorithm>
#include <cstring>

namespace gpudt::datatype {
namespace {

/// Calls copy(offset from the user's address, position in the range, length) for each piece of [begin, end).
template <class Copy>
void for_each_piece(const Layout& layout, std::int64_t begin, std::int64_t end, Copy copy) {
  if (begin >= end) return;
  const Shape shape = layout.shape(1);
  const Program program = layout.program();
  for (std::int64_t pos = begin; pos < end;) {
    const std::int64_t element = pos / layout.size();
    const Place place = locate(program, shape.root, pos - element * layout.size());
    const std::int64_t length = std::min(place.length, end - pos);
    copy(shape.offset + element * layout.extent() + place.offset, pos - begin, static_cast<std::size_t>(length));
    pos += length;
  }
}

/// Through integers: `user` may be MPI_BOTTOM, from which no pointer arithmetic starts.
char* address(const void* user, std::int64_t offset) {
  return reinterpret_cast<char*>(reinterpret_cast<std::uintptr_t>(user) + static_cast<std::uintptr_t>(offset));
}

}  // namespace

void pack(const Layout& layout, [[maybe_unused]] std::int64_t count, const void* user, std::int64_t begin,
          std::int64_t end, void* packed) {
  for_each_piece(layout, begin, end, [&](std::int64_t offset, std::int64_t pos, std::size_t length) {
    std::memcpy(static_cast<char*>(packed) + pos, address(user, offset), length);
  });
}

void unpack(const Layout& layout, [[maybe_unused]] std::int64_t count, void* user, std::int64_t begin, std::int64_t end,
            const void* packed) {
  for_each_piece(layout, begin, end, [&](std::int64_t offset, std::int64_t pos, std::size_t length) {
    std::memcpy(address(user, offset), static_cast<const char*>(packed) + pos, length);
  });
}

}  // namespace gpudt::datatype

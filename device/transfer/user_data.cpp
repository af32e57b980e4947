#include "device/transfer/user_data.hpp"

#include <string>

#include "datatype/runs.hpp"
#include "device/memory/addresses.hpp"
#include "device/transfer/engine.hpp"

namespace gpudt::device {
namespace {

/// Looks whether bytes lie in memory that the runtime knows.
class Look {
 public:
  explicit Look(Runtime& runtime) : runtime_(runtime) {}
  /// True also where the bounds of the memory are not known.
  bool finds(std::uintptr_t begin, std::uintptr_t end) {
    while (begin < end) {
      if (!known_.holds(begin, begin) && !find(begin)) return is_known(begin);
      begin = known_.end;
    }
    return true;
  }

 private:
  bool find(std::uintptr_t address) {
    Allocation found;
    if (!runtime_.allocation_of(reinterpret_cast<const void*>(address), found)) return false;
    known_ = {found.base, found.base + found.size, {}};
    return known_.holds(address, address);
  }
  bool is_known(std::uintptr_t address) {
    return runtime_.classify(reinterpret_cast<const void*>(address)).kind != MemoryKind::host;
  }

  Runtime& runtime_;
  Region known_{};  ///< of the allocation found last
};

}  // namespace

/// After a failure a driver may know no memory at all: it is asked for some that is certainly there, too.
bool UserData::is_missing() const noexcept {
  Engine* const engine = process_engine.load(std::memory_order_acquire);
  if (engine == nullptr || ordinal < 0) return false;
  Look look(engine->runtime());
  bool all = true;
  const auto user = reinterpret_cast<std::uintptr_t>(side.user);
  datatype::for_each_run(*side.layout, 0, bytes, [&](std::int64_t at, std::int64_t, std::int64_t length) {
    const std::uintptr_t begin = user + static_cast<std::uintptr_t>(at);
    all = all && look.finds(begin, begin + static_cast<std::uintptr_t>(length));
  });
  return !all && engine->knows_memory_of(ordinal);
}

void detail::throw_again(const Error& error, const UserData& data) {
  if (error.failure() != Failure::runtime || !data.is_missing()) throw;
  throw Error(Failure::no_such_memory,
              std::string("the buffer reaches beyond its GPU memory, or that has been freed: ") + error.what());
}

}  // namespace gpudt::device

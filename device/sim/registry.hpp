// Objects by their handle, which is their address: a stale handle is an error and not a crash.
#pragma once

#include <memory>
#include <unordered_map>
#include <utility>

#include "base/mutex.hpp"

namespace gpudt::sim {

template <class Object, class Handle>
class Registry {
 public:
  /// That of all objects of the sort. Never destroyed.
  static Registry& instance() {
    static auto* const made = new Registry;
    return *made;
  }
  Handle add(std::shared_ptr<Object> object) {
    const auto handle = reinterpret_cast<Handle>(object.get());
    const LockGuard lock(mutex_);
    objects_[handle] = std::move(object);
    return handle;
  }
  std::shared_ptr<Object> find(Handle handle) {
    const LockGuard lock(mutex_);
    const auto at = objects_.find(handle);
    return at == objects_.end() ? nullptr : at->second;
  }
  std::shared_ptr<Object> remove(Handle handle) {
    const LockGuard lock(mutex_);
    const auto at = objects_.find(handle);
    if (at == objects_.end()) return nullptr;
    auto object = std::move(at->second);
    objects_.erase(at);
    return object;
  }
  template <class Predicate>
  void remove_if(Predicate predicate) {
    const LockGuard lock(mutex_);
    std::erase_if(objects_, [&](const auto& entry) { return predicate(*entry.second); });
  }

 private:
  Mutex mutex_;
  std::unordered_map<Handle, std::shared_ptr<Object>> objects_ GUARDED_BY(mutex_);
};

}  // namespace gpudt::sim

// Layouts kept on datatypes: as an attribute on derived ones, in a table of our own on predefined ones.
#include <array>
#include <atomic>
#include <utility>

#include "base/mutex.hpp"
#include "datatype/basic.hpp"
#include "datatype/decode.hpp"

namespace gpudt::datatype {
namespace {

/// Bytes of one chunk of a packed type: contiguous types count in ints.
constexpr std::int64_t twin_chunk = std::int64_t(1) << 30;

Mutex build_mutex;  ///< held while a layout is made and stored

/// Types that MPI_Type_free never frees: attributes on them might never be deleted. Entries are only ever added,
/// so that readers need no lock.
class PredefinedTable {
 public:
  const TypeInfoRef* find(MPI_Datatype type) const {
    for (const Entry* entry = bucket(type).load(std::memory_order_acquire); entry != nullptr; entry = entry->next)
      if (entry->type == type) return &entry->info;
    return nullptr;
  }

  void add(MPI_Datatype type, TypeInfoRef info) REQUIRES(build_mutex) {
    std::atomic<Entry*>& head = bucket(type);
    head.store(new Entry{type, std::move(info), head.load(std::memory_order_relaxed)}, std::memory_order_release);
  }

  void clear() {
    for (std::atomic<Entry*>& head : buckets_)
      for (const Entry* entry = head.exchange(nullptr); entry != nullptr;) delete std::exchange(entry, entry->next);
  }

 private:
  struct Entry {
    MPI_Datatype type;
    TypeInfoRef info;
    Entry* next;
  };
  static constexpr int bucket_bits = 8;

  std::atomic<Entry*>& bucket(MPI_Datatype type) { return buckets_[slot_of<bucket_bits>(type)]; }
  const std::atomic<Entry*>& bucket(MPI_Datatype type) const { return buckets_[slot_of<bucket_bits>(type)]; }

  std::array<std::atomic<Entry*>, std::size_t(1) << bucket_bits> buckets_ = {};
};

PredefinedTable predefined;

/// The attribute of a derived type. When the type has been freed, its memory is reused only for other attributes.
struct Attribute {
  std::atomic<MPI_Datatype> type{MPI_DATATYPE_NULL};
  TypeInfoRef info;
  Attribute* next_unused = nullptr;
};

/// A cache of attributes by the handles of their types: MPI's look-up takes 0.1 us. A thread that looks for one type
/// may read the attribute of another type while another thread frees that; so the memory must stay an attribute's.
class LatelyUsed {
 public:
  const TypeInfoRef* find(MPI_Datatype type) const {
    const Attribute* const attribute = slot(type).load(std::memory_order_acquire);
    const bool its = attribute != nullptr && attribute->type.load(std::memory_order_acquire) == type;
    return its ? &attribute->info : nullptr;
  }
  void enter(MPI_Datatype type, Attribute* attribute) { slot(type).store(attribute, std::memory_order_release); }

  /// Empties the cache: a later session of MPI may use a handle for another type.
  void clear() {
    for (auto& each : slots_) each.store(nullptr);
  }

  Attribute* make(MPI_Datatype type, TypeInfoRef info) {
    const LockGuard lock(mutex_);
    Attribute* const made = unused_ != nullptr ? std::exchange(unused_, unused_->next_unused) : new Attribute;
    made->info = std::move(info);
    made->type.store(type, std::memory_order_release);
    return made;
  }
  void put(Attribute* attribute) {
    const MPI_Datatype type = attribute->type.exchange(MPI_DATATYPE_NULL);
    Attribute* expected = attribute;
    slot(type).compare_exchange_strong(expected, nullptr);
    const TypeInfoRef freed = std::move(attribute->info);  // may call MPI
    const LockGuard lock(mutex_);
    attribute->next_unused = std::exchange(unused_, attribute);
  }

 private:
  static constexpr int slot_bits = 14;  // so that thousands of types mostly have slots of their own

  /// Handles that a program makes one after the other lie at equal distances; at some distances slot_of() would put
  /// most of them in the same slots.
  static std::size_t place_of(MPI_Datatype type) noexcept {
    const std::uint64_t handle = std::hash<MPI_Datatype>{}(type);
    const std::uint64_t mixed = (handle ^ (handle >> 12)) * 0xbf58476d1ce4e5b9;
    return ((mixed ^ (mixed >> 29)) * 0x94d049bb133111eb) >> (64 - slot_bits);
  }
  std::atomic<Attribute*>& slot(MPI_Datatype type) { return slots_[place_of(type)]; }
  const std::atomic<Attribute*>& slot(MPI_Datatype type) const { return slots_[place_of(type)]; }

  std::array<std::atomic<Attribute*>, std::size_t(1) << slot_bits> slots_ = {};
  Mutex mutex_;
  Attribute* unused_ GUARDED_BY(mutex_) = nullptr;
};

constinit LatelyUsed lately_used;
int key = MPI_KEYVAL_INVALID;
MPI_Comm test_comm = MPI_COMM_NULL;  ///< returns errors; nothing is ever sent on it
std::atomic<bool> finalizing = false;
std::atomic<std::uint64_t> freed = 0;

int drop_reference(MPI_Datatype, int, void* value, void*) {
  freed.fetch_add(1, std::memory_order_release);
  lately_used.put(static_cast<Attribute*>(value));
  return MPI_SUCCESS;
}

bool is_committed(MPI_Datatype type) {
  char unread = 0;  // MPICH checks the type only if the buffer is not null and the count not 0
  return PMPI_Send(&unread, 1, type, MPI_PROC_NULL, 0, test_comm) == MPI_SUCCESS;
}

const TypeInfoRef* find_lately_used(MPI_Datatype type) {
  const TypeInfoRef* const info = lately_used.find(type);
  return info != nullptr ? info : predefined.find(type);
}

const TypeInfoRef* find_attribute(MPI_Datatype type) {
  void* value = nullptr;
  int found = 0;
  PMPI_Type_get_attr(type, key, &value, &found);
  if (!found) return nullptr;
  auto* const attribute = static_cast<Attribute*>(value);
  lately_used.enter(type, attribute);
  return &attribute->info;
}

/// A committed type of `size` bytes without gaps; MPI_DATATYPE_NULL if there are none.
MPI_Datatype make_packed_type(std::int64_t size) {
  MPI_Datatype packed_type = MPI_DATATYPE_NULL;
  if (size == 0) return packed_type;
  if (size <= twin_chunk) {
    PMPI_Type_contiguous(static_cast<int>(size), MPI_BYTE, &packed_type);
  } else {
    MPI_Datatype chunk = MPI_DATATYPE_NULL, chunks = MPI_DATATYPE_NULL;
    PMPI_Type_contiguous(static_cast<int>(twin_chunk), MPI_BYTE, &chunk);
    PMPI_Type_contiguous(static_cast<int>(size / twin_chunk), chunk, &chunks);
    const int blocklengths[] = {1, static_cast<int>(size % twin_chunk)};
    const MPI_Aint displs[] = {0, static_cast<MPI_Aint>(size - size % twin_chunk)};
    const MPI_Datatype types[] = {chunks, MPI_BYTE};
    PMPI_Type_create_struct(2, blocklengths, displs, types, &packed_type);
    PMPI_Type_free(&chunk);
    PMPI_Type_free(&chunks);
  }
  PMPI_Type_commit(&packed_type);
  return packed_type;
}

TypeInfoRef find_or_build(MPI_Datatype type) {
  const LockGuard lock(build_mutex);
  if (const TypeInfoRef* info = find_lately_used(type)) return *info;  // another thread was faster
  // First, since for what is no type the others would call the error handler of MPI_COMM_WORLD.
  if (!is_committed(type)) return nullptr;
  if (const TypeInfoRef* info = find_attribute(type)) return *info;
  std::int64_t widest_element = 0;
  LayoutRef layout = decode(type, {}, &widest_element);
  const std::int64_t size = layout->size();
  auto info = std::make_shared<const TypeInfo>(std::move(layout), make_packed_type(size), widest_element);
  if (is_predefined(type)) {
    predefined.add(type, info);
  } else {
    Attribute* const attribute = lately_used.make(type, info);  // drop_reference() gives it back
    if (PMPI_Type_set_attr(type, key, attribute) == MPI_SUCCESS)
      lately_used.enter(type, attribute);
    else
      lately_used.put(attribute);
  }
  return info;
}

}  // namespace

TypeInfo::TypeInfo(LayoutRef layout, MPI_Datatype packed_type, std::int64_t widest_element)
    : layout_(std::move(layout)), packed_type_(packed_type), widest_element_(widest_element) {}

TypeInfo::~TypeInfo() {
  if (packed_type_ == MPI_DATATYPE_NULL || finalizing) return;
  int finalized = 0;
  PMPI_Finalized(&finalized);
  if (!finalized) PMPI_Type_free(&packed_type_);
}

void cache_start(MPI_Comm self) {
  finalizing = false;
  basic_types.fill();
  PMPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, drop_reference, &key, nullptr);
  test_comm = self;
  PMPI_Comm_set_errhandler(test_comm, MPI_ERRORS_RETURN);
}

void cache_replace_self(MPI_Comm self) {
  PMPI_Comm_set_errhandler(self, MPI_ERRORS_RETURN);
  {
    const LockGuard lock(build_mutex);
    std::swap(test_comm, self);
  }
  PMPI_Comm_free(&self);
}

void cache_stop() {
  predefined.clear();
  lately_used.clear();
  PMPI_Type_free_keyval(&key);
  PMPI_Comm_free(&test_comm);
  finalizing = true;
}

std::uint64_t types_freed() {
  return freed.load(std::memory_order_acquire);
}

const TypeInfoRef* known_type(MPI_Datatype type) {
  return find_lately_used(type);
}

TypeInfoRef type_info(MPI_Datatype type) {
  if (type == MPI_DATATYPE_NULL) return nullptr;
  if (const TypeInfoRef* info = find_lately_used(type)) return *info;
  return find_or_build(type);
}

void forget_type(MPI_Datatype type) {
  if (type == MPI_DATATYPE_NULL || key == MPI_KEYVAL_INVALID) return;
  void* value = nullptr;
  int found = 0;
  PMPI_Type_get_attr(type, key, &value, &found);
  if (found) PMPI_Type_delete_attr(type, key);
}

}  // namespace gpudt::datatype

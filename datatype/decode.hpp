// MPI datatype -> Layout, and its cache on the datatype. The only part of datatype/ that calls MPI (through the
// PMPI names, so that an interposed library is not entered).
#pragma once

#include <mpi.h>

#include "datatype/layout.hpp"

namespace gpudt::datatype {

/// What gpudt keeps about a datatype: its layout and its packed type. Freed by MPI_Type_free (attribute delete
/// callback) unless a pending operation still holds a reference.
class TypeInfo {
 public:
  TypeInfo(LayoutRef layout, MPI_Datatype packed_type, std::int64_t widest_element);
  ~TypeInfo();  ///< frees the packed type, unless MPI has been finalized
  TypeInfo(const TypeInfo&) = delete;
  TypeInfo& operator=(const TypeInfo&) = delete;

  const Layout& layout() const { return *layout_; }
  const LayoutRef& layout_ref() const { return layout_; }
  /// A committed contiguous datatype of layout().size() bytes, lb 0: describes one packed element to MPI, so that
  /// counts are unchanged. MPI_DATATYPE_NULL when the size is zero.
  MPI_Datatype packed_type() const { return packed_type_; }
  /// Bytes of the largest predefined type in the datatype.
  std::int64_t widest_element() const { return widest_element_; }

 private:
  LayoutRef layout_;
  MPI_Datatype packed_type_;
  std::int64_t widest_element_;
};

using TypeInfoRef = std::shared_ptr<const TypeInfo>;

/// Limits up to which irregular sub-trees become lists of runs, which kernels read faster than trees. They bound the
/// memory of a layout by a constant plus a multiple of what the datatype itself takes.
struct ListLimits {
  std::int64_t runs = 256;                         ///< runs of any sub-tree
  std::int64_t member_runs = 8;                    ///< runs of a struct member that joins its neighbours in one list
  std::int64_t root_runs = std::int64_t(1) << 17;  ///< runs of the irregular rest below the root's strides
  std::int64_t factor = 4;                         ///< or, if more: runs of that rest for each word of the tree's lists
};

/// Decodes `type` from scratch (MPI-4.1 section 5.1.13), whether its constructor took small or large counts. MPI must
/// be initialized and `type` a valid handle; it need not be committed. `widest_element`, if given, gets the bytes of
/// the largest predefined type in it. Throws std::bad_alloc, and Exception for a combiner that MPI-4.0 does not have.
LayoutRef decode(MPI_Datatype type, const ListLimits& limits = {}, std::int64_t* widest_element = nullptr);

/// Whether MPI_Type_free may not be called on `type`: a named type, or one of MPI_Type_create_f90_*.
bool is_predefined(MPI_Datatype type);

/// The constructor of a datatype, and the datatypes that it was made from. The destructor frees their handles.
class Members {
 public:
  explicit Members(MPI_Datatype type);
  ~Members();
  Members(const Members&) = delete;
  Members& operator=(const Members&) = delete;
  int combiner() const { return combiner_; }
  const std::vector<MPI_Datatype>& types() const { return types_; }  ///< empty for predefined types
  /// Counts, then displacements, in the order of MPI_Type_get_contents.
  const std::vector<std::int64_t>& numbers() const { return numbers_; }

 private:
  int combiner_;
  std::vector<std::int64_t> numbers_;
  std::vector<MPI_Datatype> types_;
};

/// To be called when MPI is initialized and before the first type_info(); creates the attribute key. `self`: a
/// communicator of only this process, which cache_stop() frees.
void cache_start(MPI_Comm self);
/// Replaces that communicator, and frees the old one.
void cache_replace_self(MPI_Comm self);
/// To be called before MPI is finalized; drops the information cached on predefined datatypes.
void cache_stop();

/// The cached information of a *committed* type, decoding it on first use; nullptr when the handle is
/// MPI_DATATYPE_NULL or the type is not committed (the caller then lets MPI report the error). Thread-safe; a hit
/// mostly costs a look-up in a table.
TypeInfoRef type_info(MPI_Datatype type);
/// type_info() if it has been called for this type lately; null if not. It stays until the type is freed.
const TypeInfoRef* known_type(MPI_Datatype type);

/// Counts the types with cached information that have been freed: a handle that is seen again stands for the same type
/// if the number is the same. Thread-safe.
std::uint64_t types_freed();

/// Drops the information cached on `type`, which is about to be freed. (MPI_Type_free does so too, but MPICH only after
/// the last message of the type. It then releases its lock for the callback in the middle of its progress, which breaks
/// with several threads.)
void forget_type(MPI_Datatype type);

}  // namespace gpudt::datatype

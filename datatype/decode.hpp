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
  /// Bytes of the largest predefined type that it is made of.
  std::int64_t widest_element() const { return widest_element_; }

 private:
  LayoutRef layout_;
  MPI_Datatype packed_type_;
  std::int64_t widest_element_;
};

using TypeInfoRef = std::shared_ptr<const TypeInfo>;

/// How far sub-trees of irregular shape are written out as lists of runs, which kernels read faster than trees. A
/// layout so takes memory in proportion to what the datatype itself takes, and a constant.
struct ListLimits {
  std::int64_t runs = 256;       ///< a sub-tree of at most so many runs becomes a list, wherever it is,
  std::int64_t member_runs = 8;  ///< and a struct member of at most so many joins its neighbours in one;
  std::int64_t root_runs = std::int64_t(1) << 17;  ///< so does the irregular rest below the root's own strides,
  std::int64_t factor = 4;  ///< or one that has at most so many runs for each word of lists in the tree.
};

/// Decodes `type` from scratch (MPI-4.1 section 5.1.13), whether its constructor took small or large counts. MPI must
/// be initialized and `type` a valid handle; it need not be committed. `widest_element`, if given, gets the bytes of
/// the largest predefined type in it. Throws std::bad_alloc, and Exception for a combiner that MPI-4.0 does not have.
LayoutRef decode(MPI_Datatype type, const ListLimits& limits = {}, std::int64_t* widest_element = nullptr);

/// Whether MPI_Type_free may not be called on `type`: a named type, or one of MPI_Type_create_f90_*.
bool is_predefined(MPI_Datatype type);

/// How a datatype was made, and of which others. The handles are given back with the object.
class Members {
 public:
  explicit Members(MPI_Datatype type);
  ~Members();
  Members(const Members&) = delete;
  Members& operator=(const Members&) = delete;
  int combiner() const { return combiner_; }
  const std::vector<MPI_Datatype>& types() const { return types_; }  ///< none of predefined types

 private:
  int combiner_;
  std::vector<MPI_Datatype> types_;
};

/// To be called once MPI is initialized and before the first type_info(); creates the attribute key. `self`: a
/// communicator of the calling process alone, which the cache frees in the end.
void cache_start(MPI_Comm self);
/// From now on the cache has this communicator, and frees the one before.
void cache_replace_self(MPI_Comm self);
/// To be called before MPI is finalized; drops what is cached on predefined datatypes.
void cache_stop();

/// The cached information of a *committed* type, decoding it on first use; nullptr when the handle is
/// MPI_DATATYPE_NULL or the type is not committed (the caller then lets MPI report the error). Thread-safe; a hit
/// costs one attribute lookup.
TypeInfoRef type_info(MPI_Datatype type);

/// Drops what is cached on `type`, which is about to be freed. (MPI_Type_free does so itself, but only when the last
/// message of the type has ended: then MPICH gives its lock away for the callback, in the middle of its progress, and
/// with several threads breaks.)
void forget_type(MPI_Datatype type);

}  // namespace gpudt::datatype

// A datatype handle that is freed with its scope, and the constructors that tests use most.
#pragma once

#include <mpi.h>

#include <utility>
#include <vector>

namespace gpudt::test {

class OwnedType {
 public:
  explicit OwnedType(MPI_Datatype handle) : handle_(handle) {}
  OwnedType(OwnedType&& other) noexcept : handle_(std::exchange(other.handle_, MPI_DATATYPE_NULL)) {}
  OwnedType& operator=(OwnedType&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~OwnedType() { free(); }
  operator MPI_Datatype() const { return handle_; }  // NOLINT(google-explicit-constructor): stands in for the handle
  OwnedType& commit() {
    MPI_Type_commit(&handle_);
    return *this;
  }
  void free() {
    if (handle_ != MPI_DATATYPE_NULL) MPI_Type_free(&handle_);
  }

 private:
  MPI_Datatype handle_;
};

/// What constructor `create` makes of `arguments`.
template <class... Parameters, class... Arguments>
OwnedType make_type(int (*create)(Parameters...), Arguments... arguments) {
  MPI_Datatype made = MPI_DATATYPE_NULL;
  create(arguments..., &made);
  return OwnedType(made);
}

inline OwnedType contiguous(int count, MPI_Datatype old) {
  return make_type(MPI_Type_contiguous, count, old);
}

inline OwnedType vector(int count, int length, int stride, MPI_Datatype old) {
  return make_type(MPI_Type_vector, count, length, stride, old);
}

inline OwnedType hvector(int count, int length, MPI_Aint stride, MPI_Datatype old) {
  return make_type(MPI_Type_create_hvector, count, length, stride, old);
}

inline OwnedType resized(MPI_Aint lb, MPI_Aint extent, MPI_Datatype old) {
  return make_type(MPI_Type_create_resized, old, lb, extent);
}

inline OwnedType indexed(const std::vector<int>& lengths, const std::vector<int>& displs, MPI_Datatype old) {
  return make_type(MPI_Type_indexed, static_cast<int>(displs.size()), lengths.data(), displs.data(), old);
}

inline OwnedType indexed_block(int length, const std::vector<int>& displs, MPI_Datatype old) {
  return make_type(MPI_Type_create_indexed_block, static_cast<int>(displs.size()), length, displs.data(), old);
}

inline OwnedType structure(const std::vector<int>& lengths, const std::vector<MPI_Aint>& displs,
                           const std::vector<MPI_Datatype>& types) {
  return make_type(MPI_Type_create_struct, static_cast<int>(types.size()), lengths.data(), displs.data(), types.data());
}

inline OwnedType subarray(const std::vector<int>& sizes, const std::vector<int>& subsizes,
                          const std::vector<int>& starts, int order, MPI_Datatype old) {
  return make_type(MPI_Type_create_subarray, static_cast<int>(sizes.size()), sizes.data(), subsizes.data(),
                   starts.data(), order, old);
}

}  // namespace gpudt::test

// A datatype argument that is needed after the call: the program may free its handle before.
#pragma once

#include <mpi.h>

#include <utility>

namespace gpudt::interpose {

class KeptType {
 public:
  explicit KeptType(MPI_Datatype type);
  KeptType(KeptType&& other) noexcept : type_(other.type_), owned_(std::exchange(other.owned_, false)) {}
  KeptType(const KeptType&) = delete;
  KeptType& operator=(const KeptType&) = delete;
  ~KeptType();
  MPI_Datatype get() const { return type_; }

 private:
  MPI_Datatype type_;
  bool owned_;
};

}  // namespace gpudt::interpose

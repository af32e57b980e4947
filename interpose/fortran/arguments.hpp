// Conversion of the arguments of Fortran procedures to those of C, for the generated wrappers
// (scripts/generate/fortran.py).
//
// The Fortran library of Open MPI, and some procedures of MPICH (scripts/generate/fortran.py lists them), call the
// PMPI_ functions of C directly, so that calls of a Fortran program would bypass the C wrappers. An object of these
// classes is one argument during one call: it is made from the Fortran argument, converts to the C argument, and its
// destructor writes the result back. The three Fortran interfaces pass all arguments by address and differ only in
// names; mpi_f08 passes a null pointer for an absent ierror.
#pragma once

#include <mpi.h>

#include <climits>
#include <cstddef>
#include <string>
#include <vector>

#include "interpose/requests/call_buffers.hpp"
#include "interpose/support/errors.hpp"

namespace gpudt::interpose::fortran {

static_assert(sizeof(MPI_Fint) == sizeof(int), "arrays of integers are handed to C as they are");

/// The address of a buffer; Fortran's MPI_IN_PLACE and MPI_BOTTOM become those of C.
void* to_buffer(void* address);

/// A datatype handle; MPI_DATATYPE_NULL for an invalid one, because the C wrappers inspect types before MPI checks
/// them.
MPI_Datatype to_type(MPI_Fint handle);

/// The types of a w form: `count` handles; none if the buffer is MPI_IN_PLACE.
class Types {
 public:
  Types(const MPI_Fint* handles, int count, const void* buffer);
  operator const MPI_Datatype*() const { return types_.data(); }

 private:
  std::vector<MPI_Datatype> types_;
};

/// The types of a w form for a nonblocking call. MPI reads the array until the call is complete, at a time that is
/// unknown here. So the copy is never freed; equal arrays share one, and programs use few different ones.
const MPI_Datatype* lasting_types(const MPI_Fint* handles, int count, const void* buffer);

/// The blocks that this process sends and receives in a collective of the w form, with all others or its neighbours.
Blocks all_blocks(MPI_Fint comm);
Blocks neighbour_blocks(MPI_Fint comm);

// In MPICH the conversions are macros.
inline MPI_Request request_f2c(MPI_Fint handle) {
  return PMPI_Request_f2c(handle);
}
inline MPI_Fint request_c2f(MPI_Request handle) {
  return PMPI_Request_c2f(handle);
}
inline MPI_Message message_f2c(MPI_Fint handle) {
  return PMPI_Message_f2c(handle);
}
inline MPI_Fint message_c2f(MPI_Message handle) {
  return PMPI_Message_c2f(handle);
}
inline MPI_Comm comm_f2c(MPI_Fint handle) {
  return PMPI_Comm_f2c(handle);
}
inline MPI_Fint comm_c2f(MPI_Comm handle) {
  return PMPI_Comm_c2f(handle);
}
inline MPI_Datatype type_f2c(MPI_Fint handle) {
  return PMPI_Type_f2c(handle);
}
inline MPI_Fint type_c2f(MPI_Datatype handle) {
  return PMPI_Type_c2f(handle);
}
inline MPI_Op op_f2c(MPI_Fint handle) {
  return PMPI_Op_f2c(handle);
}
inline MPI_Fint op_c2f(MPI_Op handle) {
  return PMPI_Op_c2f(handle);
}
inline MPI_Fint info_c2f(MPI_Info handle) {
  return PMPI_Info_c2f(handle);
}
inline MPI_Fint group_c2f(MPI_Group handle) {
  return PMPI_Group_c2f(handle);
}
inline MPI_Win win_f2c(MPI_Fint handle) {
  return PMPI_Win_f2c(handle);
}
inline MPI_Fint win_c2f(MPI_Win handle) {
  return PMPI_Win_c2f(handle);
}

/// A handle that the call replaces or frees.
template <class Handle, Handle (*from)(MPI_Fint), MPI_Fint (*to)(Handle)>
class Reference {
 public:
  explicit Reference(MPI_Fint* fortran) : fortran_(fortran), before_(from(*fortran)), handle_(before_) {}
  ~Reference() {
    if (handle_ != before_) *fortran_ = to(handle_);
  }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
  operator Handle*() { return &handle_; }

 private:
  MPI_Fint* fortran_;
  Handle before_;
  Handle handle_;
};
using Request = Reference<MPI_Request, request_f2c, request_c2f>;
using Message = Reference<MPI_Message, message_f2c, message_c2f>;
using Type = Reference<MPI_Datatype, type_f2c, type_c2f>;
using Op = Reference<MPI_Op, op_f2c, op_c2f>;
using Comm = Reference<MPI_Comm, comm_f2c, comm_c2f>;
using Win = Reference<MPI_Win, win_f2c, win_c2f>;

/// A handle that the call makes. The Fortran handle changes only if `code`, which the call sets, is MPI_SUCCESS.
template <class Handle, MPI_Fint (*to)(Handle)>
class New {
 public:
  New(MPI_Fint* fortran, const int& code, Handle null) : fortran_(fortran), code_(code), handle_(null) {}
  ~New() {
    if (code_ == MPI_SUCCESS) *fortran_ = to(handle_);
  }
  New(const New&) = delete;
  New& operator=(const New&) = delete;
  operator Handle*() { return &handle_; }

 private:
  MPI_Fint* fortran_;
  const int& code_;
  Handle handle_;
};
struct NewRequest : New<MPI_Request, request_c2f> {
  NewRequest(MPI_Fint* fortran, const int& code) : New(fortran, code, MPI_REQUEST_NULL) {}
};
struct NewComm : New<MPI_Comm, comm_c2f> {
  NewComm(MPI_Fint* fortran, const int& code) : New(fortran, code, MPI_COMM_NULL) {}
};
struct NewMessage : New<MPI_Message, message_c2f> {
  NewMessage(MPI_Fint* fortran, const int& code) : New(fortran, code, MPI_MESSAGE_NULL) {}
};
struct NewGroup : New<MPI_Group, group_c2f> {
  NewGroup(MPI_Fint* fortran, const int& code) : New(fortran, code, MPI_GROUP_NULL) {}
};
struct NewInfo : New<MPI_Info, info_c2f> {
  NewInfo(MPI_Fint* fortran, const int& code) : New(fortran, code, MPI_INFO_NULL) {}
};
struct NewWin : New<MPI_Win, win_c2f> {
  NewWin(MPI_Fint* fortran, const int& code) : New(fortran, code, MPI_WIN_NULL) {}
};

class Requests {
 public:
  Requests(MPI_Fint* handles, int count);
  ~Requests();
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;
  operator MPI_Request*() { return now_.data(); }

 private:
  MPI_Fint* fortran_;
  std::vector<MPI_Request> before_;
  std::vector<MPI_Request> now_;
};

/// A status or MPI_STATUS_IGNORE. Members that the call does not set keep their values.
class Status {
 public:
  explicit Status(MPI_Fint* fortran);
  ~Status();
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;
  operator MPI_Status*() { return fortran_ == nullptr ? MPI_STATUS_IGNORE : &status_; }

 private:
  MPI_Fint* fortran_;  ///< null: ignored
  MPI_Status status_;
};

/// `count` statuses or MPI_STATUSES_IGNORE.
class Statuses {
 public:
  Statuses(MPI_Fint* fortran, int count);
  ~Statuses();
  Statuses(const Statuses&) = delete;
  Statuses& operator=(const Statuses&) = delete;
  operator MPI_Status*() { return fortran_ == nullptr ? MPI_STATUSES_IGNORE : statuses_.data(); }

 private:
  MPI_Fint* fortran_;  ///< null: ignored
  std::vector<MPI_Status> statuses_;
};

/// Where a call that has returned sets its status later: the program's own, which differs from C's in type alone.
MPI_Status* later_status(MPI_Fint* fortran);
MPI_Status* later_statuses(MPI_Fint* fortran);

/// A value to which no call sets a flag or an index: it shows that a call has failed before it set them.
constexpr int untouched = INT_MIN;

/// A logical that the call sets.
class Flag {
 public:
  explicit Flag(MPI_Fint* fortran) : fortran_(fortran) {}
  ~Flag();
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;
  operator int*() { return &flag_; }

 private:
  MPI_Fint* fortran_;
  int flag_ = untouched;
};

/// The index of a request, or MPI_UNDEFINED: counted from 1 in Fortran.
class Index {
 public:
  explicit Index(MPI_Fint* fortran) : fortran_(fortran) {}
  ~Index() {
    if (index_ != untouched) *fortran_ = index_ == MPI_UNDEFINED ? MPI_UNDEFINED : index_ + 1;
  }
  Index(const Index&) = delete;
  Index& operator=(const Index&) = delete;
  operator int*() { return &index_; }

 private:
  MPI_Fint* fortran_;
  int index_ = untouched;
};

/// The indices of the `*outcount` completed requests. There are none if `code` shows that the call failed early.
class Indices {
 public:
  Indices(MPI_Fint* fortran, const MPI_Fint* outcount, const int& code)
      : fortran_(fortran), outcount_(outcount), code_(code) {}
  ~Indices();
  Indices(const Indices&) = delete;
  Indices& operator=(const Indices&) = delete;
  operator int*() { return fortran_; }

 private:
  MPI_Fint* fortran_;
  const MPI_Fint* outcount_;
  const int& code_;
};

/// Takes an address that the call returns and that Fortran does not receive.
class Unwanted {
 public:
  explicit Unwanted(void*) {}
  operator void*() { return &address_; }

 private:
  void* address_ = nullptr;
};

/// A character argument without trailing blanks.
class String {
 public:
  String(const char* text, std::size_t length);
  operator const char*() const { return text_.c_str(); }

 private:
  std::string text_;
};

/// Runs a call and sets ierror, if there is one. The call sets its code before its arguments are written back.
template <class Call>
void finish(MPI_Fint* ierror, const char* name, Call call) {
  int code = MPI_ERR_OTHER;
  code = raising(MPI_COMM_NULL, name, [&] { return call(code); });
  if (ierror != nullptr) *ierror = code;
}

}  // namespace gpudt::interpose::fortran

// The format of the messages between the processes of a served window.
//
// A message consists of a header, the serialised layout of the data at the target, and the packed data. Long data are
// in another message, whose tag is in the header.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "datatype/layout.hpp"

namespace gpudt::interpose {

enum class MessageKind : std::int32_t {
  // Accesses.
  put,
  get,
  accumulate,
  get_accumulate,    ///< also for MPI_Fetch_and_op
  compare_and_swap,  ///< the data are the new value and the value to compare with
  // Synchronisation.
  lock,
  unlock,
  flush,
  post,
  complete,
  // Answers.
  granted,       ///< answers lock
  acknowledged,  ///< answers unlock, flush and complete: all earlier accesses have been applied
  result,        ///< answers accesses that fetch
};

inline bool is_access(MessageKind kind) {
  return kind <= MessageKind::compare_and_swap;
}
inline bool is_acknowledged(MessageKind kind) {
  return kind == MessageKind::unlock || kind == MessageKind::flush || kind == MessageKind::complete;
}
inline bool is_answer(MessageKind kind) {
  return kind >= MessageKind::granted;
}
/// Whether accesses of this kind are atomic with respect to each other (accumulates).
inline bool is_atomic(MessageKind kind) {
  return kind >= MessageKind::accumulate && kind <= MessageKind::compare_and_swap;
}
inline bool fetches(MessageKind kind) {
  return kind == MessageKind::get || kind == MessageKind::get_accumulate || kind == MessageKind::compare_and_swap;
}

inline bool expects_answer(MessageKind kind) {
  return fetches(kind) || (!is_access(kind) && !is_answer(kind) && kind != MessageKind::post);
}

/// Bytes of data that travel in the message itself.
inline constexpr std::int64_t inline_max = 8 * 1024;

struct MessageHeader {
  MessageKind kind = MessageKind::put;
  std::int32_t error = MPI_SUCCESS;  ///< answers: the access's error, or the first error since the last answer
  std::int32_t op = -1;              ///< accumulates: operation_at()
  std::int32_t element = -1;         ///< accumulates: element_at()
  std::int32_t lock_type = 0;        ///< lock
  std::int32_t data_tag = 0;         ///< tag of the message with the data; 0: the data follow the layout
  std::uint64_t id = 0;              ///< chosen by the origin; an answer repeats it
  std::int64_t displacement = 0;     ///< bytes from the window's base, or an address in a dynamic window
  std::int64_t count = 0;            ///< elements of the layout
  std::int64_t bytes = 0;            ///< bytes of data, in this message or in that of data_tag
  std::int64_t layout_bytes = 0;
};

/// The index of a predefined accumulate operation, the same in all processes; -1 for other operations.
int operation_index(MPI_Op op);
MPI_Op operation_at(int index);

/// The index of a predefined datatype, the same in all processes; -1 for other datatypes.
int element_index(MPI_Datatype type);
MPI_Datatype element_at(int index);
/// The predefined datatype, or the one of gpudt's, that `type` consists of; MPI_DATATYPE_NULL if there are several.
MPI_Datatype element_of(MPI_Datatype type);
/// Whether accumulates by `op` reduce elements of float16 or bfloat16, which MPI does not know. Throws MpiError if the
/// operator does not take them.
bool accumulates_float16(MPI_Op op, MPI_Datatype type);
/// The type to give to PMPI_Fetch_and_op, which takes only MPI's own, where it moves bytes.
MPI_Datatype type_to_fetch(MPI_Datatype type);

/// The count and datatype for a number of bytes, which may exceed INT_MAX.
class Bytes {
 public:
  explicit Bytes(std::int64_t bytes);
  ~Bytes();
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  int count() const { return count_; }
  MPI_Datatype type() const { return type_; }

 private:
  int count_;
  MPI_Datatype type_ = MPI_BYTE;
};

/// inout[i] = in[i] op inout[i] for the elements in `bytes` packed bytes; MPI_REPLACE and MPI_NO_OP too. May throw
/// std::bad_alloc.
void combine(MPI_Op op, MPI_Datatype element, const void* in, void* inout, std::int64_t bytes);

}  // namespace gpudt::interpose

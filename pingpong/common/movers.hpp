// The ways to pack and unpack a GPU buffer: through MPI, and those of a programmer without a library.
#pragma once

#include <memory>

#include "pingpong/common/layouts.hpp"
#include "pingpong/common/memory.hpp"

namespace gpudt::bench {

/// Packs and unpacks one message between memory of the current device and a packed buffer. All functions throw
/// std::runtime_error if the device fails. A mover copies what it needs of the message.
class Mover {
 public:
  virtual ~Mover() = default;
  /// Both return when the data has arrived.
  void pack(const void* user, void* packed) {
    start_pack(user, packed);
    wait();
  }
  void unpack(const void* packed, void* user) {
    start_unpack(packed, user);
    wait();
  }
  /// Both may return before; wait() returns when the data of all that was started has arrived.
  virtual void start_pack(const void* user, void* packed) = 0;
  virtual void start_unpack(const void* packed, void* user) = 0;
  virtual void wait() = 0;
};

/// A stream that several movers work on, or none: then each has one of its own.
using SharedStream = std::shared_ptr<const Stream>;

/// MPI_Pack and MPI_Unpack with the message's datatype, which must outlive the mover.
std::unique_ptr<Mover> make_mpi_mover(const Message& message);

/// cudaMemcpyAsync or cudaMemcpy2DAsync and a stream synchronisation; deeper layouts take one copy for each plane.
/// `packed` says where the packed side lies. Null where the layout is irregular or takes more than 1024 copies.
std::unique_ptr<Mover> make_copy2d_mover(const Message& message, Place packed, SharedStream stream = nullptr);

/// One cudaMemcpyAsync for each block and a stream synchronisation. Null above 1024 blocks.
std::unique_ptr<Mover> make_block_mover(const Message& message, Place packed, SharedStream stream = nullptr);

/// A kernel written by hand for this kind of layout, which tells of its end by a flag in mapped memory. Null on the
/// simulated device, without CUDA, and for blocks that are not made of 4-byte words.
std::unique_ptr<Mover> make_kernel_mover(const Message& message, Place packed);

}  // namespace gpudt::bench

// What both ends remember of a descriptor, since programs send the same buffers again and again: the sender what it has
// described there, the receiver what it has made of that. Then the sender does not write the description again, and the
// receiver neither reads nor maps it: the cache lines stay where they are.
#pragma once

#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose::peer {

/// Stores a value unless it is there, so that an unchanged cache line stays in the other process's caches, too.
template <class Value>
void store_change(std::atomic<Value>& place, Value value) {
  if (place.load(std::memory_order_relaxed) != value) place.store(value, std::memory_order_relaxed);
}

// --- sender: descriptors of this process -----------------------------------------------------------------------------

/// The descriptor that was taken last for a buffer of this address and process `other`, negative if none was; it may be
/// in use, or have another description by now.
int descriptor_for(const DeviceBuffer& operand, int other) REQUIRES(world->mutex);
void note_descriptor(int index, const DeviceBuffer& operand, int other) REQUIRES(world->mutex);
/// Whether descriptor `index` has the description of this operand for process `other`, which still holds.
bool is_described(int index, const DeviceBuffer& operand, int other);
/// Writes a description into descriptor `index`.
void write_description(int index, const RemoteBuffer& from);
/// Remembers what the descriptor's description is of, if that can be told from other memory (is_described()).
void note_described(int index, const DeviceBuffer& operand, int other);

// --- receiver: descriptors of process `rank` -------------------------------------------------------------------------

/// What GPU `gpu` has made before of the description that descriptor `index` has; empty if nothing, or if the memory is
/// not mapped any more.
MappedBuffer recall(int rank, int index, const Descriptor& descriptor, int gpu);
void remember(int rank, int index, const Descriptor& descriptor, int gpu, const MappedBuffer& made);

}  // namespace gpudt::interpose::peer

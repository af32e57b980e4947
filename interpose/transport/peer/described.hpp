// Programs send the same buffers again and again, so that descriptions of buffers are kept from message to message. The
// sender remembers which buffer each of its descriptors describes. For the same buffer it neither exports the memory
// nor writes the description again: the cache lines of the description stay in both processors' caches. The receiver
// remembers the layout and the mapping that it has derived from a description, while they exist, and the plan of the
// transfer, and need not parse, map or plan anything again.
#pragma once

#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose::peer {

/// Stores a value unless `place` has it: a cache line that is not written stays in the other process's caches, too.
template <class Value>
void store_if_different(std::atomic<Value>& place, Value value) {
  if (place.load(std::memory_order_relaxed) != value) place.store(value, std::memory_order_relaxed);
}

// --- sender: descriptors of this process, for messages to process `other` --------------------------------------------

/// The descriptor to try first: the one last noted for the hash of this buffer's address and `other`. It may describe
/// another buffer, or be in use. Negative: none.
int descriptor_for(const DeviceBuffer& operand, int other) REQUIRES(world->mutex);
/// Notes for descriptor_for() which descriptor was taken.
void note_index(int index, const DeviceBuffer& operand, int other) REQUIRES(world->mutex);
/// Whether descriptor `index` still describes this operand for process `other`: its layout is there, and the memory is
/// the same allocation. Then nothing need be written. May ask the CUDA driver.
bool is_described(int index, const DeviceBuffer& operand, int other) EXCLUDES(world->mutex);
/// Writes `from` into the descriptor and increments its version, if it differs from what is there. Until note_source()
/// is called, is_described() is false.
void update_description(int index, const RemoteBuffer& from) EXCLUDES(world->mutex);
/// Remembers that the descriptor describes this operand. Not for long layouts, memory in pieces, and memory of which
/// receivers are not told when it is freed: is_described() could not check these later.
void note_source(int index, const DeviceBuffer& operand, int other) EXCLUDES(world->mutex);

// --- receiver: descriptors of process `rank` -------------------------------------------------------------------------

/// What remember() was given for this version of the description and GPU `gpu`. The result has no mapping if there is
/// nothing, or if the layout or the mapping is gone. If the latest message was received into a buffer of layout `into`,
/// sets `plan` to that of its transfer, else leaves it unchanged. May wait for a mapping that is being closed.
MappedBuffer recall(int rank, int index, const Descriptor& descriptor, int gpu, const datatype::LayoutRef& into,
                    device::KeptPlan& plan) EXCLUDES(world->mutex);
/// Remembers what was derived from the description, in place of all that was remembered of this descriptor.
void remember(int rank, int index, const Descriptor& descriptor, int gpu, const MappedBuffer& derived)
    EXCLUDES(world->mutex);
/// Adds the plan of the transfer into a buffer of layout `into`.
void remember_plan(int rank, int index, const Descriptor& descriptor, const datatype::LayoutRef& into,
                   const device::KeptPlan& plan) EXCLUDES(world->mutex);

}  // namespace gpudt::interpose::peer

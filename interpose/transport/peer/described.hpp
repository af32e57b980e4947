// Descriptions of buffers that are kept from message to message, since programs send the same buffers again and again.
// The sender keeps in mind which buffer each of its descriptors describes, and does not export the memory nor write the
// description again; its cache lines stay in both processors' caches. The receiver keeps the layout and the mapping
// that it has derived from a description, and does not parse or map anything again.
#pragma once

#include "interpose/transport/peer/state.hpp"

namespace gpudt::interpose::peer {

/// Stores a value unless it is there: a cache line that does not change stays in the other process's caches, too.
template <class Value>
void store_if_different(std::atomic<Value>& place, Value value) {
  if (place.load(std::memory_order_relaxed) != value) place.store(value, std::memory_order_relaxed);
}

// --- sender: descriptors of this process, for messages to process `other` --------------------------------------------

/// The index of the descriptor that was taken last for a buffer of this address and receiver, by a hash: a guess, which
/// may be another buffer's or in use. Negative: none.
int descriptor_for(const DeviceBuffer& operand, int other) REQUIRES(world->mutex);
void note_index(int index, const DeviceBuffer& operand, int other) REQUIRES(world->mutex);
/// Whether descriptor `index` describes this operand for that receiver, so that nothing need be written. May call the
/// driver.
bool is_described(int index, const DeviceBuffer& operand, int other) EXCLUDES(world->mutex);
/// Writes `from` into the descriptor and increments its version, if it differs from what is there. Until note_source()
/// is called, is_described() is false.
void update_description(int index, const RemoteBuffer& from) EXCLUDES(world->mutex);
/// Remembers that the descriptor describes this operand, if is_described() can verify that later.
void note_source(int index, const DeviceBuffer& operand, int other) EXCLUDES(world->mutex);

// --- receiver: descriptors of process `rank` -------------------------------------------------------------------------

/// The layout and the mapping for GPU `gpu` that were derived from this version of the description. `mapping` is empty
/// if there are none, or if one of them is gone. `transfer` becomes that of the latest message, if it was received into
/// a buffer of layout `into`. May wait for a mapping that is being closed.
MappedBuffer recall(int rank, int index, const Descriptor& descriptor, int gpu, const datatype::LayoutRef& into,
                    device::KeptTransfer& transfer) EXCLUDES(world->mutex);
void remember(int rank, int index, const Descriptor& descriptor, int gpu, const MappedBuffer& derived)
    EXCLUDES(world->mutex);
/// Adds to what is remembered how a message was transferred into a buffer of layout `into`.
void remember_transfer(int rank, int index, const Descriptor& descriptor, const datatype::LayoutRef& into,
                       const device::KeptTransfer& transfer) EXCLUDES(world->mutex);

}  // namespace gpudt::interpose::peer

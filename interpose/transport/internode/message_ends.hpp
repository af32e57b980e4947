// The two ends of a message to a process that shares no memory with this one: its data go in fragments, when the
// receiver has asked for them (control_messages.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <vector>

#include "device/device.hpp"
#include "interpose/transport/device_buffer.hpp"
#include "interpose/transport/internode/control_messages.hpp"
#include "interpose/transport/internode/fragments.hpp"

namespace gpudt::interpose::peer {

/// The sender's end of a message that goes in fragments: it packs ahead, and sends what the receiver wants.
class MessageOutflow : public Outflow {
 public:
  MessageOutflow(Remote& remote, int rank, int index, Descriptor& descriptor, DeviceBuffer operand);
  ~MessageOutflow() override;
  bool step() override;

 private:
  struct Part {
    std::int64_t bytes;
    device::Staging staging;
    device::Transfer packing;
    MpiTransferRef sending;
  };
  bool begin(std::int64_t limit);
  bool find_staging(Part& part);
  void send(std::int64_t wanted);
  bool send_next(std::int64_t wanted);
  void reap();

  Remote& remote_;
  const int rank_;
  const MessageId id_;
  Descriptor& descriptor_;
  const DeviceBuffer operand_;
  const device::StagingKind kind_;  ///< what MPI sends from
  const std::int64_t fragment_bytes_;
  std::deque<Part> parts_;                           ///< oldest first
  std::size_t given_parts_ = 0;                      ///< number of these that MPI has
  device::Staging spare_;                            ///< memory of one part, so that a message can always go on
  std::int64_t begun_ = 0, given_ = 0, reaped_ = 0;  ///< bytes
  bool turn_ended_ = false;
};

/// The receiver's end. It receives all fragments that it has asked for, also after a failure.
class MessageInflow : public Inflow {
 public:
  /// Asks for the beginning of the message, as much as the target has room for; `fragment_bytes`:
  /// Descriptor::fragment_bytes.
  MessageInflow(Remote& remote, int rank, const MessageId& id, std::int64_t fragment_bytes, const Target& target);
  ~MessageInflow() override;
  bool step() override;

 private:
  struct Part {
    std::int64_t begin, end;
    std::byte* data;
    MpiTransferRef receiving;
  };
  void make_ring();
  bool has_slot() const;
  void ask();
  void take_arrived();
  std::byte* room_for(std::int64_t begin) const;
  void take(const Part& part);
  void unpack(const Part& part);
  void note_failure();

  Remote& remote_;
  const int rank_;
  const MessageId id_;
  const Target target_;
  const std::int64_t fragment_bytes_;
  std::byte* direct_ = nullptr;  ///< the user's contiguous data, into which MPI receives; null: into the ring
  /// Number of places for packed fragments, each of which is used until the fragment has been unpacked.
  std::int64_t ring_parts_ = 0;
  device::Staging ring_;         ///< for a GPU
  std::vector<std::byte> room_;  ///< the ring for a receive into host memory
  std::deque<Part> coming_;      ///< oldest first
  std::deque<device::Transfer> unpacking_;
  std::int64_t asked_ = 0, taken_ = 0;  ///< bytes
  std::exception_ptr failure_;          ///< thrown when all fragments have arrived
};

}  // namespace gpudt::interpose::peer

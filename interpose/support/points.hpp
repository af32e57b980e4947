// What the timeline (base/timeline.hpp) shows of MPI calls and messages. scripts/measure/timeline.py reads these names.
#pragma once

#include "base/timeline.hpp"

namespace gpudt::interpose::point {

// the program's calls
inline constexpr Point send_entered{"send entered"};
inline constexpr Point send_returned{"send returned"};
inline constexpr Point receive_entered{"receive entered"};
inline constexpr Point receive_returned{"receive returned"};
inline constexpr Point isend_entered{"isend entered"};
inline constexpr Point isend_returned{"isend returned"};
inline constexpr Point irecv_entered{"irecv entered"};
inline constexpr Point irecv_returned{"irecv returned"};
inline constexpr Point wait_entered{"wait entered"};
inline constexpr Point wait_returned{"wait returned"};
inline constexpr Point completed{"request completed"};  ///< of a nonblocking call

// their buffers
inline constexpr Point classified{"buffer classified"};  ///< it lies in device memory
inline constexpr Point laid_out{"layout found"};
inline constexpr Point staged{"staging taken"};

// a message, at its sender
inline constexpr Point offered{"offer made"};               ///< in a descriptor
inline constexpr Point given{"given to MPI"};               ///< the message or its RTS
inline constexpr Point sent{"MPI send complete"};           ///< of the message or its RTS
inline constexpr Point buffered{"data in the descriptor"};  ///< because no receiver has fetched them
inline constexpr Point wanted{"request for data seen"};
inline constexpr Point acknowledged{"acknowledgement seen"};

// at its receiver
inline constexpr Point posted{"receive posted"};  ///< about to be given to MPI
inline constexpr Point arrived{"message arrived"};
inline constexpr Point recognised{"RTS recognised"};
inline constexpr Point mapped{"sender's memory mapped"};
inline constexpr Point fetching{"transfer started"};
inline constexpr Point asked{"data asked for"};
inline constexpr Point released{"released"};  ///< the sender can see that the data have been read

// a collective by GPUs
inline constexpr Point published{"collective published"};  ///< by this process
inline constexpr Point all_published{"collective published by all"};
inline constexpr Point reached{"memory of all mapped"};
inline constexpr Point decided{"collective decided"};
inline constexpr Point started{"collective started"};  ///< this process's kernels
inline constexpr Point own_ended{"own kernels ended"};
inline constexpr Point all_ended{"kernels of all ended"};

// a message's parts
inline constexpr Point part_pack_started{"part pack started"};
inline constexpr Point part_packed{"part packed"};
inline constexpr Point part_given{"part given to MPI"};
inline constexpr Point part_handed_over{"part handed over"};  ///< in memory that the processes share
inline constexpr Point part_sent{"part sent"};                ///< its memory is free again
inline constexpr Point part_posted{"part posted"};
inline constexpr Point part_arrived{"part arrived"};
inline constexpr Point part_unpack_started{"part unpack started"};
inline constexpr Point part_unpacked{"part unpacked"};

// a transfer by the GPU
inline constexpr Point pack_started{"pack started"};
inline constexpr Point unpack_started{"unpack started"};

}  // namespace gpudt::interpose::point

// The records and boards (shared/board.hpp) of this process, and the look-up of those of others.
//
// MPI exchanges nothing for this: all processes of a communicator compute the same key (comm_state.hpp), by which each
// finds the records of the others. A missing record means that its process has not reached its first call yet.
// Therefore a record may get another key only when no process looks for the old one any more. Each process that has
// finished with a key notes this in the records of all others, if need be later, once those records exist.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "interpose/shared/shared_segment.hpp"

namespace gpudt::interpose {

/// Adds a record of this process, which must take part (collectives_take_part()). Null if no record is free; other
/// processes see that, and treat all its calls as declined.
peer::CallRecord* add_record(std::uint64_t key);
/// The record of the process that owns the segment; null if the process has reached no call yet. If the process had no
/// record left, one with all calls declined.
peer::CallRecord* find_record(peer::Segment& segment, std::uint64_t key);
/// Takes a board of this process with empty slots; negative if `most_taken` boards are taken, or there is no memory.
int take_board(std::size_t most_taken);
/// Whether this board has room for `bytes` bytes of layouts of a call; takes memory for them.
bool has_room_for_layouts(int board, std::uint64_t call, std::size_t bytes);

/// What a process holds for one key.
struct Holding {
  std::uint64_t key;
  peer::CallRecord* record;  ///< or null
  int board;                 ///< or negative
  std::vector<int> others;   ///< other processes with the key, by rank in MPI_COMM_WORLD
};
/// Ends this process's use of the key: it will neither look for the key nor publish calls under it again. Notes this in
/// the records of the others, at once (`at_once`) where these exist, else later.
void put_back(Holding holding, bool at_once);

}  // namespace gpudt::interpose

// The records and boards (transport/peer/board.hpp) of this process, and where those of others are.
//
// Nothing is exchanged by MPI: all processes of a communicator work out the same key (comm_state.hpp), by which each
// finds the others' records. A record that is not there means that its process has not come to its first call yet. So
// it may be used for another key only when nobody looks for it any more: each process tells that to all others, in
// their records, when it has done with a key. It may do so long after, when they have made theirs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "interpose/transport/peer/shared_segment.hpp"

namespace gpudt::interpose {

/// Of this process, which takes part (collectives_take_part()). Null: there can be none, as others know: to them all
/// its calls are declined.
peer::CallRecord* add_record(std::uint64_t key);
/// Of the process of that segment. Null: it has come to no call yet. May be a record in which all calls are declined.
peer::CallRecord* find_record(peer::Segment& segment, std::uint64_t key);
/// A board of this process's, whose slots hold nothing. Negative: it has so many already, or no memory.
int take_board(std::size_t most_taken);

/// What a process has of a key.
struct Holding {
  std::uint64_t key;
  peer::CallRecord* record;  ///< or null
  int board;                 ///< or negative
  std::vector<int> others;   ///< that have the key, by their ranks in MPI_COMM_WORLD
};
/// This process will not look at that key again, and has no more calls to tell of. `at_once`: the others are told now,
/// as far as they have a record; else some time.
void put_back(Holding holding, bool at_once);

}  // namespace gpudt::interpose

// The file that the processes of a job share on one node: what each has announced before MPI_Init, and their segments
// (transport/peer/shared_segment.hpp).
//
// The file has a name in /dev/shm from the first announcement until all processes have made theirs, or MPI_Init tells
// that nobody else will come. Then the name is removed: the processes keep the file open, and its memory is gone with
// the last of them, however that ends. A segment is made only in a file that has no name any more, so that a job that
// is killed leaves a page at the most, of which the next job of the same user removes the name.
//
// A process keeps its own entry of the file locked, so that others can tell that it has ended. What another user has
// made, or might have changed, is refused. Nothing here is collective, and nobody waits for others.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace gpudt::interpose::peer {

/// Tells the processes of this node that process `rank`, this one, is there and says `what`, 1 to 255. False if it
/// cannot; then nobody sees anything of it. Once in each job. `on_node`: how many processes of the job are on this
/// node; negative: that is not known.
bool announce(const std::string& job, int rank, int what, int on_node);
/// No process of this node will announce anything any more.
void all_have_announced(const std::string& job);
/// What process `rank` of this node has announced, who may have ended since; 0: nothing, or this process has announced
/// nothing itself. It cannot fail: all processes that have announced something get the same answer.
int announced(const std::string& job, int rank);

/// Whether a process that has announced something takes part in what the processes of the node do by their segments.
enum class Started : std::uint8_t {
  not_yet,  ///< it is in MPI_Init
  on,       ///< its segment is there
  off,      ///< it never will be
};
/// Of this process, in the job in which it has announced something last.
void tell_started(Started started) noexcept;
/// Of process `rank` of that job.
Started started(int rank) noexcept;

/// Whether this process is the first on its node, of those that have announced something, to ask about this text.
bool says_first(const std::string& job, const std::string& text);

/// Where the segments begin in the file. They are sizeof(Image) apart, in the order in which processes have announced.
inline constexpr off_t first_segment = 1 << 20;
/// The part of a file that one process has for its segment.
struct SegmentPlace {
  int file;     ///< open until this process ends
  off_t entry;  ///< of the process, which it keeps locked; negative: the file is this process's alone
  off_t first;  ///< byte of the segment
};

/// Whether processes of this node may still come, and open the job's file by its name: there are no segments in it yet.
bool awaits_others(const std::string& job);
/// This process's own. If it has announced nothing in this job, nobody else can open its segment. Throws Exception if
/// there is none: the job's file is not this user's alone, or it awaits others.
SegmentPlace own_place(const std::string& job);
/// The segment is there: others may open it.
void publish(const SegmentPlace& place);
/// Where process `rank`, not this one, has a segment; nothing if it has none, or is on another node.
std::optional<SegmentPlace> place_of(const std::string& job, int rank);
/// Whether the process whose place this is, not this one, has ended.
bool has_ended(const SegmentPlace& place);

/// Gives the bytes [first, end) of the file memory. Returns 0, or what is wrong.
int allocate(int file, off_t first, off_t end);

}  // namespace gpudt::interpose::peer

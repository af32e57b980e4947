// The file that the processes of a job share on one node. It has the announcement of each process, made before
// MPI_Init, and their segments (shared/shared_segment.hpp).
//
// The file has a name in /dev/shm from the first announcement until all processes have announced themselves, or until
// MPI_Init shows that no further process will come. Then the name is removed. The processes keep the file open, and its
// memory is freed when the last of them ends, in whatever way. Segments are made only in a file without a name. So a
// job that is killed leaves at most one page, whose name the next job of the same user removes.
//
// A process keeps its entry in the file locked, so that others can see when it has ended. Files that another user has
// made, or may have changed, are refused. Nothing here is collective, and nothing waits for other processes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace gpudt::interpose::peer {

/// The name of the job's file while it has one. It depends on parts of the job's name that other users cannot know, so
/// that they cannot be there first.
std::string path_of(const std::string& job);

/// Announces this process, `rank`, to the processes of this node, with the number `what`, 1 to 255. To be called once
/// in a job. If it returns false, other processes see nothing. `on_node`: number of processes of the job on this node;
/// negative: unknown.
bool announce(const std::string& job, int rank, int what, int on_node);
/// To be called when no further process of this node will announce itself.
void all_have_announced(const std::string& job);
/// The number that process `rank` of this node has announced, also if it has ended since. 0: none, or this process has
/// not announced itself. All processes that have announced themselves get the same answer.
int announced(const std::string& job, int rank);

/// Whether a process that has announced itself has a segment.
enum class Started : std::uint8_t {
  not_yet,  ///< the process is in MPI_Init
  on,       ///< it has a segment
  off,      ///< it will never have one
};
/// Publishes the state of this process, in the job in which it has announced itself last.
void tell_started(Started started) noexcept;
/// The state of process `rank` of that job.
Started started(int rank) noexcept;

/// Whether this process is the first on its node, among those that have announced themselves, to call this for `text`.
bool says_first(const std::string& job, const std::string& text);

/// The offset of the first segment in the file. Segments are sizeof(Image) apart, in the order of the announcements.
inline constexpr off_t first_segment = 1 << 20;
struct SegmentPlace {
  int file;     ///< open until this process ends
  off_t entry;  ///< of the process, which keeps it locked; negative: only this process uses the file
  off_t first;  ///< offset of the segment
};

/// Whether processes of this node may still come and open the job's file by its name. Until then it has no segments.
bool awaits_others(const std::string& job);
/// The place of this process. If the process has not announced itself in this job, no other process can open its
/// segment. Throws Exception if the job's file may be used by other users, or awaits other processes.
SegmentPlace own_place(const std::string& job);
/// Lets other processes open the segment.
void publish(const SegmentPlace& place);
/// The place of process `rank`, not this one; nothing if it has no segment, or is on another node.
std::optional<SegmentPlace> place_of(const std::string& job, int rank);
/// Whether the process of this place, not this one, has ended.
bool has_ended(const SegmentPlace& place);

/// Allocates the bytes [first, end) of the file. Returns 0, or an error number.
int allocate(int file, off_t first, off_t end);

}  // namespace gpudt::interpose::peer

// What one rank counts, and what rank 0 makes of all ranks' counts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "interpose/support/report.hpp"
#include "interpose/support/surroundings.hpp"

namespace gpudt::interpose::report {

inline constexpr std::size_t most_rows = 128;
inline constexpr std::size_t most_waits = 12;
inline constexpr std::size_t most_gpus = 8;
inline constexpr std::size_t name_length = 64;

/// Buffers of one call that went one way and have one kind of layout.
struct Row {
  char call[32];
  char way[20];
  std::int32_t kind;
  std::int64_t buffers, bytes, nanoseconds;
};

/// Calls of one name that complete requests.
struct Wait {
  char call[32];
  std::int64_t calls, nanoseconds;
};

struct GpuOfRank {
  unsigned char id[16];
  char name[name_length];
  std::int32_t ordinal;
};

/// The counts that each rank sends to rank 0, as plain bytes.
struct Record {
  Row rows[most_rows];  ///< those in use come first; the last one collects what had no room
  Wait waits[most_waits];
  std::int64_t nanoseconds[clocks];
  std::int64_t run_nanoseconds;  ///< from MPI_Init to MPI_Finalize
  std::int64_t movements[6];     ///< as in device::Movements
  std::int64_t peer[peer_events];
  std::int64_t staging_peak[2];  ///< bytes of mapped host memory, of device memory
  std::int64_t fallbacks[fallback_kinds];
  char host[name_length];
  char no_peers[160];
  char not_mapped[160];
  std::int32_t gpu_count;
  GpuOfRank gpus[most_gpus];
  Surroundings around;
};

/// Fills in the members that this rank's counters (report_counts.cpp) have.
void counted(Record& record);

/// Copies `text`, truncated to the room.
template <std::size_t size>
void put_text(char (&place)[size], const char* text) {
  std::snprintf(place, size, "%s", text);
}

struct Host {
  std::string name;
  std::vector<int> ranks;
  struct Gpu {
    std::string name;
    int ordinal;  ///< as the first of its ranks sees it
    std::vector<int> ranks;
  };
  std::map<std::string, Gpu> gpus;  ///< by identity
};

struct Hint {
  std::string what, remedy;
  std::string about;  ///< which mistake in how the job was started; empty for what else was slow
};

struct Summary {
  int ranks = 0, expected = 0;  ///< number of records that are summed, and of all ranks
  std::string device;
  std::vector<Row> rows;    ///< longest time first
  std::vector<Wait> waits;  ///< longest time first
  std::array<double, clocks> seconds{};
  double in_calls = 0;          ///< sum over ranks
  double most_in_calls = 0;     ///< of the busiest rank
  int busiest = 0;              ///< the rank with most time in calls
  double run = 0;               ///< of the rank that took longest
  std::int64_t movements[6]{};  ///< as in device::Movements
  std::int64_t peer[peer_events]{};
  std::int64_t staging_peak[2]{};
  std::int64_t fallbacks[fallback_kinds]{};
  std::string no_peers;
  std::string not_mapped;
  std::vector<Host> hosts;
  std::vector<std::string> costs;   ///< sources of rank 0's cost tables
  std::vector<std::string> forced;  ///< variables of rank 0 that restrict choices or slow down, "GPUDT_WAY=copy"
  std::vector<Hint> hints;

  std::int64_t of(PeerEvent event) const { return peer[static_cast<int>(event)]; }
  std::int64_t of(Fallback kind) const { return fallbacks[static_cast<int>(kind)]; }
};

inline double seconds_of(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-9;
}
inline const char* layout_name(const Row& row) {
  return datatype::shape_kind_name(static_cast<datatype::ShapeKind>(row.kind));
}

std::vector<Hint> hints(const Summary& summary);
/// Mistakes in how the job was started (report_placement.cpp). `first`: the rank of the first record.
std::vector<Hint> placement_hints(const std::vector<Record>& records, int first);
std::string as_text(const Summary& summary);
std::string as_json(const Summary& summary);

}  // namespace gpudt::interpose::report

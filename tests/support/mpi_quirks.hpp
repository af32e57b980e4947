// What MPI libraries do wrongly or in a way of their own even on host memory, so that tests cannot expect better of
// them. Test cases that such things make impossible as a whole are in tests/mpi/meson.build.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace gpudt::test {

#if defined(MPICH_VERSION) || defined(MPI_ABI_VERSION)  // over the standard ABI, the tests run with MPICH
inline constexpr bool mpich = true;
#else
inline constexpr bool mpich = false;
#endif

#if defined(MPI_ABI_VERSION) || (defined(MPICH_NUMVERSION) && MPICH_NUMVERSION >= 50000000)
inline constexpr bool mpich5 = true;
#else
inline constexpr bool mpich5 = false;
#endif

#if defined(OPEN_MPI) && OMPI_MAJOR_VERSION >= 5
inline constexpr bool openmpi5 = true;
#else
inline constexpr bool openmpi5 = false;
#endif

/// Open MPI 5 packs vectors of complex numbers wrongly whose stride is an odd multiple of half a number.
inline constexpr bool packs_complex_numbers = !openmpi5;
/// Open MPI 5 leaves the padding of long doubles alone when it unpacks, so that its bytes tell nothing.
inline constexpr bool unpacks_padding = !openmpi5;
/// Open MPI 5 delivers some bytes of types with gaps wrongly, in messages to oneself and in collectives' own blocks of
/// more than 64 KiB.
inline constexpr bool moves_long_blocks = !openmpi5;
/// PMIx 5, of Open MPI 5 and of Ubuntu 24.04, maps memory amid the largest ranges of addresses, which leaves no range
/// that reaches from the heap to where GPU memory lies. False if it has.
inline bool leaves_addresses() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("pmix-gds-shmem") != std::string::npos) return false;
  return !openmpi5;
}
/// MPICH 4.0 counts the basic elements of a received struct wrongly.
inline constexpr bool counts_elements = !mpich;
/// MPICH 4.0 matches persistent collectives by the order of their starts, not of their initialisations: data are mixed
/// up, or it hangs, where processes start them in different orders.
inline constexpr bool starts_in_any_order = !mpich;
/// MPICH 4.0 leaves the status of MPI_Irecv and MPI_Recv_init from MPI_PROC_NULL alone.
inline constexpr bool tells_of_proc_null = !mpich;
/// In MPICH the errors of requests and of matched messages go to the handlers of MPI_COMM_WORLD, as MPI-4 says of
/// errors that concern no communicator.
inline constexpr bool requests_have_handlers = !mpich;
/// MPICH without yaksa, as Debian has it, loses data of a message of more bytes than these that was sent packed (as
/// MPI_PACKED, by MPI_Bsend, from device memory) and is received into structs of elements of several sizes.
inline constexpr int most_of_mixed_structs = mpich ? 2000 : 1 << 30;
/// MPICH 5.0 frees a wrong address in MPI_Reduce of a type whose first byte is not at 0.
inline constexpr bool reduces_any_type = !mpich5;
/// The communicator whose handler hears of errors that concern no communicator: in MPICH 5.0 as MPI-4 says.
inline MPI_Comm comm_of_no_comm() {
  return mpich5 ? MPI_COMM_SELF : MPI_COMM_WORLD;
}
/// MPICH 4.0 accepts an accumulate whose operator does not suit the type if it is for MPI_PROC_NULL, which is how gpudt
/// has operators checked before the target uses them.
inline constexpr bool checks_operators = !mpich;
/// MPI_File_read and others of MPICH 5.0's libmpi_abi crash where arguments are wrong.
#ifdef MPI_ABI_VERSION
inline constexpr bool checks_file_arguments = false;
#else
inline constexpr bool checks_file_arguments = true;
#endif
/// Collectives of MPICH 4.0 crash where a count is negative.
inline constexpr bool checks_collective_counts = !mpich;
/// MPI_Pack and MPI_Unpack of MPICH 4.0 refuse MPI_BOTTOM.
inline constexpr bool packs_from_bottom = !mpich;
/// MPI_Pack of MPICH 4.0 does not look at the size of the buffer.
inline constexpr bool pack_checks_room = !mpich;

/// To MPICH 4.0 a message that ends within a basic element of a struct is a truncated one.
inline constexpr bool receives_parts_of_elements = !mpich;

/// A window of MPI's own over host memory. Open MPI 4.1 has none over memory that it has not allocated where
/// btl_vader_single_copy_mechanism is `none`; MPICH 4.0 loses data of puts into memory that it has.
/// `own` is the memory if MPI does not allocate it. Returns its address.
inline char* make_host_window(MPI_Aint bytes, MPI_Comm comm, std::vector<char>& own, MPI_Win* window) {
  void* memory = nullptr;
  if (mpich) {
    own.resize(static_cast<std::size_t>(bytes));
    memory = own.data();
    PMPI_Win_create(memory, bytes, 1, MPI_INFO_NULL, comm, window);
  } else {
    PMPI_Win_allocate(bytes, 1, MPI_INFO_NULL, comm, static_cast<void*>(&memory), window);
  }
  return static_cast<char*>(memory);
}

inline bool several_threads() {
  int level = MPI_THREAD_SINGLE;
  PMPI_Query_thread(&level);
  return level == MPI_THREAD_MULTIPLE;
}
/// With threads MPI_Waitall of Open MPI 4.1 never returns if a request has failed before the call.
inline bool waits_for_failed_requests() {
  return mpich || !several_threads();
}
/// With threads over MPICH one of gpudt's drives what is pending, which MPI_Test may be ahead of.
inline bool sees_completion_at_once() {
  return !mpich || !several_threads();
}

/// In partitioned communication of Open MPI 5 partitions lie as far apart as their data are long, whatever the extent
/// of the datatype; both sides must have as many; and a request that is freed before it was started ends the program.
inline constexpr bool partitions_freely = !openmpi5;
/// MPI_Waitall of Open MPI 5 without statuses, if all requests are complete and one has failed before the call, returns
/// MPI_SUCCESS and leaves that request.
inline constexpr bool reports_errors_without_statuses = !openmpi5;

/// Over several nodes the first reduction of a communicator of Open MPI 5 makes communicators (coll/han), and waits for
/// one that MPI_Comm_idup is making.
inline bool reduces_beside_idup() {
  const char* const here = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  int size = 0;
  PMPI_Comm_size(MPI_COMM_WORLD, &size);
  return !openmpi5 || here == nullptr || std::atoi(here) == size;
}

/// What Open MPI 4 exchanges tells gpudt which ranks of other nodes have it (interpose/mpi/modex.hpp).
inline constexpr bool tells_of_other_nodes = !openmpi5;

/// Whether MPICH 5 is there, be it that the tests were built over MPICH 4.
inline bool runs_mpich5() {
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0, major = 0;
  PMPI_Get_library_version(version, &length);
  return std::sscanf(version, "MPICH Version: %d.", &major) == 1 && major == 5;
}

/// MPICH 5.0 returns MPI_SUCCESS where an error handler of the program's own has been called.
inline bool returns_handled_errors() {
  return !runs_mpich5();
}

/// Says that a test case is impossible over this MPI library: `why`.
void not_possible(const char* why);

}  // namespace gpudt::test

/// Ends a test case over MPICH 5.0, which cannot do what it asks for even on host memory.
#define MPICH5_CANNOT(why) \
  if (gpudt::test::runs_mpich5()) return gpudt::test::not_possible(why)

/// Ends a test case over MPICH, which cannot do what it asks for even on host memory.
#define MPICH_CANNOT(why) \
  if (gpudt::test::mpich) return gpudt::test::not_possible(why)

// What the tests under mpirun share: the session that every rank runs in lock step, buffers with guard zones in host
// or device memory, datatypes of equal signature, and an oracle made of MPI's own pack and unpack on host memory.
//
// All ranks run the same test cases in the same order with the same random numbers, so that each rank knows what its
// peer sends without being told. Environment:
//   GPUDT_TEST_HOST=1     every buffer is host memory: checks the tests themselves, or plays a rank without gpudt
//   GPUDT_TEST_SEED=n     another run of random numbers; the seed is part of every failure's output
//   GPUDT_TEST_COUNT=n    n times as many random cases
//   GPUDT_TEST_TIMEOUT=s  seconds that one test case may take before the rank gives up as hung
//   GPUDT_TEST_THREADS=1  MPI_Init_thread with MPI_THREAD_MULTIPLE instead of MPI_Init
//   GPUDT_TEST_VERBOSE=1  the time of each test case
//   GPUDT_TEST_HUGE=1     also the tests that need several GiB
//   GPUDT_TEST_SESSION=1  a session in place of MPI_Init and MPI_COMM_WORLD (mpi_world.hpp)
//   GPUDT_TEST_DEVICE_IS, GPUDT_TEST_HOST_IS=kind  (a place_name) what Place::device and Place::host stand for: all
//                         tests with another kind of memory
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace gpudt::test {

// --- the session -----------------------------------------------------------------------------------------------------

int rank();            ///< in MPI_COMM_WORLD
int ranks();           ///< size of MPI_COMM_WORLD
bool host_only();      ///< of this rank
bool any_host_only();  ///< of any rank: what all ranks must decide alike hangs on this
bool huge_wanted();
std::uint64_t seed();
/// `cases` times GPUDT_TEST_COUNT.
int scaled(int cases);
/// Random numbers that are the same on all ranks, and others for each label.
std::mt19937_64 random_numbers(const std::string& label);

/// The running test case's own duplicate of MPI_COMM_WORLD, with MPI_ERRORS_RETURN.
MPI_Comm comm();
/// Waits for all ranks without entering an interposed library.
void lock_step();
/// Remembers what this rank is doing, for the message of a test that hangs.
void step(const std::string& text);
/// The rank that this one talks to: 0 with 1, 2 with 3, and so on; MPI_PROC_NULL for an odd one out. Tests of pairs run
/// with an even number of ranks alone.
int partner();
inline bool first_of_pair() {
  return rank() % 2 == 0;
}
inline bool all_have_partners() {
  return ranks() % 2 == 0;
}
/// Lets MPI progress until `condition()` holds; false after `seconds`.
template <class Condition>
bool eventually(Condition&& condition, double seconds = 20) {
  const double start = PMPI_Wtime();
  while (!condition()) {
    int flag = 0;
    PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm(), &flag, MPI_STATUS_IGNORE);
    if (PMPI_Wtime() - start > seconds) return false;
  }
  return true;
}

// --- datatypes -------------------------------------------------------------------------------------------------------

/// A committed datatype and how it was made. Move-only; frees a derived type.
class Type {
 public:
  Type(MPI_Datatype handle, std::string text);
  ~Type();
  Type(Type&& other) noexcept;
  Type& operator=(Type&&) = delete;
  operator MPI_Datatype() const { return handle_; }  // NOLINT(google-explicit-constructor): stands in for the handle
  const std::string& text() const { return text_; }
  std::int64_t size() const;
  MPI_Aint extent() const;
  /// First byte, and one past the last byte, that `count` elements touch, from the buffer's address.
  MPI_Aint low(std::int64_t count) const;
  MPI_Aint high(std::int64_t count) const;
  /// MPI_Type_free now, leaving MPI_DATATYPE_NULL; pending operations go on, says MPI.
  void free();

 private:
  MPI_Datatype handle_;
  std::string text_;
};

Type plain(MPI_Datatype basic);
/// `blocks` doubles (or what `basic` is) in blocks of `length`, `stride` apart: MPI_Type_vector.
Type vector(int blocks, int length, int stride, MPI_Datatype basic = MPI_DOUBLE);
/// A named layout of about `bytes` bytes: one of each shape that gpudt tells apart. See layout_count.
Type named_layout(int index, int bytes);
inline constexpr int layout_count = 12;

/// Two datatypes of equal signature, arranged differently at random, in non-overlapping places.
struct Pair {
  Type send, receive;
};
Pair random_pair(std::mt19937_64& random);

// --- buffers ---------------------------------------------------------------------------------------------------------

enum class Place {
  host,
  device,
  pinned,
  managed,
  stream_ordered,  ///< cudaMallocAsync
  registered,
  mapped,     ///< cuMemCreate and cuMemMap, in pieces that neighbour each other
  shareable,  ///< the same, and its handles may be file descriptors
  other_gpu,  ///< cudaMalloc on the GPU after the current one
};
const char* place_name(Place place);
/// Host memory; not managed memory.
inline bool on_host(Place place) {
  return place == Place::host || place == Place::pinned || place == Place::registered;
}
inline constexpr Place basic_places[] = {Place::host, Place::device};
inline constexpr Place all_places[] = {Place::host,    Place::device,         Place::pinned,
                                       Place::managed, Place::stream_ordered, Place::registered,
                                       Place::mapped,  Place::shareable,      Place::other_gpu};

/// The calling thread's GPU; 0 and no effect with GPUDT_TEST_HOST.
int current_gpu();
void use_gpu(int ordinal);
/// The number of GPUs that every rank has.
int gpu_count();
/// Whether kernels of the ranks take turns: all use one GPU, and not through CUDA MPS.
bool kernels_take_turns();

/// Bytes in one kind of memory (device memory: of the calling thread's GPU, unless the kind says otherwise).
class Memory {
 public:
  Memory(Place place, std::size_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&&) = delete;
  char* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  void write(const void* from, std::size_t bytes, std::size_t offset = 0);
  void read(void* to, std::size_t bytes, std::size_t offset = 0) const;

 private:
  Place place_;
  std::size_t bytes_;
  int gpu_ = 0;
  char* data_ = nullptr;
};

/// A message as a stream of packed bytes.
using Stream = std::vector<char>;

/// A host array around the bytes that (count, type) touches, with guard zones; `base()` stands for the buffer's
/// address, which may lie outside.
class Image {
 public:
  Image(const Type& type, std::int64_t count, std::size_t skew = 0);
  char* base() { return bytes_.data() + origin_; }
  const char* base() const { return bytes_.data() + origin_; }
  std::vector<char>& bytes() { return bytes_; }
  const std::vector<char>& bytes() const { return bytes_; }
  std::ptrdiff_t origin() const { return origin_; }
  void poison();
  /// A pattern that depends on key and place, in gaps and guards too. The first `skew` bytes remain.
  void fill(std::uint64_t key, std::size_t skew = 0);

 private:
  std::vector<char> bytes_;
  std::ptrdiff_t origin_;
};

/// What a sender's Buffer filled with `key` sends: MPI_Pack's bytes.
Stream stream_of(const Type& type, std::int64_t count, std::uint64_t key);
/// Puts the stream (possibly shorter than the message, possibly ending inside an element) where a receive would.
void unpack_into(Image& image, const Type& type, std::int64_t count, const Stream& stream);

/// A message buffer in some memory and, beside it, what the memory should hold. `skew` shifts its alignment.
class Buffer {
 public:
  Buffer(Place place, const Type& type, std::int64_t count, std::size_t skew = 0);  ///< poisoned, for receiving
  void* address() const { return memory_.data() + image_.origin(); }
  void fill(std::uint64_t key);  ///< for sending
  void poison();
  void expect(const Stream& stream);  ///< the memory should now hold this message on top of what it held
  /// Empty if memory holds what it should, gaps and guards included; else the first difference.
  std::string difference() const;
  /// The same, but the bytes of the message itself may be anything: after an error.
  std::string difference_outside() const;

 private:
  void upload();
  std::vector<char> download() const;
  std::string compare(const std::vector<char>& found) const;
  const Type* type_;
  std::int64_t count_;
  std::size_t skew_;
  Image image_;
  Memory memory_;
};

std::uint64_t mix(std::uint64_t a, std::uint64_t b);
/// For the data of message `number` of process `from`: all processes of a run have the same.
inline std::uint64_t key_of(int from, std::int64_t number = 0) {
  return mix(seed(), (static_cast<std::uint64_t>(from) << 32) + static_cast<std::uint64_t>(number));
}
/// Of a message of bytes.
int bytes_in(const MPI_Status& status);
std::string error_text(int code);
int error_class(int code);
/// The same, of a call that must fail; `wanted` where MPI does not return what it has told the error handler.
int failure_class(int code, int wanted);

}  // namespace gpudt::test

/// The call must return MPI_SUCCESS.
#define MPI_OK(call) CHECK(gpudt::test::error_text(call) == "")
/// The call must return an error of this class.
#define MPI_FAILS(call, wanted) CHECK(gpudt::test::failure_class(call, wanted) == (wanted))

// Kinds of memory, several GPUs in one process, MPI_BOTTOM, and very large messages.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

/// A stream that is being captured, so strictly that calls which might break that are errors.
class Capture {
 public:
  Capture() {
    if (host_only()) return;
    REQUIRE(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess);
    REQUIRE(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal) == cudaSuccess);
  }
  /// The error that ending it gives.
  cudaError_t end() {
    if (host_only()) return cudaSuccess;
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(stream_, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    return error;
  }
  ~Capture() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

 private:
  cudaStream_t stream_ = nullptr;
};

/// Makes a GPU the thread's current one, and finds after each call that it still is.
class CurrentGpu {
 public:
  explicit CurrentGpu(int current) : current_(current) { use_gpu(current); }
  void check(const char* call) const {
    INFO(call);
    CHECK(current_gpu() == current_);
  }

 private:
  int current_;
};

void check_count(const MPI_Status& status, const Type& type, int wanted = 1) {
  int count = -1;
  MPI_OK(MPI_Get_count(&status, type, &count));
  CHECK(count == wanted);
}

}  // namespace

TEST_CASE("every kind of memory with every other", "[memory]") {
  if (!all_have_partners()) return;
  for (const int bytes : {500, 60000})
    for (const int layout : {0, 1, 4})
      for (const Place send : all_places)
        for (const Place receive : all_places) {
          const Type type = named_layout(layout, bytes);
          exchange_both_ways({type, 2, send, type, 2, receive}, 10);
        }
}

TEST_CASE("Pack and Put take every kind of memory", "[memory]") {
  const Type type = vector(300, 1, 2), byte = plain(MPI_BYTE);
  const Stream stream = stream_of(type, 1, seed());
  const int size = static_cast<int>(stream.size());
  for (const Place user : all_places)
    for (const Place packed : all_places) {
      const std::string text = std::string(place_name(user)) + "/" + place_name(packed);
      INFO(text);
      step(text);
      Buffer from(user, type, 1), wire(packed, byte, size), to(user, type, 1);
      from.fill(seed());
      int position = 0;
      MPI_OK(MPI_Pack(from.address(), 1, type, wire.address(), size, &position, comm()));
      wire.expect(stream);
      CHECK(wire.difference() == "");
      position = 0;
      MPI_OK(MPI_Unpack(wire.address(), size, &position, to.address(), 1, type, comm()));
      to.expect(stream);
      CHECK(to.difference() == "");
    }
}

TEST_CASE("messages and packing while a stream of the program is captured", "[memory]") {
  if (!all_have_partners()) return;
  MPI_Datatype made = MPI_DATATYPE_NULL;
  const int displacements[] = {0, 700, 300};
  PMPI_Type_create_indexed_block(3, 200, displacements, MPI_INT, &made);
  const Type list(made, "list"), lines = vector(128, 1, 64), many = vector(131072, 2, 4);
  int number = 0;
  for (const Type* const each : {&list, &lines, &many})
    for (const int count : {1, 3}) {
      const Type& type = *each;
      Buffer out(Place::device, type, count), in(Place::device, type, count);
      const int size = static_cast<int>(stream_of(type, count, 0).size());
      const Type byte = plain(MPI_BYTE);
      Buffer packed(Place::device, byte, size), unpacked(Place::device, type, count);
      out.fill(key_of(rank(), ++number));
      Capture capture;
      MPI_Request requests[2];
      MPI_OK(MPI_Irecv(in.address(), count, type, partner(), number, comm(), &requests[0]));
      MPI_OK(MPI_Isend(out.address(), count, type, partner(), number, comm(), &requests[1]));
      MPI_OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
      int position = 0;
      MPI_OK(MPI_Pack(out.address(), count, type, packed.address(), size, &position, comm()));
      position = 0;
      MPI_OK(MPI_Unpack(packed.address(), size, &position, unpacked.address(), count, type, comm()));
      CHECK(capture.end() == cudaSuccess);
      in.expect(stream_of(type, count, key_of(partner(), number)));
      CHECK(in.difference() == "");
      unpacked.expect(stream_of(type, count, key_of(rank(), number)));
      CHECK(unpacked.difference() == "");
    }
}

TEST_CASE("persistent and nonblocking messages of every kind of memory, all in flight at once", "[memory]") {
  if (!all_have_partners()) return;
  const Type type = vector(300, 2, 3);
  std::vector<Buffer> out, in;
  std::vector<MPI_Request> requests;
  for (const Place send : all_places)
    for (const Place receive : all_places) {
      const int tag = static_cast<int>(in.size());
      out.emplace_back(send, type, 2);
      in.emplace_back(receive, type, 2);
      MPI_Request pair[2];
      MPI_OK(MPI_Recv_init(in.back().address(), 2, type, partner(), tag, comm(), &pair[0]));
      MPI_OK(MPI_Send_init(out.back().address(), 2, type, partner(), tag, comm(), &pair[1]));
      requests.insert(requests.end(), pair, pair + 2);
    }
  const int count = static_cast<int>(requests.size()), messages = count / 2;
  const auto verify = [&](int round) {
    for (int i = 0; i < messages; ++i) {
      Buffer& buffer = in[static_cast<std::size_t>(i)];
      INFO("message " << i << " of round " << round);
      buffer.expect(stream_of(type, 2, key_of(partner(), 100 * round + i)));
      CHECK(buffer.difference() == "");
    }
  };
  const auto refill = [&](int round) {
    for (int i = 0; i < messages; ++i) {
      out[static_cast<std::size_t>(i)].fill(key_of(rank(), 100 * round + i));
      in[static_cast<std::size_t>(i)].poison();
    }
  };
  for (int round = 0; round < 2; ++round) {
    step("persistent, round " + std::to_string(round));
    refill(round);
    MPI_OK(MPI_Startall(count, requests.data()));
    MPI_OK(MPI_Waitall(count, requests.data(), MPI_STATUSES_IGNORE));
    verify(round);
  }
  for (MPI_Request& request : requests) MPI_OK(MPI_Request_free(&request));
  step("nonblocking");
  refill(2);
  for (int i = 0; i < messages; ++i) {
    const auto at = static_cast<std::size_t>(i);
    MPI_OK(MPI_Irecv(in[at].address(), 2, type, partner(), i, comm(), &requests[2 * at]));
    MPI_OK(MPI_Isend(out[at].address(), 2, type, partner(), i, comm(), &requests[2 * at + 1]));
  }
  MPI_OK(MPI_Waitall(count, requests.data(), MPI_STATUSES_IGNORE));
  verify(2);
}

TEST_CASE("several GPUs in one process", "[memory]") {
  if (!all_have_partners()) return;
  const int home = current_gpu();
  const Type type = named_layout(4, 20000);
  for (int gpu = 0; gpu < gpu_count(); ++gpu)
    for (int other = 0; other < gpu_count(); ++other) {
      const std::string text = "from GPU " + std::to_string(gpu) + " to GPU " + std::to_string(other);
      INFO(text);
      step(text);
      use_gpu(gpu);
      Buffer out(Place::device, type, 1);
      use_gpu(other);
      Buffer in(Place::device, type, 1);
      out.fill(key_of(rank(), gpu));
      use_gpu(home);
      MPI_OK(MPI_Sendrecv(out.address(), 1, type, partner(), 1, in.address(), 1, type, partner(), 1, comm(),
                          MPI_STATUS_IGNORE));
      in.expect(stream_of(type, 1, key_of(partner(), gpu)));
      CHECK(in.difference() == "");
      CHECK(current_gpu() == home);
    }
  use_gpu(home);
}

TEST_CASE("no call changes the current GPU", "[memory]") {
  if (!all_have_partners()) return;
  const int home = current_gpu();
  const Type type = vector(3000, 1, 2), byte = plain(MPI_BYTE);
  for (int gpu = 0; gpu < gpu_count(); ++gpu) {
    use_gpu(gpu);
    Buffer out(Place::device, type, 1), in(Place::device, type, 1), wire(Place::device, byte, type.size());
    out.fill(key_of(rank(), gpu));
    const CurrentGpu current((gpu + 1) % gpu_count());
    MPI_Request requests[2];
    MPI_OK(MPI_Irecv(in.address(), 1, type, partner(), 1, comm(), &requests[0]));
    current.check("Irecv");
    MPI_OK(MPI_Send(out.address(), 1, type, partner(), 1, comm()));
    current.check("Send");
    MPI_OK(MPI_Wait(&requests[0], MPI_STATUS_IGNORE));
    current.check("Wait");
    MPI_OK(MPI_Isend(out.address(), 1, type, partner(), 2, comm(), &requests[0]));
    current.check("Isend");
    MPI_OK(MPI_Recv(in.address(), 1, type, partner(), 2, comm(), MPI_STATUS_IGNORE));
    current.check("Recv");
    MPI_OK(MPI_Waitall(1, requests, MPI_STATUSES_IGNORE));
    current.check("Waitall");
    MPI_OK(MPI_Recv_init(in.address(), 1, type, partner(), 3, comm(), &requests[0]));
    MPI_OK(MPI_Send_init(out.address(), 1, type, partner(), 3, comm(), &requests[1]));
    MPI_OK(MPI_Startall(2, requests));
    current.check("Startall");
    MPI_OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
    current.check("Waitall of persistent requests");
    for (MPI_Request& request : requests) MPI_OK(MPI_Request_free(&request));
    MPI_OK(MPI_Sendrecv_replace(in.address(), 1, type, partner(), 4, partner(), 4, comm(), MPI_STATUS_IGNORE));
    current.check("Sendrecv_replace");
    int position = 0;
    MPI_OK(MPI_Pack(out.address(), 1, type, wire.address(), static_cast<int>(type.size()), &position, comm()));
    current.check("Pack");
    position = 0;
    MPI_OK(MPI_Unpack(wire.address(), static_cast<int>(type.size()), &position, in.address(), 1, type, comm()));
    current.check("Unpack");
    PMPI_Barrier(comm());
  }
  use_gpu(home);
}

TEST_CASE("MPI_BOTTOM with absolute addresses", "[memory]") {
  if (!all_have_partners()) return;
  const Type part = vector(200, 1, 2), number = plain(MPI_INT);
  for (const Place send : basic_places)
    for (const Place receive : basic_places) {
      const std::string text = std::string(place_name(send)) + " to " + place_name(receive);
      INFO(text);
      step(text);
      Buffer out(send, part, 1), out_number(send, number, 3), in(receive, part, 1), in_number(receive, number, 3);
      out.fill(key_of(rank(), 1));
      out_number.fill(key_of(rank(), 2));
      const auto absolute = [&](const Buffer& first, const Buffer& second) {
        const int lengths[2] = {1, 3};
        MPI_Aint places[2];
        MPI_Get_address(first.address(), &places[0]);
        MPI_Get_address(second.address(), &places[1]);
        const MPI_Datatype types[2] = {part, number};
        MPI_Datatype made = MPI_DATATYPE_NULL;
        PMPI_Type_create_struct(2, lengths, places, types, &made);
        return Type(made, "struct of absolute addresses");
      };
      const Type from = absolute(out, out_number), to = absolute(in, in_number);
      MPI_Status status{};
      MPI_OK(MPI_Sendrecv(MPI_BOTTOM, 1, from, partner(), 1, MPI_BOTTOM, 1, to, partner(), 1, comm(), &status));
      check_count(status, to);
      in.expect(stream_of(part, 1, key_of(partner(), 1)));
      in_number.expect(stream_of(number, 3, key_of(partner(), 2)));
      CHECK(in.difference() == "");
      CHECK(in_number.difference() == "");
    }
}

TEST_CASE("buffers at every alignment", "[memory]") {
  if (!all_have_partners()) return;
  for (const int layout : {0, 1, 2, 6, 11})
    for (std::size_t skew = 0; skew < 16; ++skew) {
      const Type type = named_layout(layout, 5000);
      exchange_both_ways({type, 2, Place::device, type, 2, Place::device, skew}, 10);
    }
}

TEST_CASE("no bytes at all", "[memory]") {
  if (!all_have_partners()) return;
  MPI_Datatype made = MPI_DATATYPE_NULL;
  PMPI_Type_contiguous(0, MPI_INT, &made);
  const Type nothing(made, "contiguous(0 INT)"), some = vector(10, 1, 2);
  for (const Place send : basic_places)
    for (const Place receive : basic_places) {
      exchange_both_ways({some, 0, send, some, 0, receive}, 10);
      exchange_both_ways({nothing, 5, send, nothing, 5, receive}, 20);
      exchange_both_ways({nothing, 3, send, some, 2, receive}, 30);
    }
  MPI_Status status{};
  MPI_OK(MPI_Sendrecv(nullptr, 0, some, partner(), 1, nullptr, 0, some, partner(), 1, comm(), &status));
  check_count(status, some, 0);
}

namespace {

char huge_pattern(std::size_t at) {
  return static_cast<char>(at * 31 + at / 65536);
}

/// Calls `run(chunk, where it begins)` for the whole of `bytes` bytes.
template <class Do>
void in_chunks(std::size_t bytes, Do&& run) {
  std::vector<char> chunk(std::size_t(64) << 20);
  for (std::size_t begin = 0; begin < bytes; begin += chunk.size()) {
    chunk.resize(std::min(chunk.size(), bytes - begin));
    run(chunk, begin);
  }
}

}  // namespace

TEST_CASE("more than 2^31 elements in one message", "[memory][huge]") {
  if (!huge_wanted() || !all_have_partners()) return;
  // 2^27 + 1 elements of 17 bytes: over 2 GiB in the message, over 2^31 basic elements, offsets over 2^31 bytes.
  MPI_Datatype dense = MPI_DATATYPE_NULL, spaced = MPI_DATATYPE_NULL;
  PMPI_Type_contiguous(17, MPI_CHAR, &dense);
  PMPI_Type_create_resized(dense, 0, 20, &spaced);
  PMPI_Type_free(&dense);
  const Type type(spaced, "17 of 20 CHAR");
  constexpr int count = (1 << 27) + 1;
  const auto bytes = static_cast<std::size_t>(count) * 20;
  for (const bool first : {true, false}) {
    const bool sends = (rank() % 2 == 0) == first;
    Memory memory(Place::device, bytes);
    step("filling");
    in_chunks(bytes, [&](std::vector<char>& chunk, std::size_t begin) {
      for (std::size_t i = 0; i < chunk.size(); ++i) chunk[i] = sends ? huge_pattern(begin + i) : '\0';
      memory.write(chunk.data(), chunk.size(), begin);
    });
    step("sending");
    if (sends) {
      MPI_OK(MPI_Send(memory.data(), count, type, partner(), 1, comm()));
      continue;
    }
    MPI_Status status{};
    MPI_OK(MPI_Recv(memory.data(), count, type, partner(), 1, comm(), &status));
    check_count(status, type, count);
    step("verifying");
    std::size_t wrong = 0;
    in_chunks(bytes, [&](std::vector<char>& chunk, std::size_t begin) {
      memory.read(chunk.data(), chunk.size(), begin);
      for (std::size_t i = 0; i < chunk.size(); ++i)
        wrong += chunk[i] != ((begin + i) % 20 < 17 ? huge_pattern(begin + i) : '\0') ? 1 : 0;
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("elements more than 2^31 bytes apart", "[memory][huge]") {
  if (!huge_wanted() || !all_have_partners()) return;
  MPI_Datatype made = MPI_DATATYPE_NULL;
  constexpr MPI_Aint apart = (MPI_Aint(1) << 31) + 4096;
  PMPI_Type_create_hvector(2, 1000, apart, MPI_INT, &made);
  const Type sparse(made, "hvector over 2 GiB");
  const auto bytes = static_cast<std::size_t>(apart) + 4000;
  Memory memory(Place::device, bytes);
  std::vector<int> block(1000), found(1000);
  for (int half = 0; half < 2; ++half) {
    std::fill(block.begin(), block.end(), rank() * 2 + half);
    memory.write(block.data(), 4000, static_cast<std::size_t>(half) * static_cast<std::size_t>(apart));
  }
  MPI_OK(MPI_Sendrecv_replace(memory.data(), 1, sparse, partner(), 1, partner(), 1, comm(), MPI_STATUS_IGNORE));
  for (int half = 0; half < 2; ++half) {
    memory.read(found.data(), 4000, static_cast<std::size_t>(half) * static_cast<std::size_t>(apart));
    CHECK(std::count(found.begin(), found.end(), partner() * 2 + half) == 1000);
  }
}

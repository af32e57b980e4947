// What the program has put into its default stream before an MPI call is over before the call touches its memory, and
// a call waits for no more than that. No test synchronises a stream before it passes memory to MPI.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include "tests/mpi/exchange.hpp"
#include "tests/mpi/held_stream.hpp"

using namespace gpudt::test;

namespace {

/// Longer than anything that does not wait for the default stream takes.
constexpr std::chrono::milliseconds late{20};

/// What the program gives to the default stream from now on is done later.
void delay_default_stream() {
  REQUIRE(cudaLaunchHostFunc(
              nullptr, [](void*) { std::this_thread::sleep_for(late); }, nullptr) == cudaSuccess);
}

/// Device memory to which the default stream copies a message late. Until then there is another one.
class LateBuffer {
 public:
  LateBuffer(const Type& type, std::int64_t count, std::uint64_t key)
      : image_(type, count),
        memory_(Place::device, image_.bytes().size()),
        pinned_(Place::pinned, image_.bytes().size()) {
    bring(key);
  }
  /// Another message.
  void bring(std::uint64_t key) {
    image_.fill(~key);
    memory_.write(image_.bytes().data(), image_.bytes().size());
    image_.fill(key);
    std::memcpy(pinned_.data(), image_.bytes().data(), image_.bytes().size());
    delay_default_stream();
    REQUIRE(cudaMemcpyAsync(memory_.data(), pinned_.data(), pinned_.bytes(), cudaMemcpyHostToDevice, nullptr) ==
            cudaSuccess);
  }
  void* address() const { return memory_.data() + image_.origin(); }

 private:
  Image image_;
  Memory memory_, pinned_;
};

/// Device memory that the default stream reads late. What a receive brings must not be there yet.
class ReadBuffer {
 public:
  ReadBuffer(const Type& type, std::int64_t count)
      : type_(type),
        count_(count),
        image_(type, count),
        memory_(Place::device, image_.bytes().size()),
        pinned_(Place::pinned, image_.bytes().size()) {
    image_.fill(key_of(rank(), 999));
    memory_.write(image_.bytes().data(), image_.bytes().size());
    delay_default_stream();
    REQUIRE(cudaMemcpyAsync(pinned_.data(), memory_.data(), pinned_.bytes(), cudaMemcpyDeviceToHost, nullptr) ==
            cudaSuccess);
  }
  void* address() const { return memory_.data() + image_.origin(); }
  /// The default stream has read what was there before, and the message has come.
  void check(const Stream& message) {
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
    CHECK(std::memcmp(pinned_.data(), image_.bytes().data(), pinned_.bytes()) == 0);
    unpack_into(image_, type_, count_, message);
    std::vector<char> found(memory_.bytes());
    memory_.read(found.data(), found.size());
    CHECK(found == image_.bytes());
  }

 private:
  const Type& type_;
  std::int64_t count_;
  Image image_;
  Memory memory_, pinned_;
};

struct Sample {
  const Type& type;
  int count;
  int number;  ///< its tag
  Stream stream(int from) const { return stream_of(type, count, key_of(from, number)); }
};

/// Lengths for which there are different ways.
void each_message(const std::string& text, const std::function<void(const Sample&)>& body) {
  if (any_host_only() || !all_have_partners()) return;
  int number = 0;
  for (const int bytes : {64, 601, 4096, 300000, 5 << 20})
    for (const bool contiguous : {true, false}) {
      const Type type = contiguous ? plain(MPI_BYTE) : vector(bytes / 64, 8, 16, MPI_CHAR);
      const std::string line = text + " of " + std::to_string(bytes) + " B, " + type.text();
      INFO(line);
      step(line);
      body({type, contiguous ? bytes : 8, number++});
    }
}

/// `send(buffer, sample)` in one process of each pair, a plain receive in the other.
void each_send(const std::string& text, const std::function<void(LateBuffer&, const Sample&)>& send) {
  each_message(text, [&](const Sample& sample) {
    if (first_of_pair()) {
      LateBuffer out(sample.type, sample.count, key_of(rank(), sample.number));
      send(out, sample);
      REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
      return;
    }
    Buffer in(sample.number % 3 == 0 ? Place::host : Place::device, sample.type, sample.count);
    MPI_OK(MPI_Recv(in.address(), sample.count, sample.type, partner(), sample.number, comm(), MPI_STATUS_IGNORE));
    in.expect(sample.stream(partner()));
    CHECK(in.difference() == "");
  });
}

/// `receive(address, sample)` in one process of each pair, a plain send in the other.
void each_receive(const std::string& text, const std::function<void(void*, const Sample&)>& receive) {
  each_message(text, [&](const Sample& sample) {
    if (first_of_pair()) {
      ReadBuffer in(sample.type, sample.count);
      receive(in.address(), sample);
      in.check(sample.stream(partner()));
      return;
    }
    Buffer out(sample.number % 3 == 0 ? Place::host : Place::device, sample.type, sample.count);
    out.fill(key_of(rank(), sample.number));
    MPI_OK(MPI_Send(out.address(), sample.count, sample.type, partner(), sample.number, comm()));
  });
}

/// Bytes of device memory that come late, by their rank's key.
constexpr int few = 3000;
LateBuffer late_bytes(int bytes, int number) {
  return {plain(MPI_BYTE), bytes, key_of(rank(), number)};
}
Stream bytes_of(int from, int bytes, int number) {
  return stream_of(plain(MPI_BYTE), bytes, key_of(from, number));
}

/// Runs `body(in)` with device memory for `bytes` bytes, which must hold `wanted` then.
void brings(const std::string& text, const Stream& wanted, const std::function<void(void*)>& body) {
  INFO(text);
  step(text);
  const Type byte = plain(MPI_BYTE);
  Buffer in(Place::device, byte, static_cast<std::int64_t>(wanted.size()));
  body(in.address());
  in.expect(wanted);
  CHECK(in.difference() == "");
}

Stream from_all(int bytes, int number) {
  Stream all;
  for (int from = 0; from < ranks(); ++from) {
    const Stream one = bytes_of(from, bytes, number);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

Stream combined(int bytes, int number) {
  Stream sum(static_cast<std::size_t>(bytes), 0);
  for (int from = 0; from < ranks(); ++from) {
    const Stream one = bytes_of(from, bytes, number);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<char>(sum[i] ^ one[i]);
  }
  return sum;
}

}  // namespace

TEST_CASE("blocking sends of what the default stream still writes", "[ordering]") {
  each_send("MPI_Send", [](LateBuffer& out, const Sample& sample) {
    MPI_OK(MPI_Send(out.address(), sample.count, sample.type, partner(), sample.number, comm()));
  });
  each_send("MPI_Ssend", [](LateBuffer& out, const Sample& sample) {
    MPI_OK(MPI_Ssend(out.address(), sample.count, sample.type, partner(), sample.number, comm()));
  });
  const BsendBuffer room(16 << 20);
  each_send("MPI_Bsend", [](LateBuffer& out, const Sample& sample) {
    MPI_OK(MPI_Bsend(out.address(), sample.count, sample.type, partner(), sample.number, comm()));
  });
}

TEST_CASE("nonblocking sends of what the default stream still writes", "[ordering]") {
  each_send("MPI_Isend, MPI_Wait", [](LateBuffer& out, const Sample& sample) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Isend(out.address(), sample.count, sample.type, partner(), sample.number, comm(), &request));
    MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  });
  each_send("MPI_Issend, MPI_Test", [](LateBuffer& out, const Sample& sample) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Issend(out.address(), sample.count, sample.type, partner(), sample.number, comm(), &request));
    for (int flag = 0; flag == 0;) MPI_OK(MPI_Test(&request, &flag, MPI_STATUS_IGNORE));
  });
}

TEST_CASE("persistent sends and receives come after the default stream's work before MPI_Start", "[ordering]") {
  each_message("MPI_Send_init", [](const Sample& sample) {
    constexpr int times = 3;
    MPI_Request request = MPI_REQUEST_NULL;
    if (first_of_pair()) {
      LateBuffer out(sample.type, sample.count, key_of(rank(), 0));
      MPI_OK(MPI_Send_init(out.address(), sample.count, sample.type, partner(), sample.number, comm(), &request));
      for (int i = 0; i < times; ++i) {
        out.bring(key_of(rank(), i));
        MPI_OK(MPI_Start(&request));
        MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
      }
    } else {
      Buffer in(Place::device, sample.type, sample.count);
      MPI_OK(MPI_Recv_init(in.address(), sample.count, sample.type, partner(), sample.number, comm(), &request));
      for (int i = 0; i < times; ++i) {
        MPI_OK(MPI_Start(&request));
        MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        in.expect(stream_of(sample.type, sample.count, key_of(partner(), i)));
        CHECK(in.difference() == "");
      }
    }
    MPI_OK(MPI_Request_free(&request));
  });
  each_receive("MPI_Recv_init", [](void* address, const Sample& sample) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Recv_init(address, sample.count, sample.type, partner(), sample.number, comm(), &request));
    MPI_OK(MPI_Start(&request));
    MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    MPI_OK(MPI_Request_free(&request));
  });
}

TEST_CASE("receives into what the default stream still reads", "[ordering]") {
  each_receive("MPI_Recv", [](void* address, const Sample& sample) {
    MPI_OK(MPI_Recv(address, sample.count, sample.type, partner(), sample.number, comm(), MPI_STATUS_IGNORE));
  });
  each_receive("MPI_Irecv", [](void* address, const Sample& sample) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(MPI_Irecv(address, sample.count, sample.type, partner(), sample.number, comm(), &request));
    MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  });
  each_receive("MPI_Mrecv", [](void* address, const Sample& sample) {
    MPI_Message matched = MPI_MESSAGE_NULL;
    MPI_OK(MPI_Mprobe(partner(), sample.number, comm(), &matched, MPI_STATUS_IGNORE));
    MPI_OK(MPI_Mrecv(address, sample.count, sample.type, &matched, MPI_STATUS_IGNORE));
  });
}

TEST_CASE("exchanges of what the default stream still writes", "[ordering]") {
  each_message("MPI_Sendrecv", [](const Sample& sample) {
    LateBuffer out(sample.type, sample.count, key_of(rank(), sample.number));
    ReadBuffer in(sample.type, sample.count);
    MPI_OK(MPI_Sendrecv(out.address(), sample.count, sample.type, partner(), 1, in.address(), sample.count, sample.type,
                        partner(), 1, comm(), MPI_STATUS_IGNORE));
    in.check(sample.stream(partner()));
  });
  each_message("MPI_Sendrecv_replace", [](const Sample& sample) {
    LateBuffer both(sample.type, sample.count, key_of(rank(), sample.number));
    MPI_OK(MPI_Sendrecv_replace(both.address(), sample.count, sample.type, partner(), 1, partner(), 1, comm(),
                                MPI_STATUS_IGNORE));
    Buffer in(Place::device, sample.type, sample.count);
    MPI_OK(MPI_Sendrecv(both.address(), sample.count, sample.type, partner(), 2, in.address(), sample.count,
                        sample.type, partner(), 2, comm(), MPI_STATUS_IGNORE));
    in.expect(sample.stream(rank()));
    CHECK(in.difference() == "");
  });
}

TEST_CASE("an operation waits for no more than was in the default stream when it was started", "[ordering]") {
  if (std::getenv("GPUDT_MPI_CUDA_AWARE") != nullptr) return;  // calls that give device memory to MPI wait themselves
  each_message("MPI_Irecv", [](const Sample& sample) {
    Buffer in(Place::device, sample.type, sample.count), out(Place::device, sample.type, sample.count);
    const auto exchange = [&](bool held) {
      in.poison();
      out.fill(key_of(rank(), sample.number));
      MPI_Request receive = MPI_REQUEST_NULL, send = MPI_REQUEST_NULL;
      MPI_OK(MPI_Irecv(in.address(), sample.count, sample.type, partner(), 1, comm(), &receive));
      if (held && first_of_pair()) {
        HeldStream stream;
        MPI_OK(MPI_Isend(out.address(), sample.count, sample.type, partner(), 1, comm(), &send));
        int flag = 0;
        CHECK(eventually([&] {
          MPI_OK(MPI_Test(&receive, &flag, MPI_STATUS_IGNORE));
          return flag != 0;
        }));
      } else {
        MPI_OK(MPI_Isend(out.address(), sample.count, sample.type, partner(), 1, comm(), &send));
      }
      MPI_OK(MPI_Wait(&receive, MPI_STATUS_IGNORE));
      MPI_OK(MPI_Wait(&send, MPI_STATUS_IGNORE));
      in.expect(sample.stream(partner()));
      CHECK(in.difference() == "");
    };
    exchange(/*held=*/false);  // what memory and mappings it takes are there then: to get more may take an idle GPU
    exchange(/*held=*/true);
  });
}

TEST_CASE("a receive from memory that was never mapped closes no mapping while the default stream works",
          "[ordering]") {
  const char* const device = std::getenv("GPUDT_DEVICE");
  if (device == nullptr || std::string(device) != "sim") return;  // where to map something may take an idle GPU, too
  if (any_host_only() || !all_have_partners() || std::getenv("GPUDT_MPI_CUDA_AWARE") != nullptr) return;
  constexpr int more_than_kept = 70, bytes = 300000;
  const Type byte = plain(MPI_BYTE);
  std::vector<Buffer> mapped;
  Buffer in(Place::device, byte, bytes);
  const auto send = [&](int number) {
    Buffer& out = mapped.emplace_back(Place::device, byte, bytes);
    out.fill(key_of(rank(), number));
    MPI_OK(MPI_Send(out.address(), bytes, MPI_BYTE, partner(), 1, comm()));
  };
  for (int i = 0; i < more_than_kept; ++i) {
    if (first_of_pair())
      MPI_OK(MPI_Recv(in.address(), bytes, MPI_BYTE, partner(), 1, comm(), MPI_STATUS_IGNORE));
    else
      send(i);
  }
  if (!first_of_pair()) {
    MPI_OK(MPI_Recv(nullptr, 0, MPI_BYTE, partner(), 2, comm(), MPI_STATUS_IGNORE));
    return send(more_than_kept);
  }
  MPI_Request receive = MPI_REQUEST_NULL;
  MPI_OK(MPI_Irecv(in.address(), bytes, MPI_BYTE, partner(), 1, comm(), &receive));
  {
    const HeldStream stream;
    MPI_OK(MPI_Send(nullptr, 0, MPI_BYTE, partner(), 2, comm()));
    int flag = 0;
    CHECK(eventually([&] {
      MPI_OK(MPI_Test(&receive, &flag, MPI_STATUS_IGNORE));
      return flag != 0;
    }));
  }
  MPI_OK(MPI_Wait(&receive, MPI_STATUS_IGNORE));
  in.expect(bytes_of(partner(), bytes, more_than_kept));
  CHECK(in.difference() == "");
}

TEST_CASE("Pack and Unpack of what the default stream still writes", "[ordering]") {
  if (any_host_only()) return;
  const Type type = vector(few / 8, 8, 16, MPI_CHAR), byte = plain(MPI_BYTE);
  const Stream stream = stream_of(type, 1, key_of(0, 1));
  const int size = static_cast<int>(stream.size());
  for (const Place place : {Place::host, Place::device, Place::other_gpu}) {
    INFO(place_name(place));
    Buffer packed(place, byte, size);
    LateBuffer from(type, 1, key_of(0, 1));
    int position = 0;
    MPI_OK(MPI_Pack(from.address(), 1, type, packed.address(), size, &position, comm()));
    packed.expect(stream);
    CHECK(packed.difference() == "");

    ReadBuffer to(type, 1);
    position = 0;
    MPI_OK(MPI_Unpack(packed.address(), size, &position, to.address(), 1, type, comm()));
    to.check(stream);
  }
  for (const Place place : basic_places) {
    INFO(place_name(place));
    LateBuffer packed(byte, size, key_of(0, 2));
    const Stream bytes = stream_of(byte, size, key_of(0, 2));
    Buffer to(place, type, 1);
    int position = 0;
    MPI_OK(MPI_Unpack(packed.address(), size, &position, to.address(), 1, type, comm()));
    to.expect(bytes);
    CHECK(to.difference() == "");
  }
}

TEST_CASE("collectives on what the default stream still writes", "[ordering]") {
  if (any_host_only()) return;
  const int count = ranks();
  for (const int bytes : {few, 100000}) {
    const auto each = static_cast<std::size_t>(bytes);
    brings("MPI_Bcast", bytes_of(0, bytes, 1), [&](void* in) {
      if (rank() == 0) {
        LateBuffer out = late_bytes(bytes, 1);
        MPI_OK(MPI_Bcast(out.address(), bytes, MPI_BYTE, 0, comm()));
        MPI_OK(MPI_Sendrecv(out.address(), bytes, MPI_BYTE, 0, 0, in, bytes, MPI_BYTE, 0, 0, MPI_COMM_SELF,
                            MPI_STATUS_IGNORE));
      } else {
        MPI_OK(MPI_Bcast(in, bytes, MPI_BYTE, 0, comm()));
      }
    });
    brings("MPI_Allgather", from_all(bytes, 2), [&](void* in) {
      const LateBuffer out = late_bytes(bytes, 2);
      MPI_OK(MPI_Allgather(out.address(), bytes, MPI_BYTE, in, bytes, MPI_BYTE, comm()));
    });
    brings("MPI_Allreduce", combined(bytes, 3), [&](void* in) {
      const LateBuffer out = late_bytes(bytes, 3);
      MPI_OK(MPI_Allreduce(out.address(), in, bytes, MPI_BYTE, MPI_BXOR, comm()));
    });
    brings("MPI_Iallreduce", combined(bytes, 4), [&](void* in) {
      const LateBuffer out = late_bytes(bytes, 4);
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_OK(MPI_Iallreduce(out.address(), in, bytes, MPI_BYTE, MPI_BXOR, comm(), &request));
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    });
    std::vector<int> counts(static_cast<std::size_t>(count), bytes), displacements;
    for (int i = 0; i < count; ++i) displacements.push_back(i * bytes);
    const std::vector<MPI_Datatype> types(counts.size(), MPI_BYTE);
    Stream exchanged;
    for (int from = 0; from < count; ++from) {
      const Stream all = bytes_of(from, count * bytes, 5);
      const auto mine = all.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank()) * each);
      exchanged.insert(exchanged.end(), mine, mine + bytes);
    }
    brings("MPI_Alltoall", exchanged, [&](void* in) {
      const LateBuffer out = late_bytes(count * bytes, 5);
      MPI_OK(MPI_Alltoall(out.address(), bytes, MPI_BYTE, in, bytes, MPI_BYTE, comm()));
    });
    brings("MPI_Alltoallv", exchanged, [&](void* in) {
      const LateBuffer out = late_bytes(count * bytes, 5);
      MPI_OK(MPI_Alltoallv(out.address(), counts.data(), displacements.data(), MPI_BYTE, in, counts.data(),
                           displacements.data(), MPI_BYTE, comm()));
    });
    brings("MPI_Alltoallw", exchanged, [&](void* in) {
      const LateBuffer out = late_bytes(count * bytes, 5);
      MPI_OK(MPI_Alltoallw(out.address(), counts.data(), displacements.data(), types.data(), in, counts.data(),
                           displacements.data(), types.data(), comm()));
    });
  }
}

TEST_CASE("windows over what the default stream still writes", "[ordering]") {
  if (any_host_only() || !all_have_partners()) return;
  const Type byte = plain(MPI_BYTE);
  LateBuffer memory(byte, few, key_of(rank(), 0));
  MPI_Win window = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create(memory.address(), few, 1, MPI_INFO_NULL, comm(), &window));
  const auto get = [&](void* in) { MPI_OK(MPI_Get(in, few, MPI_BYTE, partner(), 0, few, MPI_BYTE, window)); };

  brings("MPI_Win_create, MPI_Win_lock", bytes_of(partner(), few, 0), [&](void* in) {
    MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, partner(), 0, window));
    get(in);
    MPI_OK(MPI_Win_unlock(partner(), window));
  });
  MPI_OK(MPI_Win_fence(0, window));
  memory.bring(key_of(rank(), 1));
  brings("MPI_Win_fence", bytes_of(partner(), few, 1), [&](void* in) {
    MPI_OK(MPI_Win_fence(0, window));
    get(in);
    MPI_OK(MPI_Win_fence(0, window));
  });
  memory.bring(key_of(rank(), 2));
  brings("MPI_Win_sync", bytes_of(partner(), few, 2), [&](void* in) {
    MPI_OK(MPI_Win_lock_all(0, window));
    MPI_OK(MPI_Win_sync(window));
    MPI_OK(MPI_Barrier(comm()));
    get(in);
    MPI_OK(MPI_Win_unlock_all(window));
  });
  MPI_OK(MPI_Barrier(comm()));
  memory.bring(key_of(rank(), 3));
  MPI_Group all = MPI_GROUP_NULL, other = MPI_GROUP_NULL;
  const int ranks_of_other[] = {partner()};
  MPI_OK(MPI_Comm_group(comm(), &all));
  MPI_OK(MPI_Group_incl(all, 1, ranks_of_other, &other));
  brings("MPI_Win_post", bytes_of(partner(), few, 3), [&](void* in) {
    MPI_OK(MPI_Win_post(other, 0, window));
    MPI_OK(MPI_Win_start(other, 0, window));
    get(in);
    MPI_OK(MPI_Win_complete(window));
    MPI_OK(MPI_Win_wait(window));
  });
  MPI_OK(MPI_Group_free(&other));
  MPI_OK(MPI_Group_free(&all));
  for (const bool accumulates : {false, true}) {
    const std::string text = accumulates ? "MPI_Accumulate" : "MPI_Put";
    INFO(text);
    const LateBuffer origin(byte, few, key_of(rank(), 4));
    MPI_OK(MPI_Win_fence(0, window));
    if (accumulates)
      MPI_OK(MPI_Accumulate(origin.address(), few, MPI_BYTE, partner(), 0, few, MPI_BYTE, MPI_REPLACE, window));
    else
      MPI_OK(MPI_Put(origin.address(), few, MPI_BYTE, partner(), 0, few, MPI_BYTE, window));
    MPI_OK(MPI_Win_fence(0, window));
    brings(text, bytes_of(partner(), few, 4), [&](void* in) {
      MPI_OK(MPI_Sendrecv(memory.address(), few, MPI_BYTE, 0, 0, in, few, MPI_BYTE, 0, 0, MPI_COMM_SELF,
                          MPI_STATUS_IGNORE));
    });
  }
  MPI_OK(MPI_Win_free(&window));
}

TEST_CASE("files from what the default stream still writes", "[ordering]") {
  if (any_host_only()) return;
  const std::string name = "/tmp/gpudt-ordering-" + std::to_string(getpid());
  MPI_File file = MPI_FILE_NULL;
  MPI_OK(MPI_File_open(MPI_COMM_SELF, name.c_str(), MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE,
                       MPI_INFO_NULL, &file));
  const LateBuffer out = late_bytes(few, 1);
  MPI_OK(MPI_File_write_at(file, 0, out.address(), few, MPI_BYTE, MPI_STATUS_IGNORE));
  const Type byte = plain(MPI_BYTE);
  ReadBuffer in(byte, few);
  MPI_OK(MPI_File_read_at(file, 0, in.address(), few, MPI_BYTE, MPI_STATUS_IGNORE));
  in.check(bytes_of(rank(), few, 1));
  MPI_OK(MPI_File_close(&file));
}

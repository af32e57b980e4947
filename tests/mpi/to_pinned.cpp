// Device messages into pinned host memory, to which copy engines bring long ones: every kind of receive, any layouts,
// buffers of several pieces. Each message is sent again and again from one memory, since that is mapped once it has
// brought some. With GPUDT_REQUIRE=warn also which of them copy engines have brought.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/mpi/exchange.hpp"
#include "tests/support/counters.hpp"

using namespace gpudt::test;

namespace {

constexpr int pinned_tag = 7;
constexpr Place pinned_places[] = {Place::pinned, Place::registered};
/// Sizes in bytes: staged; brought by copy engines; the same of memory that is packed first; in several parts.
constexpr int staged = 20'000, in_place = 120'000, in_any_case = 400'000, in_parts = 2'400'000;
/// The messages after which memory is mapped, even where opening it is put off.
constexpr int few = 6, many = 40;

/// The messages that this process has offered, and that have gone through shared memory nevertheless.
long long refused() {
  return counter("messages_refused");
}

/// After some messages, copy engines bring them to the host.
void check_brought(const Ends& ends, const ReceiveMode& mode = receive_modes[0]) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  long long before = refused();
  bool brought = false;
  send_again(ends, mode, pinned_tag, [&](int) {
    brought = refused() == std::exchange(before, refused());
    return brought || std::chrono::steady_clock::now() > deadline;
  });
  CHECK((brought || !first_of_pair()));
}

/// All go through shared memory, though they are offered.
void check_refused(const Ends& ends) {
  const long long before = refused();
  send_again(ends, receive_modes[0], pinned_tag, [](int sent) { return sent == few; });
  CHECK((refused() - before == few || !first_of_pair()));
}

/// From now on all know each other and use their GPUs, and messages are offered from the first one on.
void meet() {
  const Type type = vector(1000, 1, 2);
  exchange_both_ways({type, 1, Place::device, type, 1, Place::device}, pinned_tag);
  PMPI_Barrier(comm());
}

int count_for(const Type& type, int bytes) {
  return static_cast<int>(bytes / std::max<std::int64_t>(type.size(), 1)) + 1;
}

/// Blocks of bytes at absolute addresses.
Type at_addresses(const std::vector<void*>& addresses, int bytes) {
  std::vector<MPI_Aint> places;
  const std::vector<int> lengths(addresses.size(), bytes);
  for (void* const address : addresses) PMPI_Get_address(address, &places.emplace_back());
  MPI_Datatype made = MPI_DATATYPE_NULL;
  PMPI_Type_create_hindexed(static_cast<int>(places.size()), lengths.data(), places.data(), MPI_BYTE, &made);
  return {made, "blocks at absolute addresses"};
}

/// Pages of host memory, each of which may be registered by itself.
class Pages {
 public:
  static constexpr std::size_t page = 4096;
  explicit Pages(std::size_t pages) : data_(static_cast<char*>(std::aligned_alloc(page, pages * page))) {}
  ~Pages() {
    for (char* const at : registered_) cudaHostUnregister(at);
    std::free(data_);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  bool lock(std::size_t first, std::size_t pages, unsigned flags = 0) {
    if (cudaHostRegister(data_ + first * page, pages * page, flags) == cudaSuccess) {
      registered_.push_back(data_ + first * page);
      return true;
    }
    cudaGetLastError();
    return false;
  }
  char* data() { return data_; }

 private:
  char* data_;
  std::vector<char*> registered_;
};

/// Sends device memory into these pages, `few` times. Whether all has gone through shared memory.
bool goes_round(char* pages, int bytes) {
  Memory out(Place::device, static_cast<std::size_t>(bytes));
  std::vector<char> data(out.bytes());
  const long long before = refused();
  for (int i = 0; i < few; ++i) {
    std::fill(data.begin(), data.end(), static_cast<char>('a' + i));
    out.write(data.data(), data.size());
    if (first_of_pair()) {
      MPI_OK(MPI_Send(out.data(), bytes, MPI_BYTE, partner(), pinned_tag, comm()));
    } else {
      MPI_OK(MPI_Recv(pages, bytes, MPI_BYTE, partner(), pinned_tag, comm(), MPI_STATUS_IGNORE));
      CHECK(std::equal(data.begin(), data.end(), pages));
    }
  }
  return !first_of_pair() || refused() - before == few;
}

}  // namespace

TEST_CASE("copy engines bring device messages into pinned memory", "[.][to-pinned-way]") {
  meet();
  const Type one = plain(MPI_DOUBLE);
  for (const Place place : pinned_places)
    for (const int bytes : {in_place, in_any_case, in_parts}) {
      const Type rows = vector(bytes / 512, 64, 70), others = vector(bytes / 512, 64, 100);
      const int count = static_cast<int>(rows.size() / 8);
      for (const Place from : {Place::device, Place::shareable}) {
        check_brought({one, count, from, one, count, place});
        check_brought({rows, 1, from, one, count, place});
        check_brought({one, count, from, rows, 1, place});
        check_brought({rows, 1, from, others, 1, place});
      }
    }
  check_brought({one, in_place, Place::device, one, 2 * in_place, Place::pinned});
}

TEST_CASE("copy engines bring them for every kind of receive", "[.][to-pinned-way]") {
  meet();
  const Type type = vector(in_place / 512, 64, 70);
  for (const ReceiveMode& mode : receive_modes)
    for (const Place place : pinned_places) check_brought({type, 1, Place::device, type, 1, place}, mode);
}

TEST_CASE("copy engines bring what is packed first, if it is long", "[.][to-pinned-way]") {
  meet();
  const Type shorter = vector(in_place / 512, 64, 70), longer = vector(in_any_case / 512, 64, 70),
             parts = vector(in_parts / 512, 64, 70);
  for (const Place from : {Place::mapped, Place::stream_ordered, Place::managed}) {
    check_brought({longer, 1, from, longer, 1, Place::pinned});
    check_brought({parts, 1, from, parts, 1, Place::pinned});
  }
  for (const Place from : {Place::mapped, Place::stream_ordered, Place::managed}) {
    check_refused({shorter, 1, from, shorter, 1, Place::host});
    check_refused({shorter, 1, from, shorter, 1, Place::pinned});
  }
}

TEST_CASE("other layouts and other memory are not for copy engines", "[.][to-pinned-way]") {
  meet();
  for (const int layout : {1, 3, 5, 7, 9}) {
    const Type type = named_layout(layout, in_place);
    check_refused({type, 1, Place::device, type, 1, Place::host});
    check_refused({type, 1, Place::device, type, 1, Place::pinned});
  }
  const Type one = plain(MPI_DOUBLE);
  check_refused({one, in_place, Place::device, one, in_place, Place::host});
  check_brought({one, in_place, Place::device, one, in_place, Place::pinned});
}

TEST_CASE("copy engines write to nothing but memory that is pinned as one piece", "[.][to-pinned-way]") {
  meet();
  constexpr std::size_t page = Pages::page, third = 10;
  constexpr int bytes = 3 * third * page;
  {
    Pages pages(3 * third);  // as two pieces that adjoin
    if (pages.lock(0, third) && pages.lock(third, 2 * third)) CHECK(goes_round(pages.data(), bytes));
  }
  {
    Pages pages(3 * third);  // as two pieces with other memory between
    if (pages.lock(0, third) && pages.lock(2 * third, third)) CHECK(goes_round(pages.data(), bytes));
  }
  {
    Pages pages(3 * third);
    if (pages.lock(0, third)) CHECK(goes_round(pages.data(), bytes));
  }
  {
    Pages pages(3 * third);
    int there = pages.lock(0, 3 * third, cudaHostRegisterReadOnly) ? 1 : 0;
    PMPI_Allreduce(MPI_IN_PLACE, &there, 1, MPI_INT, MPI_MIN, comm());
    if (there != 0) CHECK(goes_round(pages.data(), bytes));
  }
}

TEST_CASE("blocks in several pieces of pinned memory", "[to-pinned]") {
  if (!all_have_partners()) return;
  constexpr int bytes = 100'000, blocks = 3;
  for (const std::array<Place, blocks>& places :
       {std::array{Place::pinned, Place::pinned, Place::pinned}, std::array{Place::pinned, Place::host, Place::pinned},
        std::array{Place::registered, Place::host, Place::host}}) {
    std::vector<std::unique_ptr<Memory>> memories;
    std::vector<void*> addresses;
    addresses.reserve(blocks);
    for (const Place place : places)
      addresses.push_back(memories.emplace_back(std::make_unique<Memory>(place, bytes))->data());
    const Type apart = at_addresses(addresses, bytes);
    Memory out(Place::device, bytes * blocks);
    std::vector<char> data(out.bytes()), got(bytes);
    for (int round = 0; round < few; ++round) {
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(mix(key_of(0, round), i));
      out.write(data.data(), data.size());
      MPI_OK(MPI_Sendrecv(out.data(), bytes * blocks, MPI_BYTE, partner(), pinned_tag, MPI_BOTTOM, 1, apart, partner(),
                          pinned_tag, comm(), MPI_STATUS_IGNORE));
      for (std::size_t i = 0; i < blocks; ++i) {
        memories[i]->read(got.data(), got.size());
        CHECK(std::equal(got.begin(), got.end(), data.begin() + static_cast<std::ptrdiff_t>(i) * bytes));
      }
    }
  }
}

TEST_CASE("random types of equal signature into pinned memory", "[to-pinned]") {
  MPICH_CANNOT("it receives structs of elements of several sizes wrongly from a packed message");
  if (!all_have_partners()) return;
  auto random = random_numbers("into pinned memory");
  for (int i = 0; i < scaled(40); ++i) {
    const Pair pair = random_pair(random);
    constexpr int lengths[] = {staged, in_place, in_place, in_any_case};
    const int count = count_for(pair.send, lengths[random() % 4]);
    const std::size_t skew = random() % 3 == 0 ? random() % 16 : 0;
    const Place from = all_places[random() % std::size(all_places)], to = pinned_places[random() % 2];
    send_again({pair.send, count, from, pair.receive, count, to, skew}, receive_modes[0], pinned_tag,
               [](int sent) { return sent == few; });
  }
}

TEST_CASE("rows of every length, in any place, into pinned memory", "[to-pinned]") {
  if (!all_have_partners()) return;
  auto random = random_numbers("rows into pinned memory");
  const Type byte = plain(MPI_BYTE);
  for (int i = 0; i < scaled(20); ++i) {
    const int run = 40 + static_cast<int>(random() % 3000), rows = (i % 5 == 0 ? in_parts : in_place) / run;
    const auto gap = [&] { return static_cast<int>(random() % 200); };
    const Type here = vector(rows, run, run + gap(), MPI_BYTE), there = vector(rows, run, run + gap(), MPI_BYTE);
    const Place from = i % 4 == 3 ? Place::managed : Place::device;
    const auto skew = static_cast<std::size_t>(random() % 16);
    const auto enough = [](int sent) { return sent == few; };
    send_again({here, 1, from, there, 1, Place::pinned, skew}, receive_modes[0], pinned_tag, enough);
    send_again({here, 1, from, byte, run * rows, Place::pinned, skew}, receive_modes[0], pinned_tag, enough);
    send_again({byte, run * rows, from, there, 1, Place::registered, skew}, receive_modes[0], pinned_tag, enough);
  }
}

TEST_CASE("beginnings of receives into pinned memory", "[to-pinned]") {
  if (!all_have_partners()) return;
  constexpr int declared = 4000;  // more than the memory holds
  int number = 0;
  for (const int layout : {0, 2, 4})
    for (const int bytes : {staged, in_place, in_any_case}) {
      const Type type = named_layout(layout, bytes / 8);
      Buffer out(Place::device, type, 9), in(Place::pinned, type, 9);
      for (int round = 0; round < few; ++round) {
        out.fill(key_of(rank(), ++number));
        MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
        MPI_Status status{};
        MPI_OK(MPI_Isend(out.address(), 9, type, partner(), pinned_tag, comm(), &requests[0]));
        if (round % 2 == 0) {
          MPI_OK(MPI_Irecv(in.address(), declared, type, partner(), pinned_tag, comm(), &requests[1]));
          MPI_OK(MPI_Wait(&requests[1], &status));
        } else {
          MPI_OK(MPI_Recv(in.address(), declared, type, partner(), pinned_tag, comm(), &status));
        }
        MPI_OK(MPI_Wait(&requests[0], MPI_STATUS_IGNORE));
        check_status(status, partner(), pinned_tag, type, 9 * type.size());
        in.expect(stream_of(type, 9, key_of(partner(), number)));
        CHECK(in.difference() == "");
      }
    }
}

TEST_CASE("messages that are too long for a receive into pinned memory", "[to-pinned]") {
  if (!all_have_partners() || any_host_only()) return;  // Open MPI writes too much of what is not offered
  int number = 0;
  for (const int layout : {0, 2, 4})
    for (const int bytes : {in_place, in_any_case}) {
      const Type type = named_layout(layout, bytes / 2);
      Buffer out(Place::device, type, 3), in(Place::pinned, type, 2);
      for (int round = 0; round < few; ++round) {
        out.fill(key_of(rank(), ++number));
        MPI_Request send = MPI_REQUEST_NULL, receive = MPI_REQUEST_NULL;
        MPI_OK(MPI_Isend(out.address(), 3, type, partner(), pinned_tag, comm(), &send));
        if (round % 2 == 0) {
          MPI_OK(MPI_Irecv(in.address(), 2, type, partner(), pinned_tag, comm(), &receive));
          MPI_FAILS(MPI_Wait(&receive, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
        } else {
          MPI_FAILS(MPI_Recv(in.address(), 2, type, partner(), pinned_tag, comm(), MPI_STATUS_IGNORE),
                    MPI_ERR_TRUNCATE);
        }
        MPI_OK(MPI_Wait(&send, MPI_STATUS_IGNORE));
        CHECK(in.difference_outside() == "");
      }
    }
}

TEST_CASE("many messages at a time into pinned memory, by wildcards", "[to-pinned]") {
  if (!all_have_partners()) return;
  constexpr int messages = 24;
  std::vector<Type> types;
  for (const int layout : {0, 2, 3, 5, 9}) types.push_back(named_layout(layout, in_place / 2));
  const auto type_of = [&](int number) -> const Type& {
    return types[static_cast<std::size_t>(number) % types.size()];
  };
  std::vector<Buffer> out, in;
  for (int i = 0; i < messages; ++i) {
    in.emplace_back(pinned_places[i % 2], type_of(i), 1);
    out.emplace_back(i % 5 == 4 ? Place::managed : Place::device, type_of(i), 1);
  }
  for (int round = 0; round < few; ++round) {
    std::vector<MPI_Request> requests(2 * messages);
    for (int i = 0; i < messages; ++i)
      MPI_OK(MPI_Irecv(in[static_cast<std::size_t>(i)].address(), 1, type_of(i), MPI_ANY_SOURCE, MPI_ANY_TAG, comm(),
                       &requests[static_cast<std::size_t>(i)]));
    for (int i = 0; i < messages; ++i) {
      Buffer& from = out[static_cast<std::size_t>(i)];
      from.fill(key_of(rank(), round * messages + i));
      MPI_OK(MPI_Isend(from.address(), 1, type_of(i), partner(), 100 + i, comm(),
                       &requests[static_cast<std::size_t>(messages + i)]));
    }
    std::vector<MPI_Status> statuses(requests.size());
    MPI_OK(MPI_Waitall(2 * messages, requests.data(), statuses.data()));
    for (int i = 0; i < messages; ++i) {
      const auto at = static_cast<std::size_t>(i);
      check_status(statuses[at], partner(), 100 + i, type_of(i), type_of(i).size());
      in[at].expect(stream_of(type_of(i), 1, key_of(partner(), round * messages + i)));
      CHECK(in[at].difference() == "");
    }
    PMPI_Barrier(comm());  // the next messages match the next receives
  }
}

TEST_CASE("persistent receives into pinned memory", "[to-pinned]") {
  if (!all_have_partners()) return;
  for (const int layout : {0, 2, 4}) {
    const Type type = named_layout(layout, in_place);
    Buffer out(Place::device, type, 1), in(Place::pinned, type, 1);
    MPI_Request requests[2];
    MPI_OK(MPI_Recv_init(in.address(), 1, type, partner(), pinned_tag, comm(), &requests[0]));
    MPI_OK(MPI_Send_init(out.address(), 1, type, partner(), pinned_tag, comm(), &requests[1]));
    for (int round = 0; round < few; ++round) {
      out.fill(key_of(rank(), round));
      MPI_OK(MPI_Startall(2, requests));
      MPI_OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
      in.expect(stream_of(type, 1, key_of(partner(), round)));
      CHECK(in.difference() == "");
    }
    for (MPI_Request& request : requests) MPI_OK(MPI_Request_free(&request));
  }
}

TEST_CASE("a process sends itself device messages into pinned memory", "[to-pinned]") {
  for (int gpu = 0; gpu < gpu_count(); ++gpu)
    for (const int layout : {0, 4}) {
      const int home = current_gpu();
      const Type type = named_layout(layout, in_place);
      Buffer in(Place::pinned, type, 1);
      use_gpu(gpu);
      Buffer out(Place::device, type, 1);
      use_gpu(home);
      for (int round = 0; round < few; ++round) {
        out.fill(key_of(rank(), round));
        MPI_OK(MPI_Sendrecv(out.address(), 1, type, rank(), pinned_tag, in.address(), 1, type, rank(), pinned_tag,
                            comm(), MPI_STATUS_IGNORE));
        in.expect(stream_of(type, 1, key_of(rank(), round)));
        CHECK(in.difference() == "");
      }
    }
}

TEST_CASE("copy engines bring messages whose senders are not in MPI", "[.][to-pinned-way]") {
  meet();
  const Type type = plain(MPI_DOUBLE);
  constexpr int count = in_any_case / 8;
  int job = static_cast<int>(getpid());  // of the first process of the pair
  Buffer mine(first_of_pair() ? Place::device : Place::pinned, type, count);
  PMPI_Bcast(&job, 1, MPI_INT, 0, comm());
  const std::string mark = "/dev/shm/gpudt-test-to-pinned-" + std::to_string(job) + "-" + std::to_string(rank() / 2);
  const auto received = [&] { return access(mark.c_str(), F_OK) == 0; };
  bool away = false;
  for (int i = 0, more = 1; more != 0; ++i) {
    if (first_of_pair()) {
      MPI_Request request = MPI_REQUEST_NULL;
      mine.fill(key_of(rank(), i));
      MPI_OK(MPI_Isend(mine.address(), count, type, partner(), pinned_tag, comm(), &request));
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
      while (!received() && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      away = received();  // while this process has not called MPI
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
      more = away || i == many ? 0 : 1;
      PMPI_Send(&more, 1, MPI_INT, partner(), pinned_tag, comm());
    } else {
      MPI_OK(MPI_Recv(mine.address(), count, type, partner(), pinned_tag, comm(), MPI_STATUS_IGNORE));
      mine.expect(stream_of(type, count, key_of(partner(), i)));
      CHECK(mine.difference() == "");
      std::fclose(std::fopen(mark.c_str(), "w"));
      PMPI_Recv(&more, 1, MPI_INT, partner(), pinned_tag, comm(), MPI_STATUS_IGNORE);
      unlink(mark.c_str());
      PMPI_Send(&more, 1, MPI_INT, partner(), pinned_tag, comm());
    }
    if (first_of_pair()) PMPI_Recv(&more, 1, MPI_INT, partner(), pinned_tag, comm(), MPI_STATUS_IGNORE);
  }
  CHECK((away || !first_of_pair()));
}

// Every way to send against every way to receive, with host and device memory on either side.
#include <algorithm>

#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

// Below and above the limit at which Open MPI's shared memory transport stops sending eagerly (4 KiB).
constexpr int small_bytes = 600, large_bytes = 40000;

template <class Do>
void for_each_pair(Do&& run) {
  for (const Place send : basic_places)
    for (const Place receive : basic_places) run(send, receive);
}

}  // namespace

TEST_CASE("every send mode meets every receive", "[modes]") {
  BsendBuffer attached(4 * large_bytes);
  int tag = 10;
  for (const int bytes : {small_bytes, large_bytes})
    for (const int layout : {0, 1, 4, 10}) {
      const Type type = named_layout(layout, bytes);
      for (const SendMode& mode : send_modes)
        for (const ReceiveMode& receive_mode : receive_modes) {
          if (mode.needs_posted_receive && !receive_mode.nonblocking) continue;
          for_each_pair([&](Place send, Place receive) {
            if (!all_have_partners()) return;
            const Ends ends{type, 1, send, type, 1, receive};
            const int low = std::min(rank(), partner());
            exchange(mode, receive_mode, ends, low, low + 1, tag);
            exchange(mode, receive_mode, ends, low + 1, low, tag + 2);
          });
        }
    }
}

TEST_CASE("every layout crosses in every mix of memory", "[modes]") {
  int tag = 100;
  for (int layout = 0; layout < layout_count; ++layout)
    for (const int bytes : {1, small_bytes, large_bytes, 1 << 20}) {
      const Type type = named_layout(layout, bytes);
      for (const int count : {0, 1, 3})
        for_each_pair([&](Place send, Place receive) {
          if (count * bytes > 1 << 20 && (send == Place::host || receive == Place::host)) return;  // takes long
          exchange_both_ways({type, count, send, type, count, receive}, tag);
        });
    }
}

TEST_CASE("Sendrecv", "[modes]") {
  const int right = (rank() + 1) % ranks(), left = (rank() + ranks() - 1) % ranks();
  for (const int bytes : {small_bytes, large_bytes, 300000})
    for (int layout = 0; layout < layout_count; ++layout) {
      const Type mine = named_layout(layout, bytes);
      for_each_pair([&](Place send, Place receive) {
        const std::string text = std::string("Sendrecv ") + place_name(send) + "/" + place_name(receive) + " " +
                                 mine.text() + " " + std::to_string(bytes);
        INFO(text);
        step(text);
        Buffer out(send, mine, 2), in(receive, mine, 2);
        out.fill(mix(seed(), static_cast<std::uint64_t>(rank())));
        MPI_Status status{};
        MPI_OK(MPI_Sendrecv(out.address(), 2, mine, right, 5, in.address(), 2, mine, left, 5, comm(), &status));
        in.expect(stream_of(mine, 2, mix(seed(), static_cast<std::uint64_t>(left))));
        CHECK(in.difference() == "");
        CHECK(out.difference() == "");
        check_status(status, left, 5, mine, 2 * mine.size());
      });
    }
}

TEST_CASE("Sendrecv of unlike types, to self and to nobody", "[modes]") {
  const Type send_type = vector(40, 3, 7), receive_type = named_layout(0, 40 * 3 * 8);
  for_each_pair([&](Place send, Place receive) {
    INFO(place_name(send) << "/" << place_name(receive));
    Buffer out(send, send_type, 1), in(receive, receive_type, 1), untouched(receive, receive_type, 1);
    out.fill(seed());
    MPI_Status status{};
    MPI_OK(MPI_Sendrecv(out.address(), 1, send_type, rank(), 7, in.address(), 1, receive_type, MPI_ANY_SOURCE,
                        MPI_ANY_TAG, comm(), &status));
    in.expect(stream_of(send_type, 1, seed()));
    CHECK(in.difference() == "");
    check_status(status, rank(), 7, receive_type, send_type.size());
    MPI_OK(MPI_Sendrecv(out.address(), 1, send_type, MPI_PROC_NULL, 7, untouched.address(), 1, receive_type,
                        MPI_PROC_NULL, 7, comm(), &status));
    CHECK(untouched.difference() == "");
    check_status(status, MPI_PROC_NULL, MPI_ANY_TAG, receive_type, 0);
  });
}

TEST_CASE("Sendrecv_replace", "[modes]") {
  const int right = (rank() + 1) % ranks(), left = (rank() + ranks() - 1) % ranks();
  for (const int bytes : {small_bytes, large_bytes, 300000})
    for (int layout = 0; layout < layout_count; ++layout)
      for (const Place place : basic_places)
        for (const bool self : {false, true}) {
          const int to = self ? rank() : right, from = self ? rank() : left;
          const Type type = named_layout(layout, bytes);
          const std::string text = std::string("Sendrecv_replace ") + place_name(place) + " " + type.text();
          INFO(text);
          step(text);
          Buffer buffer(place, type, 2);
          buffer.fill(mix(seed(), static_cast<std::uint64_t>(rank())));
          MPI_Status status{};
          MPI_OK(MPI_Sendrecv_replace(buffer.address(), 2, type, to, 9, from, 9, comm(), &status));
          buffer.expect(stream_of(type, 2, mix(seed(), static_cast<std::uint64_t>(from))));
          CHECK(buffer.difference() == "");
          check_status(status, from, 9, type, 2 * type.size());
        }
}

TEST_CASE("Sendrecv_replace with a different length and with nobody", "[modes]") {
  const Type type = vector(50, 2, 3);
  for (const Place place : basic_places) {
    INFO(place_name(place));
    Buffer buffer(place, type, 4);
    buffer.fill(mix(seed(), static_cast<std::uint64_t>(rank())));
    MPI_Status status{};
    MPI_OK(MPI_Sendrecv_replace(buffer.address(), 4, type, MPI_PROC_NULL, 1, MPI_PROC_NULL, 1, comm(), &status));
    CHECK(buffer.difference() == "");
    check_status(status, MPI_PROC_NULL, MPI_ANY_TAG, type, 0);
  }
}

TEST_CASE("Irsend and Rsend of device memory complete only with their data gone", "[modes]") {
  const Type type = vector(3000, 1, 2);
  if (!all_have_partners()) return;
  for (const Place place : basic_places) {
    Buffer in(place, type, 1), out(place, type, 1);
    out.fill(mix(seed(), static_cast<std::uint64_t>(rank())));
    MPI_Request requests[2];
    MPI_OK(MPI_Irecv(in.address(), 1, type, partner(), 3, comm(), &requests[0]));
    lock_step();
    MPI_OK(MPI_Irsend(out.address(), 1, type, partner(), 3, comm(), &requests[1]));
    MPI_OK(MPI_Wait(&requests[1], MPI_STATUS_IGNORE));
    out.poison();  // the send is complete: its buffer is the program's again
    MPI_OK(MPI_Wait(&requests[0], MPI_STATUS_IGNORE));
    in.expect(stream_of(type, 1, mix(seed(), static_cast<std::uint64_t>(partner()))));
    CHECK(in.difference() == "");
    lock_step();
  }
}

TEST_CASE("a synchronous send waits for its receive", "[modes]") {
  if (!all_have_partners()) return;
  constexpr double timeout = 0.02;  // seconds in which it must not complete
  for (const int blocks : {10, 20000})
    for (const Place place : basic_places) {
      const Type type = vector(blocks, 1, 2);
      INFO(place_name(place) << ", " << type.text());
      step(place_name(place));
      Buffer in(place, type, 1), out(place, type, 1);
      out.fill(mix(seed(), static_cast<std::uint64_t>(rank())));
      MPI_Request request = MPI_REQUEST_NULL;
      int complete = 0;
      MPI_OK(MPI_Issend(out.address(), 1, type, partner(), 3, comm(), &request));
      for (const double start = PMPI_Wtime(); complete == 0 && PMPI_Wtime() - start < timeout;)
        MPI_OK(MPI_Test(&request, &complete, MPI_STATUS_IGNORE));
      CHECK(complete == 0);
      lock_step();
      MPI_OK(MPI_Recv(in.address(), 1, type, partner(), 3, comm(), MPI_STATUS_IGNORE));
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
      in.expect(stream_of(type, 1, mix(seed(), static_cast<std::uint64_t>(partner()))));
      CHECK(in.difference() == "");
    }
}

TEST_CASE("a buffered send waits for nobody", "[modes]") {
  if (!all_have_partners()) return;
  const Type type = vector(20000, 1, 2);
  for (const Place place : basic_places) {
    INFO(place_name(place));
    step(place_name(place));
    Buffer first(place, type, 1), second(place, type, 1), out(place, type, 1);
    out.fill(mix(seed(), static_cast<std::uint64_t>(rank())));
    MPI_Request request = MPI_REQUEST_NULL, receives[2];
    {
      BsendBuffer attached(1 << 20);
      MPI_OK(MPI_Bsend(out.address(), 1, type, partner(), 3, comm()));
      MPI_OK(MPI_Ibsend(out.address(), 1, type, partner(), 3, comm(), &request));
      MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
      out.poison();
      lock_step();  // both sides have sent, and nobody has received
      MPI_OK(MPI_Irecv(first.address(), 1, type, partner(), 3, comm(), &receives[0]));
      MPI_OK(MPI_Irecv(second.address(), 1, type, partner(), 3, comm(), &receives[1]));
    }  // detaching the buffer waits until it is empty
    MPI_OK(MPI_Waitall(2, receives, MPI_STATUSES_IGNORE));
    for (Buffer* in : {&first, &second}) {
      in->expect(stream_of(type, 1, mix(seed(), static_cast<std::uint64_t>(partner()))));
      CHECK(in->difference() == "");
    }
  }
}

TEST_CASE("one buffer is sent several times at once, in overlapping pieces", "[modes]") {
  if (!all_have_partners()) return;
  MPI_Datatype made = MPI_DATATYPE_NULL;
  PMPI_Type_create_hvector(50, 4, 8, MPI_DOUBLE, &made);  // blocks of 32 bytes, 8 bytes apart
  const Type overlapping(made, "hvector, blocks that overlap"), packed = plain(MPI_DOUBLE);
  PMPI_Type_create_hvector(100, 1, 0, MPI_DOUBLE, &made);
  const Type repeated(made, "hvector of stride 0");
  for (const Type* type : {&overlapping, &repeated})
    for (const Place send : basic_places)
      for (const Place receive : basic_places) {
        INFO(type->text());
        const int count = static_cast<int>(type->size()) / 8;
        std::vector<Buffer> in;
        std::vector<MPI_Request> requests(8);
        Buffer out(send, *type, 1);
        out.fill(mix(seed(), static_cast<std::uint64_t>(rank())));
        for (int i = 0; i < 4; ++i) {
          in.emplace_back(receive, packed, count);
          MPI_OK(MPI_Irecv(in.back().address(), count, packed, partner(), i, comm(),
                           &requests[static_cast<std::size_t>(i)]));
        }
        for (int i = 0; i < 4; ++i)
          MPI_OK(MPI_Isend(out.address(), 1, *type, partner(), i, comm(), &requests[static_cast<std::size_t>(4 + i)]));
        MPI_OK(MPI_Waitall(8, requests.data(), MPI_STATUSES_IGNORE));
        for (Buffer& buffer : in) {
          buffer.expect(stream_of(*type, 1, mix(seed(), static_cast<std::uint64_t>(partner()))));
          CHECK(buffer.difference() == "");
        }
        CHECK(out.difference() == "");
      }
}

TEST_CASE("buffered sends by way of a buffer in every kind of memory", "[modes]") {
  if (!all_have_partners()) return;
  const Type type = vector(400, 2, 3);
  for (const Place attached : all_places)
    for (const Place place : basic_places) {
      const std::string text = std::string(place_name(place)) + " by way of " + place_name(attached);
      INFO(text);
      step(text);
      Memory memory(attached, 1 << 18);
      MPI_OK(MPI_Buffer_attach(memory.data(), static_cast<int>(memory.bytes())));
      Buffer first(place, type, 1), second(place, type, 2), in(place, type, 1), more(place, type, 2);
      first.fill(mix(seed(), static_cast<std::uint64_t>(rank())));
      second.fill(mix(seed(), static_cast<std::uint64_t>(10 + rank())));
      MPI_OK(MPI_Bsend(first.address(), 1, type, partner(), 1, comm()));
      MPI_OK(MPI_Bsend(second.address(), 2, type, partner(), 2, comm()));
      first.poison();
      second.poison();
      MPI_OK(MPI_Recv(more.address(), 2, type, partner(), 2, comm(), MPI_STATUS_IGNORE));
      MPI_OK(MPI_Recv(in.address(), 1, type, partner(), 1, comm(), MPI_STATUS_IGNORE));
      in.expect(stream_of(type, 1, mix(seed(), static_cast<std::uint64_t>(partner()))));
      more.expect(stream_of(type, 2, mix(seed(), static_cast<std::uint64_t>(10 + partner()))));
      CHECK(in.difference() == "");
      CHECK(more.difference() == "");
      void* detached = nullptr;
      int bytes = 0;
      MPI_OK(MPI_Buffer_detach(static_cast<void*>(&detached), &bytes));
      CHECK(detached == memory.data());
      CHECK(bytes == 1 << 18);
    }
}

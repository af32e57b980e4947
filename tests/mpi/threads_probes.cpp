// Probes while other threads send and receive.
#include <array>
#include <string>

#include "tests/mpi/threads.hpp"

using namespace gpudt::test;

// A message from host memory that is as long as a rendezvous request lets the next probes wait for less long.
TEST_CASE("threads probe messages that others send meanwhile", "[.][threads]") {
  if (!threads_allowed()) return;
  const Type type = plain(MPI_CHAR);
  in_threads([&](int thread, MPI_Comm own, Complaints& complaints) {
    constexpr int host_bytes = 515, device_bytes = 6000;
    Buffer from_host(Place::host, type, host_bytes), from_device(Place::device, type, device_bytes);
    Buffer in(Place::device, type, device_bytes);
    for (int i = 0; i < scaled(100); ++i) {
      const bool host = i % 4 == 0;
      const int bytes = host ? host_bytes : device_bytes;
      Buffer& out = host ? from_host : from_device;
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Isend(out.address(), bytes, type, partner(), thread, own, &request);
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status{};
      int told = 0;
      MPI_Mprobe(partner(), thread, own, &message, &status);
      MPI_Get_count(&status, type, &told);
      complaints.expect(told == bytes, "message " + std::to_string(i) + ": a probe tells of " + std::to_string(told) +
                                           " B, not " + std::to_string(bytes));
      MPI_Mrecv(in.address(), device_bytes, type, &message, MPI_STATUS_IGNORE);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
  });
}

// The message that a probe finds may go to another thread's receive at once.
TEST_CASE("threads probe messages that other threads receive", "[.][threads]") {
  if (!threads_allowed()) return;
  constexpr int length = 16384, tag = 3;
  const Type type = plain(MPI_CHAR);
  in_threads([&](int, MPI_Comm, Complaints& complaints) {
    Buffer buffer(Place::device, type, length);
    for (int i = 0; i < scaled(100); ++i) {
      if (rank() % 2 == 0) {
        MPI_Send(buffer.address(), length, type, partner(), tag, comm());
        continue;
      }
      for (int found = 0; found == 0;) {
        MPI_Status status{};
        int told = 0;
        if (i % 2 == 0)
          found = MPI_Probe(partner(), tag, comm(), &status) == MPI_SUCCESS;
        else
          MPI_Iprobe(partner(), tag, comm(), &found, &status);
        MPI_Get_count(&status, type, &told);
        complaints.expect(found == 0 || told == length, "a probe tells of " + std::to_string(told) + " B");
      }
      MPI_Recv(buffer.address(), length, type, partner(), tag, comm(), MPI_STATUS_IGNORE);
    }
  });
}

// MPI may give the same request to all of them.
TEST_CASE("threads receive what probes of MPI_PROC_NULL have matched", "[.][threads]") {
  if (!threads_allowed()) return;
  constexpr int length = 8;
  const Type type = plain(MPI_CHAR);
  in_threads([&](int, MPI_Comm own, Complaints& complaints) {
    for (const Place place : {Place::host, Place::device}) {
      Buffer in(place, type, length);
      for (int i = 0; i < scaled(1000); ++i) {
        std::array<MPI_Request, 2> requests{};
        for (MPI_Request& request : requests) {
          MPI_Message message = MPI_MESSAGE_NULL;
          MPI_Mprobe(MPI_PROC_NULL, 0, own, &message, MPI_STATUS_IGNORE);
          MPI_Imrecv(in.address(), length, type, &message, &request);
        }
        for (MPI_Request& request : requests) {
          MPI_Status status{};
          int told = -1;
          MPI_Wait(&request, &status);
          MPI_Get_count(&status, type, &told);
          complaints.expect(status.MPI_SOURCE == MPI_PROC_NULL && told == 0 && request == MPI_REQUEST_NULL,
                            "receive " + std::to_string(i) + " got " + std::to_string(told) + " B from " +
                                std::to_string(status.MPI_SOURCE));
        }
      }
    }
  });
}

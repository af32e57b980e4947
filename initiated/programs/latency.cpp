// gpudt-initiated-latency: what a notification takes from rank to rank, alone and behind 4 bytes, to itself, on one GPU
// and between two (dCUDA's thesis, table 5.1), with and without wildcards, and the bandwidth of notified puts
// (table 5.4).
#include <fmt/format.h>

#include "initiated/programs/latency_partitions.hpp"
#include "initiated/programs/message_kernels.hpp"
#include "initiated/programs/session.hpp"

namespace gpudt::initiated::programs {
namespace {

void measure_latency(Session& session, const char* where, int second, bool with_data, bool wildcards) {
  constexpr std::int64_t bytes = 4;
  Window window = session.world().allocate(3 * bytes);
  NotifyPingPong p = {};
  p.world = session.world().view(2);
  p.window = window;
  p.bytes = bytes;
  p.second = second;
  p.with_data = with_data ? 1 : 0;
  p.wildcards = wildcards ? 1 : 0;
  p.iterations = session.check() ? 10 : 2000;
  const std::vector<std::int32_t> data = {-1, -1, 1234 + session.process()};
  write_device(window.base, data);
  session.world().barrier();
  const double total = session.measure([&] { session.world().run(notify_kernel(), 2, 64, &p); });
  const auto seen = DeviceArray<std::int32_t>::read_device(window.base, 3);
  // Rank 0 is GPU 0's, `second` may be; each puts to the other's place.
  const int second_gpu = second / 2;
  std::string wrong;
  if (with_data && second != 0 && session.process() == 0 && seen[1] != 1234 + second_gpu)
    wrong = "rank 0 has not got it";
  if (with_data && session.process() == second_gpu && seen[0] != 1234) wrong = "the second rank has not got it";
  // To itself a rank sends in every other step, so that a step's notification takes two of them.
  const double us = total / ((second == 0 ? 1.0 : 2.0) * p.iterations);
  const std::string what = with_data ? "put_notify 4 B" : "notify";
  session.row({what, where, wildcards ? "wildcards" : "exact", bench::number(us), ""},
              {{"call", what}, {"where", where}, {"wildcards", wildcards}, {"median_us", us}}, wrong);
  session.world().free(window);
}

void measure_bandwidth(Session& session, const char* where, int to_gpu, int senders) {
  constexpr int ranks = 52;
  constexpr std::int64_t bytes = 1 << 20;
  Window window = session.world().allocate(2 * ranks * bytes);
  OneWay p = {};
  p.world = session.world().view(ranks);
  p.window = window;
  p.bytes = bytes;
  p.to_gpu = to_gpu;
  p.shift = ranks / 2;
  p.senders = senders;
  p.iterations = session.check() ? 2 : 20;
  constexpr std::size_t words = bytes / 4;
  std::vector<std::uint32_t> data(ranks * words);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint32_t>(i * 2654435761u + 1);
  write_device(window.base, data);
  session.world().barrier();
  const double total = session.measure([&] { session.world().run(one_way_kernel(), ranks, 512, &p); });
  std::string wrong;
  if (session.process() == to_gpu) {
    const auto seen = DeviceArray<std::uint32_t>::read_device(window.base + ranks * bytes, senders * words);
    for (std::size_t i = 0; i < seen.size() && wrong.empty(); ++i)
      if (seen[i] != data[i]) wrong = fmt::format("word {}", i);
  }
  const double us = total / p.iterations, rate = static_cast<double>(senders) * bytes / us / 1e3;
  const std::string what = fmt::format("put_notify 1 MiB, {} of {} ranks", senders, ranks);
  session.row({what, where, "exact", bench::number(us), bench::number(rate)},
              {{"call", "bandwidth"}, {"where", where}, {"senders", senders}, {"median_us", us}, {"gb_per_s", rate}},
              wrong);
  session.world().free(window);
}

void measure_notifications(Session& session) {
  const bool two = session.processes() > 1;
  for (const bool wildcards : {false, true})
    for (const bool with_data : {false, true}) {
      measure_latency(session, "itself", 0, with_data, wildcards);
      measure_latency(session, "same GPU", 1, with_data, wildcards);
      if (two) measure_latency(session, "other GPU", 2, with_data, wildcards);
    }
  session.rule();
  for (const int senders : {1, 26}) measure_bandwidth(session, "same GPU", 0, senders);
  if (two)
    for (const int senders : {1, 26, 52}) measure_bandwidth(session, "other GPU", 1, senders);
}

}  // namespace
}  // namespace gpudt::initiated::programs

int main(int argc, char** argv) {
  using namespace gpudt::initiated::programs;
  gpudt::bench::CommandLine command(
      "Latency and bandwidth of notified access, after dCUDA's tables 5.1 and 5.4.\nmpirun -np 2 "
      "gpudt-initiated-latency");
  bool partitions = false;
  command.add_flag("--partitions", partitions, "Only what partitions take");
  return run(
      "gpudt-initiated-latency", command, argc, argv,
      {{"call", 36, true}, {"where", 10, true}, {"matching", 10, true}, {"us", 9}, {"GB/s", 8}, {"data", 8, true}}, {},
      [&](Session& session) {
        if (!partitions) measure_notifications(session);
        measure_partition_latency(session);
      });
}

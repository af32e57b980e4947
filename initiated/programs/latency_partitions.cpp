// What a partition takes from MPI_Pready to MPI_Parrived, both in kernels.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "initiated/programs/latency_partitions.hpp"
#include "initiated/programs/partition_kernels.hpp"
#include "pingpong/common/layouts.hpp"
#include "pingpong/common/pattern.hpp"
#include "pingpong/common/sampling.hpp"
#include "tests/support/owned_type.hpp"

namespace gpudt::initiated::programs {
namespace {

constexpr std::int64_t partition_bytes = 1 << 10;

/// The layouts of gpudt-pingpong, but the 4-D box in a volume of which hundreds fit the memory.
bench::Message message_of(const std::string& layout) {
  if (layout != "subarray") return bench::LayoutFamily(layout).message(partition_bytes);
  return bench::make_box(std::array{8, 8, 8, 8}, std::array{2, 4, 4, 4}, std::array{3, 2, 2, 2});
}

/// Many partitions of one layout, so far apart that all lie alike in lines of 128 bytes.
struct Partitions {
  Partitions(const std::string& name, int how_many)
      : message(message_of(name)),
        extent((message.span() + 255) / 128 * 128),
        partitions(how_many),
        type(test::resized(0, extent, test::contiguous(message.count(), message.type()))) {}
  std::size_t bytes() const { return static_cast<std::size_t>(extent * partitions); }
  /// What process `process` sends, with `between` elsewhere.
  std::vector<std::byte> painted(int process, std::byte between) const {
    std::vector<std::byte> image(bytes(), between);
    const std::vector<std::byte> stream = bench::packed_stream({process, 1}, message.size() * partitions);
    const std::byte* from = stream.data();
    for (int i = 0; i < partitions; ++i)
      message.for_each_block([&](std::int64_t offset, std::int64_t length) {
        std::copy_n(from, length, image.begin() + i * extent + offset);
        from += length;
      });
    return image;
  }

  bench::Message message;
  std::int64_t extent;
  int partitions;
  test::OwnedType type;
};

/// Returns what the host's calls of a round take.
double measure_partitions(Session& session, const std::string& layout, int blocks, int threads) {
  constexpr std::byte poison{0xA5}, gap{0xC3};
  const int iterations = session.check() ? 10 : blocks > 1 ? 50 : 500, other = 1 - session.process();
  const Partitions data(layout, blocks * iterations);
  const DeviceArray<std::byte> out(data.painted(session.process(), gap)),
      in(std::vector<std::byte>(data.bytes(), poison));
  std::vector<Request> requests;
  if (session.process() < 2) {
    requests.push_back(session.world().psend_init(out.data(), data.partitions, 1, data.type, other, 1));
    requests.push_back(session.world().precv_init(in.data(), iterations, blocks, data.type, other, 1));
  }
  session.world().match();
  PartitionPingPong p = {};
  p.world = session.world().view(blocks);
  if (!requests.empty()) {
    p.send = requests[0].kernel();
    p.receive = requests[1].kernel();
  }
  p.iterations = iterations;
  double host = 0;
  const double total = session.measure([&] {
    const double begin = bench::now_us();
    Request::start_all(requests);
    const double started = bench::now_us();
    session.world().run(partition_pingpong_kernel(), blocks, threads, &p);
    const double ended = bench::now_us();
    Request::wait_all(requests);
    host = started - begin + bench::now_us() - ended;
  });
  std::string wrong;
  if (session.process() < 2) wrong = bench::first_difference(data.painted(other, poison), in.read()).value_or("");
  const double us = total / (2.0 * iterations);
  const std::string what = fmt::format("{} partition{} of 1 KiB, {}", blocks, blocks > 1 ? "s" : "", layout);
  session.row({what, "other GPU", fmt::format("{} thr.", threads), bench::number(us),
               bench::number(static_cast<double>(blocks * data.message.size()) / us / 1e3)},
              {{"call", "pready"},
               {"layout", layout},
               {"blocks", blocks},
               {"threads", threads},
               {"median_us", us},
               {"host_us", host}},
              wrong);
  return host;
}

}  // namespace

void measure_partition_latency(Session& session) {
  if (session.processes() < 2 || !session.mpi_takes_device_memory()) return;
  session.rule();
  double host = 0;
  for (const std::string& layout : bench::default_layouts()) host = measure_partitions(session, layout, 1, 128);
  for (const char* layout : {"contiguous", "vector:8", "indexed:32"}) measure_partitions(session, layout, 64, 128);
  session.row({"start_all and wait_all of 2 requests", "", "host", bench::number(host), ""},
              {{"call", "start_all and wait_all"}, {"median_us", host}}, "");
}

}  // namespace gpudt::initiated::programs

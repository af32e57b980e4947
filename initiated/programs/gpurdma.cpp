// gpudt-initiated-gpurdma: the two programs of GPUrdma (Daoud, Watad and Silberstein, section 7): a ping-pong of 180 MB
// by 30 thread blocks, and a stream of vectors that another GPU multiplies by a matrix, each beside the same with
// kernels that the host starts and MPI on device memory. What the paper's CPU does, GPU 0 does here.
#include <fmt/format.h>
#include <mpi.h>

#include <cmath>

#include "initiated/programs/message_kernels.hpp"
#include "initiated/programs/session.hpp"

namespace gpudt::initiated::programs {
namespace {

constexpr int blocks = 30;

// --- ping-pong ------------------------------------------------------------------------------------------------------

std::vector<std::uint32_t> numbers(std::size_t count, std::uint32_t seed) {
  std::vector<std::uint32_t> made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = (static_cast<std::uint32_t>(i) + seed) * 2654435761u;
  return made;
}

void throughput_row(Session& session, const char* way, std::int64_t bytes, int iterations, double total, double base,
                    const std::string& wrong) {
  const double us = total / iterations, gbit = 2.0 * 8 * static_cast<double>(bytes) / us / 1e3;
  session.row({"ping-pong, 30 blocks", fmt::format("{} MB", bytes / 1000000), way, bench::number(us),
               bench::number(gbit) + " Gbit/s", bench::number(base > 0 ? base / us : 0)},
              {{"program", "pingpong"}, {"bytes", bytes}, {"way", way}, {"median_us", us}, {"gbit_per_s", gbit}},
              wrong);
}

void measure_throughput(Session& session) {
  const std::int64_t bytes = session.check() ? 3'000'000 : 180'000'000;
  const auto words = static_cast<std::size_t>(bytes / 4);
  const int iterations = session.check() ? 2 : 10;
  Window window = session.world().allocate(2 * bytes);
  const auto data = numbers(words, 1);
  double by_host = 0;
  if (session.mpi_takes_device_memory()) {
    DeviceArray<std::uint32_t> send(data), receive(words);
    const int count = static_cast<int>(words);
    const double total = session.measure([&] {
      for (int i = 0; i < iterations && session.process() < 2; ++i) {
        if (session.process() == 0) {
          MPI_Send(send.data(), count, MPI_INT, 1, 0, MPI_COMM_WORLD);
          MPI_Recv(receive.data(), count, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
          MPI_Recv(receive.data(), count, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
          MPI_Send(receive.data(), count, MPI_INT, 0, 0, MPI_COMM_WORLD);
        }
      }
    });
    by_host = total / iterations;
    const bool wrong = session.process() == 0 && receive.read() != data;
    throughput_row(session, "mpi", bytes, iterations, total, by_host, wrong ? "what came back" : "");
  }
  for (const bool overlap : {false, true}) {
    Throughput p = {};
    p.world = session.world().view(blocks);
    p.window = window;
    p.bytes = bytes;
    p.overlap = overlap ? 1 : 0;
    p.iterations = iterations;
    write_device(window.base, data);
    write_device(window.base + bytes, std::vector<std::uint32_t>(words, 0));
    session.world().barrier();
    const double total = session.measure([&] { session.world().run(throughput_kernel(), blocks, 1024, &p); });
    const bool wrong =
        session.process() == 0 && DeviceArray<std::uint32_t>::read_device(window.base + bytes, words) != data;
    throughput_row(session, overlap ? "each block" : "all blocks", bytes, iterations, total, by_host,
                   wrong ? "what came back" : "");
  }
  session.world().free(window);
}

// --- vectors --------------------------------------------------------------------------------------------------------

constexpr std::size_t length = vector_length;

std::vector<float> floats(std::size_t count, std::uint32_t seed) {
  std::vector<float> made(count);
  for (std::size_t i = 0; i < count; ++i)
    made[i] = static_cast<float>((static_cast<std::uint32_t>(i) + seed) * 2654435761u >> 8) / (1 << 24);
  return made;
}

std::string wrong_products(const std::vector<float>& matrix, const std::vector<float>& vectors,
                           const std::vector<float>& products) {
  const std::size_t count = vectors.size() / length, step = std::max<std::size_t>(1, count / 5000);
  for (std::size_t v = 0; v < count; v += step)
    for (std::size_t row = 0; row < length; ++row) {
      double sum = 0;
      for (std::size_t k = 0; k < length; ++k)
        sum += static_cast<double>(matrix[row * length + k]) * vectors[v * length + k];
      if (!(std::abs(products[v * length + row] - sum) <= 1e-4 * std::abs(sum)))
        return fmt::format("element {} of product {}", row, v);
    }
  return "";
}

/// Microseconds for all batches, by kernels that the host starts.
double vectors_by_host(Session& session, const DeviceArray<float>& matrix, const DeviceArray<float>& given,
                       const DeviceArray<float>& results, std::size_t batch) {
  DeviceArray<float> incoming(batch * length), products(batch * length);
  const int count = static_cast<int>(batch * length);
  return session.measure([&] {
    for (std::size_t at = 0; at < given.size() && session.process() < 2; at += batch * length) {
      if (session.process() == 0) {
        MPI_Send(given.data() + at, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(results.data() + at, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      } else {
        MPI_Recv(incoming.data(), count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        launch_matrix_vectors({matrix.data(), incoming.data(), products.data(), static_cast<std::int64_t>(batch)},
                              blocks, nullptr);
        check(cudaStreamSynchronize(nullptr), "the product's kernel");
        MPI_Send(products.data(), count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
      }
    }
  });
}

void vectors_row(Session& session, std::int64_t kilobytes, const char* way, double vectors, double us, double by_host,
                 const std::string& wrong) {
  session.row({"matrix-vector products", fmt::format("{} KB", kilobytes), way, bench::number(us),
               bench::number(vectors / us) + " M/s", bench::number(by_host > 0 ? by_host / us : 0)},
              {{"program", "vectors"},
               {"batch_kb", kilobytes},
               {"way", way},
               {"median_us", us},
               {"million_per_s", vectors / us}},
              wrong);
}

void measure_vectors(Session& session, std::int64_t kilobytes) {
  const auto batch = static_cast<std::size_t>(kilobytes) * 1024 / (length * sizeof(float));
  const std::size_t batches = session.check() ? 3 : kilobytes > 500 ? 40 : 200, total = batch * batches;
  const std::vector<float> matrix = floats(length * length, 7), vectors = floats(total * length, 11);
  const DeviceArray<float> matrix_there(matrix);
  double by_host = 0;
  if (session.mpi_takes_device_memory()) {
    const DeviceArray<float> given(vectors), results(vectors.size());
    by_host = vectors_by_host(session, matrix_there, given, results, batch);
    vectors_row(session, kilobytes, "mpi", static_cast<double>(total), by_host, by_host,
                session.process() == 0 ? wrong_products(matrix, vectors, results.read()) : "");
  }
  MatrixVectors p = {};
  p.world = session.world().view(blocks);
  p.batch = static_cast<std::int64_t>(batch);
  p.total = static_cast<std::int64_t>(total);
  Window window = session.world().allocate(static_cast<std::int64_t>((batch + 2 * total) * length * sizeof(float)));
  p.window = window;
  p.matrix = matrix_there.data();
  char* const given = window.base + batch * length * sizeof(float);
  write_device(given, vectors);
  session.world().barrier();
  const double us = session.measure([&] { session.world().run(matrix_vectors_kernel(), blocks, 1024, &p); });
  const auto results = DeviceArray<float>::read_device(given + vectors.size() * sizeof(float), vectors.size());
  vectors_row(session, kilobytes, "kernel", static_cast<double>(total), us, by_host,
              session.process() == 0 ? wrong_products(matrix, vectors, results) : "");
  session.world().free(window);
}

void measure_all(Session& session) {
  if (session.processes() < 2) throw bench::Refusal("this takes 2 processes: mpirun -np 2 ...");
  measure_throughput(session);
  session.rule();
  for (const std::int64_t kilobytes : {60, 120, 240, 480, 960, 1920}) measure_vectors(session, kilobytes);
}

}  // namespace
}  // namespace gpudt::initiated::programs

int main(int argc, char** argv) {
  using namespace gpudt::initiated::programs;
  gpudt::bench::CommandLine command(
      "GPUrdma's ping-pong by 30 blocks and multi-matrix-vector product.\nmpirun -np 2 -x "
      "LD_PRELOAD=libgpudt-pmpi.so gpudt-initiated-gpurdma");
  return run(
      "gpudt-initiated-gpurdma", command, argc, argv,
      {{"program", 24, true}, {"size", 9}, {"way", 10, true}, {"us", 9}, {"rate", 14}, {"/mpi", 6}, {"data", 8, true}},
      {}, measure_all);
}

// dCUDA's case study of horizontal diffusion (thesis, section 5.5).
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cmath>

#include "initiated/programs/apps.hpp"

namespace gpudt::initiated::programs {
namespace {

double initial(int z, int row, int column) {
  const auto n = static_cast<std::uint32_t>((z * 4096 + row) * 128 + column);
  return static_cast<double>((n * 2654435761u) >> 8) / (1 << 24);
}

std::vector<double> initial_field(const StencilShape& shape) {
  std::vector<double> field(static_cast<std::size_t>(shape.points()), 0.0);
  for (int z = 0; z < planes; ++z)
    for (int row = -halo; row < shape.rows + halo; ++row)
      for (int column = 0; column < columns; ++column)
        field[static_cast<std::size_t>(shape.index(z, row, column))] = initial(z, shape.first_row + row, column);
  return field;
}

/// All of it, by the host.
std::vector<double> stencil_reference(int all_rows, int iterations) {
  const StencilShape all = {all_rows, 0, all_rows};
  std::vector<double> now = initial_field(all), next = now;
  for (int i = 0; i < iterations; ++i) {
    for (int z = 0; z < planes; ++z)
      for (int row = 0; row < all_rows; ++row)
        for (int column = 0; column < columns; ++column) {
          const auto at = static_cast<std::size_t>(all.index(z, row, column));
          next[at] = all.fixed(row, column) ? now[at] : diffused(now.data() + at);
        }
    std::swap(now, next);
  }
  return now;
}

std::string wrong_field(const StencilShape& shape, const std::vector<double>& seen, int iterations) {
  const std::vector<double> all = stencil_reference(shape.all_rows, iterations);
  const StencilShape whole = {shape.all_rows, 0, shape.all_rows};
  for (int z = 0; z < planes; ++z)
    for (int row = 0; row < shape.rows; ++row)
      for (int column = 0; column < columns; ++column) {
        const double expected = all[static_cast<std::size_t>(whole.index(z, shape.first_row + row, column))];
        const double value = seen[static_cast<std::size_t>(shape.index(z, row, column))];
        if (!(std::abs(value - expected) <= 1e-9))
          return fmt::format("plane {}, row {}, column {} is {}, expected {}", z, row, column, value, expected);
      }
  return "";
}

/// One step after the other, started by the host, between two fields.
void stencil_by_host(const Neighbours& with, const StencilShape& shape, MPI_Datatype border, double* fields,
                     int iterations, int blocks) {
  for (int step = 0; step < iterations; ++step) {
    double* const in = fields + (step & 1) * shape.points();
    double* const out = fields + (1 - (step & 1)) * shape.points();
    launch_stencil_step(shape, in, out, blocks);
    synchronise();
    MPI_Sendrecv(out + shape.index(0, 0, 0), 1, border, with.up, 0, out + shape.index(0, shape.rows, 0), 1, border,
                 with.down, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(out + shape.index(0, shape.rows - halo, 0), 1, border, with.down, 1, out + shape.index(0, -halo, 0), 1,
                 border, with.up, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
}

}  // namespace

void measure_stencil(Session& session) {
  const int rows = session.check() ? 64 : 320, steps = session.check() ? 10 : 200, verified = 6;
  const StencilShape shape = {rows, rows * session.process(), rows * session.processes()};
  const auto points = static_cast<std::size_t>(shape.points());
  const Neighbours with(session.world());
  MPI_Datatype border;
  MPI_Type_create_hvector(planes, halo * columns, shape.plane() * static_cast<MPI_Aint>(sizeof(double)), MPI_DOUBLE,
                          &border);
  MPI_Type_commit(&border);
  const Layout layout(border, 1);
  const std::vector<double> start = initial_field(shape);
  AppRows app(session, "horizontal diffusion", steps);

  if (app.has_host()) {
    DeviceArray<double> fields(2 * points);
    const auto run = [&](int blocks, int count) { stencil_by_host(with, shape, border, fields.data(), count, blocks); };
    for (std::size_t i = 0; i < 2; ++i) write_device(fields.data() + i * points, start);
    session.world().barrier();
    run(rows, verified);
    app.host(rows, run, wrong_field(shape, DeviceArray<double>::read_device(fields.data(), points), verified));
  }
  Window window = session.world().allocate(static_cast<std::int64_t>(2 * points * sizeof(double)));
  Stencil p = {};
  p.window = window;
  p.border = layout.kernel();
  p.shape = shape;
  const auto run = [&](int ranks, int threads, int count) {
    p.world = session.world().view(ranks);
    p.iterations = count;
    session.world().run(stencil_kernel(), ranks, threads, &p);
  };
  const auto verify = [&](int ranks, int threads) {
    for (std::size_t i = 0; i < 2; ++i) write_device(window.base + i * points * sizeof(double), start);
    session.world().barrier();
    run(ranks, threads, verified);
    session.world().barrier();
    return wrong_field(shape, DeviceArray<double>::read_device(window.base, points), verified);
  };
  app.kernels(stencil_kernel(), rows / halo, verify, run);
  session.world().free(window);
  MPI_Type_free(&border);
}

}  // namespace gpudt::initiated::programs

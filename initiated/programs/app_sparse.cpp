// dCUDA's case studies of the sparse matrix-vector product and the power iteration (thesis, sections 5.6, 5.7).
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "initiated/programs/apps.hpp"

namespace gpudt::initiated::programs {
namespace {

/// Rows [first, first + rows) of the matrix, the same whoever makes them.
struct Rows {
  /// `each` elements in a row.
  Rows(int first, int rows, int all_rows, int each) {
    begin.push_back(0);
    for (int row = first; row < first + rows; ++row) {
      std::mt19937 random(static_cast<unsigned>(row) + 1);
      for (int i = 0; i < each; ++i) {
        column.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(all_rows)));
        value.push_back(0.5 + static_cast<double>(random() % 1000) / 1000);
      }
      begin.push_back(static_cast<std::int32_t>(column.size()));
    }
  }
  std::vector<double> times(const std::vector<double>& vector) const {
    std::vector<double> product(begin.size() - 1);
    for (std::size_t row = 0; row < product.size(); ++row)
      for (auto i = static_cast<std::size_t>(begin[row]); i < static_cast<std::size_t>(begin[row + 1]); ++i)
        product[row] += value[i] * vector[static_cast<std::size_t>(column[i])];
    return product;
  }
  std::vector<std::int32_t> begin, column;
  std::vector<double> value;
};

std::vector<double> first_vector(int all_rows) {
  std::vector<double> vector(static_cast<std::size_t>(all_rows));
  for (std::size_t i = 0; i < vector.size(); ++i) vector[i] = 1.0 + static_cast<double>(i % 17) / 16;
  return vector;
}

/// The product behind so many iterations.
std::vector<double> multiply_reference(int all_rows, int each, int iterations, bool normalise) {
  const Rows all(0, all_rows, all_rows, each);
  std::vector<double> vector = first_vector(all_rows), product;
  for (int k = 0; k < iterations; ++k) {
    product = all.times(vector);
    if (!normalise) break;
    double squares = 0;
    for (const double x : product) squares += x * x;
    for (std::size_t i = 0; i < product.size(); ++i) vector[i] = product[i] / std::sqrt(squares);
  }
  return product;
}

struct HostMultiply {
  SparseRows matrix;
  double *vector, *product, *squares;  // the whole vector, this process's product, one number
  int first;
  bool normalise;

  void run(int blocks, int iterations) const {
    for (int k = 0; k < iterations; ++k) {
      MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, vector, matrix.rows, MPI_DOUBLE, MPI_COMM_WORLD);
      launch_multiply(matrix, vector, product, normalise ? squares : nullptr, blocks);
      synchronise();
      if (!normalise) {
        MPI_Barrier(MPI_COMM_WORLD);
        continue;
      }
      MPI_Allreduce(MPI_IN_PLACE, squares, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
      launch_normalise(product, vector + first, matrix.rows, squares);
      synchronise();
    }
  }
};

}  // namespace

void measure_multiply(Session& session, bool normalise) {
  const int rows = session.check() ? 1000 : 10816, steps = session.check() ? 5 : 100, verified = 4;
  const int all_rows = rows * session.processes(), first = rows * session.process();
  const int each = rows * 3 / 1000;  // as much work for a GPU, however many there are
  const Rows mine(first, rows, all_rows, each);
  const DeviceArray<std::int32_t> begin(mine.begin), column(mine.column);
  const DeviceArray<double> value(mine.value);
  const SparseRows matrix = {begin.data(), column.data(), value.data(), rows, all_rows};
  const std::vector<double> start = first_vector(all_rows),
                            whole = multiply_reference(all_rows, each, verified, normalise);
  const std::vector<double> expected(whole.begin() + first, whole.begin() + first + rows);
  DeviceArray<double> product(static_cast<std::size_t>(rows));
  AppRows app(session, normalise ? "power iteration" : "sparse matrix-vector", steps);

  if (app.has_host()) {
    DeviceArray<double> vector(start), squares(std::vector<double>{0});
    const HostMultiply host = {matrix, vector.data(), product.data(), squares.data(), first, normalise};
    host.run(rows / 16, verified);
    const std::string wrong = first_wrong(expected, product.read(), 1e-9);
    app.host(
        rows, [&](int blocks, int count) { host.run(blocks, count); }, wrong);
  }
  Window window = session.world().allocate(static_cast<std::int64_t>(2 * sizeof(double)) * all_rows);
  Multiply p = {};
  p.window = window;
  p.matrix = matrix;
  p.product = product.data();
  p.normalise = normalise ? 1 : 0;
  const auto run = [&](int ranks, int threads, int count) {
    p.world = session.world().view(ranks);
    p.iterations = count;
    session.world().run(multiply_kernel(), ranks, threads, &p);
  };
  const auto verify = [&](int ranks, int threads) {
    // Of the others' parts only what they send is right.
    std::vector<double> given(start.size(), std::nan(""));
    std::copy_n(start.begin() + first, rows, given.begin() + first);
    write_device(window.base, given);
    session.world().barrier();
    run(ranks, threads, verified);
    session.world().barrier();
    return first_wrong(expected, product.read(), 1e-9);
  };
  app.kernels(multiply_kernel(), rows, verify, run);
  session.world().free(window);
}

}  // namespace gpudt::initiated::programs

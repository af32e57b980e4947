// gpudt-initiated-apps: dCUDA's case studies (thesis, sections 5.4 to 5.7) in one kernel each, whose thread blocks are
// ranks and communicate, beside the same work by kernels that the host starts for each step and MPI on device memory:
// particles, horizontal diffusion, sparse matrix-vector product, power iteration. Any number of GPUs, each with as much
// work (weak scaling). Departures from the thesis: the matrix is divided by rows alone, and densities of particles are
// even.
#include "initiated/programs/apps.hpp"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>

#include "pingpong/common/program.hpp"

namespace gpudt::initiated::programs {

Neighbours::Neighbours(const World& world)
    : up(world.gpu() > 0 ? world.gpu() - 1 : MPI_PROC_NULL),
      down(world.gpu() + 1 < world.gpus() ? world.gpu() + 1 : MPI_PROC_NULL) {}

void synchronise() {
  check(cudaStreamSynchronize(nullptr), "a kernel that the host started");
}

void AppRows::host(int most_blocks, const std::function<void(int, int)>& run, const std::string& wrong) {
  int device = 0, multiprocessors = 1, best = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  for (const int each : {1, 2, 4}) {
    const int blocks = std::min(each * multiprocessors, most_blocks);
    if (blocks == best || (session_.check() && best > 0)) break;
    const double us = session_.measure([&] { run(blocks, steps_); }) / steps_;
    // The slowest process's time, so that all agree.
    if (by_host_ == 0 || us < by_host_) {
      by_host_ = us;
      best = blocks;
    }
  }
  show("mpi", best, 512, by_host_, wrong);
}

void AppRows::kernels(const void* kernel, int most_ranks, const std::function<std::string(int, int)>& verify,
                      const std::function<void(int, int, int)>& run) {
  for (const int threads : {512, 256, 128}) {
    int ranks = std::min({session_.world().most_blocks(kernel, threads), most_ranks, session_.world().options().ranks});
    PMPI_Allreduce(MPI_IN_PLACE, &ranks, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    session_.world().barrier();
    const std::string wrong = verify(ranks, threads);
    const double us = session_.measure([&] { run(ranks, threads, steps_); }) / steps_;
    show("kernel", ranks, threads, us, wrong);
  }
}

void AppRows::show(const char* way, int blocks, int threads, double us, const std::string& wrong) {
  session_.row({app_, std::to_string(session_.processes()), way, fmt::format("{} x {}", blocks, threads),
                bench::number(us), bench::number(by_host_ > 0 ? by_host_ / us : 0)},
               {{"app", app_},
                {"gpus", session_.processes()},
                {"way", way},
                {"blocks", blocks},
                {"threads", threads},
                {"iteration_us", us}},
               wrong);
}

}  // namespace gpudt::initiated::programs

int main(int argc, char** argv) {
  using namespace gpudt::initiated::programs;
  const std::vector<std::string> all = {"particles", "stencil", "spmv", "power"};
  std::vector<std::string> apps = all;
  gpudt::bench::CommandLine command(
      "dCUDA's case studies by kernels that communicate, and by kernels that the host starts.\nmpirun -np 2 -x "
      "LD_PRELOAD=libgpudt-pmpi.so gpudt-initiated-apps");
  command.add("--apps", apps, "particles, stencil, spmv, power", all);
  return run("gpudt-initiated-apps", command, argc, argv,
             {{"application", 22, true},
              {"GPUs", 4},
              {"way", 8, true},
              {"blocks", 11},
              {"us/step", 9},
              {"mpi/", 6},
              {"data", 8, true}},
             {.ranks = 1056}, [&](Session& session) {
               const auto wanted = [&](const char* app) {
                 return std::find(apps.begin(), apps.end(), app) != apps.end();
               };
               if (wanted("particles")) measure_particles(session);
               if (wanted("stencil")) measure_stencil(session);
               if (wanted("spmv")) measure_multiply(session, false);
               if (wanted("power")) measure_multiply(session, true);
             });
}

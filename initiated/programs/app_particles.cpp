// dCUDA's case study of particles (thesis, section 5.4).
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "initiated/programs/apps.hpp"

namespace gpudt::initiated::programs {
namespace {

/// The segments of one process at the start, those of its neighbours' that it needs included.
std::vector<Segment> initial_segments(const Domain& domain, int each) {
  std::vector<Segment> segments(static_cast<std::size_t>(domain.segments) + 2);
  for (int s = -1; s <= domain.segments; ++s) {
    const int all = domain.first_segment + s;
    Segment& segment = segments[static_cast<std::size_t>(s + 1)];
    segment.count = all < 0 || all >= domain.all_segments ? 0 : each;
    std::mt19937 random(static_cast<unsigned>(all) + 100);
    const auto number = [&] { return static_cast<float>(random() % (1u << 20)) / (1u << 20); };
    for (int i = 0; i < segment.count; ++i)
      segment.particle[i] = {number() * domain.width, static_cast<float>(all) + number(), number() - 0.5F,
                             number() - 0.5F};
  }
  return segments;
}

/// All of it by the host, one step after the other, in the order of the kernels.
std::vector<Segment> particles_reference(const Domain& all, int each, int steps) {
  std::vector<Segment> sorted = initial_segments(all, each), after = sorted;
  const auto at = [](std::vector<Segment>& list, int s) -> Segment& { return list[static_cast<std::size_t>(s + 1)]; };
  for (int step = 0; step < steps; ++step) {
    for (int s = 0; s < all.segments; ++s) {
      at(after, s).count = at(sorted, s).count;
      for (int i = 0; i < at(sorted, s).count; ++i) {
        const Particle& particle = at(sorted, s).particle[i];
        float fx = 0, fy = 0;
        for (int near = std::max(s - 1, 0); near <= std::min(s + 1, all.segments - 1); ++near)
          for (int k = 0; k < at(sorted, near).count; ++k) add_force(particle, at(sorted, near).particle[k], fx, fy);
        at(after, s).particle[i] = moved(particle, fx, fy, all.width, static_cast<float>(all.all_segments));
      }
    }
    for (int s = 0; s < all.segments; ++s) {
      Segment& to = at(sorted, s);
      to.count = 0;
      for (int near = std::max(s - 1, 0); near <= std::min(s + 1, all.segments - 1); ++near)
        for (int i = 0; i < at(after, near).count; ++i)
          if (segment_of(at(after, near).particle[i], all.all_segments) == s)
            to.particle[to.count++] = at(after, near).particle[i];
    }
  }
  return sorted;
}

/// Rounding differs, since compilers fuse multiplications and additions as they like.
std::string wrong_particles(const Domain& domain, const std::vector<Segment>& seen,
                            const std::vector<Segment>& expected) {
  for (int s = 0; s < domain.segments; ++s) {
    const Segment& have = seen[static_cast<std::size_t>(s) + 1];
    const Segment& want = expected[static_cast<std::size_t>(domain.first_segment + s) + 1];
    if (have.count != want.count) return fmt::format("segment {} has {}, expected {}", s, have.count, want.count);
    for (int i = 0; i < have.count; ++i) {
      const Particle &a = have.particle[i], &b = want.particle[i];
      if (!(std::abs(a.x - b.x) < 1e-3F && std::abs(a.y - b.y) < 1e-3F))
        return fmt::format("particle {} of segment {} is at {}, {}, expected {}, {}", i, s, a.x, a.y, b.x, b.y);
    }
  }
  return "";
}

class HostParticles {
 public:
  HostParticles(const Domain& domain, Segment* lists, std::int32_t* lost, const Neighbours& with)
      : domain_(domain), sorted_(lists), moved_(lists + domain.segments + 2), lost_(lost), with_(with) {}
  void run(int blocks, int steps) const {
    for (int step = 0; step < steps; ++step) {
      launch_move(domain_, sorted_, moved_, blocks);
      exchange(moved_);
      launch_sort(domain_, moved_, sorted_, lost_, blocks);
      exchange(sorted_);
    }
  }

 private:
  /// Whole segments: how long they are, the device alone knows.
  void exchange(Segment* list) const {
    synchronise();
    constexpr int bytes = sizeof(Segment);
    const int n = domain_.segments;
    MPI_Sendrecv(list + 1, bytes, MPI_BYTE, with_.up, 0, list + n + 1, bytes, MPI_BYTE, with_.down, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    MPI_Sendrecv(list + n, bytes, MPI_BYTE, with_.down, 1, list, bytes, MPI_BYTE, with_.up, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
  }
  Domain domain_;
  Segment *sorted_, *moved_;
  std::int32_t* lost_;
  Neighbours with_;
};

std::string lost_some(const DeviceArray<std::int32_t>& lost) {
  const std::int32_t count = lost.read()[0];
  return count == 0 ? "" : fmt::format("{} particles did not fit their segments", count);
}

/// One domain, of `segments` for each process with `each` particles at the start.
struct Simulation {
  Simulation(Session& wanted, int segments, int each)
      : session(wanted),
        domain{segments, segments * wanted.process(), segments * wanted.processes(),
               static_cast<float>(each) * 416 / 987},
        start(initial_segments(domain, each)),
        lost(std::vector<std::int32_t>{0}) {}

  std::size_t lists() const { return 2 * start.size(); }
  /// What is wrong with `lists_there` behind a run.
  std::string judge(const Segment* lists_there, const std::vector<Segment>& expected) const {
    session.world().barrier();
    const std::string wrong = lost_some(lost);
    if (!wrong.empty()) return wrong;
    return wrong_particles(domain, DeviceArray<Segment>::read_device(lists_there, start.size()), expected);
  }
  Particles arguments(const Window& window, int ranks, int steps) const {
    Particles p = {};
    p.world = session.world().view(ranks);
    p.window = window;
    p.domain = domain;
    p.lost = lost.data();
    p.iterations = steps;
    return p;
  }

  Session& session;
  Domain domain;
  std::vector<Segment> start;
  DeviceArray<std::int32_t> lost;
};

/// Both ways against the host's own result, on a small domain.
struct SmallSimulation {
  explicit SmallSimulation(Session& session)
      : simulation(session, 24, each), window(session.world().allocate(bytes())) {
    const Domain all = {simulation.domain.all_segments, 0, simulation.domain.all_segments, simulation.domain.width};
    expected = particles_reference(all, each, steps);
  }
  ~SmallSimulation() { simulation.session.world().free(window); }
  SmallSimulation(const SmallSimulation&) = delete;
  SmallSimulation& operator=(const SmallSimulation&) = delete;

  std::string host() const {
    DeviceArray<Segment> there(simulation.lists());
    write_device(there.data(), simulation.start);
    HostParticles(simulation.domain, there.data(), simulation.lost.data(), Neighbours(simulation.session.world()))
        .run(simulation.domain.segments, steps);
    return simulation.judge(there.data(), expected);
  }
  std::string kernel(int ranks, int threads) const {
    World& world = simulation.session.world();
    const int few = std::min(ranks, simulation.domain.segments);
    write_device(window.base, simulation.start);
    world.barrier();
    const Particles p = simulation.arguments(window, few, steps);
    world.run(particles_kernel(), few, threads, &p);
    return simulation.judge(reinterpret_cast<const Segment*>(window.base), expected);
  }

  static constexpr int each = 60, steps = 20;
  Simulation simulation;
  Window window;
  std::vector<Segment> expected;

 private:
  std::int64_t bytes() const { return static_cast<std::int64_t>(simulation.lists() * sizeof(Segment)); }
};

}  // namespace

void measure_particles(Session& session) {
  const int segments = session.check() ? 32 : 416, steps = session.check() ? 5 : 30;
  const SmallSimulation small(session);
  const Simulation simulation(session, segments, session.check() ? 60 : 987);
  AppRows app(session, "particles", steps);
  if (app.has_host()) {
    DeviceArray<Segment> there(simulation.lists());
    const HostParticles host(simulation.domain, there.data(), simulation.lost.data(), Neighbours(session.world()));
    const std::string wrong = small.host();
    write_device(there.data(), simulation.start);
    app.host(
        segments, [&](int blocks, int count) { host.run(blocks, count); }, wrong);
  }
  Window window = session.world().allocate(static_cast<std::int64_t>(simulation.lists() * sizeof(Segment)));
  const auto verify = [&](int ranks, int threads) {
    const std::string wrong = small.kernel(ranks, threads);
    write_device(window.base, simulation.start);
    session.world().barrier();
    return wrong;
  };
  app.kernels(particles_kernel(), segments, verify, [&](int ranks, int threads, int count) {
    const Particles p = simulation.arguments(window, ranks, count);
    session.world().run(particles_kernel(), ranks, threads, &p);
  });
  session.world().free(window);
}

}  // namespace gpudt::initiated::programs

// What the report says of how a job was started: each finding where it belongs, and nowhere else. Jobs are described by
// records, nodes by a folder that stands for the root of the file system.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "interpose/support/report_record.hpp"
#include "tests/support/catch.hpp"

using namespace gpudt::interpose;
using namespace gpudt::interpose::report;

namespace {

constexpr int far_node = 1;

gpudt::device::VisibleGpu gpu(int number) {
  gpudt::device::VisibleGpu made;
  made.id[15] = static_cast<unsigned char>(number + 1);
  char pci[16];
  std::snprintf(pci, sizeof pci, "0000:%02x:00.0", static_cast<unsigned>(number + 16));
  made.pci = pci;
  return made;
}

/// A job with nothing wrong: two nodes, two ranks each, each rank with a GPU of its own beside its CPUs.
std::vector<Record> right_job() {
  std::vector<Record> records(4);
  for (int rank = 0; rank < 4; ++rank) {
    Record& record = records[static_cast<std::size_t>(rank)];
    record = Record{};
    const int node = rank / 2, own = rank % 2;
    put_text(record.host, node == 0 ? "here" : "there");
    put_text(record.around.node, node == 0 ? "boot-0" : "boot-1");
    record.around.ipc_namespace = 100;
    record.around.pid_namespace = 200;
    record.around.shared_memory = 300;
    record.around.numa_nodes = 1U << own;
    record.around.locked_memory = -1;
    for (int g = 0; g < 2; ++g) {
      Surroundings::Gpu& place = record.around.gpus[record.around.gpu_count++];
      std::memcpy(place.id, gpu(2 * node + g).id.data(), sizeof place.id);
      put_text(place.pci, gpu(2 * node + g).pci.c_str());
      place.numa_node = g;
    }
    record.gpu_count = 1;
    std::memcpy(record.gpus[0].id, gpu(rank).id.data(), sizeof record.gpus[0].id);
  }
  return records;
}

void use(Record& record, int number) {
  std::memcpy(record.gpus[0].id, gpu(number).id.data(), sizeof record.gpus[0].id);
}

void see_one(Record& record, int number) {
  Surroundings::Gpu& only = record.around.gpus[0];
  record.around.gpu_count = 1;
  std::memcpy(only.id, gpu(number).id.data(), sizeof only.id);
  put_text(only.pci, gpu(number).pci.c_str());
  only.numa_node = number % 2;
}

/// Ranks 0 and 1 use the only GPU that they see.
void share_one(std::vector<Record>& job) {
  for (Record* const record : {&job[0], &job[1]}) {
    see_one(*record, 0);
    use(*record, 0);
    record->around.numa_nodes = 1;
  }
}

void stage(Record& record) {
  put_text(record.rows[0].way, went_staged);
  record.rows[0].buffers = 1;
}

/// What is changed in the right job, and what is to be found then, with a part of its text.
struct Job {
  const char* name;
  std::function<void(std::vector<Record>&)> change;
  std::vector<const char*> about;
  const char* what = "";
};

const std::vector<Job>& jobs() {
  static const std::vector<Job> all = {
      {"right", [](auto&) {}, {}},
      {"both rotated",
       [](auto& job) {
         use(job[1], 0);
         job[1].around.numa_nodes = 1;
       },
       {"idle GPUs"},
       "ranks 0-1 of here share GPU 0000:10:00.0, and no rank has passed memory to MPI of GPU 0000:11:00.0"},
      {"both rotated on each node",
       [](auto& job) {
         for (const auto rank : {1U, 3U}) {
           use(job[rank], int(rank) - 1);
           job[rank].around.numa_nodes = 1;
         }
       },
       {"idle GPUs"},
       "(and so on 1 more node)"},
      {"a rank whose GPU is not known may use the other",
       [](auto& job) {
         job.push_back(job[0]);
         std::swap(job[2], job[4]);
         job[1].gpu_count = 0;
         for (Record& each : job) each.around.has_mps = 1;
       },
       {}},
      {"shared, all in use", share_one, {"MPS"}, "ranks 0-1 of here share GPU 0000:10:00.0 without CUDA MPS"},
      {"shared with MPS",
       [](auto& job) {
         share_one(job);
         for (Record& each : job) each.around.has_mps = 1;
       },
       {}},
      {"shared, one without MPS",
       [](auto& job) {
         share_one(job);
         job[0].around.has_mps = 1;
       },
       {"MPS"}},
      {"other socket",
       [](auto& job) {
         job[1].around.numa_nodes = 1;
         job[2].around.numa_nodes = 2;
       },
       {"binding"},
       "rank 1 of here is bound to CPUs of another NUMA node than the GPU's (and so on 1 more node)"},
      {"not bound", [](auto& job) { job[1].around.numa_nodes = 3; }, {}},
      {"CPUs not known", [](auto& job) { job[1].around.numa_nodes = 0; }, {}},
      {"NUMA node not known",
       [](auto& job) {
         job[1].around.numa_nodes = 1;
         job[1].around.gpus[1].numa_node = -1;
       },
       {}},
      {"one of two GPUs is near",
       [](auto& job) {
         job[0].gpu_count = 2;
         std::memcpy(job[0].gpus[1].id, gpu(1).id.data(), sizeof job[0].gpus[1].id);
         for (Record& each : job) each.around.has_mps = 1;
       },
       {}},
      {"containers",
       [](auto& job) {
         put_text(job[1].host, "container");
         job[1].around.ipc_namespace = 101;
         job[1].around.shared_memory = 301;
       },
       {"containers"},
       "ranks 0-1 of here are in containers that do not share /dev/shm, IPC namespace"},
      {"PID namespaces", [](auto& job) { job[1].around.pid_namespace = 201; }, {"containers"}, "share PID namespace"},
      {"other nodes have other namespaces",
       [](auto& job) {
         for (const auto rank : {2U, 3U}) job[rank].around.ipc_namespace = job[rank].around.shared_memory = 7;
       },
       {}},
      {"namespaces not known", [](auto& job) { job[1].around.ipc_namespace = job[1].around.pid_namespace = 0; }, {}},
      {"one visible GPU each",
       [](auto& job) {
         see_one(job[0], 0);
         see_one(job[1], 1);
         put_text(job[1].not_mapped, "this process does not see the GPU");
       },
       {"visible GPUs"},
       "ranks 0-1 of here see one GPU each"},
      {"one visible GPU each, and all is mapped",
       [](auto& job) {
         see_one(job[0], 0);
         see_one(job[1], 1);
       },
       {}},
      {"all visible, and not mapped", [](auto& job) { put_text(job[1].not_mapped, "no peer access"); }, {}},
      {"yama",
       [](auto& job) {
         for (Record& each : job) each.around.ptrace_scope = 2;
         stage(job[0]);
       },
       {"yama"},
       "ptrace_scope is 2 on here"},
      {"GPUs whose identity the driver does not tell",
       [](auto& job) {
         for (Record& each : job) std::memset(each.gpus[0].id, 0, sizeof each.gpus[0].id);
       },
       {}},
      {"yama, nothing staged",
       [](auto& job) {
         for (Record& each : job) each.around.ptrace_scope = 3;
       },
       {}},
      {"yama's default",
       [](auto& job) {
         for (Record& each : job) each.around.ptrace_scope = 1;
         stage(job[0]);
       },
       {}},
      {"little locked memory",
       [](auto& job) {
         job[3].around.locked_memory = 65536;
         job[3].around.has_infiniband = 1;
       },
       {"locked memory"},
       "rank 3 of there may lock 64 KiB"},
      {"enough locked memory",
       [](auto& job) {
         job[3].around.locked_memory = std::int64_t{64} << 30;
         job[3].around.has_infiniband = 1;
       },
       {}},
      {"little locked memory without InfiniBand", [](auto& job) { job[3].around.locked_memory = 65536; }, {}},
      {"little locked memory on one node",
       [](auto& job) {
         job.resize(2);
         job[0].around.locked_memory = 65536;
         job[0].around.has_infiniband = 1;
       },
       {}},
  };
  return all;
}

/// A folder for the root of the file system.
class Root {
 public:
  Root() {
    char name[] = "/tmp/gpudt-root-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~Root() { std::filesystem::remove_all(folder_); }
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;

  void file(const std::string& name, const std::string& text = "") const {
    std::filesystem::create_directories(std::filesystem::path(folder_ + name).parent_path());
    std::ofstream(folder_ + name) << text << '\n';
  }
  void link(const std::string& name, const std::string& target) const {
    std::filesystem::create_directories(std::filesystem::path(folder_ + name).parent_path());
    std::filesystem::create_symlink(target, folder_ + name);
  }
  Surroundings seen(const std::vector<gpudt::device::VisibleGpu>& gpus = {}) const {
    return look_around(folder_, gpus);
  }

 private:
  std::string folder_;
};

/// "0-3,8", of the CPUs that this thread may use, or of others.
std::string list_of_cpus(bool own) {
  cpu_set_t set;
  REQUIRE(sched_getaffinity(0, sizeof set, &set) == 0);
  std::string list;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if ((CPU_ISSET(cpu, &set) != 0) == own) list += (list.empty() ? "" : ",") + std::to_string(cpu);
  return list;
}

}  // namespace

TEST_CASE("Mistakes in how a job was started are found, and only where they are", "[datatype]") {
  std::set<std::string> all;
  for (const Job& each : jobs()) {
    INFO(each.name);
    std::vector<Record> records = right_job();
    each.change(records);
    const std::vector<Hint> found = placement_hints(records, 0);
    std::vector<std::string> about;
    for (const Hint& hint : found) {
      about.push_back(hint.about);
      CHECK_FALSE(hint.remedy.empty());
      CHECK((hint.what + hint.remedy).find('\n') == std::string::npos);
      all.insert(hint.about);
    }
    CHECK(about == std::vector<std::string>(each.about.begin(), each.about.end()));
    INFO((found.empty() ? "nothing" : found[0].what));
    if (!found.empty()) CHECK(found[0].what.find(each.what) != std::string::npos);
  }
  CHECK(all.size() == 7);
}

TEST_CASE("A report of some ranks names them as they are", "[datatype]") {
  std::vector<Record> job = right_job();
  job[1].around.numa_nodes = 1;
  const std::vector<Hint> found = placement_hints(job, 5);
  REQUIRE(found.size() == 1);
  CHECK(found[0].what.find("rank 6 of here") == 0);
}

TEST_CASE("What a rank sees of its node is read from the system's files", "[datatype]") {
  const Root root;
  root.file("/proc/sys/kernel/random/boot_id", "4242-11");
  root.file("/proc/sys/kernel/yama/ptrace_scope", "2");
  root.link("/proc/self/ns/ipc", "ipc:[4026531839]");
  root.link("/proc/self/ns/pid", "pid:[17]");
  root.file("/dev/shm/something");
  root.file("/sys/class/infiniband/mlx5_0");
  root.file("/sys/devices/system/node/node0/cpulist", list_of_cpus(false));
  root.file("/sys/devices/system/node/node3/cpulist", list_of_cpus(true));
  root.file("/sys/bus/pci/devices/" + gpu(1).pci + "/numa_node", std::to_string(far_node));
  root.file("/tmp/nvidia-mps/control");
  const Surroundings seen = root.seen({gpu(0), gpu(1)});
  CHECK(std::string(seen.node) == "4242-11");
  CHECK(seen.ptrace_scope == 2);
  CHECK(seen.ipc_namespace == 4026531839);
  CHECK(seen.pid_namespace == 17);
  CHECK(seen.shared_memory != 0);
  CHECK(seen.numa_nodes == 1U << 3);
  CHECK(seen.has_infiniband == 1);
  CHECK(seen.has_mps == 1);
  REQUIRE(seen.gpu_count == 2);
  CHECK(std::string(seen.gpus[1].pci) == gpu(1).pci);
  CHECK(seen.gpus[0].numa_node == -1);
  CHECK(seen.gpus[1].numa_node == far_node);
  root.file("/proc/self/status", "CapPrm:\t0000000000080000\nCapEff:\t0000000000000000");
  CHECK(root.seen().ptrace_scope == 2);
  root.file("/proc/self/status", "CapPrm:\t0000000000080000\nCapEff:\t0000000000080000");
  CHECK(root.seen().ptrace_scope == 0);
}

TEST_CASE("Of a system without these files nothing is known", "[datatype]") {
  const Surroundings seen = Root().seen();
  CHECK(seen.node[0] == '\0');
  CHECK((seen.ipc_namespace | seen.pid_namespace | seen.shared_memory | seen.numa_nodes) == 0);
  CHECK(seen.ptrace_scope == 0);
  CHECK(seen.has_infiniband == 0);
  CHECK(seen.has_mps == 0);
  CHECK(seen.gpu_count == 0);
}

TEST_CASE("Two file systems for shared memory are told apart", "[datatype]") {
  const Root one, other;
  one.file("/dev/shm/something");
  other.file("/dev/shm/something");
  CHECK(one.seen().shared_memory == one.seen().shared_memory);
  CHECK(one.seen().shared_memory != other.seen().shared_memory);
}

TEST_CASE("MPS is looked for where CUDA_MPS_PIPE_DIRECTORY says", "[datatype]") {
  const Root root;
  root.file("/run/mps/control");
  CHECK(root.seen().has_mps == 0);
  setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mps", 1);
  CHECK(root.seen().has_mps == 1);
  unsetenv("CUDA_MPS_PIPE_DIRECTORY");
}

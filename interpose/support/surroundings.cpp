#include "interpose/support/surroundings.hpp"

#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/cpu_list.hpp"

namespace gpudt::interpose::report {
namespace {

static_assert(most_numa_nodes <= 64, "bits of Surroundings::numa_nodes");

/// The first word of a file; empty if it cannot be read.
std::string word_of(const std::string& file) {
  std::ifstream stream(file);
  std::string word;
  stream >> word;
  return word;
}

int number_of(const std::string& file, int otherwise) {
  const std::string word = word_of(file);
  return word.empty() ? otherwise : std::atoi(word.c_str());
}

/// The number in the target of a symbolic link, such as 4026531839 in "ipc:[4026531839]"; 0 if there is none.
std::uint64_t namespace_of(const std::string& file) {
  std::array<char, 64> target{};
  if (readlink(file.c_str(), target.data(), target.size() - 1) < 0) return 0;
  const char* const number = std::strchr(target.data(), '[');
  return number == nullptr ? 0 : std::strtoull(number + 1, nullptr, 10);
}

std::uint64_t file_system_of(const std::string& folder) {
  struct stat status {};
  if (stat(folder.c_str(), &status) != 0) return 0;
  return (static_cast<std::uint64_t>(status.st_dev) << 32) ^ static_cast<std::uint64_t>(status.st_ino);
}

bool exists(const std::string& file) {
  return access(file.c_str(), F_OK) == 0;
}

bool has_entries(const std::string& folder) {
  std::error_code error;
  return !std::filesystem::is_empty(folder, error) && !error;
}

class OwnCpus {
 public:
  OwnCpus() { known_ = sched_getaffinity(0, sizeof sets_, sets_.data()) == 0; }
  /// Whether the thread may run on any CPU of `list`, such as "0-3,8-11".
  bool any_of(const std::string& list) const {
    bool any = false;
    for_each_range(list, [&](int first, int last) { any = any || any_between(first, last); });
    return any;
  }

 private:
  bool any_between(int first, int last) const {
    for (int cpu = first; known_ && cpu <= last; ++cpu)
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), sizeof sets_, sets_.data())) return true;
    return false;
  }

  std::array<cpu_set_t, 8> sets_{};  ///< bits of 8192 CPUs: each set has room for 1024
  bool known_;
};

std::uint64_t own_numa_nodes(const std::string& root) {
  const OwnCpus own;
  std::uint64_t nodes = 0;
  for (int node = 0; node < most_numa_nodes; ++node)
    if (own.any_of(word_of(root + cpu_list_file(node)))) nodes |= std::uint64_t{1} << node;
  return nodes;
}

/// Whether the control pipe of the CUDA MPS daemon exists; a daemon that has ended may have left it.
bool has_mps(const std::string& root) {
  const char* const folder = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  return exists(root + (folder == nullptr || *folder == '\0' ? "/tmp/nvidia-mps" : folder) + "/control");
}

/// The value of kernel.yama.ptrace_scope; 0 without Yama, and where it does not matter: with the capability
/// CAP_SYS_PTRACE, which root has outside of containers, a process may read others' memory unless the value is 3.
int ptrace_scope(const std::string& root) {
  constexpr unsigned sys_ptrace = 19;  // the number of CAP_SYS_PTRACE
  constexpr int nobody_may = 3;
  const int scope = number_of(root + "/proc/sys/kernel/yama/ptrace_scope", 0);
  std::ifstream status(root + "/proc/self/status");
  for (std::string name, value; scope != nobody_may && status >> name;)
    if (name == "CapEff:" && status >> value && (std::strtoull(value.c_str(), nullptr, 16) >> sys_ptrace & 1) != 0)
      return 0;
  return scope;
}

std::int64_t most_locked_memory() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<std::int64_t>(limit.rlim_cur);
}

}  // namespace

Surroundings look_around(const std::string& root, const std::vector<device::VisibleGpu>& gpus) {
  Surroundings found{};
  std::snprintf(found.node, sizeof found.node, "%s", word_of(root + "/proc/sys/kernel/random/boot_id").c_str());
  found.ipc_namespace = namespace_of(root + "/proc/self/ns/ipc");
  found.pid_namespace = namespace_of(root + "/proc/self/ns/pid");
  found.shared_memory = file_system_of(root + "/dev/shm");
  found.numa_nodes = own_numa_nodes(root);
  found.locked_memory = most_locked_memory();
  found.ptrace_scope = ptrace_scope(root);
  found.has_infiniband = has_entries(root + "/sys/class/infiniband");
  found.has_mps = has_mps(root);
  for (const device::VisibleGpu& gpu : gpus) {
    if (found.gpu_count == static_cast<int>(most_visible)) break;
    Surroundings::Gpu& place = found.gpus[found.gpu_count++];
    std::memcpy(place.id, gpu.id.data(), sizeof place.id);
    std::snprintf(place.pci, sizeof place.pci, "%s", gpu.pci.c_str());
    place.numa_node = number_of(root + "/sys/bus/pci/devices/" + gpu.pci + "/numa_node", -1);
  }
  return found;
}

}  // namespace gpudt::interpose::report

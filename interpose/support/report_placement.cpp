// Mistakes in how a job was started, which no single rank sees: found by comparing what the ranks have seen.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "interpose/support/report_record.hpp"

namespace gpudt::interpose::report {
namespace {

using GpuId = std::string;  ///< the 16 bytes

GpuId id_of(const unsigned char (&id)[16]) {
  return {reinterpret_cast<const char*>(id), sizeof id};
}

/// The driver may not tell.
bool is_known(const GpuId& id) {
  return id.find_first_not_of('\0') != GpuId::npos;
}

struct Member {
  int rank;
  const Record* record;
};
using Members = std::vector<Member>;

/// "rank 3", "ranks 0-2, 5".
std::string ranks_text(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text += (text.empty() ? "" : ", ") + std::to_string(ranks[i]);
    if (end - i > 1) text += "-" + std::to_string(ranks[end - 1]);
    i = end;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

std::string ranks_text(const Members& members) {
  std::vector<int> ranks;
  for (const Member& each : members) ranks.push_back(each.rank);
  return ranks_text(ranks) + " of " + members.front().record->host;
}

/// One hint of each kind, for the first node that it is about.
class Findings {
 public:
  void add(const char* about, const std::string& what, const char* remedy) {
    if (nodes_[about]++ == 0) hints_.push_back({what, remedy, about});
  }
  std::vector<Hint> take() {
    for (Hint& hint : hints_)
      if (const int others = nodes_[hint.about] - 1; others > 0)
        hint.what += " (and so on " + std::to_string(others) + (others == 1 ? " more node)" : " more nodes)");
    return std::move(hints_);
  }

 private:
  std::map<std::string, int> nodes_;
  std::vector<Hint> hints_;
};

/// The GPU as the rank sees it; null if it does not.
const Surroundings::Gpu* seen(const Record& record, const GpuId& id) {
  const Surroundings& around = record.around;
  const auto* const end = around.gpus + around.gpu_count;
  const auto* const found = std::find_if(around.gpus, end, [&](const auto& gpu) { return id_of(gpu.id) == id; });
  return found == end ? nullptr : found;
}

/// The GPUs of a node: by address, with the ranks that use them.
struct NodeGpus {
  std::map<GpuId, std::string> addresses;  ///< of all that any rank sees
  std::map<GpuId, Members> users;
  bool all_ranks_use_gpus = true;

  explicit NodeGpus(const Members& node) {
    for (const Member& each : node) {
      const Record& record = *each.record;
      for (int g = 0; g < record.around.gpu_count; ++g)
        addresses.emplace(id_of(record.around.gpus[g].id), record.around.gpus[g].pci);
      for (int g = 0; g < record.gpu_count; ++g)
        if (const GpuId id = id_of(record.gpus[g].id); is_known(id)) users[id].push_back(each);
      all_ranks_use_gpus = all_ranks_use_gpus && record.gpu_count > 0;
    }
  }

  std::string name(const GpuId& id) const {
    const auto found = addresses.find(id);
    return found == addresses.end() || found->second.empty() ? "a GPU" : "GPU " + found->second;
  }
  std::string idle() const {
    std::string text;
    for (const auto& [id, address] : addresses)
      if (users.count(id) == 0) text += (text.empty() ? "" : ", ") + address;
    return text;
  }
};

bool has_mps(const Member& member) {
  return member.record->around.has_mps != 0;
}

void find_sharing(const Members& node, Findings& findings) {
  const NodeGpus gpus(node);
  // What a rank does that has passed no buffer in GPU memory to MPI is not known: it may use the other GPUs.
  const std::string idle = gpus.all_ranks_use_gpus ? gpus.idle() : "";
  for (const auto& [id, users] : gpus.users) {
    if (users.size() < 2) continue;
    std::string what = ranks_text(users) + " share " + gpus.name(id);
    if (!idle.empty())
      return findings.add("idle GPUs", what.append(", and no rank has passed memory to MPI of GPU ").append(idle),
                          "Let each rank choose its own by its local rank, either by cudaSetDevice or by "
                          "CUDA_VISIBLE_DEVICES: both together cancel out");
    if (!std::all_of(users.begin(), users.end(), has_mps))
      return findings.add(
          "MPS", what + " without CUDA MPS: their kernels take turns",
          "Start nvidia-cuda-mps-control -d on the node first, or one rank for each GPU; if the node has "
          "more GPUs, see CUDA_VISIBLE_DEVICES");
  }
}

/// Whether all GPUs that the rank uses are beside other CPUs than those to which it is bound.
bool is_far_from_its_gpus(const Member& member) {
  const Record& record = *member.record;
  const std::uint64_t own = record.around.numa_nodes;
  bool any = false;
  for (int g = 0; g < record.gpu_count; ++g) {
    const Surroundings::Gpu* const gpu = seen(record, id_of(record.gpus[g].id));
    if (gpu == nullptr || gpu->numa_node < 0 || gpu->numa_node > 63) return false;
    if ((own >> gpu->numa_node & 1) != 0) return false;
    any = true;
  }
  return any && own != 0;
}

void find_far_cpus(const Members& node, Findings& findings) {
  Members far;
  std::copy_if(node.begin(), node.end(), std::back_inserter(far), is_far_from_its_gpus);
  if (far.empty()) return;
  findings.add(
      "binding",
      ranks_text(far) + (far.size() == 1 ? " is" : " are") + " bound to CPUs of another NUMA node than the GPU's",
      "Bind ranks to CPUs beside their GPUs (nvidia-smi topo -m shows which): mpirun --map-by numa, or srun "
      "--gpu-bind=closest");
}

/// Whether ranks of the node know different values.
template <class Of>
bool differ(const Members& node, Of of) {
  std::set<std::uint64_t> values;
  for (const Member& each : node)
    if (const std::uint64_t value = of(each.record->around)) values.insert(value);
  return values.size() > 1;
}

void find_containers(const Members& node, Findings& findings) {
  std::string apart;
  const auto add = [&](bool differs, const char* what) {
    if (differs) apart += (apart.empty() ? "" : ", ") + std::string(what);
  };
  add(differ(node, [](const Surroundings& around) { return around.shared_memory; }), "/dev/shm");
  add(differ(node, [](const Surroundings& around) { return around.ipc_namespace; }), "IPC namespace");
  add(differ(node, [](const Surroundings& around) { return around.pid_namespace; }), "PID namespace");
  if (apart.empty()) return;
  findings.add("containers", ranks_text(node) + " are in containers that do not share " + apart,
               "Start all processes of a node in one container, or with --ipc=host --pid=host");
}

void find_single_gpus(const Members& node, Findings& findings) {
  std::set<GpuId> visible;
  bool one_each = true, refused = false;
  for (const Member& each : node) {
    const Surroundings& around = each.record->around;
    one_each = one_each && around.gpu_count == 1;
    if (around.gpu_count > 0) visible.insert(id_of(around.gpus[0].id));
    refused = refused || std::strstr(each.record->not_mapped, "does not see the GPU") != nullptr;
  }
  if (!one_each || visible.size() < 2 || !refused) return;
  findings.add("visible GPUs", ranks_text(node) + " see one GPU each, and cannot map memory of the others",
               "Let each rank see all GPUs of the node (CUDA_VISIBLE_DEVICES; srun --gpu-bind=none), and choose by "
               "cudaSetDevice");
}

bool has_staged(const Member& member) {
  return std::any_of(std::begin(member.record->rows), std::end(member.record->rows),
                     [](const Row& row) { return row.buffers != 0 && std::strcmp(row.way, went_staged) == 0; });
}

void find_yama(const Members& node, Findings& findings) {
  const int scope = node.front().record->around.ptrace_scope;
  if (scope < 2 || node.size() < 2 || !std::any_of(node.begin(), node.end(), has_staged)) return;
  findings.add("yama",
               "kernel.yama.ptrace_scope is " + std::to_string(scope) + " on " + node.front().record->host +
                   ": MPI copies staged messages between processes twice",
               scope == 2 ? "sysctl kernel.yama.ptrace_scope=1 on the node, as root"
                          : "kernel.yama.ptrace_scope=1 in /etc/sysctl.d of the node, which takes a reboot");
}

constexpr std::int64_t enough_locked_memory = std::int64_t{1} << 30;  ///< bytes: beyond, a limit was meant so

void find_locked_memory(const Members& node, Findings& findings) {
  const auto is_short = [](const Member& each) {
    const std::int64_t limit = each.record->around.locked_memory;
    return each.record->around.has_infiniband != 0 && limit >= 0 && limit < enough_locked_memory;
  };
  Members few;
  std::copy_if(node.begin(), node.end(), std::back_inserter(few), is_short);
  if (few.empty()) return;
  findings.add("locked memory",
               ranks_text(few) + " may lock " + std::to_string(few.front().record->around.locked_memory >> 10) +
                   " KiB of memory, and InfiniBand needs more",
               "ulimit -l unlimited (memlock in /etc/security/limits.conf; LimitMEMLOCK of slurmd; docker run --ulimit "
               "memlock=-1)");
}

/// All ranks of a node, also where containers give it several names.
std::vector<Members> nodes_of(const std::vector<Record>& records, int first) {
  std::map<std::string, std::size_t> numbers;
  std::vector<Members> nodes;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Record& record = records[i];
    const std::string name = record.around.node[0] != '\0' ? record.around.node : record.host;
    const auto [entry, is_new] = numbers.emplace(name, nodes.size());
    if (is_new) nodes.emplace_back();
    nodes[entry->second].push_back({first + static_cast<int>(i), &record});
  }
  return nodes;
}

}  // namespace

std::vector<Hint> placement_hints(const std::vector<Record>& records, int first) {
  Findings findings;
  const std::vector<Members> nodes = nodes_of(records, first);
  for (const Members& node : nodes) {
    find_sharing(node, findings);
    find_far_cpus(node, findings);
    find_containers(node, findings);
    find_single_gpus(node, findings);
    find_yama(node, findings);
    if (nodes.size() > 1) find_locked_memory(node, findings);
  }
  return findings.take();
}

}  // namespace gpudt::interpose::report

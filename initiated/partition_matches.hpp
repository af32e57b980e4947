// The partitioned requests of a World: what has been initialised, and what has been matched.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "datatype/layout.hpp"
#include "initiated/partition_calls.hpp"
#include "initiated/world.hpp"

namespace gpudt::initiated {

class Partitions;

class Request::State {
 public:
  Partitions* all = nullptr;
  PartitionedCall call;
  char* buffer = nullptr;
  datatype::LayoutRef layout;  ///< of an element; until it is matched

  KernelRequest kernel;
  std::uint64_t round = 0;
  bool active = false;
  std::uint64_t* pinned = nullptr;  ///< in host memory: the round, then room for what is read of the words
  /// Of a receive: the sender's KernelRequest::granted, at an address of this process. Null: reached by the proxy, at
  /// `granted_offset` of window `granted_memory`.
  std::uint64_t* granted = nullptr;
  std::int64_t granted_offset = 0;
  std::int32_t granted_memory = 0;
};

class Partitions {
 public:
  explicit Partitions(World::State& world);
  /// Collective, behind Wire::end().
  ~Partitions();
  Partitions(const Partitions&) = delete;
  Partitions& operator=(const Partitions&) = delete;

  /// A request that the next match() matches.
  std::shared_ptr<Request::State> init(const char* name, PartitionedCall call, const void* buffer,
                                       MPI_Datatype datatype);
  /// Collective.
  void match();

  void start(std::span<Request::State* const> requests);
  /// Whether the round is complete, as this process's GPU knows now.
  bool is_complete(Request::State& request);
  void wait(Request::State& request);

 private:
  using Requests = std::vector<std::shared_ptr<Request::State>>;
  /// What the requests of one match() have in common.
  struct Match {
    std::vector<std::weak_ptr<Request::State>> requests;
    Window words;
    WiredMemory memory;  ///< of `words`
    MPI_Win buffers = MPI_WIN_NULL;
    std::vector<std::vector<WindowRegion>> regions;  ///< of `buffers`, by process
    std::int32_t first_number = 0, numbers = 0;      ///< of receives' buffers, for proxies
    std::vector<Layout> layouts;
    std::uint64_t* pinned = nullptr;
  };
  /// What all processes know of a match.
  struct Known {
    PartitionedCalls calls;
    std::vector<std::vector<datatype::LayoutRef>> layouts;  ///< of receives, by process and call
  };

  std::string who(const char* call) const;
  bool has_proxy() const;
  void free_unused();
  void free(Match& match);
  static void release(Match& match);
  Known exchange(const Requests& requests) const;
  void attach_buffers(Match& match, const Requests& requests) const;
  void connect(Match& match, const Known& known, const CallMatcher& matcher, const Requests& requests);
  void expose_receives(const Match& match, const Requests& requests) const;
  void connect_words(const Match& match, const PartitionedMatch& mine, Request::State& request) const;
  void connect_send(Match& match, const Known& known, const CallMatcher& matcher, const PartitionedMatch& mine,
                    Request::State& request) const;
  void connect_receive(const Match& match, const Known& known, const CallMatcher& matcher, const PartitionedMatch& mine,
                       Request::State& request) const;
  /// Where the words of a process's call begin, for this process; null if it does not reach them.
  std::uint64_t* words_at(const Match& match, int process, const PartitionedMatch& at) const;
  char* buffer_at(const Match& match, const PartitionedCall& receive, int process) const;
  void write_round(Request::State& request) const;
  void copy(void* to, const void* from, std::size_t bytes) const;
  void synchronise() const;

  World::State& world_;
  cudaStream_t stream_ = nullptr;  ///< waits for no other
  Requests initialised_;
  std::vector<std::unique_ptr<Match>> matches_;
};

}  // namespace gpudt::initiated

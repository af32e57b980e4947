#include "initiated/partitioned.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "datatype/decode.hpp"
#include "initiated/attached.hpp"
#include "initiated/mpi_error.hpp"
#include "initiated/partition_matches.hpp"
#include "initiated/world_state.hpp"

namespace gpudt::initiated {
namespace {

constexpr std::size_t word_bytes = sizeof(std::uint64_t);

/// What each process gives, by process. Collective.
std::vector<std::vector<std::byte>> gather_bytes(MPI_Comm comm, std::span<const std::byte> mine, int processes) {
  std::vector<int> bytes(static_cast<std::size_t>(processes)), places(bytes.size());
  const int own = static_cast<int>(mine.size());
  check_mpi(PMPI_Allgather(&own, 1, MPI_INT, bytes.data(), 1, MPI_INT, comm), "World::match: MPI_Allgather");
  int all = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) places[i] = std::exchange(all, all + bytes[i]);
  std::vector<std::byte> gathered(static_cast<std::size_t>(all));
  check_mpi(PMPI_Allgatherv(mine.data(), own, MPI_BYTE, gathered.data(), bytes.data(), places.data(), MPI_BYTE, comm),
            "World::match: MPI_Allgatherv");
  std::vector<std::vector<std::byte>> of;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    of.emplace_back(gathered.begin() + places[i], gathered.begin() + places[i] + bytes[i]);
  return of;
}

/// The layout on the device, which `kept` owns; null if the elements are contiguous, from `offset` on.
const KernelLayout* put_on_device(const datatype::Layout& layout, std::int64_t count, std::vector<Layout>& kept,
                                  std::int64_t& offset) {
  offset = 0;
  if (layout.size() == 0 || count == 0) return nullptr;
  if (layout.is_contiguous(count)) {
    offset = layout.shape(count).offset;
    return nullptr;
  }
  kept.emplace_back(layout, count);
  return kept.back().on_device();
}

bool is_reached(const void* memory) {
  cudaPointerAttributes its = {};
  return cudaPointerGetAttributes(&its, memory) == cudaSuccess && its.type != cudaMemoryTypeUnregistered;
}

}  // namespace

// --- initialisation -------------------------------------------------------------------------------------------------

Partitions::Partitions(World::State& world) : world_(world) {
  int lowest = 0, highest = 0;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "World: cudaDeviceGetStreamPriorityRange");
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest), "World: cudaStreamCreateWithPriority");
}

Partitions::~Partitions() {
  for (auto& match : matches_) release(*match);  // the words go with all windows
  cudaStreamDestroy(stream_);
}

std::string Partitions::who(const char* call) const {
  return std::string("World::") + call + ": " + world_.who();
}
bool Partitions::has_proxy() const {
  return world_.kernel.proxy.slots != nullptr;
}

std::shared_ptr<Request::State> Partitions::init(const char* name, PartitionedCall call, const void* buffer,
                                                 MPI_Datatype datatype) {
  const auto refuse = [&](const std::string& why) { throw Error(who(name) + why); };
  const bool nobody = call.partner == MPI_PROC_NULL;
  if (call.partitions < 1) refuse(std::to_string(call.partitions) + " partitions");
  if (call.count < 0) refuse("a count of " + std::to_string(call.count));
  if (!nobody && (call.partner < 0 || call.partner >= world_.gpus))
    refuse("there is no process " + std::to_string(call.partner));
  if (call.tag < 0) refuse("tag " + std::to_string(call.tag));
  if (datatype == MPI_DATATYPE_NULL) refuse("the datatype is MPI_DATATYPE_NULL");
  if (nobody) call.partner = -1;
  auto request = std::make_shared<Request::State>();
  request->layout = datatype::decode(datatype);
  std::int64_t elements = 0, all = 0;
  if (__builtin_mul_overflow(call.count, call.partitions, &elements) ||
      __builtin_mul_overflow(elements, std::max<std::int64_t>(request->layout->size(), 1), &all))
    refuse(std::to_string(call.partitions) + " partitions of " + std::to_string(call.count) + " elements are too many");
  call.bytes = call.count * request->layout->size();
  call.address = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(buffer));
  if (call.bytes > 0 && !nobody) {
    const datatype::Span span = request->layout->span(elements);
    call.low = span.begin;
    call.high = span.end;
    const char* const first = static_cast<const char*>(buffer) + span.begin;
    if (call.sends != 0 ? !is_reached(first) : !detail::is_of_device(first, world_.device))
      refuse("the buffer is not in memory of this GPU");
  }
  request->all = this;
  request->call = call;
  request->buffer = static_cast<char*>(const_cast<void*>(buffer));
  initialised_.push_back(request);
  return request;
}

Request World::psend_init(const void* buf, int partitions, std::int64_t count, MPI_Datatype datatype, int dest,
                          int tag) {
  PartitionedCall call = {1, dest, tag, partitions, count};
  return Request(state_->all_partitions().init("psend_init", call, buf, datatype));
}
Request World::precv_init(void* buf, int partitions, std::int64_t count, MPI_Datatype datatype, int source, int tag) {
  PartitionedCall call = {0, source, tag, partitions, count};
  return Request(state_->all_partitions().init("precv_init", call, buf, datatype));
}
void World::match() {
  state_->all_partitions().match();
}

// --- matching -------------------------------------------------------------------------------------------------------

void Partitions::match() {
  free_unused();
  const Requests requests = std::exchange(initialised_, {});
  const Known known = exchange(requests);
  const CallMatcher matcher(known.calls);  // all processes throw alike
  if (matcher.most_words() == 0) return;
  auto match = std::make_unique<Match>();
  for (const auto& request : requests) match->requests.push_back(request);
  try {
    match->words =
        world_.allocate("World::match", matcher.most_words() * static_cast<std::int64_t>(word_bytes), match->memory);
    attach_buffers(*match, requests);
    if (has_proxy()) {
      match->first_number = world_.take_numbers("World::match", matcher.most_receives());
      match->numbers = matcher.most_receives();
    }
    // When it returns, all have exposed their buffers.
    world_.together("World::match", [&] { connect(*match, known, matcher, requests); });
  } catch (const Error&) {
    for (const auto& request : requests) request->kernel = {};  // its addresses are freed: start() refuses it
    free(*match);
    throw;
  }
  matches_.push_back(std::move(match));
}

/// Matches whose requests no process has any more.
void Partitions::free_unused() {
  std::vector<int> used;
  for (const auto& match : matches_)
    used.push_back(static_cast<int>(
        std::any_of(match->requests.begin(), match->requests.end(), [](const auto& each) { return !each.expired(); })));
  check_mpi(PMPI_Allreduce(MPI_IN_PLACE, used.data(), static_cast<int>(used.size()), MPI_INT, MPI_MAX, world_.own_comm),
            who("match") + "MPI_Allreduce");
  for (std::size_t i = 0; i < used.size(); ++i)
    if (used[i] == 0) free(*std::exchange(matches_[i], nullptr));
  std::erase(matches_, nullptr);
}

void Partitions::free(Match& match) {
  for (std::int32_t i = 0; i < match.numbers; ++i) world_.wire->hide(match.first_number + i);
  if (match.words.id != no_window) world_.free(match.words);
  release(match);
}

void Partitions::release(Match& match) {
  int ended = 0;
  PMPI_Finalized(&ended);
  if (match.buffers != MPI_WIN_NULL && ended == 0) MPI_Win_free(&match.buffers);
  cudaFreeHost(match.pinned);
  match.pinned = nullptr;
}

Partitions::Known Partitions::exchange(const Requests& requests) const {
  std::vector<PartitionedCall> calls;
  std::vector<std::byte> layouts;
  for (const auto& request : requests) {
    if (request->call.sends == 0) {
      const std::vector<std::byte> bytes = request->layout->to_bytes();
      request->call.layout_bytes = static_cast<std::int64_t>(bytes.size());
      layouts.insert(layouts.end(), bytes.begin(), bytes.end());
    }
    calls.push_back(request->call);
  }
  const auto all_calls = gather_bytes(world_.own_comm, std::as_bytes(std::span(calls)), world_.gpus);
  const auto all_layouts = gather_bytes(world_.own_comm, layouts, world_.gpus);
  Known known;
  for (std::size_t i = 0; i < all_calls.size(); ++i) {
    std::vector<PartitionedCall> its(all_calls[i].size() / sizeof(PartitionedCall));
    std::memcpy(its.data(), all_calls[i].data(), all_calls[i].size());
    std::span<const std::byte> left = all_layouts[i];
    std::vector<datatype::LayoutRef> its_layouts;
    for (const PartitionedCall& call : its) {
      const auto bytes = static_cast<std::size_t>(call.layout_bytes);
      const bool is_mine = call.sends == 0 && call.partner == world_.gpu;
      its_layouts.push_back(is_mine ? datatype::Layout::from_bytes(left.first(bytes)) : nullptr);
      left = left.subspan(bytes);
    }
    known.calls.push_back(std::move(its));
    known.layouts.push_back(std::move(its_layouts));
  }
  return known;
}

/// What is received into, in a dynamic window: each byte once, though buffers may interleave.
void Partitions::attach_buffers(Match& match, const Requests& requests) const {
  std::vector<std::pair<std::int64_t, std::int64_t>> spans;
  for (const auto& request : requests)
    if (const PartitionedCall& call = request->call; call.sends == 0 && call.high > call.low)
      spans.emplace_back(call.address + call.low, call.address + call.high);
  std::sort(spans.begin(), spans.end());
  std::vector<std::pair<std::int64_t, std::int64_t>> merged;
  for (const auto& span : spans)
    if (!merged.empty() && span.first < merged.back().second)
      merged.back().second = std::max(merged.back().second, span.second);
    else
      merged.push_back(span);
  check_mpi(MPI_Win_create_dynamic(MPI_INFO_NULL, world_.own_comm, &match.buffers),
            who("match") + "MPI_Win_create_dynamic");
  world_.together("World::match", [&] {
    MPI_Win_set_errhandler(match.buffers, MPI_ERRORS_RETURN);
    for (const auto& [begin, end] : merged)
      check_mpi(MPI_Win_attach(match.buffers, reinterpret_cast<void*>(begin), end - begin),
                who("match") + "MPI_Win_attach");
  });
  world_.together("World::match",
                  [&] { match.regions = regions_of(match.buffers, world_.gpus, world_.device, false, who("match")); });
}

void Partitions::connect(Match& match, const Known& known, const CallMatcher& matcher, const Requests& requests) {
  std::size_t pinned = 0;
  const auto pinned_words = [](const Request::State& request) {
    return 1 + static_cast<std::size_t>(std::max(request.kernel.flags, 1));
  };
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Request::State& request = *requests[i];
    const PartitionedMatch& mine = matcher.of(world_.gpu, static_cast<int>(i));
    connect_words(match, mine, request);
    if (mine.call >= 0 && request.call.sends != 0) connect_send(match, known, matcher, mine, request);
    if (mine.call >= 0 && request.call.sends == 0) connect_receive(match, known, matcher, mine, request);
    pinned += pinned_words(request);
  }
  expose_receives(match, requests);
  if (pinned == 0) return;
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, pinned * word_bytes, cudaHostAllocDefault), who("match") + "pinned memory");
  match.pinned = static_cast<std::uint64_t*>(memory);
  std::memset(match.pinned, 0, pinned * word_bytes);
  std::uint64_t* next = match.pinned;
  for (const auto& request : requests) {
    request->pinned = std::exchange(next, next + pinned_words(*request));
    // A first copy may load code or map memory, which would wait for a kernel that occupies the GPU. All is 0 still.
    if (request->granted != nullptr || request->call.sends != 0) write_round(*request);
    is_complete(*request);
  }
  synchronise();
  for (const auto& request : requests) request->layout = nullptr;
}

/// For the proxy: their numbers follow the order of the calls, as connect_send() counts them.
void Partitions::expose_receives(const Match& match, const Requests& requests) const {
  if (!has_proxy()) return;
  std::int32_t number = match.first_number;
  for (const auto& request : requests) {
    const PartitionedCall& call = request->call;
    if (call.sends != 0) continue;
    world_.wire->expose(number++, request->buffer + call.low, call.high - call.low);
  }
}

void Partitions::connect_words(const Match& match, const PartitionedMatch& mine, Request::State& request) const {
  const PartitionedCall& call = request.call;
  KernelRequest& kernel = request.kernel;
  std::uint64_t* const words = words_at(match, world_.gpu, mine);
  kernel.round = words + round_word;
  kernel.sends = call.sends;
  kernel.partitions = call.partitions;
  kernel.partner = call.partner;
  kernel.bytes = call.bytes;
  if (call.sends == 0) {
    kernel.arrived = words + first_word;
    return;
  }
  kernel.granted = mine.call < 0 ? kernel.round : words + granted_word;
  kernel.completed = reinterpret_cast<Ticket*>(words + completed_word);
  kernel.claimed = reinterpret_cast<Ticket*>(words + first_word);
}

void Partitions::connect_send(Match& match, const Known& known, const CallMatcher& matcher,
                              const PartitionedMatch& mine, Request::State& request) const {
  const PartitionedCall& call = request.call;
  const auto process = static_cast<std::size_t>(call.partner), number = static_cast<std::size_t>(mine.call);
  const std::vector<PartitionedCall>& theirs = known.calls[process];
  const PartitionedCall& receive = theirs[number];
  const PartitionedMatch& there = matcher.of(call.partner, mine.call);
  KernelRequest& kernel = request.kernel;
  if (std::uint64_t* const words = words_at(match, call.partner, there); words != nullptr)
    kernel.arrived = words + first_word;
  else
    kernel.arrived = nullptr;
  kernel.arrived_memory = match.words.id;
  kernel.arrived_offset = (there.words + first_word) * static_cast<std::int64_t>(word_bytes);
  if (call.bytes == 0) return;
  const datatype::LayoutRef& to_layout = known.layouts[process][number];
  if (to_layout == nullptr) throw Error(who("match") + "a layout that another build has made");
  const PartitionSteps steps = steps_of(call, request.layout->extent(), receive, to_layout->extent());
  std::int64_t from_offset = 0, to_offset = 0;
  kernel.from_layout = put_on_device(*request.layout, steps.from_count, match.layouts, from_offset);
  kernel.to_layout = put_on_device(*to_layout, steps.to_count, match.layouts, to_offset);
  kernel.from = request.buffer + from_offset;
  kernel.from_step = steps.from_step;
  kernel.to_step = steps.to_step;
  kernel.begin_step = steps.begin_step;
  kernel.to_offset = to_offset - receive.low;
  kernel.to_memory = match.first_number + static_cast<std::int32_t>(std::count_if(
                                              theirs.begin(), theirs.begin() + mine.call,
                                              [](const PartitionedCall& before) { return before.sends == 0; }));
  if (kernel.arrived == nullptr) return;  // the data take the way of the flags
  char* const buffer = buffer_at(match, receive, call.partner);
  if (buffer == nullptr)
    throw Error(who("match") + "this GPU does not reach the buffer of a precv_init of process " +
                std::to_string(call.partner) + ": " + reach_remedy());
  kernel.to = buffer + to_offset;
}

void Partitions::connect_receive(const Match& match, const Known& known, const CallMatcher& matcher,
                                 const PartitionedMatch& mine, Request::State& request) const {
  const auto partner = static_cast<std::size_t>(request.call.partner);
  const PartitionedCall& send = known.calls[partner][static_cast<std::size_t>(mine.call)];
  const PartitionedMatch& there = matcher.of(request.call.partner, mine.call);
  request.kernel.flags = send.partitions;
  request.kernel.sent_bytes = send.bytes;
  std::uint64_t* const words = words_at(match, request.call.partner, there);
  request.granted = words == nullptr ? nullptr : words + granted_word;
  request.granted_memory = match.words.id;
  request.granted_offset = (there.words + granted_word) * static_cast<std::int64_t>(word_bytes);
}

std::uint64_t* Partitions::words_at(const Match& match, int process, const PartitionedMatch& at) const {
  char* const there = match.memory.there[static_cast<std::size_t>(process)];
  if (process == world_.gpu) return reinterpret_cast<std::uint64_t*>(match.memory.base) + at.words;
  if (there == nullptr || !world_.is_near(static_cast<std::size_t>(process))) {
    if (has_proxy()) return nullptr;
    throw Error(who("match") + "this GPU does not reach that of process " + std::to_string(process) +
                ", and there is no proxy");
  }
  return reinterpret_cast<std::uint64_t*>(there) + at.words;
}

char* Partitions::buffer_at(const Match& match, const PartitionedCall& receive, int process) const {
  const std::int64_t begin = receive.address + receive.low, end = receive.address + receive.high;
  for (const WindowRegion& region : match.regions[static_cast<std::size_t>(process)])
    if (region.begin <= begin && end <= region.end) return reinterpret_cast<char*>(receive.address + region.distance);
  return nullptr;
}

// --- rounds ---------------------------------------------------------------------------------------------------------

void Partitions::copy(void* to, const void* from, std::size_t bytes) const {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "Request: cudaMemcpyAsync");
}
void Partitions::synchronise() const {
  check(cudaStreamSynchronize(stream_), "Request: a copy, or the kernel");
}

/// To where this process's kernels read it, and from a receive to the sender's `granted`.
void Partitions::write_round(Request::State& request) const {
  *request.pinned = request.round;
  copy(request.kernel.round, request.pinned, word_bytes);
  if (request.call.sends != 0 || request.call.partner < 0) return;
  if (request.granted != nullptr)
    copy(request.granted, request.pinned, word_bytes);
  else
    world_.wire->store_word(request.call.partner, request.granted_memory, request.granted_offset, request.round);
}

void Partitions::start(std::span<Request::State* const> requests) {
  for (const Request::State* request : requests) {
    if (request->kernel.round == nullptr) throw Error("Request::start: " + world_.who() + "World::match comes first");
    if (request->active) throw Error("Request::start: " + world_.who() + "the request is active: wait() comes first");
  }
  for (Request::State* request : requests) {
    request->active = true;
    ++request->round;
    write_round(*request);
  }
  synchronise();
}

bool Partitions::is_complete(Request::State& request) {
  const KernelRequest& kernel = request.kernel;
  std::uint64_t* const read = request.pinned + 1;
  if (kernel.sends != 0) {
    copy(read, kernel.completed, sizeof(Ticket));
    synchronise();
    return static_cast<Ticket>(*read) == static_cast<Ticket>(request.round * static_cast<unsigned>(kernel.partitions));
  }
  const auto flags = static_cast<std::size_t>(kernel.flags);
  if (flags > 0) copy(read, kernel.arrived, flags * word_bytes);
  synchronise();
  return std::all_of(read, read + flags, [&](std::uint64_t flag) { return flag == request.round; });
}

void Partitions::wait(Request::State& request) {
  const auto start = std::chrono::steady_clock::now();
  const std::chrono::nanoseconds longest(world_.kernel.timeout_ns);
  while (request.active) {
    request.active = !is_complete(request);
    if (request.active && longest.count() > 0 && std::chrono::steady_clock::now() - start > longest)
      throw Error("Request::wait: " + world_.who() + "timed out: not all partitions " +
                  (request.call.sends != 0 ? "have been marked ready, to process " : "have arrived from process ") +
                  std::to_string(request.call.partner) + ", with tag " + std::to_string(request.call.tag));
  }
}

const KernelRequest& Request::kernel() const {
  if (state_->kernel.round == nullptr) throw Error("Request::kernel: World::match comes first");
  return state_->kernel;
}
void Request::start() {
  State* const mine = state_.get();
  state_->all->start({&mine, 1});
}
void Request::wait() {
  state_->all->wait(*state_);
}
bool Request::test() {
  if (state_->active) state_->active = !state_->all->is_complete(*state_);
  return !state_->active;
}
void Request::start_all(std::span<Request> requests) {
  std::vector<State*> states;
  for (const Request& request : requests) states.push_back(request.state_.get());
  if (!states.empty()) states.front()->all->start(states);
}
void Request::wait_all(std::span<Request> requests) {
  for (Request& request : requests) request.wait();
}

}  // namespace gpudt::initiated

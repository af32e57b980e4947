#include "initiated/proxy.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <span>
#include <stdexcept>
#include <utility>

#include "initiated/mpi_error.hpp"

namespace gpudt::initiated {
namespace {

constexpr int message_tag = 1;

std::uint64_t load(const std::uint64_t& word) {
  return std::atomic_ref(const_cast<std::uint64_t&>(word)).load(std::memory_order_acquire);
}
void publish(std::uint64_t& word, std::uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

/// Of the payload that goes with a command; negative if it cannot be.
std::int64_t payload_bytes(const ProxyCommand& command) {
  const std::int64_t list = std::int64_t{command.runs} * static_cast<std::int64_t>(sizeof(ProxyRun));
  if (command.bytes < 0 || command.bytes > proxy_payload || list > proxy_payload) return -1;
  switch (command.call) {
    case ProxyCall::put:
      return command.runs == 0 ? command.bytes : proxy_list_at(command.bytes) + list;
    case ProxyCall::get:
      return list;
    case ProxyCall::answer:
      return command.bytes;
    case ProxyCall::word:
    case ProxyCall::acknowledge:
      return 0;
    case ProxyCall::none:
      break;
  }
  return -1;
}

/// The pieces of the target, in the order of the packed data: threads have listed them in any order.
std::vector<ProxyRun> runs_of(const ProxyCommand& command, const char* payload) {
  if (command.runs == 0) return {{command.offset, 0, static_cast<std::uint32_t>(command.bytes)}};
  std::vector<ProxyRun> runs(command.runs);
  const char* const list = payload + (command.call == ProxyCall::put ? proxy_list_at(command.bytes) : 0);
  std::memcpy(runs.data(), list, runs.size() * sizeof(ProxyRun));
  std::sort(runs.begin(), runs.end(), [](const ProxyRun& a, const ProxyRun& b) { return a.packed < b.packed; });
  return runs;
}

/// How many of the first runs are rows of one length and stride, and that stride.
std::pair<std::size_t, std::size_t> rows_of(std::span<const ProxyRun> runs) {
  constexpr std::int64_t widest = (std::int64_t{1} << 31) - 1;  // of cudaMemcpy2DAsync
  const ProxyRun first = runs.front();
  if (runs.size() == 1) return {1, first.bytes};
  const std::int64_t stride = runs[1].offset - first.offset;
  if (stride < std::int64_t{first.bytes} || stride > widest) return {1, first.bytes};
  std::size_t rows = 1;
  for (; rows < runs.size(); ++rows) {
    const ProxyRun &before = runs[rows - 1], &run = runs[rows];
    if (run.bytes != first.bytes || run.packed != before.packed + first.bytes || run.offset - before.offset != stride)
      break;
  }
  return {rows, rows == 1 ? first.bytes : static_cast<std::size_t>(stride)};
}

using CopyRows = std::function<void(const ProxyRun& first, std::size_t rows, std::size_t stride)>;

/// Calls `copy` for each group of rows. Throws if a run lies outside the packed data.
void for_rows(const ProxyCommand& command, const std::vector<ProxyRun>& runs, const CopyRows& copy) {
  for (const ProxyRun& run : runs)
    if (std::int64_t{run.packed} + run.bytes > command.bytes) throw std::runtime_error("a run beyond the data");
  for (std::size_t at = 0; at < runs.size();) {
    const auto [rows, stride] = rows_of(std::span(runs).subspan(at));
    if (runs[at].bytes > 0) copy(runs[at], rows, stride);
    at += rows;
  }
}

}  // namespace

Proxy::Proxy(MPI_Comm comm, const Memory& memory, ProxyCopies& copies, std::uint64_t timeout_ns)
    : comm_(comm), memory_(memory), copies_(copies), timeout_ns_(timeout_ns) {
  int processes = 0;
  check(PMPI_Comm_rank(comm_, &process_), "MPI_Comm_rank");
  check(PMPI_Comm_size(comm_, &processes), "MPI_Comm_size");
  peers_.resize(static_cast<std::size_t>(processes));
  for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].data = memory_.messages + i * message_bytes;
  thread_ = std::thread([this] { work(); });
}

Proxy::~Proxy() {
  stop();
}

void Proxy::expose(int memory, char* base, std::int64_t bytes) {
  Exposed& exposed = exposed_.at(static_cast<std::size_t>(memory));
  exposed.bytes = bytes;
  exposed.base = base;
}
void Proxy::hide(int memory) {
  exposed_.at(static_cast<std::size_t>(memory)).base = nullptr;
}

void Proxy::send_word(int target, int memory, std::int64_t offset, std::uint64_t word) {
  throw_failure();
  HostWord mine;
  mine.command.call = ProxyCall::word;
  mine.command.target = target;
  mine.command.memory = memory;
  mine.command.offset = offset;
  mine.command.word = word;
  const LockGuard lock(words_mutex_);
  words_.push_back(mine);
  ++words_left_;
}

void Proxy::drain() const {
  std::uint64_t count = load(*memory_.completed);
  while (load(memory_.slots[count % proxy_slots].ready) == count + 1) ++count;
  auto since = std::chrono::steady_clock::now();
  std::uint64_t last = 0, now = 0;
  for (; (now = load(*memory_.completed)) < count || words_left_ > 0; std::this_thread::yield()) {
    throw_failure();
    if (std::exchange(last, now) != now) since = std::chrono::steady_clock::now();
    if (timeout_ns_ != 0 && std::chrono::steady_clock::now() - since > std::chrono::nanoseconds(timeout_ns_))
      throw std::runtime_error("World: process " + std::to_string(process_) + ": timed out: " +
                               std::to_string(count - std::min(count, now)) + " commands of kernels, and " +
                               std::to_string(words_left_) + " words, that other processes do not do");
  }
  throw_failure();
}

void Proxy::stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

std::string Proxy::failure() const {
  return failed_ ? failure_ : "";
}

void Proxy::throw_failure() const {
  if (failed_)
    throw std::runtime_error("World: process " + std::to_string(process_) + ": its proxy has given up: " + failure_);
}

// --- the thread -----------------------------------------------------------------------------------------------------

void Proxy::work() {
  try {
    copies_.begin();
    for (std::size_t i = 0; i < buffers_.size(); ++i)
      if (i < receives)
        post(buffers_[i]);
      else
        free_.push_back(&buffers_[i]);
    for (int looks = 0; !stop_; rest(looks)) looks = advance() ? 0 : looks + 1;
  } catch (const std::exception& error) {
    give_up(error.what());
  }
  try {
    end_requests();
  } catch (const std::exception& error) {
    if (!failed_) give_up(error.what());
  }
}

/// Kernels that wait for what does not come end by their time-out, and so does the program.
void Proxy::give_up(const std::string& why) {
  failure_ = why;
  failed_ = true;
  std::fprintf(stderr, "gpudt-initiated: process %d: the proxy, by which kernels reach other nodes, has given up: %s\n",
               process_, why.c_str());
  std::fflush(stderr);
  if (timeout_ns_ == 0) PMPI_Abort(comm_, 1);
}

void Proxy::rest(int looks) {
  if (looks == 0) return;
  constexpr int many = 1000;
  if (!awake_ || looks % many == 0) awake_ = copies_.busy();
  if (looks < many || awake_)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(std::chrono::microseconds(50));
}

bool Proxy::advance() {
  bool any = take_commands();
  any = send_words() || any;
  any = receive() || any;
  any = read() || any;
  any = finish_copies() || any;
  any = acknowledge() || any;
  any = finish_answers() || any;
  return complete_tickets() || any;
}

/// The receives that nothing has come for. What was sent has been received, or nobody is there to receive it.
void Proxy::end_requests() {
  for (Buffer* buffer : posted_) {
    check(PMPI_Cancel(&buffer->request), "MPI_Cancel");
    check(PMPI_Wait(&buffer->request, MPI_STATUS_IGNORE), "MPI_Wait");
  }
  const auto start = std::chrono::steady_clock::now();
  const auto end = [&](MPI_Request& request) {
    while (!test(request))
      if (std::chrono::steady_clock::now() - start > std::chrono::seconds(1)) return;
  };
  for (Buffer* buffer : answering_) end(buffer->request);
  for (Peer& peer : peers_) end(peer.request);
}

void Proxy::check(int code, const char* call) const {
  if (code != MPI_SUCCESS) throw std::runtime_error(std::string(call) + ": " + mpi_error_text(code));
}

bool Proxy::test(MPI_Request& request, MPI_Status* status) const {
  if (request == MPI_REQUEST_NULL) return true;
  int done = 0;
  check(PMPI_Test(&request, &done, status), "MPI_Test");
  return done != 0;
}

char* Proxy::place(int memory, std::int64_t offset, std::int64_t bytes) const {
  if (memory < 0 || memory >= proxy_memories)
    throw std::runtime_error("a command for window " + std::to_string(memory));
  const Exposed& exposed = exposed_[static_cast<std::size_t>(memory)];
  char* const base = exposed.base;
  if (base == nullptr)
    throw std::runtime_error("a command for window " + std::to_string(memory) + ", which there is not");
  if (offset < 0 || bytes < 0 || offset > exposed.bytes || bytes > exposed.bytes - offset)
    throw std::runtime_error(std::to_string(bytes) + " bytes at " + std::to_string(offset) + " of window " +
                             std::to_string(memory) + ", which has " + std::to_string(exposed.bytes));
  return base + offset;
}

// --- commands of this process ---------------------------------------------------------------------------------------

bool Proxy::take_commands() {
  const std::uint64_t before = next_;
  while (next_ - completed_ < proxy_slots && load(memory_.slots[next_ % proxy_slots].ready) == next_ + 1) send(next_++);
  return next_ != before;
}

void Proxy::send(std::uint64_t ticket) {
  ProxySlot& slot = memory_.slots[ticket % proxy_slots];
  const ProxyCommand& command = slot.command;
  const std::int64_t payload = payload_bytes(command);
  if (payload < 0 || payload > proxy_payload || command.target < 0 ||
      static_cast<std::size_t>(command.target) >= peers_.size())
    throw std::runtime_error("a command of this process's kernels that there is not");
  Sent& sent = sent_[ticket % proxy_slots];
  sent = {MPI_REQUEST_NULL, command.call == ProxyCall::get, false};
  if (!sent.is_get) peers_[static_cast<std::size_t>(command.target)].waiting.push_back(ticket);
  // The command lies before its payload in the slot.
  const auto bytes = static_cast<int>(static_cast<std::int64_t>(sizeof command) + payload);
  check(PMPI_Isend(&slot.command, bytes, MPI_BYTE, command.target, message_tag, comm_, &sent.request), "MPI_Isend");
}

/// Sends those that are new, and removes from the front what is complete.
bool Proxy::send_words() {
  if (words_left_ == 0) return false;
  bool any = false;
  const LockGuard lock(words_mutex_);
  for (HostWord& word : words_) {
    if (std::exchange(word.sent, true)) continue;
    peers_[static_cast<std::size_t>(word.command.target)].waiting.push_back(host_word);
    check(PMPI_Isend(&word.command, sizeof word.command, MPI_BYTE, word.command.target, message_tag, comm_,
                     &word.request),
          "MPI_Isend");
    any = true;
  }
  for (; !words_.empty() && words_.front().done && test(words_.front().request); any = true) {
    words_.pop_front();
    --words_left_;
  }
  return any;
}

/// Acknowledgements come in the order of the words to one process.
void Proxy::complete_word(int target) {
  const LockGuard lock(words_mutex_);
  for (HostWord& word : words_)
    if (word.command.target == target && !std::exchange(word.done, true)) return;
}

bool Proxy::complete_tickets() {
  const std::uint64_t before = completed_;
  while (completed_ < next_ && complete_front()) ++completed_;
  if (completed_ == before) return false;
  publish(*memory_.completed, completed_);
  return true;
}

bool Proxy::complete_front() {
  Sent& sent = sent_[completed_ % proxy_slots];
  if (!sent.done) return false;
  if (sent.is_get && load(memory_.slots[completed_ % proxy_slots].released) != completed_ + 1) return false;
  return test(sent.request);
}

// --- messages -------------------------------------------------------------------------------------------------------

void Proxy::post(Buffer& buffer) {
  check(PMPI_Irecv(buffer.data, static_cast<int>(message_bytes), MPI_BYTE, MPI_ANY_SOURCE, message_tag, comm_,
                   &buffer.request),
        "MPI_Irecv");
  posted_.push_back(&buffer);
}

/// In the order of the receives, which is that of the messages that they match.
bool Proxy::receive() {
  bool any = false;
  MPI_Status status;
  while (!posted_.empty() && test(posted_.front()->request, &status)) {
    Buffer& buffer = *posted_.front();
    posted_.pop_front();
    buffer.source = status.MPI_SOURCE;
    handle(buffer);
    any = true;
  }
  return any;
}

void Proxy::handle(Buffer& buffer) {
  if (payload_bytes(buffer.command()) < 0)
    throw std::runtime_error("a message of process " + std::to_string(buffer.source) + " that is no command");
  switch (buffer.command().call) {
    case ProxyCall::put:
    case ProxyCall::word:
      return store(buffer);
    case ProxyCall::get:
      pending_gets_.push_back({buffer.source, buffer.command(), runs_of(buffer.command(), buffer.payload())});
      return post(buffer);
    case ProxyCall::answer:
      accept_answer(buffer);
      return post(buffer);
    case ProxyCall::acknowledge:
      accept_acknowledgement(buffer);
      return post(buffer);
    case ProxyCall::none:
      break;
  }
}

void Proxy::store(Buffer& buffer) {
  const ProxyCommand& command = buffer.command();
  if (command.call == ProxyCall::word) {
    copies_.store(place(command.memory, command.offset, sizeof command.word), &command.word);
  } else {
    for_rows(command, runs_of(command, buffer.payload()),
             [&](const ProxyRun& first, std::size_t rows, std::size_t stride) {
               const std::size_t reach = (rows - 1) * stride + first.bytes;
               copies_.to_window(place(command.memory, first.offset, static_cast<std::int64_t>(reach)),
                                 buffer.payload() + first.packed, first.bytes, rows, stride);
             });
    if (command.signal >= 0) copies_.store(place(queue_memory, command.signal, sizeof command.word), &command.word);
  }
  buffer.mark = copies_.mark();
  copying_.push_back(&buffer);
}

/// Into the answers, as many as there are buffers.
bool Proxy::read() {
  bool any = false;
  for (; !pending_gets_.empty() && !free_.empty(); any = true) {
    const PendingGet asked = std::move(pending_gets_.front());
    pending_gets_.pop_front();
    Buffer& buffer = *free_.front();
    free_.pop_front();
    buffer.source = asked.source;
    buffer.command() = asked.command;
    for_rows(asked.command, asked.runs, [&](const ProxyRun& first, std::size_t rows, std::size_t stride) {
      const std::size_t reach = (rows - 1) * stride + first.bytes;
      copies_.from_window(buffer.payload() + first.packed,
                          place(asked.command.memory, first.offset, static_cast<std::int64_t>(reach)), first.bytes,
                          rows, stride);
    });
    buffer.mark = copies_.mark();
    copying_.push_back(&buffer);
  }
  return any;
}

bool Proxy::finish_copies() {
  bool any = false;
  while (!copying_.empty() && copies_.reached(copying_.front()->mark)) {
    Buffer& buffer = *copying_.front();
    copying_.pop_front();
    any = true;
    if (buffer.command().call != ProxyCall::get) {
      ++peers_[static_cast<std::size_t>(buffer.source)].to_acknowledge;
      post(buffer);
      continue;
    }
    buffer.command().call = ProxyCall::answer;
    const auto bytes = static_cast<int>(static_cast<std::int64_t>(sizeof(ProxyCommand)) + buffer.command().bytes);
    check(PMPI_Isend(buffer.data, bytes, MPI_BYTE, buffer.source, message_tag, comm_, &buffer.request), "MPI_Isend");
    answering_.push_back(&buffer);
  }
  return any;
}

bool Proxy::finish_answers() {
  bool any = false;
  for (auto i = answering_.size(); i > 0; --i) {
    Buffer& buffer = *answering_.front();
    answering_.pop_front();
    if (test(buffer.request)) {
      free_.push_back(&buffer);
      any = true;
    } else {
      answering_.push_back(&buffer);
    }
  }
  return any;
}

void Proxy::accept_answer(const Buffer& buffer) {
  const ProxyCommand& command = buffer.command();
  const std::uint64_t ticket = command.ticket;
  Sent& sent = sent_[ticket % proxy_slots];
  if (ticket < completed_ || ticket >= next_ || !sent.is_get || sent.done)
    throw std::runtime_error("an answer that nobody has asked for");
  ProxySlot& slot = memory_.slots[ticket % proxy_slots];
  while (!test(sent.request)) continue;  // it has been received, but the buffer is MPI's until its request says so
  std::memcpy(slot.payload, buffer.payload(), static_cast<std::size_t>(command.bytes));
  sent.done = true;
  publish(slot.answered, ticket + 1);
}

/// One message at a time to each process, for all that has been done meanwhile.
bool Proxy::acknowledge() {
  bool any = false;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    if (peer.to_acknowledge == 0 || !test(peer.request)) continue;
    peer.acknowledgement.call = ProxyCall::acknowledge;
    peer.acknowledgement.word = std::exchange(peer.to_acknowledge, 0);
    check(PMPI_Isend(&peer.acknowledgement, sizeof peer.acknowledgement, MPI_BYTE, static_cast<int>(i), message_tag,
                     comm_, &peer.request),
          "MPI_Isend");
    any = true;
  }
  return any;
}

void Proxy::accept_acknowledgement(const Buffer& buffer) {
  Peer& peer = peers_[static_cast<std::size_t>(buffer.source)];
  for (std::uint64_t left = buffer.command().word; left > 0; --left) {
    if (peer.waiting.empty()) throw std::runtime_error("an acknowledgement of what has not been sent");
    const std::uint64_t ticket = peer.waiting.front();
    peer.waiting.pop_front();
    if (ticket == host_word)
      complete_word(buffer.source);
    else
      sent_[ticket % proxy_slots].done = true;
  }
}

}  // namespace gpudt::initiated

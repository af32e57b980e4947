// Sends, receives and applies the messages of served windows.
#include "interpose/rma/channel.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "interpose/support/errors.hpp"
#include "interpose/support/log.hpp"

namespace gpudt::interpose {
namespace {

constexpr int message_tag = 0;     ///< of messages; their large data have tags of their own
constexpr int data_tags = 32767;   ///< number of tags for data: MPI promises at least that many
constexpr int receive_burst = 16;  ///< messages that one pass receives
constexpr std::size_t cached_layouts = 256;

}  // namespace

datatype::LayoutRef LayoutCache::find(std::span<const std::byte> bytes) {
  const std::string_view key(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto entry = layouts_.find(key);
  if (entry != layouts_.end()) return entry->second;
  datatype::LayoutRef layout = datatype::Layout::from_bytes(bytes);
  if (layouts_.size() == cached_layouts) layouts_.clear();
  return layouts_.emplace(key, std::move(layout)).first->second;
}

// --- requests --------------------------------------------------------------------------------------------------------

void WindowChannel::follow(int code, MPI_Request request, Then then) {
  if (code != MPI_SUCCESS) return then(code);
  requests_.add(request, std::move(then));
}

int WindowChannel::test_requests() {
  return requests_.test(Tests::some, [](const RequestSet<Then>::Ended& ended) {
    MPI_Request failed = ended.error == MPI_SUCCESS ? MPI_REQUEST_NULL : ended.request;
    if (failed != MPI_REQUEST_NULL) PMPI_Request_free(&failed);
    ended.owner(ended.error);
  });
}

// --- the channel -----------------------------------------------------------------------------------------------------

namespace {

MPI_Comm private_copy(MPI_Comm comm) {
  MPI_Comm copy = bare_copy(comm);
  PMPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN);
  return copy;
}

std::size_t size_of(MPI_Comm comm) {
  int size = 0;
  PMPI_Comm_size(comm, &size);
  return static_cast<std::size_t>(size);
}

}  // namespace

/// A message to this process, from its arrival until it has been applied.
struct WindowChannel::Incoming {
  int source;
  std::vector<std::byte> body;
  MessageHeader header{};
  bool arrived = false;
  bool data_pending = false;
  std::optional<TargetAccess> access{};

  std::span<const std::byte> layout() const {
    return std::span(body).subspan(sizeof header, static_cast<std::size_t>(header.layout_bytes));
  }
  const std::byte* data() const { return body.data() + sizeof header + header.layout_bytes; }
};

WindowChannel::WindowChannel(MPI_Comm comm, WindowMemory& memory)
    : comm_(private_copy(comm)), memory_(memory), peers_(size_of(comm_)), locks_([this](int rank, std::uint64_t id) {
        MessageHeader header;
        header.kind = MessageKind::granted;
        header.id = id;
        send_answer(rank, header, {});
      }) {}

WindowChannel::~WindowChannel() {
  PMPI_Comm_free(&comm_);
}

void WindowChannel::submit(const OriginOperationRef& operation) {
  live_.fetch_add(1);
  Peer& target = peer(operation->rank);
  const LockGuard lock(mailbox_mutex_);
  operation->before_ = target.submitted.load();
  if (is_access(operation->header.kind)) {
    target.outstanding.fetch_add(1);
    target.submitted.fetch_add(1);
  }
  mailbox_.push_back(operation);
  mail_.store(true, std::memory_order_release);
}

int WindowChannel::progress() {
  if (mail_.load(std::memory_order_acquire)) take_mailbox();
  int events = send_ready();
  events += receive();
  events += test_requests();
  events += finish_unpacked();
  return events + apply();
}

// --- out -------------------------------------------------------------------------------------------------------------

void WindowChannel::take_mailbox() {
  std::vector<OriginOperationRef> taken;
  {
    const LockGuard lock(mailbox_mutex_);
    taken.swap(mailbox_);
    mail_.store(false);
  }
  for (OriginOperationRef& operation : taken) {
    operation->header.id = ++next_id_;
    const int rank = operation->rank;
    if (peer(rank).outgoing.empty()) sending_.push_back(rank);
    peer(rank).outgoing.push_back(std::move(operation));
  }
}

int WindowChannel::send_ready() {
  int events = 0;
  std::erase_if(sending_, [&](int rank) {
    auto& outgoing = peer(rank).outgoing;
    while (!outgoing.empty() && ready(outgoing.front())) {
      send(outgoing.front());
      outgoing.pop_front();
      ++events;
    }
    return outgoing.empty();
  });
  return events;
}

bool WindowChannel::ready(const OriginOperationRef& operation) {
  if (!operation->source) return true;
  try {
    return operation->source->done();
  } catch (const device::Error& failure) {
    log_error(std::string("packing the data of a one-sided access: ") + failure.what());
    operation->error = error_class(failure);
    return true;
  }
}

int WindowChannel::next_tag() {
  next_tag_ = next_tag_ % data_tags + 1;
  return next_tag_;
}

void WindowChannel::send(const OriginOperationRef& operation) {
  MessageHeader& header = operation->header;
  std::optional<UserBuffer>& source = operation->source;
  operation->answered_ = operation->error != MPI_SUCCESS || !expects_answer(header.kind);
  if (operation->error != MPI_SUCCESS) return finish(operation);  // there is nothing to send
  if (!operation->answered_) expected_.emplace(header.id, operation);
  if (source && header.bytes <= inline_max) {
    operation->packed.resize(static_cast<std::size_t>(header.bytes));
    source->copy_to(operation->packed.data());
    source.reset();
  }
  operation->unsent_ = source ? 2 : 1;
  if (source) header.data_tag = next_tag();
  const auto then = [this, operation](int error) { sent(operation, error); };
  send_message(operation->rank, header,
               operation->target_type ? operation->target_type->layout().to_bytes() : std::vector<std::byte>(),
               source ? nullptr : operation->packed.data(), then);
  if (!source) return;
  MPI_Request request = MPI_REQUEST_NULL;
  const int code =
      PMPI_Isend(source->address(), source->count(), source->type(), operation->rank, header.data_tag, comm_, &request);
  follow(code, request, then);
}

void WindowChannel::send_message(int rank, MessageHeader header, const std::vector<std::byte>& layout,
                                 const std::byte* data, std::function<void(int)> then) {
  header.layout_bytes = static_cast<std::int64_t>(layout.size());
  const std::size_t inlined = data != nullptr ? static_cast<std::size_t>(header.bytes) : 0;
  auto body = std::make_shared<std::vector<std::byte>>(sizeof header + layout.size() + inlined);
  std::memcpy(body->data(), &header, sizeof header);
  std::copy(layout.begin(), layout.end(), body->begin() + sizeof header);
  if (inlined != 0) std::memcpy(body->data() + sizeof header + layout.size(), data, inlined);
  MPI_Request request = MPI_REQUEST_NULL;
  const int code =
      PMPI_Isend(body->data(), static_cast<int>(body->size()), MPI_BYTE, rank, message_tag, comm_, &request);
  follow(code, request, [body, then = std::move(then)](int error) { then(error); });
}

void WindowChannel::send_answer(int rank, MessageHeader header, Block data) {
  const bool apart = data.bytes() > inline_max;
  if (apart) header.data_tag = next_tag();
  live_.fetch_add(apart ? 2 : 1);
  const auto then = [this](int) { live_.fetch_sub(1); };
  send_message(rank, header, {}, apart || data.bytes() == 0 ? nullptr : data.data(), then);
  if (!apart) return;
  const auto block = std::make_shared<Block>(std::move(data));
  const auto bytes = std::make_shared<Bytes>(block->bytes());
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = PMPI_Isend(block->data(), bytes->count(), bytes->type(), rank, header.data_tag, comm_, &request);
  follow(code, request, [block, bytes, then](int error) { then(error); });
}

void WindowChannel::sent(const OriginOperationRef& operation, int error) {
  if (operation->error == MPI_SUCCESS) operation->error = error;
  if (--operation->unsent_ != 0) return;
  operation->source.reset();
  operation->packed.clear();
  finish(operation);
}

void WindowChannel::finish(const OriginOperationRef& operation) {
  if (operation->unsent_ != 0 || !operation->answered_) return;
  operation->destination.reset();
  expected_.erase(operation->header.id);
  Peer& target = peer(operation->rank);
  int none = MPI_SUCCESS;
  if (operation->error != MPI_SUCCESS && !operation->with_request)
    target.error.compare_exchange_strong(none, operation->error);
  const bool access = is_access(operation->header.kind);
  if (is_acknowledged(operation->header.kind))
    target.applied.store(std::max(target.applied.load(), operation->before_));
  operation->complete.store(true, std::memory_order_release);
  if (access) target.outstanding.fetch_sub(1, std::memory_order_release);
  live_.fetch_sub(1);
}

// --- in --------------------------------------------------------------------------------------------------------------

int WindowChannel::receive() {
  int taken = 0;
  for (; taken < receive_burst; ++taken) {
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    if (PMPI_Improbe(MPI_ANY_SOURCE, message_tag, comm_, &found, &message, &status) != MPI_SUCCESS || found == 0) break;
    int bytes = 0;
    PMPI_Get_count(&status, MPI_BYTE, &bytes);
    const auto incoming = std::make_shared<Incoming>();
    incoming->source = status.MPI_SOURCE;
    incoming->body.resize(static_cast<std::size_t>(bytes));
    auto& queue = peer(incoming->source).incoming;
    if (queue.empty()) applying_.push_back(incoming->source);
    queue.push_back(incoming);
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = PMPI_Imrecv(incoming->body.data(), bytes, MPI_BYTE, &message, &request);
    follow(code, request, [this, incoming](int) { arrived(incoming); });
  }
  return taken;
}

void WindowChannel::arrived(const std::shared_ptr<Incoming>& message) {
  message->arrived = true;
  std::memcpy(&message->header, message->body.data(), sizeof message->header);
  if (is_access(message->header.kind))
    access_arrived(message);
  else if (is_answer(message->header.kind))
    answer_arrived(*message);
}

/// Finds the memory that the access is to.
void WindowChannel::find_place(const Incoming& message, TargetAccess& access) try {
  const MessageHeader& header = message.header;
  const datatype::LayoutRef layout = layouts_.find(message.layout());
  const auto address = layout ? memory_.address(header.displacement, *layout, header.count) : std::nullopt;
  if (!address) return access.fail(MPI_ERR_RMA_RANGE);
  TargetPlace place(layout, header.count, *address);
  if (place.ordinal() < 0 && memory_.was_on_gpu(place.first())) {
    log_error("an access to this process's window: its GPU memory has been freed");
    return access.fail(MPI_ERR_RMA_RANGE);
  }
  place.order_after(memory_.after(place.ordinal()));
  access.set_place(std::move(place));
} catch (const std::bad_alloc&) {
  access.fail(MPI_ERR_NO_MEM);
}

void WindowChannel::access_arrived(const std::shared_ptr<Incoming>& message) {
  const MessageHeader& header = message->header;
  const int source = message->source;
  TargetAccess& access = message->access.emplace(
      header, turn_,
      [this, source](const MessageHeader& answer, Block data) { send_answer(source, answer, std::move(data)); });
  find_place(*message, access);
  if (header.bytes == 0) return;
  std::byte* const to = access.incoming();
  if (header.data_tag == 0) {
    std::memcpy(to, message->data(), static_cast<std::size_t>(header.bytes));
    return;
  }
  message->data_pending = true;
  const auto bytes = std::make_shared<Bytes>(header.bytes);
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = PMPI_Irecv(to, bytes->count(), bytes->type(), source, header.data_tag, comm_, &request);
  follow(code, request, [message, bytes](int) { message->data_pending = false; });
}

void WindowChannel::answer_arrived(const Incoming& message) {
  const auto entry = expected_.find(message.header.id);
  if (entry == expected_.end()) return;
  const OriginOperationRef operation = entry->second;
  if (operation->error == MPI_SUCCESS) operation->error = message.header.error;
  if (message.header.kind == MessageKind::result) return result_arrived(operation, message);
  operation->answered_ = true;
  finish(operation);
}

void WindowChannel::result_arrived(const OriginOperationRef& operation, const Incoming& message) {
  const MessageHeader& header = message.header;
  if (header.error != MPI_SUCCESS) {
    operation->answered_ = true;
    return finish(operation);
  }
  const UserBuffer& destination = *operation->destination;
  if (header.data_tag == 0) {
    destination.copy_from(message.data());
    return start_unpack(operation, MPI_SUCCESS);
  }
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = PMPI_Irecv(destination.address(), destination.count(), destination.type(), message.source,
                              header.data_tag, comm_, &request);
  follow(code, request, [this, operation](int error) { start_unpack(operation, error); });
}

void WindowChannel::start_unpack(const OriginOperationRef& operation, int error) {
  if (operation->error == MPI_SUCCESS) operation->error = error;
  try {
    if (operation->error == MPI_SUCCESS) operation->destination->start_unpack();
  } catch (const device::Error& failure) {
    log_error(std::string("unpacking the result of a one-sided access: ") + failure.what());
    operation->error = error_class(failure);
  }
  unpacking_.push_back(operation);
}

int WindowChannel::finish_unpacked() {
  const auto gone = std::erase_if(unpacking_, [&](const OriginOperationRef& operation) {
    try {
      if (operation->error == MPI_SUCCESS && !operation->destination->done()) return false;
    } catch (const device::Error& failure) {
      log_error(std::string("unpacking the result of a one-sided access: ") + failure.what());
      operation->error = error_class(failure);
    }
    operation->answered_ = true;
    finish(operation);
    return true;
  });
  return static_cast<int>(gone);
}

int WindowChannel::apply() {
  int events = 0;
  std::erase_if(applying_, [&](int rank) {
    auto& incoming = peer(rank).incoming;
    while (!incoming.empty() && apply(*incoming.front())) {
      incoming.pop_front();
      ++events;
    }
    return incoming.empty();
  });
  return events;
}

/// True when nothing is left to do for the message.
bool WindowChannel::apply(Incoming& message) {
  if (!message.arrived || message.data_pending) return false;
  Peer& origin = peer(message.source);
  switch (message.header.kind) {
    case MessageKind::lock:
      locks_.request(message.source, message.header.lock_type, message.header.id);
      return true;
    case MessageKind::unlock:
      locks_.release(message.source);
      acknowledge(message);
      return true;
    case MessageKind::flush:
      acknowledge(message);
      return true;
    case MessageKind::post:
      origin.posts.fetch_add(1, std::memory_order_release);
      return true;
    case MessageKind::complete:
      acknowledge(message);
      origin.completes.fetch_add(1, std::memory_order_release);
      return true;
    default:
      break;
  }
  if (is_answer(message.header.kind)) return true;
  if (!message.access->advance()) return false;
  // The origin of a fetch gets the error with the answer.
  if (origin.target_error == MPI_SUCCESS && !fetches(message.header.kind))
    origin.target_error = message.access->error();
  return true;
}

void WindowChannel::acknowledge(const Incoming& message) {
  MessageHeader header;
  header.kind = MessageKind::acknowledged;
  header.id = message.header.id;
  header.error = std::exchange(peer(message.source).target_error, MPI_SUCCESS);
  send_answer(message.source, header, {});
}

}  // namespace gpudt::interpose

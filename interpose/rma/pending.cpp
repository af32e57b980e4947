// Keeps the accesses of each window, and completes them when the program synchronises.
#include "interpose/rma/pending.hpp"

#include <thread>

#include "base/never_destroyed.hpp"
#include "interpose/transport/staged.hpp"

namespace gpudt::interpose {

PendingAccesses& pending_accesses = never_destroyed<PendingAccesses>();

namespace {

class PendingPut : public PendingAccess {
 public:
  PendingPut(const DeviceBuffer& operand, const Target& target)
      : PendingAccess(target.rank), staged_(operand), target_(target), type_(target.type) {
    staged_.start_pack();
  }
  int issue(MPI_Win win) override {
    if (std::exchange(issued_, true)) return MPI_SUCCESS;
    staged_.wait();
    const DeviceBuffer& operand = staged_.operand();
    return PMPI_Put(staged_.data(), static_cast<int>(operand.count), operand.packed_type(), target_.rank,
                    target_.displacement, target_.count, type_.get(), win);
  }

 private:
  Staged staged_;
  Target target_;
  KeptType type_;
  bool issued_ = false;
};

class PendingResult : public PendingAccess {
 public:
  PendingResult(int rank, std::shared_ptr<CallPayload> buffers) : PendingAccess(rank), buffers_(std::move(buffers)) {}
  void start_finish() override { buffers_->start_unpack(0); }
  void finish() override {
    wait_until([this] { return buffers_->done(); });
  }

 private:
  std::shared_ptr<CallPayload> buffers_;
};

class PendingRequest : public PendingAccess {
 public:
  PendingRequest(int rank, const std::shared_ptr<Payload>& buffers) : PendingAccess(rank), buffers_(buffers) {}
  /// The engine releases the buffers when it completes the request.
  void finish() override {
    wait_until([this] { return over(); });
  }
  bool over() const override { return buffers_.expired(); }

 private:
  std::weak_ptr<Payload> buffers_;
};

}  // namespace

void PendingAccesses::add(MPI_Win win, std::shared_ptr<PendingAccess> access) {
  const LockGuard lock(mutex_);
  List& list = pending_[win];
  if (list.size() == list.capacity())  // seldom: removes completed requests, which would accumulate
    count_.fetch_sub(static_cast<int>(std::erase_if(list, [](const auto& old) { return old->over(); })));
  list.push_back(std::move(access));
  count_.fetch_add(1);
}

void PendingAccesses::forget(MPI_Win win) {
  const LockGuard lock(mutex_);
  const auto entry = pending_.find(win);
  if (entry == pending_.end()) return;
  count_.fetch_sub(static_cast<int>(entry->second.size()));
  pending_.erase(entry);
}

void PendingAccesses::clear() {
  const LockGuard lock(mutex_);
  pending_.clear();
  count_.store(0);
}

void PendingAccesses::remove_finished(MPI_Win win) {
  const LockGuard lock(mutex_);
  const auto entry = pending_.find(win);
  if (entry == pending_.end()) return;
  const auto gone = std::erase_if(
      entry->second, [](const std::shared_ptr<PendingAccess>& access) { return access->finished_.load(); });
  count_.fetch_sub(static_cast<int>(gone));
  if (entry->second.empty()) pending_.erase(entry);
}

PendingAccesses::Claim::Claim(PendingAccesses& all, MPI_Win win, int rank) : all_(all), win_(win) {
  const LockGuard lock(all.mutex_);
  const auto entry = all.pending_.find(win);
  if (entry == all.pending_.end()) return;
  mine_.reserve(entry->second.size());  // nothing may throw once accesses are claimed
  theirs_.reserve(entry->second.size());
  for (const auto& access : entry->second)
    if (rank == all_ranks || access->rank() == rank)
      (access->claimed_.exchange(true) ? theirs_ : mine_).push_back(access);
}

PendingAccesses::Claim::~Claim() {
  for (const auto& access : mine_) access->claimed_.store(false);
}

int PendingAccesses::Claim::issue(const char* call) const {
  int result = MPI_SUCCESS;
  for (const auto& access : mine_) {
    const int code = guarded(OfWindow{win_}, call, [&] { return access->issue(win_); });
    if (result == MPI_SUCCESS) result = code;
  }
  return result;
}

/// Completes the claimed accesses. Failed ones are complete too: another attempt would not help.
void PendingAccesses::Claim::finish() const {
  struct Finished {
    const Claim& claim;
    ~Finished() {
      for (const auto& access : claim.mine_) access->finished_.store(true);
      claim.all_.remove_finished(claim.win_);
    }
  };
  {
    const Finished finished{*this};
    for (const auto& access : mine_) access->start_finish();
    for (const auto& access : mine_) access->finish();
  }
  for (const auto& access : theirs_)
    wait_until([&access = *access] { return !access.claimed_.load() || access.finished_.load(); });
}

std::shared_ptr<PendingAccess> pending_put(const DeviceBuffer& operand, const Target& target) {
  return std::make_shared<PendingPut>(operand, target);
}

std::shared_ptr<PendingAccess> pending_result(int rank, std::shared_ptr<CallPayload> buffers) {
  return std::make_shared<PendingResult>(rank, std::move(buffers));
}

std::shared_ptr<PendingAccess> pending_request(int rank, const std::shared_ptr<Payload>& buffers) {
  return std::make_shared<PendingRequest>(rank, buffers);
}

}  // namespace gpudt::interpose

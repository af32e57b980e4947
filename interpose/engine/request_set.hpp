// Pending requests of MPI, each with its owner.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cstddef>
#include <utility>
#include <vector>

#include "interpose/engine/engine.hpp"
#include "interpose/mpi/workarounds.hpp"

namespace gpudt::interpose {

/// Not thread-safe. `Owner` is cheap to move, and has a default.
template <class Owner>
class RequestSet {
 public:
  /// A request that has ended. If it has failed it stays valid, unless MPI has freed it (test_some()).
  struct Ended {
    Owner owner;
    MPI_Request request;
    MPI_Status status;
    int error;
  };

  std::size_t size() const { return requests_.size(); }
  const std::vector<Owner>& owners() const { return owners_; }
  /// MPI_REQUEST_NULL if there is none of this owner.
  MPI_Request request_of(const Owner& owner) const {
    const auto at = std::find(owners_.begin(), owners_.end(), owner);
    return at == owners_.end() ? MPI_REQUEST_NULL : requests_[static_cast<std::size_t>(at - owners_.begin())];
  }
  /// Makes room for `size` requests, up to which add() takes no memory; grows by doubling.
  void reserve(std::size_t size) {
    if (requests_.capacity() >= size && owners_.capacity() >= size) return;
    requests_.reserve(std::max(size, 2 * requests_.capacity()));
    owners_.reserve(std::max(size, 2 * owners_.capacity()));
  }
  void add(MPI_Request request, Owner owner) {
    owners_.push_back(std::move(owner));
    requests_.push_back(request);
  }

  /// Removes requests that have ended, from all or from a window that moves on from call to call, and calls
  /// `take(ended)` for each, which may add others. Returns how many.
  ///
  /// Tests again once some have ended, until nothing more has: MPI may deliver messages one at a time, as UCX does
  /// after idle polls, and their data are better moved together. A test that finds nothing lets MPI deliver more, which
  /// the next one finds.
  template <class Take>
  int test(Tests tests, Take take) {
    constexpr int looks_in_vain = 2;
    int ended = 0;
    // Within MPI's progress tests only windows that may have ended requests: MPI's tests walk through queued sends.
    const bool driven = tests == Tests::some && engine_driven_by_mpi();
    if (tests == Tests::all) next_ = 0;
    for (int left = 1; tests == Tests::all ? next_ < requests_.size() : left > 0;) {
      const int now = driven && ended == 0 && !window_may_have_ended() ? pass_window() : test_window(take);
      ended += now;
      left = now != 0 ? looks_in_vain : left - 1;
    }
    return ended;
  }

 private:
  static constexpr std::size_t window = 64;  ///< requests; bounds the cost of a test when very many are pending

  std::size_t begin_window() {
    if (next_ >= requests_.size()) next_ = 0;
    return std::min(window, requests_.size() - next_);
  }
  bool window_may_have_ended() {
    const std::size_t count = begin_window();
    return std::any_of(requests_.data() + next_, requests_.data() + next_ + count, request_may_be_complete);
  }
  int pass_window() {
    next_ += begin_window();
    return 0;
  }

  /// Tests a window by one MPI_Testsome, which enters MPI's progress once. The window stays if some have ended.
  template <class Take>
  int test_window(Take& take) {
    if (requests_.empty()) return 0;
    const std::size_t count = begin_window();
    int indices[window];
    MPI_Status statuses[window];
    int done = 0;
    const int code = test_some(static_cast<int>(count), requests_.data() + next_, &done, indices, statuses);
    if (done <= 0) {  // MPI_UNDEFINED, if there is none
      next_ += count;
      return 0;
    }
    std::array<Ended, window> ended;
    std::bitset<window> gone;
    for (std::size_t i = 0; i < static_cast<std::size_t>(done); ++i) {
      const auto at = static_cast<std::size_t>(indices[i]);
      gone.set(at);
      const int error = code == MPI_ERR_IN_STATUS ? statuses[i].MPI_ERROR : MPI_SUCCESS;
      // Open MPI's own numbers are negative; it translates them for handlers.
      ended[i] = {std::move(owners_[next_ + at]), requests_[next_ + at], statuses[i],
                  error < 0 ? MPI_ERR_OTHER : error};
    }
    // The last requests fill the gaps, so that a long list is not shifted.
    for (std::size_t at = count; at-- > 0;)
      if (gone.test(at)) remove(next_ + at);
    for (std::size_t i = 0; i < static_cast<std::size_t>(done); ++i) take(ended[i]);
    return done;
  }

  void remove(std::size_t at) {
    requests_[at] = requests_.back();
    if (at + 1 != owners_.size()) owners_[at] = std::move(owners_.back());
    requests_.pop_back();
    owners_.pop_back();
  }

  std::vector<MPI_Request> requests_;
  std::vector<Owner> owners_;
  std::size_t next_ = 0;  ///< where the next window begins
};

}  // namespace gpudt::interpose

// Pending requests of MPI, each with its owner.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "interpose/engine/engine.hpp"
#include "interpose/engine/polled_list.hpp"
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

  std::size_t size() const { return list_.size(); }
  /// Calls act(owner) for each.
  template <class Act>
  void each_owner(const Act& act) {
    for_each([&](MPI_Request, Owner& owner) { act(owner); });
  }
  /// MPI_REQUEST_NULL if there is none of this owner.
  MPI_Request request_of(const Owner& wanted) {
    MPI_Request found = MPI_REQUEST_NULL;
    for_each([&](MPI_Request request, const Owner& owner) {
      if (owner == wanted) found = request;
    });
    return found;
  }
  /// As those of PolledList.
  void tidy() { list_.tidy(); }
  void reserve(std::size_t size) { list_.reserve(size); }
  void add(MPI_Request request, Owner owner) { list_.add(request, std::move(owner)); }

  /// Removes requests that have ended, from all or from windows of the list, and calls `take(ended)` for each, which
  /// may add others. Returns how many.
  ///
  /// Tests again once some have ended, until nothing more has: MPI may deliver messages one at a time, as UCX does
  /// after idle polls, and their data are better moved together. A test that finds nothing lets MPI deliver more, which
  /// the next one finds. But of thousands it leaves the rest to the next call: what the caller does for each of these
  /// uses the memory that it used for the last ones, while that is in the caches.
  template <class Take>
  int test(Tests tests, Take take) {
    list_.tidy();
    if (tests == Tests::all) return test_all(take);
    constexpr int looks_in_vain = 2, most_ended = 128;
    int ended = 0;
    // Within MPI's progress tests only windows that may have ended requests: MPI's tests walk through queued sends.
    const bool driven = engine_driven_by_mpi();
    for (int left = 1; left > 0 && ended < most_ended;) {
      const int now = look(take, driven && ended == 0);
      ended += now;
      left = now != 0 ? looks_in_vain : left - 1;
    }
    return ended;
  }

 private:
  using List = PolledList<MPI_Request, Owner>;
  using Window = typename List::Window;

  template <class Act>
  void for_each(const Act& act) {
    const Window all = list_.all();
    for (std::size_t at = all.begin; at < all.end; ++at) act(list_.keys()[at], list_.template value<1>(at));
  }

  template <class Take>
  int test_all(Take& take) {
    int ended = 0;
    for (std::size_t passed = 0; passed < list_.size();) {
      const Window all = list_.all();
      const Window window{all.begin + passed, std::min(all.begin + passed + List::window, all.end)};
      const int now = test_window(window, take);
      ended += now;
      if (now == 0) passed += window.size();
    }
    return ended;
  }

  /// At the oldest requests and, if none of these has ended, at others.
  template <class Take>
  int look(Take& take, bool only_if_ended) {
    const auto test = [&](const Window& window) {
      return only_if_ended && !may_have_ended(window) ? 0 : test_window(window, take);
    };
    if (const int ended = test(list_.oldest()); ended != 0) return ended;
    const Window beyond = list_.beyond(List::window);
    list_.pass(beyond);
    return test(beyond);
  }

  bool may_have_ended(const Window& window) {
    return std::any_of(list_.keys() + window.begin, list_.keys() + window.end, request_may_be_complete);
  }

  /// Tests a window by one MPI_Testsome, which enters MPI's progress once.
  template <class Take>
  int test_window(const Window& window, Take& take) {
    if (window.size() == 0) return 0;
    int indices[List::window];
    MPI_Status statuses[List::window];
    int done = 0;
    MPI_Request* const requests = list_.keys() + window.begin;
    const int code = test_some(static_cast<int>(window.size()), requests, &done, indices, statuses);
    if (done <= 0) return 0;  // MPI_UNDEFINED, if there is none
    std::array<Ended, List::window> ended;
    typename List::Marks gone;
    for (std::size_t i = 0; i < static_cast<std::size_t>(done); ++i) {
      const auto at = static_cast<std::size_t>(indices[i]);
      gone.set(at);
      const int error = code == MPI_ERR_IN_STATUS ? statuses[i].MPI_ERROR : MPI_SUCCESS;
      // Open MPI's own numbers are negative; it translates them for handlers.
      ended[i] = {std::move(list_.template value<1>(window.begin + at)), requests[at], statuses[i],
                  error < 0 ? MPI_ERR_OTHER : error};
    }
    list_.remove(window, gone);
    for (std::size_t i = 0; i < static_cast<std::size_t>(done); ++i) take(ended[i]);
    return done;
  }

  List list_;
};

}  // namespace gpudt::interpose

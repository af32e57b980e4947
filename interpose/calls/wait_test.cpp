// MPI-4.1 sections 3.7.3 to 3.7.6: Wait, Test and Request_get_status in all their forms.
//
// Generalized requests complete in MPI's own functions. These wrappers only exchange persistent handles, and report
// the errors of operations on device buffers to the right error handler, which MPI cannot know. They check watched
// receives (requests/watched.hpp) before MPI may complete them. If no request is ours they call MPI at once.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "device/device.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/requests/operation.hpp"
#include "interpose/requests/persistent.hpp"
#include "interpose/requests/watched.hpp"
#include "interpose/support/errors.hpp"
#include "interpose/support/export.hpp"
#include "interpose/support/points.hpp"
#include "interpose/support/report.hpp"
#include "interpose/transport/peer/peer.hpp"

namespace gpudt::interpose {
namespace {

/// When a call returns. Only calls that wait are on the timeline: others may be made very often.
enum class Ends { when_all_done, when_some_done, at_once, completing_nothing };

constexpr bool waits(Ends ends) {
  return ends == Ends::when_all_done || ends == Ends::when_some_done;
}

/// The user's requests as MPI is to see them during one call, which an error handler may end by an exception.
class Requests {
 public:
  /// May throw std::bad_alloc and what WatchedReceive does; the other functions throw only exceptions of the program.
  Requests(const char* call, int count, MPI_Request* user, Ends ends) : user_(user) {
    if (count <= 0 || user == nullptr) return;  // MPI reports a null pointer
    const bool stand_ins = watched_count() != 0 && !settle_watched(count, user, ends);
    if (stand_ins || has_operations()) ours_ = std::make_unique<Ours>(call, count, user, ends, stand_ins);
  }

  ~Requests() {
    if (!ours_ || finished_) return;
    write_back();
    take_failed();
  }
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  MPI_Request* data() { return ours_ ? ours_->given.data() : user_; }
  /// Whether MPI gets never_complete() for some: if MPI has completed no other, look_again() is to follow.
  bool some_pending() const { return ours_ && ours_->pending != 0; }
  void look_again() { ours_->look(); }

  /// Advances the engine before the call.
  void drive() const {
    if (!ours_) return;
    if (!waits(ours_->ends)) {
      // Open MPI's Testany, Testall and Testsome make progress after they have tested: this call must find what was
      // complete before it, such as a receive matched by a completed synchronous send to this process.
      if (has_operations()) engine_progress(Tests::all);
      return;
    }
    mark(point::wait_entered);
    engine_progress();  // gives MPI packed sends before this process waits
    device::about_to_wait(device::WaitKind::several);
  }

  /// After a call that completes one request. Returns its error, if any.
  int finish_one(int code) {
    if (!ours_) return code;
    write_back();
    for (const Failed& failed : take_failed()) code = tell(*failed.operation);
    return code;
  }

  /// After a call that completes several: `slot(i)` is the status of request i, or null.
  template <class Slot>
  int finish_many(int code, Slot slot) {
    if (!ours_) return code;
    write_back();
    const std::vector<Failed> failures = take_failed();
    if (failures.empty()) return code;
    const std::vector<MPI_Request>& seen = ours_->seen;
    if (code == MPI_SUCCESS)
      for (std::size_t i = 0; i < seen.size(); ++i)
        if (MPI_Status* status = slot(static_cast<int>(i))) status->MPI_ERROR = MPI_SUCCESS;
    const Failed* first = nullptr;
    const auto note = [&](const Failed& failed) {
      const auto at = std::find(seen.begin(), seen.end(), failed.request);
      if (at == seen.end()) return;
      if (first == nullptr) first = &failed;
      if (MPI_Status* status = slot(static_cast<int>(at - seen.begin()))) status->MPI_ERROR = failed.operation->error;
    };
    std::for_each(failures.begin(), failures.end(), note);
    if (code == MPI_SUCCESS && first != nullptr) {
      tell(*first->operation);  // last: the handler may throw
      note(*first);             // MPI may have another code for the handler
    }
    return MPI_ERR_IN_STATUS;
  }

  /// After a call that frees nothing.
  int finish_none(int code) {
    if (ours_) take_failed();
    return code;
  }

 private:
  static bool has_operations() { return engine_held() != 0 || persistent_count() != 0; }

  /// Checks watched receives, which are ordinary requests once they have ended. True if all have.
  static bool settle_watched(int count, const MPI_Request* user, Ends ends) {
    if (ends == Ends::when_all_done && has_operations()) {
      engine_progress();  // gives MPI packed sends before this process waits
      device::about_to_wait(device::WaitKind::several);
    }
    bool all = true;
    for (int i = 0; i < count; ++i) {
      WatchedReceive* const watched = watched_find(user[i]);
      if (watched == nullptr) continue;
      const WatchedReceive::State state =
          ends == Ends::when_all_done ? watched->wait() : watched->look(/*drives=*/false);
      if (state != WatchedReceive::State::ended)
        all = false;
      else if (ends != Ends::completing_nothing)  // several threads may do so for one request
        watched->remove();
    }
    return all;
  }

  /// The state of a call in which some requests may be ours.
  struct Ours {
    Ours(const char* call, int count, const MPI_Request* user, Ends end, bool stand_ins)
        : timed(Clock::completion, call),
          ends(end),
          seen(user, user + count),
          mine(seen.size()),
          outer(std::exchange(failed_here(), {})) {
      if (persistent_count() != 0) persistent_exchange(seen, mine);
      given = seen;
      if (!stand_ins) return;
      watched.resize(seen.size());
      for (std::size_t i = 0; i < seen.size(); ++i) watched[i] = watched_find(seen[i]);
      look();
    }
    ~Ours() {
      if (waits(ends)) mark(point::wait_returned);
    }
    Ours(const Ours&) = delete;
    Ours& operator=(const Ours&) = delete;

    /// Sets what MPI gets for the watched receives.
    void look() {
      pending = 0;
      for (std::size_t i = 0; i < watched.size(); ++i) {
        if (watched[i] == nullptr) continue;
        const WatchedReceive::State state = watched[i]->look(/*drives=*/false);
        if (state == WatchedReceive::State::pending) {
          given[i] = never_complete();
          ++pending;
        } else if (state == WatchedReceive::State::ended) {
          WatchedReceive* const ended = std::exchange(watched[i], nullptr);
          if (ends != Ends::completing_nothing) ended->remove();
          given[i] = seen[i];
        } else {
          given[i] = seen[i] = watched[i]->stand_in();
        }
      }
    }

    const Timed timed;
    const Ends ends;
    std::vector<MPI_Request> seen;         ///< as given to MPI, before the call
    std::vector<bool> mine;                ///< persistent requests of ours
    std::vector<MPI_Request> given;        ///< what the call makes of them
    std::vector<WatchedReceive*> watched;  ///< by request, null if it is not watched; empty if none is
    int pending = 0;                       ///< number of watched receives that are pending
    std::vector<Failed> outer;             ///< failures of a call during which an error handler made this one
  };

  void write_back() {
    for (std::size_t i = 0; i < ours_->seen.size(); ++i) {
      WatchedReceive* const watched = ours_->watched.empty() ? nullptr : ours_->watched[i];
      const bool completed = ours_->given[i] == MPI_REQUEST_NULL && ours_->seen[i] != MPI_REQUEST_NULL;
      if (watched != nullptr) {
        if (!completed) continue;
        watched->remove();
        user_[i] = MPI_REQUEST_NULL;
      } else if (!ours_->mine[i]) {
        user_[i] = ours_->given[i];
      } else if (completed) {
        persistent_completed(user_[i]);
      }
    }
  }

  /// The failures of requests that the call has completed. MPICH's MPI_Testall also queries requests that it then
  /// leaves because others are not complete.
  std::vector<Failed> take_failed() {
    finished_ = true;
    std::vector<Failed> failures = std::exchange(failed_here(), std::move(ours_->outer));
    const std::vector<MPI_Request>& given = ours_->given;
    std::erase_if(failures, [&](const Failed& failed) {
      return std::find(given.begin(), given.end(), failed.request) != given.end() ||
             (failed.operation->forbidden && require_fails_call());  // which this call is part of
    });
    return failures;
  }

  MPI_Request* user_;
  std::unique_ptr<Ours> ours_;  ///< null if no request can be ours
  bool finished_ = false;
};

/// Room for `count` elements: `own` if it is large enough, otherwise memory that `many` owns; null if there is none.
template <class Each, std::size_t few>
Each* room_for(int count, Each (&own)[few], std::unique_ptr<Each[]>& many) {
  if (static_cast<std::size_t>(count) <= few) return own;
  many.reset(new (std::nothrow) Each[static_cast<std::size_t>(count)]);
  return many.get();
}

/// The contexts of the communicators of requests, noted because freed requests do not show them. Mostly all are equal.
class Contexts {
 public:
  Contexts() = default;
  Contexts(const Contexts&) = delete;
  Contexts& operator=(const Contexts&) = delete;

  void note(int count, const MPI_Request* requests) {
    MPI_Comm first = MPI_COMM_NULL;
    for (int i = 0; i < count; ++i) {
      if (requests[i] == MPI_REQUEST_NULL || (first != MPI_COMM_NULL && request_has_comm(requests[i], first))) continue;
      const MPI_Comm comm = request_comm(requests[i]);
      if (comm == MPI_COMM_NULL) continue;
      if (first != MPI_COMM_NULL) return note_each(count, requests);
      first = comm;
      all_ = context_of(comm);
    }
  }
  /// The context of a request's communicator; negative if unknown.
  std::int64_t of(int index) const { return each_ == nullptr || index < 0 ? all_ : each_[index]; }

 private:
  void note_each(int count, const MPI_Request* requests) {
    all_ = -1;
    each_ = room_for(count, own_, many_);
    for (int i = 0; each_ != nullptr && i < count; ++i) each_[i] = request_context(requests[i]);
  }

  std::int64_t all_ = -1;
  std::int64_t* each_ = nullptr;  ///< by request; null if all_ is the context of all
  std::int64_t own_[8];
  std::unique_ptr<std::int64_t[]> many_;
};

/// The statuses of one call, the program's or own ones if it ignores them, and the contexts of the communicators: peer
/// transfers need both for receives that were too short.
class Statuses {
 public:
  /// `filled`: how many statuses the call fills at most.
  Statuses(int count, const MPI_Request* requests, int filled, MPI_Status* user) : seen_(user) {
    if (count <= 0 || requests == nullptr || !peer_checks()) return;
    contexts_.note(count, requests);
    if (user == MPI_STATUS_IGNORE) seen_ = room_for(filled, own_, many_);
  }
  MPI_Status* data() { return seen_; }

  /// After a call that completes the request of `index`.
  int seen(int code, int index = 0) {
    if (code != MPI_SUCCESS && peer_checks() && is_truncation(code)) truncated(index, *seen_);
    return code;
  }
  /// After a call that has filled `count` statuses: of request i or, unless `indices` is null, of request indices[i].
  int seen_many(int code, int count, const int* indices = nullptr) {
    if (code == MPI_ERR_IN_STATUS && seen_ != MPI_STATUSES_IGNORE && peer_checks())
      for (int i = 0; i < count; ++i)
        if (is_truncation(seen_[i].MPI_ERROR)) truncated(indices == nullptr ? i : indices[i], seen_[i]);
    return code;
  }

 private:
  /// Ignores errors: the receive has failed anyway.
  void truncated(int index, const MPI_Status& status) const {
    guarded(MPI_COMM_NULL, "a receive that was too short", [&] {
      peer_truncated_in(contexts_.of(index), status);
      return MPI_SUCCESS;
    });
  }

  MPI_Status* seen_;
  Contexts contexts_;
  MPI_Status own_[32];
  std::unique_ptr<MPI_Status[]> many_;
};

/// Statuses by request for the calls that fill one for each.
auto by_request(MPI_Status* statuses) {
  return [=](int i) { return statuses == MPI_STATUSES_IGNORE ? nullptr : statuses + i; };
}

/// Statuses by request for the calls that fill one for each completed request.
auto by_completion(int done, const int* indices, MPI_Status* statuses) {
  return [=](int i) -> MPI_Status* {
    if (statuses == MPI_STATUSES_IGNORE || done == MPI_UNDEFINED) return nullptr;
    const int* const at = std::find(indices, indices + done, i);
    return at == indices + done ? nullptr : statuses + (at - indices);
  };
}

/// Runs `complete(requests)` on the requests for MPI. Completes nothing if these cannot be prepared.
template <class Complete>
int with_requests(const char* call, int count, MPI_Request* user, Ends ends, Complete complete) {
  return raising(MPI_COMM_NULL, call, [&] {
    Requests requests(call, count, user, ends);
    requests.drive();
    return complete(requests);
  });
}

/// Waits until some requests have ended: by `wait()` or, as long as MPI must not complete some of them, by
/// `test(&ended)`, which sets `ended` once some have ended or there are none.
template <class Wait, class Test>
int wait_for_some(Requests& requests, Wait wait, Test test) {
  if (!requests.some_pending()) return wait();
  while (true) {
    int ended = 0;
    const int code = test(&ended);
    if (code != MPI_SUCCESS || ended != 0) return code;
    requests.look_again();
  }
}

/// Whether a call that completes some of several is over if none has ended.
enum class IfNone { over, goes_on };

int testany(Requests& requests, int count, int* index, int* flag, MPI_Status* user, IfNone if_none) {
  Statuses statuses(count, requests.data(), 1, user);
  const int code = PMPI_Testany(count, requests.data(), index, flag, statuses.data());
  if (if_none == IfNone::goes_on && code == MPI_SUCCESS && *flag == 0) return code;
  return requests.finish_one(statuses.seen(code, *index));
}

int complete_some(int (*pmpi)(int, MPI_Request*, int*, int*, MPI_Status*), Requests& requests, int count, int* done,
                  int* indices, MPI_Status* user, IfNone if_none = IfNone::over) {
  Statuses statuses(count, requests.data(), count, user);
  const int code = pmpi(count, requests.data(), done, indices, statuses.data());
  if (if_none == IfNone::goes_on && code == MPI_SUCCESS && *done == 0) return code;
  return requests.finish_many(statuses.seen_many(code, *done, indices), by_completion(*done, indices, user));
}

/// Whether the request is a watched receive that is not complete. Lets MPI make progress.
bool is_pending(MPI_Request request) {
  WatchedReceive* const watched = watched_find(request);
  return watched != nullptr && watched->look(/*drives=*/true) == WatchedReceive::State::pending;
}

/// Runs `complete(requests)` for one request, unless that is a pending watched receive.
template <class Complete>
int unless_pending(const char* call, MPI_Request* request, int* flag, Ends ends, Complete complete) {
  return raising(MPI_COMM_NULL, call, [&] {
    if (request == nullptr || flag == nullptr || !is_pending(*request))
      return with_requests(call, 1, request, ends, complete);
    *flag = 0;
    return int(MPI_SUCCESS);
  });
}

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

GPUDT_EXPORT int MPI_Wait(MPI_Request* request, MPI_Status* status) {
  return with_requests("MPI_Wait", 1, request, Ends::when_all_done, [&](Requests& requests) {
    Statuses statuses(1, requests.data(), 1, status);
    return requests.finish_one(statuses.seen(PMPI_Wait(requests.data(), statuses.data())));
  });
}

GPUDT_EXPORT int MPI_Test(MPI_Request* request, int* flag, MPI_Status* status) {
  return unless_pending("MPI_Test", request, flag, Ends::at_once, [&](Requests& requests) {
    Statuses statuses(1, requests.data(), 1, status);
    return requests.finish_one(statuses.seen(PMPI_Test(requests.data(), flag, statuses.data())));
  });
}

GPUDT_EXPORT int MPI_Waitany(int count, MPI_Request* array, int* index, MPI_Status* status) {
  return with_requests("MPI_Waitany", count, array, Ends::when_some_done, [&](Requests& requests) {
    const auto wait = [&] {
      Statuses statuses(count, requests.data(), 1, status);
      const int code = PMPI_Waitany(count, requests.data(), index, statuses.data());
      return requests.finish_one(statuses.seen(code, *index));
    };
    return wait_for_some(requests, wait,
                         [&](int* ended) { return testany(requests, count, index, ended, status, IfNone::goes_on); });
  });
}

GPUDT_EXPORT int MPI_Testany(int count, MPI_Request* array, int* index, int* flag, MPI_Status* status) {
  return with_requests("MPI_Testany", count, array, Ends::at_once,
                       [&](Requests& requests) { return testany(requests, count, index, flag, status, IfNone::over); });
}

GPUDT_EXPORT int MPI_Waitall(int count, MPI_Request* array, MPI_Status* user) {
  return with_requests("MPI_Waitall", count, array, Ends::when_all_done, [&](Requests& requests) {
    Statuses statuses(count, requests.data(), count, user);
    const int code = statuses.seen_many(wait_all(count, requests.data(), statuses.data()), count);
    return requests.finish_many(code, by_request(user));
  });
}

GPUDT_EXPORT int MPI_Testall(int count, MPI_Request* array, int* flag, MPI_Status* user) {
  return with_requests("MPI_Testall", count, array, Ends::at_once, [&](Requests& requests) {
    Statuses statuses(count, requests.data(), count, user);
    const int code = statuses.seen_many(PMPI_Testall(count, requests.data(), flag, statuses.data()), count);
    return requests.finish_many(code, by_request(user));
  });
}

GPUDT_EXPORT int MPI_Waitsome(int count, MPI_Request* array, int* done, int* indices, MPI_Status* user) {
  return with_requests("MPI_Waitsome", count, array, Ends::when_some_done, [&](Requests& requests) {
    return wait_for_some(
        requests, [&] { return complete_some(PMPI_Waitsome, requests, count, done, indices, user); },
        [&](int* ended) {
          const int code = complete_some(PMPI_Testsome, requests, count, done, indices, user, IfNone::goes_on);
          *ended = *done;
          return code;
        });
  });
}

GPUDT_EXPORT int MPI_Testsome(int count, MPI_Request* array, int* done, int* indices, MPI_Status* user) {
  return with_requests("MPI_Testsome", count, array, Ends::at_once, [&](Requests& requests) {
    return complete_some(handlers_are_silent() ? test_some : PMPI_Testsome, requests, count, done, indices, user);
  });
}

GPUDT_EXPORT int MPI_Request_get_status(MPI_Request request, int* flag, MPI_Status* status) {
  return unless_pending("MPI_Request_get_status", &request, flag, Ends::completing_nothing, [&](Requests& requests) {
    return requests.finish_none(PMPI_Request_get_status(*requests.data(), flag, status));
  });
}

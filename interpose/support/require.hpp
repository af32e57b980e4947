// GPUDT_REQUIRE: data in device memory that go through the host are an error, or a line in the log.
//
// At the end of a buffer its Reported (report.hpp) has the way that the data went. So that one place decides for all
// calls: require_checks() notes what went through the host in the innermost Shortfalls of the thread, that is for the
// call or operation that ends. It ends with the error after the data have arrived: processes that wait for them do not
// wait for ever, and a program whose error handler returns finds its buffers as without GPUDT_REQUIRE. Accesses to
// windows are noted where they are handed over (rma/served.cpp), since they end in another process's time.
#pragma once

#include <cstdint>

namespace gpudt::interpose {

struct Requirement;
struct Went;

/// Whether GPUDT_REQUIRE asks for anything.
extern bool require_wanted;
/// To be called in MPI_Init or the first MPI_Session_init.
void require_start(const Requirement& requirement);

/// Collects, while it lives, what this thread's buffers that end have against GPUDT_REQUIRE. They nest.
class Shortfalls {
 public:
  static constexpr int no_rank = -1;

  Shortfalls();
  ~Shortfalls();
  Shortfalls(const Shortfalls&) = delete;
  Shortfalls& operator=(const Shortfalls&) = delete;

  /// Logs what has been noted. Returns the code of the error, MPI_SUCCESS if there is none. `rank`: the other process,
  /// if it has not been noted.
  int judge(int rank = no_rank) const noexcept;
  /// judge() for a call that has succeeded. If it is part of another call, that one is judged instead, at its end.
  int end_call() const noexcept;

 private:
  friend void require_checks(const char* call, const Went& went, std::int64_t bytes);
  friend void require_names_now(int rank);
  friend void require_explains_now(const char* why);
  friend const char* require_explanation_now();
  friend bool require_fails_call();

  void log(int rank) const;

  Shortfalls* const outer_;
  /// The longest buffer.
  const char* call_ = nullptr;
  const char* way_ = nullptr;
  const char* why_ = nullptr;
  std::int64_t bytes_ = 0;
  int rank_ = no_rank;  ///< the other process's, in the communicator or window of the call
  const char* explanation_ = nullptr;
  bool has_failed_ = false;  ///< a shortfall has been judged that is to fail the call
};

/// While it lives, this thread is in no call: an error handler runs, which may make calls, and need not return.
class OutsideCalls {
 public:
  OutsideCalls();
  ~OutsideCalls();
  OutsideCalls(const OutsideCalls&) = delete;
  OutsideCalls& operator=(const OutsideCalls&) = delete;

 private:
  Shortfalls* const within_;
};

/// Whether data of `call`, `bytes` bytes, are among those that GPUDT_REQUIRE wants on GPUs.
bool require_covers(const char* call, std::int64_t bytes);
/// Notes the other process of the call that is being made.
void require_names_now(int rank);
inline void require_names(int rank) {
  if (require_wanted) require_names_now(rank);
}
/// Notes why the call that is being made is not done by GPUs: `why`, a string literal. Returns false, for conditions.
void require_explains_now(const char* why);
inline bool require_explains(const char* why) {
  if (require_wanted) require_explains_now(why);
  return false;
}
/// What require_explains() has noted last for this call; null if nothing.
const char* require_explanation_now();
inline const char* require_explanation() {
  return require_wanted ? require_explanation_now() : nullptr;
}
/// If a call is being made, it fails at its end for an operation that has been judged. False if none is.
bool require_fails_call();

}  // namespace gpudt::interpose

#include "tests/random/requests.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gpudt::test {
namespace {

/// Statuses with an error that no call sets, to see which one does.
std::vector<MPI_Status> statuses(std::size_t count) {
  MPI_Status unset = {};
  unset.MPI_SOURCE = unset.MPI_TAG = -77;
  return {count, unset};
}

bool in_status(int error) {
  return error != MPI_SUCCESS && error_class(error) == MPI_ERR_IN_STATUS;
}

}  // namespace

int Requests::add(MPI_Request request, After after, bool fails) {
  const int slot = static_cast<int>(outcomes_.size());
  outcomes_.emplace_back();
  pending_.push_back({request, slot, after, fails});
  return slot;
}

int Requests::add_done(int error, const MPI_Status& status) {
  outcomes_.push_back({true, error, status, "itself"});
  return static_cast<int>(outcomes_.size()) - 1;
}

void Requests::act() {
  if (!pending_.empty() && dice_.one_in(3)) do_something(false);
}

void Requests::finish(const std::string& names) {
  for (std::size_t left = 0; !pending_.empty(); do_something(true)) {
    if (left == pending_.size()) continue;
    left = pending_.size();
    std::string text = "completing requests";
    for (const Pending& pending : pending_) text += " " + std::to_string(pending.slot);
    context_.step(text + (names.empty() ? "" : " of ") + names);
  }
}

void Requests::do_something(bool finishing) {
  const bool wait = dice_.one_in(3);
  const std::vector<std::size_t> chosen = choose(wait, finishing);
  if (chosen.empty()) return;
  switch (dice_.below(6)) {
    case 0:
      one(wait, chosen[0]);
      break;
    case 1:
      status_first(chosen[0]);
      break;
    case 2:
    case 3:
      any(wait, chosen);
      break;
    case 4:
      some(wait, chosen);
      break;
    default:
      all(wait, chosen);
  }
  forget_done();
}

std::vector<std::size_t> Requests::choose(bool waiting, bool finishing) {
  std::vector<std::size_t> chosen, failing;
  const bool most = dice_.one_in(3);
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    const bool allowed = finishing || !waiting || pending_[i].after == After::anything;
    if (allowed && (most || dice_.one_in(4))) (pending_[i].fails ? failing : chosen).push_back(i);
  }
  std::shuffle(chosen.begin(), chosen.end(), dice_.engine());
  if (failing.empty() || (!chosen.empty() && dice_.one_in(2))) return chosen;
  return {dice_.pick(failing)};
}

void Requests::complete(std::size_t index, int error, const MPI_Status& status, const char* call) {
  Outcome& outcome = outcomes_[static_cast<std::size_t>(pending_[index].slot)];
  if (outcome.done) context_.fail("a request is completed twice");
  outcome = {true, error, status, call};
}

void Requests::forget_done() {
  std::erase_if(pending_, [this](Pending& pending) {
    if (!outcome(pending.slot).done) return false;
    if (!persistent_ && pending.request != MPI_REQUEST_NULL) MPI_Request_free(&pending.request);
    return true;
  });
}

void Requests::one(bool wait, std::size_t index) {
  MPI_Status status = statuses(1)[0];
  int flag = 1;
  const int error =
      wait ? MPI_Wait(&pending_[index].request, &status) : MPI_Test(&pending_[index].request, &flag, &status);
  if (flag != 0 || error != MPI_SUCCESS) complete(index, error, status, wait ? "MPI_Wait" : "MPI_Test");
}

void Requests::status_first(std::size_t index) {
  MPI_Status first = statuses(1)[0], second = first;
  int flag = 0, found = 0;
  const int told = MPI_Request_get_status(pending_[index].request, &flag, &first);
  if (flag == 0) return;
  const int error = MPI_Test(&pending_[index].request, &found, &second);
  if (found == 0 && error == MPI_SUCCESS) return context_.fail("MPI_Request_get_status: complete; MPI_Test: not");
  if (told == MPI_SUCCESS && (first.MPI_SOURCE != second.MPI_SOURCE || first.MPI_TAG != second.MPI_TAG))
    context_.fail("MPI_Request_get_status and MPI_Test tell different statuses");
  complete(index, error, second, "MPI_Request_get_status, MPI_Test");
}

void Requests::none_active(const std::vector<std::size_t>& chosen, const char* call) {
  std::string text = std::string(call) + " finds no active request among";
  for (const std::size_t i : chosen)
    text += " " + std::to_string(pending_[i].slot) + (pending_[i].request == MPI_REQUEST_NULL ? " (null)" : "");
  context_.fail(text);
}

std::vector<MPI_Request> Requests::requests_of(const std::vector<std::size_t>& chosen) const {
  std::vector<MPI_Request> requests;
  for (const std::size_t i : chosen) requests.push_back(pending_[i].request);
  return requests;
}

void Requests::put_back(const std::vector<std::size_t>& chosen, const std::vector<MPI_Request>& requests) {
  for (std::size_t i = 0; i < chosen.size(); ++i) pending_[chosen[i]].request = requests[i];
}

void Requests::any(bool wait, const std::vector<std::size_t>& chosen) {
  std::vector<MPI_Request> requests = requests_of(chosen);
  const int count = static_cast<int>(requests.size());
  int index = MPI_UNDEFINED, flag = 1;
  MPI_Status status = statuses(1)[0];
  const int error = wait ? MPI_Waitany(count, requests.data(), &index, &status)
                         : MPI_Testany(count, requests.data(), &index, &flag, &status);
  put_back(chosen, requests);
  if (index != MPI_UNDEFINED && (index < 0 || index >= count)) return context_.fail("an index that is none");
  if (flag == 0 && error == MPI_SUCCESS) return;
  if (index == MPI_UNDEFINED) return none_active(chosen, wait ? "MPI_Waitany" : "MPI_Testany");
  complete(chosen[static_cast<std::size_t>(index)], error, status, wait ? "MPI_Waitany" : "MPI_Testany");
}

void Requests::some(bool wait, const std::vector<std::size_t>& chosen) {
  std::vector<MPI_Request> requests = requests_of(chosen);
  const int count = static_cast<int>(requests.size());
  std::vector<int> indices(requests.size());
  std::vector<MPI_Status> found = statuses(requests.size());
  int done = 0;
  const int error = wait ? MPI_Waitsome(count, requests.data(), &done, indices.data(), found.data())
                         : MPI_Testsome(count, requests.data(), &done, indices.data(), found.data());
  put_back(chosen, requests);
  if (error != MPI_SUCCESS && !in_status(error)) context_.check(error, "MPI_Waitsome, MPI_Testsome");
  if (done == MPI_UNDEFINED) return none_active(chosen, wait ? "MPI_Waitsome" : "MPI_Testsome");
  for (int i = 0; i < done; ++i) {
    const auto at = static_cast<std::size_t>(i);
    complete(chosen[static_cast<std::size_t>(indices[at])], in_status(error) ? found[at].MPI_ERROR : MPI_SUCCESS,
             found[at], wait ? "MPI_Waitsome" : "MPI_Testsome");
  }
}

void Requests::all(bool wait, const std::vector<std::size_t>& chosen) {
  std::vector<MPI_Request> requests = requests_of(chosen);
  const int count = static_cast<int>(requests.size());
  std::vector<MPI_Status> found = statuses(requests.size());
  int flag = 1;
  const int error = wait ? MPI_Waitall(count, requests.data(), found.data())
                         : MPI_Testall(count, requests.data(), &flag, found.data());
  put_back(chosen, requests);
  if (error != MPI_SUCCESS && !in_status(error)) context_.check(error, "MPI_Waitall, MPI_Testall");
  if (flag == 0 && error == MPI_SUCCESS) return;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const int its = in_status(error) ? found[i].MPI_ERROR : MPI_SUCCESS;
    if (its == MPI_SUCCESS || error_class(its) != MPI_ERR_PENDING)
      complete(chosen[i], its, found[i], wait ? "MPI_Waitall" : "MPI_Testall");
  }
}

}  // namespace gpudt::test

#include "interpose/shared/rendezvous_state.hpp"

namespace gpudt::interpose::peer {
namespace {

constexpr std::array<const char*, state_count> names = {"free",        "offered",  "claimed",  "asked",
                                                        "putting",     "put",      "declined", "fragments wanted",
                                                        "withdrawing", "buffered", "failed",   "done"};

std::string listed(StateSet states) {
  std::string text;
  for (int state = 0; state < state_count; ++state)
    if (states.contains(static_cast<State>(state)))
      text += (text.empty() ? "" : ", ") + std::string(state_name(static_cast<State>(state)));
  return text;
}

const char* manner_name(Manner manner) {
  switch (manner) {
    case Manner::swap:
      return "swap";
    case Manner::store:
      return "store";
    default:
      return "overwrite";
  }
}

}  // namespace

const char* state_name(State state) {
  const auto index = static_cast<std::size_t>(state);
  return index < names.size() ? names[index] : "damaged";
}

std::string transition_table() {
  std::string text = "| transition | from | to | by | how | when |\n|---|---|---|---|---|---|\n";
  for (const TransitionRow& row : transitions)
    text += "| `" + std::string(row.name) + "` | " + listed(row.from) + " | " + state_name(row.to) + " | " +
            (row.by == Party::sender ? "sender" : "receiver") + " | " + manner_name(row.manner) + " | " + row.when +
            " |\n";
  return text;
}

}  // namespace gpudt::interpose::peer

// What is looked at again and again until it is done: mostly the oldest first.
#pragma once

#include <algorithm>
#include <bitset>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

namespace gpudt::interpose {

/// Entries in the order in which they were added, each with a value in every column. Not thread-safe.
///
/// Among thousands of messages those that were posted first end first. So a pass looks at the oldest entries, which the
/// caches have from the last pass, and if none of these is done at some of the others, by turns: they may have
/// overtaken the oldest, which may never end.
template <class Key, class... More>
class PolledList {
 public:
  struct Window {
    std::size_t begin, end;  ///< places
    std::size_t size() const { return end - begin; }
  };
  static constexpr std::size_t window = 64;  ///< the most entries of one but all()
  using Marks = std::bitset<window>;

  std::size_t size() const { return end() - first_; }
  bool empty() const { return size() == 0; }
  Key* keys() { return std::get<0>(columns_).data(); }
  const Key* keys() const { return std::get<0>(columns_).data(); }
  template <std::size_t column>
  auto& value(std::size_t at) {
    return std::get<column>(columns_)[at];
  }

  /// Makes room: add() takes no memory while there are at most `size` entries, if each is added once between two calls
  /// of tidy().
  void reserve(std::size_t size) {
    const std::size_t places = size + std::max(size, first_);
    each_column([&](auto& column) {
      if (column.capacity() < places) column.reserve(std::max(places, 2 * column.capacity()));
    });
  }
  /// If memory is short, throws and adds nothing.
  void add(Key key, More... more) {
    each_column([](auto& column) {
      if (column.size() == column.capacity()) column.reserve(std::max<std::size_t>(window, 2 * column.size()));
    });
    std::apply([&](auto& keys, auto&... columns) { (keys.push_back(key), ..., columns.push_back(std::move(more))); },
               columns_);
  }

  /// Removes the entry at a place. Returns the place to go on with, for a pass from the beginning of a window to its
  /// end, or to all().end if that is before: the others of the oldest are shifted, and the last entry takes the place
  /// of one beyond, so that a long list is not shifted.
  std::size_t remove(std::size_t at) {
    const bool old = at < first_ + window;
    each_column([&](auto& column) {
      if (old)
        std::move_backward(column.begin() + offset(first_), column.begin() + offset(at),
                           column.begin() + offset(at + 1));
      else if (at + 1 != column.size())
        column[at] = std::move(column.back());
      old ? void(column[first_] = {}) : column.pop_back();
    });
    if (old) ++first_;
    return old ? at + 1 : at;
  }
  /// Removes the marked ones of a window.
  void remove(const Window& from, const Marks& marked) {
    const bool old = from.begin < first_ + window;
    for (std::size_t i = 0; i < from.size(); ++i) {
      const std::size_t place = old ? i : from.size() - 1 - i;  // the last entry is no other marked one then
      if (marked.test(place)) remove(from.begin + place);
    }
  }

  /// Gives places in front of the oldest entry back if they are many; then all places change.
  void tidy() {
    if (first_ <= size()) return;
    next_ -= std::min(next_, first_);
    lap_end_ -= std::min(lap_end_, first_);
    each_column([&](auto& column) { column.erase(column.begin(), column.begin() + offset(first_)); });
    first_ = 0;
  }

  Window all() const { return {first_, end()}; }
  Window oldest() const { return {first_, std::min(first_ + window, end())}; }
  /// At most `most` of those that are not among the oldest; the following ones after pass(). Each is reached in a lap,
  /// whatever is added meanwhile, or, if it has taken the place of one that a lap had passed, in the next one.
  Window beyond(std::size_t most) {
    const std::size_t from = oldest().end;
    next_ = std::max(next_, from);
    if (next_ >= std::min(lap_end_, end())) {
      next_ = from;
      lap_end_ = end();
    }
    return {next_, std::min({next_ + most, lap_end_, end()})};
  }
  void pass(const Window& looked_at) { next_ = looked_at.end; }

 private:
  static std::ptrdiff_t offset(std::size_t place) { return static_cast<std::ptrdiff_t>(place); }
  std::size_t end() const { return std::get<0>(columns_).size(); }
  template <class Act>
  void each_column(const Act& act) {
    std::apply([&](auto&... columns) { (act(columns), ...); }, columns_);
  }

  std::tuple<std::vector<Key>, std::vector<More>...> columns_;
  std::size_t first_ = 0;               ///< the place of the oldest entry
  std::size_t next_ = 0, lap_end_ = 0;  ///< of beyond()
};

}  // namespace gpudt::interpose

// Collective calls that reduce, and barriers.
#include <algorithm>
#include <cstring>

#include "tests/random/collectives.hpp"
#include "tests/random/layout.hpp"
#include "tests/random/messages_plan.hpp"

namespace gpudt::test {
namespace {

enum class Reducing { reduce, allreduce, reduce_scatter, reduce_scatter_block, scan, exscan, barrier };
constexpr int reducing_calls = static_cast<int>(Reducing::barrier) + 1;
constexpr const char* reducing_names[] = {"reduce", "allreduce", "reduce_scatter", "reduce_scatter_block",
                                          "scan",   "exscan",    "barrier"};

/// The numbers are small integers: all types hold the results of all operators exactly.
std::int64_t combine(MPI_Op op, std::int64_t a, std::int64_t b) {
  if (op == MPI_SUM) return a + b;
  if (op == MPI_MAX) return std::max(a, b);
  return std::min(a, b);
}

class Reduction : public CollectiveCall {
 public:
  Reduction(Context& context, std::uint64_t key) : context_(context), key_(key) {
    Dice plan(key);
    kind_ = static_cast<Reducing>(plan.below(reducing_calls));
    comm_ = context.communicators[static_cast<std::size_t>(plan.below(static_cast<int>(context.communicators.size())))];
    if (comm_.inter()) kind_ = Reducing::allreduce;
    root_ = plan.pick(comm_.group);
    count_ = static_cast<int>(random_size(plan, plan.one_in(8) ? 200000 : 2000));
    type_ = plan.pick(std::vector{MPI_INT, MPI_INT64_T, MPI_DOUBLE, MPI_FLOAT});
    op_ = plan.pick(std::vector{MPI_SUM, MPI_MAX, MPI_MIN});
    in_place_ = !comm_.inter() && plan.one_in(4);
    nonblocking_ = plan.one_in(2) && context.single_threaded();  // with threads Open MPI 4.1 itself may hang
    const int on_device = plan.pick(std::vector{0, 50, 100});
    member_ = comm_.handle != MPI_COMM_NULL;
    if (!member_) return;
    PMPI_Type_size(type_, &size_);
    for (const int member : comm_.group) {
      counts_.push_back(kind_ != Reducing::reduce_scatter
                            ? count_
                            : static_cast<int>(mix(key_, static_cast<std::uint64_t>(member)) %
                                               static_cast<std::uint64_t>(count_ + 1)));
      if (member == rank()) first_ = total_;
      total_ += scatters() ? counts_.back() : 0;
    }
    if (!scatters()) total_ = count_;
    Dice own(mix(key, static_cast<std::uint64_t>(rank()) + 5));
    const Layout bytes = Layout::packed(total_ * size_);
    from_ = reserve(context_, context_.place(own, on_device), bytes, bytes.count());
    to_ = reserve(context_, context_.place(own, on_device), bytes, bytes.count());
  }

  void fill() override {
    if (!member_ || kind_ == Reducing::barrier) return;
    std::vector<std::int64_t> values;
    for (int i = 0; i < total_; ++i) values.push_back(value(rank(), i));
    write(values, (uses_in_place() ? to_ : from_).image());
  }

  MPI_Request start() override {
    MPI_Request request = MPI_REQUEST_NULL;
    if (!member_) return request;
    context_.step(name());
    context_.check(call(&request), "a collective call");
    return request;
  }

  void verify() override {
    if (!member_ || kind_ == Reducing::barrier) return;
    const std::vector<std::int64_t> wanted = results();
    write(wanted, to_.image());
    const std::size_t bytes = wanted.size() * static_cast<std::size_t>(size_);
    const bool first_of_exscan = kind_ == Reducing::exscan && wanted.empty();
    if (first_of_exscan || (scatters() && uses_in_place()))  // of the rest of the buffer MPI says nothing
      to_.arena->ignore(to_.offset + static_cast<std::ptrdiff_t>(bytes), to_.offset + std::ptrdiff_t{total_} * size_);
    if (!std::equal(to_.found(), to_.found() + bytes, to_.image())) context_.fail(name() + ": wrong data");
    context_.log(name() + " " + hash_of(to_.found(), bytes));
  }

  std::string name() const override {
    return std::string(nonblocking_ ? "i" : "") + reducing_names[static_cast<int>(kind_)] +
           (in_place_ ? " in place" : "") + " on " + std::to_string(comm_.group.size()) +
           (comm_.inter() ? " + " + std::to_string(comm_.remote.size()) : "") + " processes, " +
           std::to_string(total_) + " elements of " + std::to_string(size_) + " B";
  }

 private:
  bool scatters() const { return kind_ == Reducing::reduce_scatter || kind_ == Reducing::reduce_scatter_block; }
  bool uses_in_place() const { return in_place_ && (kind_ != Reducing::reduce || rank() == root_); }
  std::int64_t value(int of, int index) const {
    return static_cast<std::int64_t>(mix(mix(key_, static_cast<std::uint64_t>(of)), static_cast<std::uint64_t>(index)) %
                                     1000);
  }

  /// What this process receives; nothing where MPI says nothing of its buffer.
  std::vector<std::int64_t> results() const {
    std::vector<std::int64_t> found;
    if (kind_ == Reducing::reduce && rank() != root_) return found;
    std::vector<int> members = comm_.peers_of(rank());
    const auto me = std::find(members.begin(), members.end(), rank());
    if (kind_ == Reducing::scan) members.erase(me + 1, members.end());
    if (kind_ == Reducing::exscan) members.erase(me, members.end());
    if (members.empty()) return found;
    const int first = scatters() ? first_ : 0;
    const int count = scatters() ? counts_[static_cast<std::size_t>(comm_.rank_of(rank()))] : total_;
    for (int i = first; i < first + count; ++i) {
      std::int64_t result = value(members[0], i);
      for (std::size_t k = 1; k < members.size(); ++k) result = combine(op_, result, value(members[k], i));
      found.push_back(result);
    }
    return found;
  }

  template <class Number>
  static void write_as(const std::vector<std::int64_t>& values, char* to) {
    for (const std::int64_t value : values) {
      const auto number = static_cast<Number>(value);
      std::memcpy(to, &number, sizeof number);
      to += sizeof number;
    }
  }

  void write(const std::vector<std::int64_t>& values, char* to) const {
    if (type_ == MPI_INT) write_as<int>(values, to);
    if (type_ == MPI_INT64_T) write_as<std::int64_t>(values, to);
    if (type_ == MPI_DOUBLE) write_as<double>(values, to);
    if (type_ == MPI_FLOAT) write_as<float>(values, to);
  }

#define CALL(name, lower, ...) (nonblocking_ ? MPI_I##lower(__VA_ARGS__, request) : MPI_##name(__VA_ARGS__))
  int call(MPI_Request* request) {
    const MPI_Comm comm = comm_.handle;
    const void* from = uses_in_place() ? MPI_IN_PLACE : from_.address();
    void* to = to_.address();
    switch (kind_) {
      case Reducing::reduce:
        return CALL(Reduce, reduce, from, to, count_, type_, op_, comm_.rank_of(root_), comm);
      case Reducing::allreduce:
        return CALL(Allreduce, allreduce, from, to, count_, type_, op_, comm);
      case Reducing::reduce_scatter:
        return CALL(Reduce_scatter, reduce_scatter, from, to, counts_.data(), type_, op_, comm);
      case Reducing::reduce_scatter_block:
        return CALL(Reduce_scatter_block, reduce_scatter_block, from, to, count_, type_, op_, comm);
      case Reducing::scan:
        return CALL(Scan, scan, from, to, count_, type_, op_, comm);
      case Reducing::exscan:
        return CALL(Exscan, exscan, from, to, count_, type_, op_, comm);
      case Reducing::barrier:
        return nonblocking_ ? MPI_Ibarrier(comm, request) : MPI_Barrier(comm);
    }
    return MPI_ERR_INTERN;
  }

  Context& context_;
  std::uint64_t key_;
  Reducing kind_;
  Communicator comm_;
  int root_, count_, size_ = 1;
  int total_ = 0, first_ = 0;  ///< elements of the buffer; the first one of those that this process receives
  std::vector<int> counts_;
  MPI_Datatype type_;
  MPI_Op op_;
  bool in_place_, nonblocking_, member_;
  Spot from_, to_;
};

}  // namespace

std::unique_ptr<CollectiveCall> make_reduction(Context& context, std::uint64_t key) {
  return std::make_unique<Reduction>(context, key);
}

}  // namespace gpudt::test

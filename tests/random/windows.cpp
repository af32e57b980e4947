// Rounds of one-sided accesses. Each process has places of its own in every window, each used once in an epoch, so that
// the result is known; what all may change together is only added to.
#include <algorithm>
#include <cstring>

#include "tests/random/layout.hpp"
#include "tests/random/messages_plan.hpp"
#include "tests/random/requests.hpp"

namespace gpudt::test {
namespace {

enum class Kind { create, allocate, dynamic };
enum class Epochs { fence, start, lock, lock_all };
enum class Way { put, get, replace, swap, add, count };

constexpr std::int64_t margin = 256;  ///< bytes before the first place: a datatype may begin after its address
constexpr int places = 4;             ///< of each process in each window
constexpr int most_added = 64;        ///< ints
constexpr int most_epochs = 3;

/// One call. All ranks know all of them.
struct Access {
  int origin, target;  ///< ranks of MPI_COMM_WORLD
  Way way;
  std::uint64_t key;
  Layout here, there;             ///< datatypes of the origin and of the target
  std::int64_t at = 0;            ///< bytes from the window's start
  Spot from = {}, to = {};        ///< of the origin
  std::vector<char> wanted = {};  ///< what it gets

  bool sends() const { return way != Way::get; }
  bool gets() const { return way == Way::get || way == Way::swap || way == Way::count; }
  std::vector<char> stream() const {
    std::vector<char> bytes(static_cast<std::size_t>(here.bytes()));
    fill_pattern(bytes.data(), bytes.size(), key);
    return bytes;
  }
};

class WindowRound {
 public:
  explicit WindowRound(Context& context)
      : context_(context),
        dice_(mix(context.key, 8)),
        own_(mix(mix(context.key, 9), static_cast<std::uint64_t>(rank()))),
        comm_(context.communicators[static_cast<std::size_t>(dice_.below(3))]),
        kind_(dice_.pick(std::vector{Kind::create, Kind::create, Kind::create, Kind::allocate, Kind::dynamic})),
        epochs_kind_(static_cast<Epochs>(dice_.below(4))),
        unit_(kind_ == Kind::dynamic ? 1 : dice_.pick(std::vector{1, 2, 4, 8})),
        place_bytes_(dice_.pick(std::vector{128, 900, 4096, 70000})),
        on_device_(dice_.pick(std::vector{0, 50, 100, 100})) {
    for (int i = dice_.between(1, most_epochs); i > 0; --i) plan_epoch();
  }

  void run() {
    reserve_memory();
    open();
    for (std::size_t epoch = 0; epoch < epochs_.size(); ++epoch) {
      context_.step("epoch " + std::to_string(epoch) + " of " + name());
      for (Access& access : epochs_[epoch]) model(access);
      carry_out(epochs_[epoch]);
      PMPI_Barrier(context_.control);
    }
    close();
    verify();
  }

 private:
  std::int64_t added_at() const { return margin + places * place_bytes_ * ranks(); }
  std::int64_t counter_at() const { return added_at() + most_added * static_cast<std::int64_t>(sizeof(int)); }
  std::int64_t window_bytes() const { return counter_at() + 8; }
  std::string name() const {
    return "a window of " + std::to_string(window_bytes()) + " B, kind " + std::to_string(static_cast<int>(kind_)) +
           ", epochs of kind " + std::to_string(static_cast<int>(epochs_kind_)) + ", unit " + std::to_string(unit_);
  }

  // --- plan ---

  void plan_epoch() {
    std::vector<Access> accesses;
    for (int origin = 0; origin < ranks(); ++origin) {
      for (int i = 0; i < places; ++i)
        if (!dice_.one_in(3)) accesses.push_back(plan_data(origin, margin + (origin * places + i) * place_bytes_));
      for (int i = dice_.below(3); i > 0; --i) accesses.push_back(plan_sum(origin));
    }
    epochs_.push_back(std::move(accesses));
  }

  Access plan_data(int origin, std::int64_t start) {
    const std::int64_t bytes = dice_.one_in(2) ? dice_.between(1, 64) : random_size(dice_, place_bytes_ - 8);
    const int target = dice_.below(ranks());
    const Way way = dice_.pick(std::vector{Way::put, Way::put, Way::get, Way::get, Way::replace, Way::swap});
    const std::uint64_t key = dice_.word();
    Dice layouts(key);
    Layout here = Layout::element_of_bytes(layouts, bytes), there = Layout::element_of_bytes(layouts, bytes);
    if (there.high(1) - there.low(1) + unit_ > place_bytes_) there = Layout::plain(bytes);
    const std::int64_t at = (start - there.low() + unit_ - 1) / unit_ * unit_;
    return {origin, target, way, key, std::move(here), std::move(there), at};
  }

  Access plan_sum(int origin) {
    const bool counts = dice_.one_in(3);
    const int count = dice_.between(1, most_added), target = dice_.below(ranks());
    const std::int64_t bytes = counts ? 8 : count * static_cast<std::int64_t>(sizeof(int));
    return {origin,
            target,
            counts ? Way::count : Way::add,
            dice_.word(),
            Layout::plain(bytes),
            Layout::plain(bytes),
            counts ? counter_at() : added_at()};
  }

  // --- memory ---

  std::uint64_t window_key(int of) const { return mix(context_.key, 50 + static_cast<std::uint64_t>(of)); }

  void reserve_memory() {
    if (kind_ != Kind::allocate) {
      // Some MPI libraries have no windows over memory of the host alone.
      const int chance = rank() == comm_.group.front() ? 100 : on_device_;
      Arena& arena = context_.arenas.at(context_.place(own_, chance));
      window_spot_ = {&arena, arena.reserve(0, window_bytes(), 0)};
    }
    for (auto& accesses : epochs_)
      for (Access& access : accesses) {
        if (access.origin != rank()) continue;
        if (access.sends())
          access.from = reserve(context_, context_.place(own_, on_device_), access.here, access.here.count());
        if (access.gets())
          access.to = reserve(context_, context_.place(own_, on_device_), access.here, access.here.count());
      }
    context_.arenas.prepare(context_.key);
    for (int i = 0; i < ranks(); ++i) {
      models_.emplace_back(static_cast<std::size_t>(window_bytes()));
      fill_pattern(models_.back().data(), models_.back().size(), window_key(i));
      std::memset(models_.back().data() + added_at(), 0, static_cast<std::size_t>(window_bytes() - added_at()));
    }
    if (kind_ != Kind::allocate) std::copy(mine().begin(), mine().end(), window_spot_.image());
    for (auto& accesses : epochs_)
      for (Access& access : accesses)
        if (access.origin == rank() && access.sends()) access.here.scatter(access.from.image(), sent(access));
    context_.arenas.upload();
  }

  std::vector<char>& mine() { return models_[static_cast<std::size_t>(rank())]; }

  std::vector<char> sent(const Access& access) const {
    std::vector<char> bytes = access.stream();
    if (access.way == Way::add)
      for (std::size_t i = 0; i < bytes.size(); i += sizeof(int)) {
        const int value = static_cast<int>(mix(access.key, i) % 1000);
        std::memcpy(bytes.data() + i, &value, sizeof value);
      }
    if (access.way == Way::count) {
      const std::int64_t one = 1;
      std::memcpy(bytes.data(), &one, sizeof one);
    }
    return bytes;
  }

  /// What the access does to the window, and what it gets from there.
  void model(Access& access) {
    char* at = models_[static_cast<std::size_t>(access.target)].data() + access.at;
    access.wanted.resize(static_cast<std::size_t>(access.there.bytes()));
    access.there.gather(at, access.wanted);
    const std::vector<char> bytes = sent(access);
    if (access.way == Way::add) add<int>(at, bytes);
    if (access.way == Way::count) add<std::int64_t>(at, bytes);
    if (access.way == Way::put || access.way == Way::replace || access.way == Way::swap)
      access.there.scatter(at, bytes);
  }

  template <class Number>
  static void add(char* at, const std::vector<char>& bytes) {
    for (std::size_t i = 0; i < bytes.size(); i += sizeof(Number)) {
      Number a, b;
      std::memcpy(&a, at + i, sizeof a);
      std::memcpy(&b, bytes.data() + i, sizeof b);
      a += b;
      std::memcpy(at + i, &a, sizeof a);
    }
  }

  // --- MPI ---

  void open() {
    context_.step("opening " + name());
    const MPI_Comm comm = comm_.handle;
    if (kind_ == Kind::create)
      context_.check(MPI_Win_create(window_spot_.address(), window_bytes(), unit_, MPI_INFO_NULL, comm, &window_),
                     "MPI_Win_create");
    if (kind_ == Kind::allocate) {
      context_.check(MPI_Win_allocate(window_bytes(), unit_, MPI_INFO_NULL, comm, &allocated_, &window_),
                     "MPI_Win_allocate");
      std::copy(mine().begin(), mine().end(), allocated_);
    }
    if (kind_ == Kind::dynamic) {
      context_.check(MPI_Win_create_dynamic(MPI_INFO_NULL, comm, &window_), "MPI_Win_create_dynamic");
      context_.check(MPI_Win_attach(window_, window_spot_.address(), window_bytes()), "MPI_Win_attach");
    }
    MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN);
    MPI_Aint address = 0;
    if (kind_ == Kind::dynamic) MPI_Get_address(window_spot_.address(), &address);
    starts_.resize(static_cast<std::size_t>(ranks()));
    PMPI_Allgather(&address, 1, MPI_AINT, starts_.data(), 1, MPI_AINT, context_.control);
  }

  void close() {
    context_.step("closing " + name());
    if (kind_ == Kind::allocate) {
      MPI_Win_lock(MPI_LOCK_EXCLUSIVE, comm_.rank_of(rank()), 0, window_);
      compare(allocated_);
      MPI_Win_unlock(comm_.rank_of(rank()), window_);
    }
    if (kind_ == Kind::dynamic) context_.check(MPI_Win_detach(window_, window_spot_.address()), "MPI_Win_detach");
    context_.check(MPI_Win_free(&window_), "MPI_Win_free");
  }

  void carry_out(std::vector<Access>& accesses) {
    std::vector<Access*> mine;
    for (Access& access : accesses)
      if (access.origin == rank()) mine.push_back(&access);
    std::shuffle(mine.begin(), mine.end(), own_.engine());
    switch (epochs_kind_) {
      case Epochs::fence:
        context_.check(MPI_Win_fence(0, window_), "MPI_Win_fence");
        for (Access* access : mine) call(*access);
        context_.check(MPI_Win_fence(0, window_), "MPI_Win_fence");
        return;
      case Epochs::start:
        return start_and_post(mine);
      case Epochs::lock:
        if (kind_ == Kind::allocate) PMPI_Barrier(context_.control);
        for (const int target : comm_.group) lock(mine, target);
        return;
      case Epochs::lock_all:
        if (kind_ == Kind::allocate) PMPI_Barrier(context_.control);
        context_.check(MPI_Win_lock_all(0, window_), "MPI_Win_lock_all");
        for (Access* access : mine) {
          call(*access);
          if (own_.one_in(4)) context_.check(MPI_Win_flush(comm_.rank_of(access->target), window_), "MPI_Win_flush");
          if (own_.one_in(8)) context_.check(MPI_Win_flush_all(window_), "MPI_Win_flush_all");
        }
        complete_requests();
        context_.check(MPI_Win_unlock_all(window_), "MPI_Win_unlock_all");
    }
  }

  void start_and_post(const std::vector<Access*>& mine) {
    MPI_Group group = MPI_GROUP_NULL;
    MPI_Comm_group(comm_.handle, &group);
    context_.check(MPI_Win_post(group, 0, window_), "MPI_Win_post");
    context_.check(MPI_Win_start(group, 0, window_), "MPI_Win_start");
    for (Access* access : mine) call(*access);
    context_.check(MPI_Win_complete(window_), "MPI_Win_complete");
    context_.check(MPI_Win_wait(window_), "MPI_Win_wait");
    MPI_Group_free(&group);
  }

  void lock(const std::vector<Access*>& mine, int target) {
    if (std::none_of(mine.begin(), mine.end(), [&](const Access* access) { return access->target == target; })) return;
    const int there = comm_.rank_of(target);
    context_.check(MPI_Win_lock(own_.one_in(2) ? MPI_LOCK_SHARED : MPI_LOCK_EXCLUSIVE, there, 0, window_),
                   "MPI_Win_lock");
    for (Access* access : mine)
      if (access->target == target) call(*access);
    complete_requests();
    if (own_.one_in(3)) context_.check(MPI_Win_flush_local(there, window_), "MPI_Win_flush_local");
    context_.check(MPI_Win_unlock(there, window_), "MPI_Win_unlock");
  }

  void call(Access& access) {
    const int target = comm_.rank_of(access.target), count = access.here.count();
    const MPI_Aint at = (starts_[static_cast<std::size_t>(access.target)] + access.at) / unit_;
    const MPI_Datatype here = access.here.type(), there = access.there.type();
    const bool passive = epochs_kind_ >= Epochs::lock;
    MPI_Request request = MPI_REQUEST_NULL;
    int error = MPI_SUCCESS;
    switch (access.way) {
      case Way::put:
        error = passive && own_.one_in(2)
                    ? MPI_Rput(access.from.address(), count, here, target, at, access.there.count(), there, window_,
                               &request)
                    : MPI_Put(access.from.address(), count, here, target, at, access.there.count(), there, window_);
        break;
      case Way::get:
        error =
            passive && own_.one_in(2)
                ? MPI_Rget(access.to.address(), count, here, target, at, access.there.count(), there, window_, &request)
                : MPI_Get(access.to.address(), count, here, target, at, access.there.count(), there, window_);
        break;
      case Way::replace:
        error = MPI_Accumulate(access.from.address(), count, here, target, at, access.there.count(), there, MPI_REPLACE,
                               window_);
        break;
      case Way::swap:
        error = MPI_Get_accumulate(access.from.address(), count, here, access.to.address(), count, here, target, at,
                                   access.there.count(), there, MPI_REPLACE, window_);
        break;
      case Way::add: {
        const int ints = static_cast<int>(access.here.bytes() / static_cast<std::int64_t>(sizeof(int)));
        error = MPI_Accumulate(access.from.address(), ints, MPI_INT, target, at, ints, MPI_INT, MPI_SUM, window_);
        break;
      }
      case Way::count:
        error = MPI_Fetch_and_op(access.from.address(), access.to.address(), MPI_INT64_T, target, at, MPI_SUM, window_);
    }
    context_.check(error, "an access");
    if (request != MPI_REQUEST_NULL) requests_.push_back(request);
  }

  void complete_requests() {
    context_.check(MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE),
                   "MPI_Waitall");
    requests_.clear();
  }

  // --- after ---

  void compare(const char* found) {
    if (!std::equal(mine().begin(), mine().end(), found)) context_.fail("wrong data in " + name());
    found_ = hash_of(found, mine().size());
  }

  void verify() {
    context_.step("verification");
    context_.arenas.download();
    if (kind_ != Kind::allocate) {
      std::copy(mine().begin(), mine().end(), window_spot_.image());
      compare(window_spot_.found());
    }
    context_.log(name() + " " + found_);
    for (auto& accesses : epochs_)
      for (Access& access : accesses)
        if (access.origin == rank() && access.gets()) verify_gotten(access);
    context_.compare_memory();
  }

  void verify_gotten(const Access& access) {
    std::vector<char> found(static_cast<std::size_t>(access.here.bytes()));
    access.here.gather(access.to.found(), found);
    if (access.way == Way::count) {  // in which order the processes count is theirs
      access.to.arena->ignore(access.to.offset, access.to.offset + 8);
      return;
    }
    access.here.scatter(access.to.image(), access.wanted);
    if (found != access.wanted)
      context_.fail(name() + ": process " + std::to_string(access.target) + " gave wrong data, " +
                    std::to_string(found.size()) + " B, " + access.there.text() + " to " + access.here.text());
    context_.log("access " + hash_of(found.data(), found.size()));
  }

  Context& context_;
  Dice dice_, own_;
  const Communicator& comm_;
  Kind kind_;
  Epochs epochs_kind_;
  int unit_;
  std::int64_t place_bytes_;
  int on_device_;
  std::vector<std::vector<Access>> epochs_;
  std::vector<std::vector<char>> models_;  ///< what the window of each process holds
  Spot window_spot_;
  std::string found_;  ///< of what it held in the end
  char* allocated_ = nullptr;
  MPI_Win window_ = MPI_WIN_NULL;
  std::vector<MPI_Aint> starts_;  ///< the address of each window; 0 but for dynamic ones
  std::vector<MPI_Request> requests_;
};

}  // namespace

void access_windows(Context& context) {
  WindowRound(context).run();
}

}  // namespace gpudt::test

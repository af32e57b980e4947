// Every access x every synchronisation x host and device memory at origin and target x contiguous and noncontiguous
// types.
#include <algorithm>
#include <cstring>

#include "tests/mpi/rma.hpp"
#include "tests/support/mpi_quirks.hpp"

using namespace gpudt::test;

namespace {

/// Where the two ends of an access lie.
struct Places {
  const char* name;
  Place origin;
  Place target[2];  ///< of even and of odd ranks
  bool served_by_mpi() const { return on_host(target[0]) && on_host(target[1]); }
};

/// What fills a rank's memory before an access.
struct Keys {
  std::uint64_t origin, target, compare, result;
  explicit Keys(int of, bool single)
      : origin(key_of(of, 0)),
        target(key_of(of, 1)),
        // A comparison succeeds on every other rank.
        compare(single && of % 2 == 0 ? key_of((of + 1) % ranks(), 1) : key_of(of, 2)),
        result(key_of(of, 3)) {}
};

/// What one rank's memory holds after an access.
struct Outcome {
  std::vector<char> origin, result, target;
};

std::vector<int> integers(const Side& side, std::uint64_t key) {
  const Stream stream = stream_of(side.type, side.count, key);
  std::vector<int> values(stream.size() / sizeof(int));
  std::memcpy(values.data(), stream.data(), stream.size());
  return values;
}

/// An area filled with `key`, with `values` put in the side's places.
std::vector<char> area_with(const Side& side, std::uint64_t key, const std::vector<int>& values) {
  Image image(side.type, side.count);
  image.fill(key);
  Stream stream(values.size() * sizeof(int));
  std::memcpy(stream.data(), values.data(), stream.size());
  unpack_into(image, side.type, side.count, stream);
  return image.bytes();
}

struct Exchange {
  std::vector<int> origin, compare, target, result;
};

/// The access of rank `from` to its right neighbour.
Exchange modelled(const AccessCall& call, const Side& origin, const Side& target, int from) {
  const Keys own(from, call.single), theirs((from + 1) % ranks(), call.single);
  Exchange data = {integers(origin, own.origin), integers(origin, own.compare), integers(target, theirs.target),
                   integers(origin, own.result)};
  for (std::size_t i = 0; i < data.target.size(); ++i)
    call.model(data.origin[i], data.compare[i], data.target[i], data.result[i]);
  return data;
}

Outcome expected(const AccessCall& call, const Side& origin, const Side& target) {
  const Keys keys(rank(), call.single);
  const Exchange out = modelled(call, origin, target, rank()), in = modelled(call, origin, target, left_neighbour());
  return {area_with(origin, keys.origin, out.origin), area_with(origin, keys.result, out.result),
          area_with(target, keys.target, in.target)};
}

/// The memory of one rank in a test of accesses from each rank to its right neighbour.
class Setting {
 public:
  Setting(const Places& places, const Side& origin, const Side& target)
      : origin_side_(origin),
        target_side_(target),
        origin_(places.origin, origin),
        compare_(places.origin, origin),
        result_(places.origin, origin),
        target_(places.target[rank() % 2], target),
        window_(target_) {}

  Outcome run(const AccessCall& call, const Epoch& epoch) {
    fill(call);
    lock_step();
    epoch.open(window_, right_neighbour(), left_neighbour());
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_OK(call.start({origin_.address(), compare_.address(), result_.address(), origin_side_, right_neighbour(),
                       target_.displacement(), target_side_, window_},
                      &request));
    if (call.with_request) MPI_OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    epoch.complete(window_, right_neighbour());
    Outcome found;
    found.origin = origin_.read();
    const bool complete = epoch.completes_early || call.with_request;
    if (complete) spoil();
    if (complete) found.result = result_.read();
    epoch.close(window_, right_neighbour());
    if (!complete) found.result = result_.read();
    spoil();
    lock_step();
    MPI_OK(MPI_Win_lock(MPI_LOCK_SHARED, rank(), 0, window_));
    found.target = target_.read();
    MPI_OK(MPI_Win_unlock(rank(), window_));
    lock_step();
    return found;
  }

 private:
  void fill(const AccessCall& call) {
    const Keys keys(rank(), call.single);
    origin_.fill(keys.origin);
    compare_.fill(keys.compare);
    result_.fill(keys.result);
    target_.fill(keys.target);
  }
  /// What the program may do with its own buffers.
  void spoil() {
    origin_.fill(key_of(rank(), 4));
    compare_.fill(key_of(rank(), 5));
  }

  const Side& origin_side_;
  const Side& target_side_;
  Area origin_, compare_, result_, target_;
  AreaWindow window_;
};

std::string difference(const char* name, const std::vector<char>& found, const std::vector<char>& wanted) {
  if (found == wanted) return "";
  const auto at = std::mismatch(found.begin(), found.end(), wanted.begin()).first - found.begin();
  return std::string(name) + " differs from byte " + std::to_string(at) + " of " + std::to_string(wanted.size()) + "; ";
}

std::string difference(const Outcome& found, const Outcome& wanted) {
  return difference("origin", found.origin, wanted.origin) + difference("result", found.result, wanted.result) +
         difference("target", found.target, wanted.target);
}

void check_calls(const Places& places, const Side& origin, const Side& target, std::size_t epoch_step) {
  const bool single = origin.count * origin.type.size() == sizeof(int);
  const bool dense_target = target.type.size() == sizeof(int);
  Setting setting(places, origin, target);
  for (const AccessCall& call : access_calls) {
    if (single != call.single) continue;
    // Open MPI 4.1 overruns its own memory in fetching accumulates with derived datatypes at the target.
    if (places.served_by_mpi() && call.fetches && !dense_target) continue;
    const Outcome wanted = expected(call, origin, target);
    for (std::size_t i = 0; i < epochs.size(); i += epoch_step) {
      const Epoch& epoch = epochs[i];
      if (call.with_request && !epoch.passive) continue;
      const std::string text = std::string(call.name) + ", " + epoch.name + ", " + places.name + ", " + origin.text() +
                               " to " + target.text();
      step(text);
      INFO(text);
      CHECK(difference(setting.run(call, epoch), wanted) == "");
    }
  }
}

void check_places(const Places& places) {
  const Side one{plain(MPI_INT), 1};
  check_calls(places, one, one, 1);
  for (const auto& [origin, target] : integer_sides(40)) check_calls(places, origin, target, 1);
  // Messages beyond the eager limits, in every third kind of epoch.
  for (const auto& [origin, target] : integer_sides(12000)) check_calls(places, origin, target, 3);
}

}  // namespace

TEST_CASE("accesses from device memory to windows of host memory", "[rma][host-window]") {
  NEEDS_WINDOWS_OF_MPI;
  MPICH_CANNOT("it never completes some atomic accesses under a lock");
  check_places({"device to host", Place::device, {Place::host, Place::host}});
}

TEST_CASE("accesses from host memory to windows of device memory", "[rma][device-window]") {
  check_places({"host to device", Place::host, {Place::device, Place::device}});
}

TEST_CASE("accesses from device memory to windows of device memory", "[rma][device-window]") {
  check_places({"device to device", Place::device, {Place::device, Place::device}});
}

TEST_CASE("accesses from host memory to windows of host memory here and device memory there", "[rma][device-window]") {
  check_places({"host to either", Place::host, {Place::device, Place::host}});
}

TEST_CASE("accesses from device memory to windows of host memory here and device memory there",
          "[rma][device-window]") {
  check_places({"device to either", Place::device, {Place::host, Place::device}});
}

TEST_CASE("every kind of memory at the origin and in the window", "[rma][device-window][kinds]") {
  const auto sides = integer_sides(40);
  for (const Place place : all_places)
    for (const bool in_window : {false, true}) {
      const Place origin = in_window ? Place::device : place, target = in_window ? place : Place::device;
      const std::string name = std::string(place_name(origin)) + " to " + place_name(target);
      const Places places = {name.c_str(), origin, {target, target}};
      if (places.served_by_mpi() && !mpi_has_windows()) continue;
      const Side one{plain(MPI_INT), 1};
      check_calls(places, one, one, 3);
      check_calls(places, sides.back().first, sides.back().second, 3);
    }
}

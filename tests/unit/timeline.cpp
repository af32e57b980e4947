// The timeline: what is recorded, by whom and in which order it is written, and what is said where that fails.
#include "base/timeline.hpp"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "interpose/support/points.hpp"
#include "tests/support/catch.hpp"

namespace {

using namespace gpudt;
using namespace gpudt::interpose;

class Folder {
 public:
  Folder() { REQUIRE(mkdtemp(path_) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string file() const { return std::string(path_) + "/points.json"; }

 private:
  char path_[32] = "/tmp/gpudt-timeline-XXXXXX";
};

nlohmann::json document(const std::string& file) {
  return nlohmann::json::parse(std::ifstream(file));
}

/// The points in the file, in its order.
std::vector<nlohmann::json> points(const nlohmann::json& document) {
  std::vector<nlohmann::json> found;
  for (const auto& event : document["traceEvents"])
    if (event["ph"] == "i") found.push_back(event);
  return found;
}

std::vector<std::string> names(const std::vector<nlohmann::json>& points) {
  std::vector<std::string> found;
  for (const auto& point : points) found.push_back(point["name"]);
  return found;
}

}  // namespace

TEST_CASE("without a timeline nothing is recorded, and nothing is written", "[chooser]") {
  const Folder folder;
  mark(point::given);
  REQUIRE(timeline_now() == 0);
  REQUIRE(timeline_stop().empty());
  REQUIRE(timeline_start(folder.file(), 0));
  REQUIRE(timeline_stop().empty());
  mark(point::given);
  REQUIRE(points(document(folder.file())).empty());
}

TEST_CASE("a call that turns out to have its place on the timeline begins when it was entered", "[chooser]") {
  const Folder folder;
  REQUIRE(timeline_start(folder.file(), 7));
  const std::int64_t began = timeline_now();
  mark(point::classified);
  {
    const CallOnTimeline call(began, point::send_entered, point::send_returned);
    const CallOnTimeline none(0, point::receive_entered, point::receive_returned);
    mark(point::given);
  }
  REQUIRE(timeline_stop().empty());
  const auto found = points(document(folder.file()));
  REQUIRE(names(found) ==
          std::vector<std::string>{"send entered", "buffer classified", "given to MPI", "send returned"});
  double last = static_cast<double>(began) / 1000;
  for (const auto& point : found) {
    REQUIRE(point["pid"] == 7);
    REQUIRE(point["ts"].get<double>() >= last - 0.001);  // rounding
    last = point["ts"];
  }
}

TEST_CASE("points beyond the room for them are counted, in the file and for whoever reads of it", "[chooser]") {
  const Folder folder;
  REQUIRE(timeline_start(folder.file(), 0, 3));
  for (int i = 0; i < 5; ++i) mark(point::given);
  const std::string said = timeline_stop();
  REQUIRE(said.find("2 points") != std::string::npos);
  REQUIRE(said.find("room for 3") != std::string::npos);
  const auto written = document(folder.file());
  REQUIRE(written["otherData"]["lost"] == 2);
  REQUIRE(points(written).size() == 3);
}

TEST_CASE("threads record points at the same time, each under its own number", "[chooser]") {
  constexpr int threads = 4, each = 1000;
  const Folder folder;
  REQUIRE(timeline_start(folder.file(), 0));
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i)
    running.emplace_back([] {
      for (int k = 0; k < each; ++k) mark(point::given);
    });
  for (std::thread& thread : running) thread.join();
  REQUIRE(timeline_stop().empty());
  const auto found = points(document(folder.file()));
  REQUIRE(found.size() == std::size_t{threads} * each);
  std::set<int> numbers;
  for (const auto& point : found) numbers.insert(point["tid"].get<int>());
  REQUIRE(numbers.size() == threads);
  REQUIRE(std::is_sorted(found.begin(), found.end(),
                         [](const auto& one, const auto& other) { return one["ts"] < other["ts"]; }));
}

TEST_CASE("a file that cannot be written is named, with the reason", "[chooser]") {
  REQUIRE(timeline_start("/nowhere/at/all.json", 0));
  const std::string said = timeline_stop();
  REQUIRE(said.find("/nowhere/at/all.json cannot be written: No such file") != std::string::npos);
  REQUIRE_FALSE(timeline_on());
}

// The costs that choices are made from: their names, the files of gpudt-tune, and what is said of files that are not
// used.
#include "device/choice/tuning.hpp"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

#include "device/choice/host_cpu.hpp"
#include "device/sim/make_runtime.hpp"
#include "device/transfer/engine.hpp"
#include "tests/support/catch.hpp"

namespace {

using namespace gpudt;
using namespace gpudt::device;

const TuningKey key = {"NVIDIA H200", "Some CPU (R) @ 3 GHz"};

std::string file_text(const std::string& costs, const std::string& gpu = key.gpu, const std::string& cpu = key.cpu,
                      int version = tuning_version) {
  return R"({"gpudt_tuning": )" + std::to_string(version) + R"(, "gpu": ")" + gpu + R"(", "cpu": ")" + cpu +
         R"(", "costs": )" + costs + "}";
}

bool same(const CostModel& one, const CostModel& other) {
  bool equal = true;
  for_each_constant(one, [&](const std::string& name, double value, double) {
    for_each_constant(other, [&](const std::string& its_name, double its_value, double) {
      if (name == its_name) equal = equal && value == its_value;
    });
  });
  return equal;
}

/// A folder of its own, and an environment in which it is the user's cache.
class CacheFolder {
 public:
  CacheFolder() {
    REQUIRE(mkdtemp(path_) != nullptr);
    if (const char* before = std::getenv("XDG_CACHE_HOME")) before_ = before;
    setenv("XDG_CACHE_HOME", path_, 1);
  }
  ~CacheFolder() {
    if (before_.empty())
      unsetenv("XDG_CACHE_HOME");
    else
      setenv("XDG_CACHE_HOME", before_.c_str(), 1);
    const std::string remove = "rm -r " + path();
    if (std::system(remove.c_str()) != 0) WARN("left behind: " + path());
  }
  CacheFolder(const CacheFolder&) = delete;
  CacheFolder& operator=(const CacheFolder&) = delete;
  std::string path() const { return path_; }

 private:
  char path_[32] = "/tmp/gpudt-tuning-XXXXXX";
  std::string before_;
};

void write(const std::string& file, const std::string& text) {
  std::ofstream out(file);
  out << text;
  out.close();
  REQUIRE(out);
}

TEST_CASE("each constant of the model has a name, and a default that makes sense", "[chooser]") {
  std::set<std::string> names;
  std::size_t constants = 0;
  const CostModel model;
  for_each_constant(model, [&](const std::string& name, double value, double least) {
    CHECK(names.insert(name).second);
    CHECK(value >= least);
    ++constants;
  });
  CHECK(constants * sizeof(double) == sizeof(CostModel));  // none was forgotten
}

TEST_CASE("a tuning file replaces the constants that it names", "[chooser]") {
  const Tuning tuning =
      parse_tuning(file_text(R"({"per_call_us": 9, "copy_on_device.base_us": 0.25})"), "some.json", key);
  CHECK(tuning.complaint.empty());
  CHECK(tuning.source == "some.json");
  CostModel expected;
  expected.per_call_us = 9;
  expected.copy_on_device.base_us = 0.25;
  CHECK(same(tuning.model, expected));
  CHECK_FALSE(same(tuning.model, CostModel{}));
}

TEST_CASE("a tuning file that is not used is complained of in one line, and defaults stay", "[chooser]") {
  const std::string good = R"({"per_call_us": 9})";
  const std::pair<std::string, std::string> cases[] = {
      {"", "JSON"},
      {"{", "JSON"},
      {"[1]", "JSON"},
      {"\xff\xfe", "JSON"},
      {"{}", "version"},
      {R"({"gpudt_tuning": "1"})", "version"},
      {file_text(good, key.gpu, key.cpu, tuning_version + 1), "version"},
      {file_text(good, "NVIDIA A100"), "another GPU"},
      {file_text(good, key.gpu, "another"), "another processor"},
      {file_text("7"), "no costs"},
      {file_text(R"({"per_call_us": 9, "speed_of_light": 3e8})"), "speed_of_light"},
      {file_text(R"({"per_call_us": "fast"})"), "per_call_us"},
      {file_text(R"({"per_call_us": -1})"), "per_call_us"},
      {file_text(R"({"per_call_us": 1e999})"), "JSON"},
      {file_text(R"({"copy_on_device.bytes_per_us": 0})"), "copy_on_device.bytes_per_us"},
  };
  for (const auto& [text, reason] : cases) {
    CAPTURE(text);
    const Tuning tuning = parse_tuning(text, "some.json", key);
    CHECK(tuning.complaint.find("some.json") != std::string::npos);
    CHECK(tuning.complaint.find(reason) != std::string::npos);
    CHECK(tuning.complaint.find('\n') == std::string::npos);
    CHECK(tuning.source == "built in");
    CHECK(same(tuning.model, CostModel{}));
  }
}

TEST_CASE("the file is found by GPU and processor in the cache folder", "[chooser]") {
  const CacheFolder cache;
  CHECK(tuning_path(key) == cache.path() + "/gpudt/nvidia-h200--some-cpu-r-3-ghz.json");
  CHECK(tuning_path({"NVIDIA A100", key.cpu}) != tuning_path(key));
  CHECK(read_tuning("auto", key).complaint.empty());  // no file, nothing said
  CHECK(read_tuning("auto", key).source == "built in");
  REQUIRE(std::system(("mkdir " + cache.path() + "/gpudt").c_str()) == 0);
  write(tuning_path(key), file_text(R"({"per_call_us": 9})"));
  CHECK(read_tuning("auto", key).model.per_call_us == 9);
  CHECK(read_tuning("auto", key).source == tuning_path(key));
  CHECK(read_tuning("none", key).source == "built in");
  const std::string other = cache.path() + "/other.json";
  CHECK(read_tuning(other, key).complaint.find("cannot be read") != std::string::npos);
  write(other, file_text(R"({"per_call_us": 11})"));
  CHECK(read_tuning(other, key).model.per_call_us == 11);
}

std::string warned, traced;

TEST_CASE("a tuning file that is a pipe does not make the process wait", "[kernel]") {
  const CacheFolder folder;
  const std::string pipe = folder.path() + "/pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(read_tuning(pipe, key).complaint.find("no regular file") != std::string::npos);
}

TEST_CASE("an engine chooses by the costs of its file", "[chooser]") {
  std::unique_ptr<Runtime> probe = make_sim_runtime();
  if (!probe) return;  // on a GPU: the rest is the same there
  const CacheFolder cache;
  const TuningKey here = {probe->traits(0).name, host_cpu()};
  Config config;
  config.tuning = cache.path() + "/here.json";
  config.warn = [](const std::string& text) { warned += text; };
  config.trace = [](const std::string& text) { traced += text; };
  for (const auto& [cost, way] :
       {std::pair{"kernel_pack_to_host", "the copy engine"}, {"copy_pack_to_host", "a kernel"}}) {
    warned = traced = "";
    write(config.tuning, file_text(std::string("{\"") + cost + ".base_us\": 1e6}", here.gpu, here.cpu));
    Engine engine(make_sim_runtime(), config);
    void* const memory = engine.runtime().device_alloc(0, 64);
    const Staging staging = engine.staging().acquire(StagingKind::mapped, 0, 64);
    engine.copy(0, staging.data(), memory, 64).wait();
    engine.runtime().device_free(0, memory);
    CHECK(warned.empty());
    CAPTURE(traced);
    CHECK(traced.find("pack of 64 B on GPU 0 by " + std::string(way)) == 0);
    CHECK(traced.find("10000") != std::string::npos);  // the way that was not taken, and what it would have cost
    CHECK(engine.cost_sources() == std::vector<std::string>{"GPU 0: " + config.tuning});
  }
  write(config.tuning, file_text("{}", "NVIDIA H200", here.cpu));
  Engine engine(make_sim_runtime(), config);
  CHECK(warned.empty());  // nothing is read before a GPU is used
  engine.gpu(0);
  engine.gpu(0);
  CHECK(warned.find("another GPU") != std::string::npos);
  CHECK(warned.find("another GPU") == warned.rfind("another GPU"));
}

}  // namespace

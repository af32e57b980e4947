// A tuning file (device/choice/tuning.hpp) for as long as a test wants it.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "device/choice/host_cpu.hpp"
#include "device/choice/tuning.hpp"

namespace gpudt::test {

class TuningFile {
 public:
  /// For a GPU of this name and this machine's processor. `costs`: what is not as built in, as members of an object.
  TuningFile(const std::string& gpu, const std::string& costs)
      : path(std::filesystem::temp_directory_path() / ("gpudt-" + gpu + "-" + std::to_string(getpid()) + ".json")) {
    std::ofstream(path) << R"({"gpudt_tuning": )" << device::tuning_version << R"(, "gpu": ")" << gpu
                        << R"(", "cpu": ")" << device::host_cpu() << R"(", "costs": {)" << costs << "}}";
  }
  ~TuningFile() { std::filesystem::remove(path); }
  TuningFile(const TuningFile&) = delete;
  TuningFile& operator=(const TuningFile&) = delete;

  const std::filesystem::path path;
};

}  // namespace gpudt::test

// What the programs that start communication in kernels do alike: options, the World, time limits, tables and JSON.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "initiated/world.hpp"
#include "pingpong/common/command_line.hpp"
#include "pingpong/common/machine.hpp"
#include "pingpong/common/table.hpp"

namespace gpudt::initiated::programs {

struct Settings {
  std::string json_file;
  std::string wire = "mpi";
  bool far = false;          ///< never by loads and stores, but as between nodes
  bool check = false;        ///< a short run that verifies
  int repetitions = 5;       ///< of each measurement, of which the median counts
  int limit_seconds = 60;    ///< after which the program is ended, whatever it is doing
  double wait_seconds = 10;  ///< after which a kernel's wait gives up
};

/// One run of a program: by all processes alike, of which process 0 alone prints.
class Session {
 public:
  Session(const char* program, const Settings& settings, const bench::Machine& machine, World& world,
          std::vector<bench::Column> columns, int processes);

  World& world() { return world_; }
  const Settings& settings() const { return settings_; }
  bool check() const { return settings_.check; }
  /// Whether loads and stores have a substitute: true, and false where they have.
  std::vector<bool> direct_or_not() const {
    if (settings_.wire == "mpi") return {true};
    return world_.reaches_all() ? std::vector<bool>{true, false} : std::vector<bool>{false};
  }
  int process() const { return world_.gpu(); }
  int processes() const { return world_.gpus(); }
  /// Whether the same may be measured with MPI on device memory.
  bool mpi_takes_device_memory() const { return bench::mpi_takes_device_memory(machine_); }

  /// Microseconds that `once` takes, done on all processes after a barrier: the slowest of them, the median of some
  /// repetitions behind one that is not counted. Collective.
  double measure(const std::function<void()>& once) const;

  /// One row, in the table and in the JSON file; `wrong` is what this process found wrong, or empty. Collective.
  void row(const std::vector<std::string>& cells, nlohmann::json about, const std::string& wrong);
  void rule() const;
  /// The exit code.
  int finish();

 private:
  const char* program_;
  const Settings& settings_;
  const bench::Machine& machine_;
  World& world_;
  bench::Table table_;
  nlohmann::json rows_ = nlohmann::json::array();
  bool all_verified_ = true;
};

/// main(): adds the options above to `command`, parses, starts MPI and a World with `options`, and calls `body`.
/// Needs a GPU for each process.
int run(const char* program, bench::CommandLine& command, int argc, char** argv,
        const std::vector<bench::Column>& columns, const Options& options, const std::function<void(Session&)>& body);

/// Memory of the current device, freed with its scope, and both ways between it and the host.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : count_(count) {
    void* data = nullptr;
    initiated::check(cudaMalloc(&data, count * sizeof(T)), "cudaMalloc");
    data_ = static_cast<T*>(data);
  }
  explicit DeviceArray(const std::vector<T>& from) : DeviceArray(from.size()) { write(from); }
  DeviceArray(DeviceArray&& other) noexcept : data_(std::exchange(other.data_, nullptr)), count_(other.count_) {}
  DeviceArray& operator=(DeviceArray&&) = delete;
  ~DeviceArray() { cudaFree(data_); }
  T* data() const { return data_; }
  std::size_t size() const { return count_; }
  void write(const std::vector<T>& from) {
    initiated::check(cudaMemcpy(data_, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
    initiated::check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }
  std::vector<T> read() const { return read_device(data_, count_); }
  static std::vector<T> read_device(const void* from, std::size_t count) {
    std::vector<T> to(count);
    initiated::check(cudaMemcpy(to.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return to;
  }

 private:
  T* data_;
  std::size_t count_;
};

/// Copies to device memory, such as a window, and waits.
template <class T>
void write_device(void* to, const std::vector<T>& from) {
  initiated::check(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  initiated::check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
}

/// "" if all of `seen` is within `tolerance`, relative to the larger of 1 and the value, of what is expected.
std::string first_wrong(const std::vector<double>& expected, const std::vector<double>& seen, double tolerance);

}  // namespace gpudt::initiated::programs

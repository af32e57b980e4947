// The file in which gpudt-tune keeps what it measured: JSON in the user's cache folder, one for each model of GPU and
// of host processor.
//
//   {"gpudt_tuning": 1, "gpu": "NVIDIA H200", "cpu": "...", "costs": {"kernel_pack_to_host.base_us": 7.3, ...}, ...}
//
// "costs" names constants of CostModel (for_each_constant); the others keep their defaults. Further members are only
// for human readers.
#pragma once

#include <string>

#include "device/choice/cost_model.hpp"

namespace gpudt::device {

inline constexpr int tuning_version = 1;

/// The GPU and the processor that a file is for.
struct TuningKey {
  std::string gpu;  ///< the model, as the runtime calls it
  std::string cpu;  ///< host_cpu()
};

/// $XDG_CACHE_HOME/gpudt/<key>.json, or below ~/.cache; empty without either variable.
std::string tuning_path(const TuningKey& key);

/// The costs to use, and where they come from.
struct Tuning {
  CostModel model = {};
  std::string source = "built in";  ///< or the name of the file
  std::string complaint = {};       ///< one sentence on why a file was not used; empty: none
};

/// `setting`: "auto" (the file of tuning_path(), if there is one), "none", or a file's name (which must exist). A file
/// that cannot be read, is not understood or is for another GPU or processor leaves the defaults. Throws std::bad_alloc
/// alone.
Tuning read_tuning(const std::string& setting, const TuningKey& key);

/// Parses the text of a tuning file; `file` is its name, for `source` and `complaint`.
Tuning parse_tuning(const std::string& text, const std::string& file, const TuningKey& key);

}  // namespace gpudt::device

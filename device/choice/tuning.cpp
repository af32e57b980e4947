#include "device/choice/tuning.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/never_destroyed.hpp"

namespace gpudt::device {
namespace {

constexpr std::size_t most_file_bytes = 1 << 20;  ///< gpudt-tune's files have less than a hundredth

/// The name in lower case, with a hyphen for each sequence of characters that are no letters or digits.
std::string file_name_part(const std::string& name) {
  std::string part;
  for (const char each : name) {
    const auto character = static_cast<unsigned char>(each);
    if (std::isalnum(character) != 0)
      part += static_cast<char>(std::tolower(character));
    else if (!part.empty() && part.back() != '-')
      part += '-';
  }
  if (!part.empty() && part.back() == '-') part.pop_back();
  return part;
}

std::string cache_folder() {
  const auto variable = [](const char* name) -> std::string {
    const char* const value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  const std::string cache = variable("XDG_CACHE_HOME"), home = variable("HOME");
  return !cache.empty() ? cache : !home.empty() ? home + "/.cache" : "";
}

Tuning refused(const std::string& file, const std::string& why) {
  Tuning tuning;
  tuning.complaint = "The tuning file " + file + " is not used: " + why + ". Built-in costs stand in for it.";
  return tuning;
}

/// What a regular file holds, as far as it is no longer than `most_file_bytes`; nothing if it cannot be read, or is a
/// pipe or a device, which might make this process wait for ever.
std::optional<std::string> read_file(const std::string& name) {
  const int file = open(name.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  struct stat status = {};
  std::optional<std::string> text;
  if (fstat(file, &status) == 0 && S_ISREG(status.st_mode)) {
    text.emplace(most_file_bytes, '\0');
    const ssize_t bytes = read(file, text->data(), text->size());
    text->resize(bytes < 0 ? 0 : static_cast<std::size_t>(bytes));
  }
  close(file);
  return text;
}

/// Sets the constant called `name`. Returns what is wrong with it, or an empty string.
std::string set_constant(CostModel& model, const std::string& name, const nlohmann::json& value) {
  std::string wrong = name + " is no constant of this version";
  for_each_constant(model, [&](const std::string& each, double& constant, double least) {
    if (each != name) return;
    const double number = value.is_number() ? value.get<double>() : std::nan("");
    wrong = std::isfinite(number) && number >= least ? "" : name + " has no sensible value";
    if (wrong.empty()) constant = number;
  });
  return wrong;
}

}  // namespace

std::string tuning_path(const TuningKey& key) {
  const std::string folder = cache_folder();
  return folder.empty() ? "" : folder + "/gpudt/" + file_name_part(key.gpu) + "--" + file_name_part(key.cpu) + ".json";
}

Tuning parse_tuning(const std::string& text, const std::string& file, const TuningKey& key) {
  const nlohmann::json document = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) return refused(file, "it is not JSON, or no object");
  const auto member = [&](const char* name) -> const nlohmann::json& {
    static const auto& nothing = never_destroyed<nlohmann::json>();
    const auto found = document.find(name);
    return found == document.end() ? nothing : *found;
  };
  if (member("gpudt_tuning") != nlohmann::json(tuning_version)) return refused(file, "it is of another version");
  if (member("gpu") != nlohmann::json(key.gpu)) return refused(file, "it is for another GPU than " + key.gpu);
  if (member("cpu") != nlohmann::json(key.cpu)) return refused(file, "it is for another processor than " + key.cpu);
  const nlohmann::json& costs = member("costs");
  if (!costs.is_object()) return refused(file, "it has no costs");
  Tuning tuning = {{}, file, {}};
  for (const auto& [name, value] : costs.items()) {
    const std::string wrong = set_constant(tuning.model, name, value);
    if (!wrong.empty()) return refused(file, wrong);
  }
  return tuning;
}

Tuning read_tuning(const std::string& setting, const TuningKey& key) {
  const bool chosen = setting != "auto";
  const std::string file = chosen ? setting : tuning_path(key);
  if (setting == "none" || file.empty()) return {};
  const std::optional<std::string> text = read_file(file);
  if (!text)
    return chosen
               ? refused(
                     file,
                     "it cannot be read, or is no regular file; GPUDT_TUNING takes auto, none or a file of gpudt-tune")
               : Tuning{};
  return parse_tuning(*text, file, key);
}

}  // namespace gpudt::device

// The command line of a measuring program. command_line.cpp is the one place where CLI11 is seen, which takes longer to
// compile than any of the programs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming)
class App;
class Option;
}  // namespace CLI

namespace gpudt::bench {

/// What a number has to be.
struct Bounds {
  enum Kind { positive, not_negative, within } kind = positive;
  double low = 0, high = 0;  ///< of `within`; both are allowed
};

/// Options are declared, then parsed once. Their names are written "-n,--calls"; the value that a variable has when it
/// is declared is the default, which --help shows. References must last until parse() has returned.
class CommandLine {
 public:
  /// --help begins with `description`.
  explicit CommandLine(const std::string& description);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  void add(const std::string& names, int& value, const std::string& help, const Bounds& bounds);
  void add(const std::string& names, double& value, const std::string& help, const Bounds& bounds);
  /// As many numbers as there are in `values`, separated by commas.
  void add(const std::string& names, std::vector<int>& values, const std::string& help, const Bounds& bounds);
  void add(const std::string& names, int& value, const std::string& help);
  /// One of `allowed`, or any text if that is empty.
  void add(const std::string& names, std::string& value, const std::string& help,
           const std::vector<std::string>& allowed = {});
  /// Some of `allowed`, separated by commas, or any texts if that is empty.
  void add(const std::string& names, std::vector<std::string>& values, const std::string& help,
           const std::vector<std::string>& allowed = {});
  /// A number of bytes, which may end in K, M or G.
  void add_size(const std::string& names, std::int64_t& bytes, const std::string& help);
  void add_flag(const std::string& names, bool& value, const std::string& help);

  /// Puts `text` below the options in --help, above what is there already.
  void add_footer(const std::string& text);
  /// What parse() is to do last; only the latest counts. It may throw std::invalid_argument, as for a wrong option.
  void when_parsed(std::function<void()> complete);

  /// Whether the command line has this option, e.g. "--sizes".
  bool given(const std::string& name) const;

  /// Parses the command line. An exit code if the program should end here; what there is to say has then been said, by
  /// rank 0 alone. To be called before MPI_Init, so that --help needs no MPI.
  std::optional<int> parse(int argc, char** argv);

 private:
  template <class Value>
  CLI::Option* add_option(const std::string& names, Value& value, const std::string& help);

  std::unique_ptr<CLI::App> app_;
};

}  // namespace gpudt::bench

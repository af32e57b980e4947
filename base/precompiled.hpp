// Precompiled header: the standard headers that most sources include. Used with -Db_pch=true (scripts/test.sh --mpich,
// --mpi), where it saves a third of the time of targets with many sources. Off by default: every source includes what
// it uses, as other builds and Clang's checks, which know nothing of it, verify.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

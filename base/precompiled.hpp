// Precompiled header: the standard headers that most sources include. Used with -Db_pch=true, where it saves a third of
// the time of targets with many sources: by the tests, and in quick builds (scripts/test.sh --mpich, --mpi) by the
// library, too. Other builds and Clang's checks, which know nothing of it, verify that every source includes what it
// uses.
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

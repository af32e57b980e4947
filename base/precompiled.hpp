// Precompiled header: the standard headers that most sources include. Used with -Db_pch=true, where it saves a third of
// the time of targets with many sources. scripts/check/includes.py verifies that every source includes what it uses,
// and has to know the headers that stand here.
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

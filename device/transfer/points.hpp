// What the timeline (base/timeline.hpp) shows of a transfer.
#pragma once

#include "base/timeline.hpp"

namespace gpudt::device::point {

inline constexpr Point described{"transfer described"};
inline constexpr Point queued{"transfer queued"};  ///< to be launched with others
inline constexpr Point way_chosen{"way chosen"};
inline constexpr Point kernel_planned{"kernel planned"};
inline constexpr Point kernel_launched{"kernel launched"};
inline constexpr Point resident_planned{"resident kernel planned"};
inline constexpr Point resident_launched{"resident kernel launched"};
inline constexpr Point handed_over{"handed over"};  ///< to the persistent kernel
inline constexpr Point copy_planned{"copy planned"};
inline constexpr Point copy_launched{"copy launched"};
inline constexpr Point flag_seen{"flag seen"};

}  // namespace gpudt::device::point

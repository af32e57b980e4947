// A GPU that this process may use, whether or not it does.
#pragma once

#include <array>
#include <string>

namespace gpudt::device {

struct VisibleGpu {
  std::array<unsigned char, 16> id = {};  ///< the UUID
  std::string pci;                        ///< the address as in sysfs, "0000:3b:00.0"; empty if unknown
};

}  // namespace gpudt::device

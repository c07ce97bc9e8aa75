// See attend_kernels.h.
#include "amd_emulator/attend_kernels.h"

namespace quire::amd {

const std::vector<AttendKernel>& attend_kernels() {
  static const std::vector<AttendKernel> list = {
      {"quire_attend_generic",
       "cuda_generic",
       {},
       nullptr,
       [](const Plan&, const DeviceList&) -> std::string { return "quire_attend_generic"; }},
  };
  return list;
}

}  // namespace quire::amd

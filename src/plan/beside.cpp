// SPDX-License-Identifier: Apache-2.0
// See beside.h. The kernel of the longer call says what it is worth (GpuTraits::units_beside).
#include "plan/beside.h"

#include <utility>

#include "plan/kernel.h"
#include "plan/work.h"

namespace quire::plan_detail {

bool set_beside(Plan& longer, const Plan& shorter) {
  const auto& lists = longer.work().lists;
  if (lists.size() != 1 || shorter.work().lists.size() != 1) return false;
  const GpuTraits* gpu = lists[0].kernel.row().gpu;
  if (gpu->units_beside == nullptr || lists[0].kernel != shorter.work().lists[0].kernel) return false;
  const std::int64_t units = gpu->units_beside(longer, shorter);
  if (units == 0) return false;
  Work work = longer.work();
  work.lists[0].given_units = units;
  longer.set_work(std::move(work));
  return true;
}

bool is_beside(const Plan& longer) noexcept {
  const auto& lists = longer.work().lists;
  return lists.size() == 1 && lists[0].given_units > 0;
}

}  // namespace quire::plan_detail

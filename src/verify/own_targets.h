// SPDX-License-Identifier: Apache-2.0
// Parts of the targets that are our own kernels, and attend_sparse() as a target.
#pragma once

#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/tools/verify.hpp"

namespace quire::verify_detail {

/// Workspace of NaN: partial results must be written before they are merged.
class PoisonedWorkspace {
 public:
  explicit PoisonedWorkspace(std::size_t bytes) : memory_(bytes / sizeof(float) + 32, std::nanf("")) {
    void* start = memory_.data();
    std::size_t room = memory_.size() * sizeof(float);
    std::align(64, bytes, start, room);
    span_ = {static_cast<std::byte*>(start), bytes};
  }
  std::span<std::byte> span() const { return span_; }

 private:
  std::vector<float> memory_;
  std::span<std::byte> span_;
};

/// A target that promises all that our kernels promise on every device, but for bits.
Target target_of(std::string name, AttendCase attend);

/// "cpu_lists"; absent for other names.
std::optional<Result<Target>> list_target(const std::string& name, int num_threads);

}  // namespace quire::verify_detail

// SPDX-License-Identifier: Apache-2.0
// The kernel table as data. tests/new_kernel compiles this file with one row more.
#include <array>
#include <iterator>

#include "plan/kernel.h"

namespace quire {
namespace plan_detail {
namespace {

constexpr const KernelRow* kRows[] = {
#define QUIRE_KERNEL(name) &rows::name,
#include "plan/kernels.inc"
#undef QUIRE_KERNEL
};

}  // namespace

std::span<const KernelRow* const> kernel_rows() noexcept { return kRows; }

}  // namespace plan_detail

std::span<const Kernel> kernels() noexcept {
  static const auto infos = [] {
    std::array<Kernel, std::size(plan_detail::kRows)> out{};
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = plan_detail::kRows[i]->info;
    return out;
  }();
  return infos;
}

std::string_view KernelHandle::name() const noexcept { return row_ == nullptr ? std::string_view() : row_->info.name; }

}  // namespace quire

// SPDX-License-Identifier: Apache-2.0
// Stage: attention. A call with all but addresses settled: what may change is looked at for each layer, the rest once.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "attention/dispatch.h"
#include "backend/cpu/entry.h"
#include "batch/caught.h"
#include "batch/fields.h"
#include "contract/values.h"
#include "quire/attention.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

/// A tensor of the bound call beside the same tensor of the call that is made now.
struct Pair {
  std::string_view name;
  bool written;
  const Tensor* bound;
  const Tensor* given;
};

using Pairs = std::array<Pair, batch::kNumTensors>;
using Call = batch::Call<const Batch, const KVCache, const Options>;

Pairs pairs_of(const Call& bound, const Call& given) {
  Pairs pairs;
  std::size_t n = 0;
  const auto add = [&](const batch::TensorField& f, const Tensor& a, const Tensor& b) {
    pairs[n++] = {f.name, f.access == batch::Access::written, &a, &b};
  };
  batch::for_each_tensor(add, bound, given);
  return pairs;
}

bool same_but_address(const Tensor& a, const Tensor& b) {
  if (a.rank != b.rank || a.dtype != b.dtype || a.memory != b.memory) return false;
  const auto n = static_cast<std::ptrdiff_t>(std::max(a.rank, 0));
  if (!std::equal(a.shape.begin(), a.shape.begin() + n, b.shape.begin())) return false;
  // Frameworks do not agree on the strides of a tensor without elements, and no element is found by them.
  return a.num_elements() == 0 || std::equal(a.stride.begin(), a.stride.begin() + n, b.stride.begin());
}

bool same_tensors(const Pairs& pairs) {
  return std::all_of(pairs.begin(), pairs.end(), [](const Pair& p) { return same_but_address(*p.bound, *p.given); });
}

bool same_choices(const Call& bound, const Call& given) {
  bool same = true;
  batch::for_each_choice([&](std::string_view, const auto& a, const auto& b) { same = same && a == b; }, bound, given);
  return same;
}

Status other_call(const Pairs& pairs, const Call& bound, const Call& given) {
  for (const Pair& p : pairs)
    if (!same_but_address(*p.bound, *p.given))
      return {
          Code::invalid_argument,
          formatted("bound call: {} is {} in {} memory, bound as {} in {} memory; bind again for other shapes, strides or types",
                    p.name, to_string(*p.given), name(p.given->memory), to_string(*p.bound), name(p.bound->memory))};
  std::string_view other;
  batch::for_each_choice([&](std::string_view choice, const auto& a, const auto& b) { other = a == b ? other : choice; }, bound,
                         given);
  return {Code::invalid_argument, formatted("bound call: {} differs; bind again", other)};
}

/// Addresses [begin, end) between the first and the last byte of a tensor whose descriptor was checked; empty if it has none.
struct Range {
  std::uintptr_t begin = 0, end = 0;
};

Range range_of(const Tensor& t) {
  if (!t.present() || t.num_elements() == 0) return {};
  std::int64_t low = 0, high = 1;
  for (std::size_t d = 0; d < static_cast<std::size_t>(t.rank); ++d) {
    const std::int64_t reach = (t.shape[d] - 1) * t.stride[d];
    (reach < 0 ? low : high) += reach;
  }
  const auto at = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(t.data));
  const std::int64_t size = itemsize(t.dtype);
  return {static_cast<std::uintptr_t>(at + low * size), static_cast<std::uintptr_t>(at + high * size)};
}

bool apart(const Range& a, const Range& b) {
  return a.begin == a.end || b.begin == b.end || a.end <= b.begin || b.end <= a.begin;
}

bool has_good_address(const Tensor& t) {
  return reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(itemsize(t.dtype)) == 0 && t.data != nullptr;
}

/// Whether the rules about addresses surely find nothing. False proves no broken rule: views may interleave.
bool plainly_sound(const Pairs& pairs, std::span<const std::byte> workspace) {
  std::array<Range, std::tuple_size_v<Pairs>> ranges;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const Tensor& t = *pairs[i].given;
    ranges[i] = range_of(t);
    if (ranges[i].begin != ranges[i].end && !has_good_address(t)) return false;
  }
  for (std::size_t w = 0; w < ranges.size(); ++w)
    for (std::size_t i = 0; pairs[w].written && i < ranges.size(); ++i)
      if (i != w && !apart(ranges[w], ranges[i])) return false;
  const auto begin = reinterpret_cast<std::uintptr_t>(workspace.data());
  if (begin + workspace.size() < begin) return false;
  return std::all_of(ranges.begin(), ranges.end(), [&](const Range& r) { return apart(r, {begin, begin + workspace.size()}); });
}

}  // namespace

BoundAttend::BoundAttend(Plan plan, const Batch& batch, const KVCache& cache, const Options& options)
    : plan_(std::move(plan)), batch_(batch), cache_(cache), options_(options), workspace_bytes_(quire::workspace_bytes(plan_)) {}

Result<BoundAttend> BoundAttend::make(Plan plan, const Batch& batch, const KVCache& cache, const Options& options) try {
  const gpu::Vendor* vendor = attention::vendor_of(batch.query.memory);
  const Depth depth = vendor != nullptr ? Depth::metadata : Depth::tables;
  if (const Findings findings = check(batch, cache, options, depth); !findings.ok()) return findings.status();
  if (vendor != attention::vendor_of(device::memory_of(plan.device.backend)))
    return Status(Code::invalid_argument, formatted("bind: the plan was made for the {} device {}, but query is in {} memory",
                                                    name(plan.device.backend), plan.device.name, name(batch.query.memory)));
  if (Status s = vendor != nullptr ? gpu::admit(*vendor, plan, batch, cache, options) : cpu::runs_here(plan); !s.ok()) return s;
  return BoundAttend(std::move(plan), batch, cache, options);
} catch (...) {
  return batch::caught("bind");
}

bool BoundAttend::same_call(const Batch& batch, const KVCache& cache, const Options& options) const noexcept {
  const Call bound{batch_, cache_, options_}, given{batch, cache, options};
  return same_choices(bound, given) && same_tensors(pairs_of(bound, given));
}

Status BoundAttend::run(const Batch& batch, const KVCache& cache, const Options& options, std::span<std::byte> workspace,
                        const AttendOptions& attend_options) const {
  return given(false, batch, cache, options, workspace, attend_options);
}

Status BoundAttend::prepare(const Batch& batch, const KVCache& cache, const Options& options, std::span<std::byte> workspace,
                            const AttendOptions& attend_options) const {
  return given(true, batch, cache, options, workspace, attend_options);
}

Status BoundAttend::given(bool preparation, const Batch& batch, const KVCache& cache, const Options& options,
                          std::span<std::byte> workspace, const AttendOptions& attend_options) const try {
  const Call bound{batch_, cache_, options_}, now{batch, cache, options};
  const Pairs pairs = pairs_of(bound, now);
  if (!same_tensors(pairs) || !same_choices(bound, now)) return other_call(pairs, bound, now);
  const gpu::Vendor* vendor = attention::vendor_of(batch.query.memory);
  const auto whole = preparation ? &quire::prepare : &attend;
  const bool sound = workspace.size() >= workspace_bytes_ && workspace.data() != nullptr &&
                     reinterpret_cast<std::uintptr_t>(workspace.data()) % 64 == 0 && plainly_sound(pairs, workspace);
  if (!sound) return whole(plan_, batch, cache, options, workspace, attend_options);  // the full call names the fault, if any
  if (vendor == nullptr && preparation) return whole(plan_, batch, cache, options, workspace, attend_options);
  if (vendor == nullptr) {
    if (const Findings findings = contract::check_values(batch, cache, options); !findings.ok()) return findings.status();
    return cpu::attend(plan_, batch, cache, options, workspace, attend_options, /*checked=*/true);
  }
  const gpu::Part part = preparation ? gpu::Part::preparation : gpu::part_of(attend_options);
  return gpu::enqueue_admitted(*vendor, plan_, batch, cache, options, workspace, part, attend_options);
} catch (...) {
  return batch::caught("bound call");
}

}  // namespace quire

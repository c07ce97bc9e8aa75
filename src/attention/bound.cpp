// SPDX-License-Identifier: Apache-2.0
// Stage: attention. A call with all but addresses settled: what may change is looked at for each layer, the rest once.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "attention/dispatch.h"
#include "backend/cpu/entry.h"
#include "contract/values.h"
#include "quire/attention.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

struct Pair {
  std::string_view name;
  const Tensor* bound;
  const Tensor* given;
};

using Pairs = std::array<Pair, 26>;

Pairs pairs_of(const Batch& a, const KVCache& c, const Options& o, const Batch& b, const KVCache& d, const Options& p) {
  return {{{"output", &a.output, &b.output},
           {"lse", &a.lse, &b.lse},
           {"query", &a.query, &b.query},
           {"cache.k", &c.k, &d.k},
           {"cache.v", &c.v, &d.v},
           {"query_start_loc", &a.query_start_loc, &b.query_start_loc},
           {"seq_lens", &a.seq_lens, &b.seq_lens},
           {"block_table", &a.block_table, &b.block_table},
           {"cached_lens", &a.cached_lens, &b.cached_lens},
           {"key", &a.key, &b.key},
           {"value", &a.value, &b.value},
           {"k_scale", &c.k_scale, &d.k_scale},
           {"v_scale", &c.v_scale, &d.v_scale},
           {"alibi_slopes", &o.alibi_slopes, &p.alibi_slopes},
           {"sinks", &o.sinks, &p.sinks},
           {"slot_mapping", &a.slot_mapping, &b.slot_mapping},
           {"request_ids", &a.request_ids, &b.request_ids},
           {"q_scale", &a.q_scale, &b.q_scale},
           {"output_scale", &a.output_scale, &b.output_scale},
           {"causal", &a.causal, &b.causal},
           {"q_begin", &a.q_begin, &b.q_begin},
           {"key_begin", &a.key_begin, &b.key_begin},
           {"spans", &a.spans, &b.spans},
           {"prefix_lens", &a.prefix_lens, &b.prefix_lens},
           {"tree_mask", &a.tree_mask, &b.tree_mask},
           {"tree_lens", &a.tree_lens, &b.tree_lens}}};
}
constexpr std::size_t kWritten = 2;  // output and lse, the first of the pairs

bool same_but_address(const Tensor& a, const Tensor& b) {
  if (a.rank != b.rank || a.dtype != b.dtype || a.memory != b.memory) return false;
  const auto n = static_cast<std::ptrdiff_t>(std::max(a.rank, 0));
  return std::equal(a.shape.begin(), a.shape.begin() + n, b.shape.begin()) &&
         std::equal(a.stride.begin(), a.stride.begin() + n, b.stride.begin());
}

bool same_tensors(const Pairs& pairs) {
  return std::all_of(pairs.begin(), pairs.end(), [](const Pair& p) { return same_but_address(*p.bound, *p.given); });
}

bool same_choices(const Batch& a, const KVCache& c, const Options& o, const Batch& b, const KVCache& d, const Options& p) {
  return c.layout == d.layout && a.padding == b.padding && o.softmax_scale == p.softmax_scale &&
         o.sliding_window == p.sliding_window && o.logits_soft_cap == p.logits_soft_cap && o.causal == p.causal &&
         o.window_right == p.window_right && o.attention_chunk == p.attention_chunk && o.prefix_len == p.prefix_len &&
         o.spans_beyond_window == p.spans_beyond_window;
}

Status other_call(const Pairs& pairs) {
  for (const Pair& p : pairs)
    if (!same_but_address(*p.bound, *p.given))
      return {
          Code::invalid_argument,
          formatted("bound call: {} is {} in {} memory, bound as {} in {} memory; bind again for other shapes, strides or types",
                    p.name, to_string(*p.given), name(p.given->memory), to_string(*p.bound), name(p.bound->memory))};
  return {Code::invalid_argument,
          "bound call: layout, padding, softmax_scale, sliding_window, logits_soft_cap, causal, window_right, attention_chunk, "
          "prefix_len or spans_beyond_window differ; bind again"};
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
  for (std::size_t w = 0; w < kWritten; ++w)
    for (std::size_t i = w + 1; i < ranges.size(); ++i)
      if (!apart(ranges[w], ranges[i])) return false;
  const auto begin = reinterpret_cast<std::uintptr_t>(workspace.data());
  return std::all_of(ranges.begin(), ranges.end(), [&](const Range& r) { return apart(r, {begin, begin + workspace.size()}); });
}

}  // namespace

BoundAttend::BoundAttend(Plan plan, const Batch& batch, const KVCache& cache, const Options& options)
    : plan_(std::move(plan)), batch_(batch), cache_(cache), options_(options), workspace_bytes_(quire::workspace_bytes(plan_)) {}

Result<BoundAttend> BoundAttend::make(Plan plan, const Batch& batch, const KVCache& cache, const Options& options) {
  const gpu::Vendor* vendor = attention::vendor_of(batch.query.memory);
  const Depth depth = vendor != nullptr ? Depth::metadata : Depth::tables;
  if (const Findings findings = check(batch, cache, options, depth); !findings.ok()) return findings.status();
  if (vendor != attention::vendor_of(device::memory_of(plan.device.backend)))
    return Status(Code::invalid_argument, formatted("bind: the plan was made for the {} device {}, but query is in {} memory",
                                                    name(plan.device.backend), plan.device.name, name(batch.query.memory)));
  if (Status s = vendor != nullptr ? gpu::admit(*vendor, plan, batch, cache, options) : cpu::runs_here(plan); !s.ok()) return s;
  return BoundAttend(std::move(plan), batch, cache, options);
}

bool BoundAttend::same_call(const Batch& batch, const KVCache& cache, const Options& options) const noexcept {
  return same_choices(batch_, cache_, options_, batch, cache, options) &&
         same_tensors(pairs_of(batch_, cache_, options_, batch, cache, options));
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
                          std::span<std::byte> workspace, const AttendOptions& attend_options) const {
  const Pairs pairs = pairs_of(batch_, cache_, options_, batch, cache, options);
  if (!same_tensors(pairs) || !same_choices(batch_, cache_, options_, batch, cache, options)) return other_call(pairs);
  const gpu::Vendor* vendor = attention::vendor_of(batch.query.memory);
  const auto whole = preparation ? &quire::prepare : &attend;
  const bool sound = workspace.size() >= workspace_bytes_ && workspace.data() != nullptr &&
                     reinterpret_cast<std::uintptr_t>(workspace.data()) % 64 == 0 && plainly_sound(pairs, workspace);
  if (!sound) return whole(plan_, batch, cache, options, workspace, attend_options);  // it has the words, or finds it sound
  if (vendor == nullptr && preparation) return whole(plan_, batch, cache, options, workspace, attend_options);
  if (vendor == nullptr) {
    if (const Findings findings = contract::check_values(batch, cache, options); !findings.ok()) return findings.status();
    return cpu::attend(plan_, batch, cache, options, workspace, attend_options, /*checked=*/true);
  }
  const gpu::Part part = preparation ? gpu::Part::preparation : gpu::part_of(attend_options);
  return gpu::enqueue_admitted(*vendor, plan_, batch, cache, options, workspace, part, attend_options);
}

}  // namespace quire

// SPDX-License-Identifier: Apache-2.0
// The list of axes (reach.h). Types, layouts and padding come from their enumerations; tests/verify compares the fields of the
// list with the members of Batch, KVCache and Options, and its types with the rules of the contract.
#include <algorithm>

#include "quire/cache.hpp"
#include "text/formatted.h"
#include "verify/reach.h"

namespace quire::verify_detail {
namespace {

constexpr const char* kForms[] = {"none", "tensor", "head", "token"};

bool any(const ProblemLine& line, bool (*has)(const Request&)) { return std::ranges::any_of(line.problem.reqs, has); }

/// Calls visit for each enumerator that has a name.
template <typename Enum, typename Visit>
void for_each_named(Visit&& visit) {
  for (std::int32_t i = 0; !name(static_cast<Enum>(i)).empty() && name(static_cast<Enum>(i)) != "invalid"; ++i)
    visit(static_cast<Enum>(i));
}

void add_types(std::vector<AxisValue>& list) {
  constexpr DType kRows[] = {DType::f32, DType::f16, DType::bf16, DType::fp8_e4m3fn};  // Queries and outputs have these.
  for_each_named<DType>([&](DType cache) {
    if (!is_cached(cache) && cache != DType::fp8_ds_mla) return;
    for (const DType query : kRows) {
      const bool legal = is_fp8(query) ? cache == query : cache != DType::f32 || query == DType::f32;
      if (!legal) continue;
      list.push_back({"query k v", formatted("{} over {}", name(query), name(cache)), [=](const ProblemLine& l) {
                        return l.problem.q_dtype == query && l.problem.kv_dtype == cache && l.problem.has_equal_types();
                      }});
    }
  });
  for (const DType query : kRows)
    for (const DType output : kRows) {
      const bool legal = output == query || output == DType::f32 || is_fp8(output) || is_fp8(query);
      if (!legal) continue;
      list.push_back({is_fp8(output) ? "output output_scale" : "output",
                      formatted("{} output under {} queries", name(output), name(query)),
                      [=](const ProblemLine& l) { return l.problem.q_dtype == query && l.problem.out_dtype() == output; }});
    }
  const auto add = [&](const char* fields, const char* words, bool (*has)(const Problem&)) {
    list.push_back({fields, words, [has](const ProblemLine& l) { return has(l.problem); }});
  };
  add("k v", "K and V of unlike types", [](const Problem& p) { return !p.has_equal_types(); });
  add("k_block_scale v_block_scale", "block scales", [](const Problem& p) { return p.has_block_scales(); });
  for (const DType index : {DType::i32, DType::i64})
    list.push_back({"query_start_loc seq_lens block_table", formatted("{} indices", name(index)),
                    [=](const ProblemLine& l) { return l.index_dtype == index; }});
  add("query_start_loc seq_lens block_table", "indices of unlike types", [](const Problem&) { return false; });
}

void add_forms(std::vector<AxisValue>& list) {
  for_each_named<CacheLayout>([&](CacheLayout layout) {
    list.push_back(
        {"layout", formatted("layout {}", name(layout)), [=](const ProblemLine& l) { return l.problem.layout == layout; }});
  });
  for (const std::string scale : {"q_scale", "k_scale", "v_scale"})
    for (std::size_t i = 0; i < (scale == "q_scale" ? 3u : 4u); ++i) {
      const auto kind = static_cast<ScaleKind>(i);
      const auto of = scale == "q_scale" ? &Problem::q_scale : scale == "k_scale" ? &Problem::k_scale : &Problem::v_scale;
      const bool removable = i > 0 && scale != "q_scale";
      list.push_back({scale, formatted("{} {}", scale, kForms[i]), [=](const ProblemLine& l) { return l.problem.*of == kind; },
                      removable ? formatted("{}scale=none", scale[0]) : ""});
    }
  for_each_named<Padding>([&](Padding padding) {
    if (padding == Padding::refused) return;
    list.push_back({"padding", formatted("padding rows ({})", name(padding)),
                    [=](const ProblemLine& l) { return l.problem.num_padding_rows > 0 && l.problem.padding == padding; }});
  });
}

void add_sizes(std::vector<AxisValue>& list) {
  const auto add = [&](const char* fields, const char* words, bool (*has)(const Problem&)) {
    list.push_back({fields, words, [has](const ProblemLine& l) { return has(l.problem); }});
  };
  add("query k", "a head_dim that 16 does not divide", [](const Problem& p) { return p.head_dim % 16 != 0; });
  add("k v block_table", "a page_size that is no power of two",
      [](const Problem& p) { return (p.page_size & (p.page_size - 1)) != 0; });
  add("query k", "a number of query heads per KV head that is no power of two",
      [](const Problem& p) { return (p.group() & (p.group() - 1)) != 0; });
  add("v output", "a head_dim of V's own", [](const Problem& p) { return !p.has_equal_dims(); });
  add("k v", "V in K's rows", [](const Problem& p) { return p.latent; });
}

void add_options(std::vector<AxisValue>& list) {
  const auto add = [&](const char* fields, const char* words, bool (*has)(const ProblemLine&), const char* without = "") {
    list.push_back({fields, words, has, without});
  };
  using Line = const ProblemLine&;
  add("sliding_window", "sliding_window", [](Line l) { return l.problem.sliding_window.has_value(); }, "window=none");
  add("logits_soft_cap", "logits_soft_cap", [](Line l) { return l.problem.logits_soft_cap.has_value(); }, "cap=none");
  add("softmax_scale", "softmax_scale", [](Line l) { return l.problem.softmax_scale.has_value(); }, "scale=none");
  add("alibi_slopes", "ALiBi", [](Line l) { return l.problem.alibi; }, "alibi=0");
  add("sinks", "sinks", [](Line l) { return l.problem.sinks; }, "sinks=0");
  add("lse", "lse", [](Line l) { return l.problem.lse; }, "lse=0");
  add("block_table", "shared pages", [](Line l) { return l.shared_pages > 0 || !l.branches.empty(); });
  add("cached_lens key value", "rows outside the cache",
      [](Line l) { return any(l, [](const Request& r) { return r.cached_len < r.seq_len(); }); });
  add("query_start_loc", "requests without rows",
      [](Line l) { return any(l, [](const Request& r) { return r.query_len == 0; }); });
  add("seq_lens", "requests without keys", [](Line l) { return any(l, [](const Request& r) { return r.seq_len() == 0; }); });
  add("causal", "requests that are not causal", [](Line l) { return any(l, [](const Request& r) { return !r.causal; }); });
  add("causal", "causal by request", [](Line l) { return l.problem.has_causal; });
  add("q_begin", "q_begin", [](Line l) { return l.problem.has_q_begin; });
  add("key_begin", "key_begin", [](Line l) { return l.problem.has_key_begin; });
  add("window_right", "window_right", [](Line l) { return l.problem.window_right.has_value(); });
  add("attention_chunk", "attention_chunk", [](Line l) { return l.problem.attention_chunk.has_value(); });
  add("prefix_len", "a visible prefix", [](Line l) { return l.problem.has_prefix; });
  add("prefix_lens", "a visible prefix by request", [](Line l) { return l.problem.has_prefix_lens; });
  add("spans", "spans", [](Line l) { return l.problem.has_spans; });
  add("spans_beyond_window", "spans beyond the window", [](Line l) { return l.problem.spans_beyond_window; });
  add("tree_mask tree_lens", "trees", [](Line l) { return l.problem.has_tree; });
}

}  // namespace

const std::vector<AxisValue>& axes() {
  static const std::vector<AxisValue> list = [] {
    std::vector<AxisValue> all;
    for (const auto add : {add_types, add_forms, add_sizes, add_options}) add(all);
    return all;
  }();
  return list;
}

}  // namespace quire::verify_detail

// SPDX-License-Identifier: Apache-2.0
// See supported.h.
#include "verify/supported.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "text/formatted.h"

namespace quire::verify_detail {
namespace {

constexpr std::array kQueries = {DType::f16, DType::bf16, DType::f32};
constexpr std::array kCaches = {DType::f16,          DType::bf16,     DType::f32,         DType::fp8_e4m3fn,
                                DType::fp8_e4m3fnuz, DType::fp8_e5m2, DType::fp8_e5m2fnuz};
constexpr std::array kLayouts = {CacheLayout::nhd, CacheLayout::hnd, CacheLayout::packed};
constexpr std::array kSupportedForms = {ScaleKind::none, ScaleKind::per_tensor, ScaleKind::per_head};
/// Values of plain lines (kPlain...), and of lines that differ from a plain one in one value.
constexpr std::array<std::int64_t, 5> kPlainDims = {64, 128, 32, 16, 256};
constexpr std::array<std::int64_t, 5> kPlainPages = {16, 32, 64, 256, 8};
constexpr std::array<std::int64_t, 14> kDims = {1, 7, 8, 16, 24, 32, 40, 64, 80, 96, 128, 192, 256, 512};
constexpr std::array<std::int64_t, 12> kPages = {1, 4, 5, 8, 16, 32, 48, 64, 128, 256, 512, 544};
constexpr std::array<std::int64_t, 9> kGroups = {1, 2, 3, 5, 7, 8, 16, 17, 64};
constexpr std::size_t kAttempts = 96;  ///< forms of a line that are tried before it counts as unsupported

template <typename List, typename T>
bool holds(const List& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

bool is_legal(const ProblemLine& line) { return parse_problem_line(to_string(line)).ok(); }

ProblemLine plain_line(DType query, DType cache, CacheLayout layout, std::int64_t dim, std::int64_t page) {
  ProblemLine line;
  Problem& p = line.problem;
  p.q_dtype = query;
  p.kv_dtype = cache;
  p.layout = layout;
  p.head_dim = dim;
  p.page_size = page;
  p.num_q_heads = 4;
  p.num_kv_heads = 2;
  p.reqs = {{3, 20, 23}, {1, 9, 10}};
  return line;
}

/// The nth nearest of a list to a value.
std::int64_t nearest(std::vector<std::int64_t> list, std::int64_t value, std::size_t nth) {
  std::stable_sort(list.begin(), list.end(),
                   [&](std::int64_t a, std::int64_t b) { return std::abs(a - value) < std::abs(b - value); });
  return list[nth % list.size()];
}

template <typename List, typename Text>
std::string joined(const List& list, Text&& text_of) {
  std::string all;
  for (const auto& value : list) all += (all.empty() ? "" : ", ") + text_of(value);
  return all;
}

}  // namespace

bool is_asked(const AskedTypes& asked, const ProblemLine& line) {
  const Problem& p = line.problem;
  if (!asked.types.empty() && (!p.has_equal_types() || !holds(asked.types, TypePair{p.q_dtype, p.kv_dtype}))) return false;
  if (!asked.head_dims.empty() && !holds(asked.head_dims, p.head_dim)) return false;
  return asked.layouts.empty() || holds(asked.layouts, p.layout);
}

bool Supported::accepts(const ProblemLine& line) const { return is_asked(asked_, line) && is_legal(line) && supports_(line); }

/// A plain line for every pair of types, by trying sizes, layouts and scale forms.
void Supported::learn_types() {
  const std::vector<std::int64_t> plain_dims(kPlainDims.begin(), kPlainDims.end());
  const std::vector<std::int64_t>& dims = asked_.head_dims.empty() ? plain_dims : asked_.head_dims;
  const auto first_of = [&](DType query, DType cache) -> std::optional<ProblemLine> {
    for (const std::int64_t page : kPlainPages)
      for (const CacheLayout layout : kLayouts)
        for (const std::int64_t dim : dims)
          for (const ScaleKind k : kSupportedForms)
            for (const ScaleKind v : kSupportedForms) {
              ProblemLine line = plain_line(query, cache, layout, dim, page);
              line.problem.k_scale = k;
              line.problem.v_scale = v;
              if (accepts(line)) return line;
            }
    return std::nullopt;
  };
  for (const DType cache : kCaches)
    for (const DType query : kQueries)
      if (const std::optional<ProblemLine> line = first_of(query, cache)) {
        plain_.push_back(*line);
        types_.push_back({query, cache});
      }
}

/// Learns each value that some plain line may take instead of its own.
void Supported::learn_values() {
  const auto works = [&](auto&& edit) {
    return std::any_of(plain_.begin(), plain_.end(), [&](ProblemLine line) {
      edit(line);
      return accepts(line);
    });
  };
  for (const CacheLayout layout : kLayouts)
    if (works([&](ProblemLine& l) { l.problem.layout = layout; })) layouts_.push_back(layout);
  for (const std::int64_t dim :
       asked_.head_dims.empty() ? std::vector<std::int64_t>(kDims.begin(), kDims.end()) : asked_.head_dims)
    if (works([&](ProblemLine& l) { l.problem.head_dim = dim; })) head_dims_.push_back(dim);
  for (const std::int64_t page : kPages)
    if (works([&](ProblemLine& l) { l.problem.page_size = page; })) page_sizes_.push_back(page);
  for (const std::int64_t group : kGroups)
    if (works([&](ProblemLine& l) { l.problem.num_q_heads = group * l.problem.num_kv_heads; })) groups_.push_back(group);
  for (const DType index : {DType::i32, DType::i64})
    if (works([&](ProblemLine& l) { l.index_dtype = index; })) index_.push_back(index);
  for (const bool fp8 : {false, true})
    for (const ScaleKind k : kSupportedForms)
      for (const ScaleKind v : kSupportedForms)
        if (std::any_of(plain_.begin(), plain_.end(), [&](ProblemLine line) {
              line.problem.k_scale = k;
              line.problem.v_scale = v;
              return is_fp8(line.problem.kv_dtype) == fp8 && accepts(line);
            }))
          (fp8 ? fp8_scales_ : scales_).emplace_back(k, v);
  lse_ = works([](ProblemLine& l) { l.problem.lse = true; });
  window_ = works([](ProblemLine& l) { l.problem.sliding_window = 7; });
  cap_ = works([](ProblemLine& l) { l.problem.logits_soft_cap = 8.0f; });
  alibi_ = works([](ProblemLine& l) { l.problem.alibi = true; });
  sinks_ = works([](ProblemLine& l) { l.problem.sinks = true; });
  scale_ = works([](ProblemLine& l) { l.problem.softmax_scale = 0.25f; });
  shared_ = works([](ProblemLine& l) { l.shared_pages = 1; });
  uncached_ = works([](ProblemLine& l) { l.problem.reqs[0].cached_len = l.problem.reqs[0].context_len; });
}

Result<Supported> Supported::learn(const Supports& supports, const AskedTypes& asked) {
  Supported s(supports, asked);
  s.learn_types();
  if (s.types_.empty())
    return Status(Code::invalid_argument, formatted("supports says no to every plain line that was tried, such as {}",
                                                    to_string(plain_line(DType::f16, DType::f16, CacheLayout::nhd, 64, 16))));
  s.learn_values();
  return s;
}

std::optional<ProblemLine> Supported::changed(const Entry& entry, bool may_drop_options, std::size_t attempt) const {
  ProblemLine line = entry.line;
  Problem& p = line.problem;
  // `attempt` counts in mixed radix: 4 types x 3 layouts x 2 head_dims x 2 page sizes, then scale forms.
  const std::size_t type = attempt % 4, layout = attempt / 4 % 3, dim = attempt / 12 % 2, page = attempt / 24 % 2;
  const std::size_t form = attempt / 48 + turn_;
  std::vector<TypePair> types = types_;
  std::erase_if(types, [&](const TypePair& t) {
    return (entry.special == Special::every_fp8_code && !is_fp8(t.cache)) ||
           (entry.special == Special::minus_infinite_scores && is_fp8(t.cache));
  });
  if (types.empty()) return std::nullopt;
  p.output_dtype = DType::none;
  p.q_scale = ScaleKind::none;
  if (type > 0 || !holds(types, TypePair{p.q_dtype, p.kv_dtype})) {
    const TypePair& chosen = types[(turn_ + type) % types.size()];
    p.q_dtype = chosen.query;
    p.kv_dtype = chosen.cache;
    p.v_dtype = DType::none;
  }
  if (layout > 0 || !holds(layouts_, p.layout)) p.layout = layouts_[(turn_ + layout) % layouts_.size()];
  remove_own_v(line);
  p.head_dim = nearest(head_dims_, p.head_dim, dim);
  p.page_size = nearest(page_sizes_, p.page_size, page);
  p.num_q_heads = nearest(groups_, p.group(), 0) * p.num_kv_heads;
  const auto& scales = is_fp8(p.kv_dtype) ? fp8_scales_ : scales_;
  if (!holds(scales, std::pair(p.k_scale, p.v_scale)) && !scales.empty())
    std::tie(p.k_scale, p.v_scale) = scales[form % scales.size()];
  if (!holds(index_, line.index_dtype)) line.index_dtype = index_.front();
  p.lse = p.lse && lse_;
  if (may_drop_options) {
    if (!window_) p.sliding_window.reset();
    if (!cap_) p.logits_soft_cap.reset();
    if (!scale_) p.softmax_scale.reset();
    p.alibi = p.alibi && alibi_;
    p.sinks = p.sinks && sinks_;
    if (!shared_) line.shared_pages = 0, line.branches.clear();
    for (Request& r : p.reqs)
      if (!uncached_) r.cached_len = r.seq_len();
  }
  return line;
}

std::optional<ProblemLine> Supported::fit(const Entry& entry, bool may_drop_options) {
  if (accepts(entry.line)) return entry.line;
  ++turn_;
  for (std::size_t attempt = 0; attempt < kAttempts; ++attempt) {
    const std::optional<ProblemLine> line = changed(entry, may_drop_options, attempt);
    if (line && accepts(*line)) return line;
  }
  return std::nullopt;
}

std::string Supported::text() const {
  const auto number = [](std::int64_t n) { return formatted("{}", n); };
  std::string text = joined(types_, [](const TypePair& t) { return formatted("{} over {}", name(t.query), name(t.cache)); });
  text += "; layout " + joined(layouts_, [](CacheLayout l) { return std::string(name(l)); });
  text += "; head_dim " + joined(head_dims_, number) + "; pages of " + joined(page_sizes_, number);
  text += "; heads per KV head " + joined(groups_, number);
  text += "; indices " + joined(index_, [](DType t) { return std::string(name(t)); });
  std::string without;
  const auto lacks = [&](bool has, const char* what) {
    if (!has) without += (without.empty() ? "" : ", ") + std::string(what);
  };
  lacks(window_, "window");
  lacks(cap_, "soft cap");
  lacks(scale_, "softmax_scale");
  lacks(alibi_, "ALiBi");
  lacks(sinks_, "sinks");
  lacks(lse_, "lse");
  lacks(uncached_, "rows outside the cache");
  lacks(scales_.size() > 1, "scales of 16- and 32-bit caches");
  return without.empty() ? text : text + "; no " + without;
}

}  // namespace quire::verify_detail

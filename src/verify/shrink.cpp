// SPDX-License-Identifier: Apache-2.0
// See failure.h.
#include "verify/failure.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace quire::verify_detail {
namespace {

using Candidates = std::vector<ProblemLine>;

/// Adds `line` after `edit`, if that changed it and left something legal.
template <typename Edit>
void add(Candidates& list, const ProblemLine& line, Edit&& edit) {
  ProblemLine smaller = line;
  edit(smaller);
  if (smaller == line) return;
  const Result<ProblemLine> legal = parse_problem_line(to_string(smaller));
  if (legal.ok() && legal.value() == smaller) list.push_back(std::move(smaller));
}

void drop_requests(Candidates& list, const ProblemLine& line) {
  const auto n = static_cast<std::ptrdiff_t>(line.problem.reqs.size());
  for (std::ptrdiff_t size = (n + 1) / 2; size >= 1; size = size == 1 ? 0 : (size + 1) / 2)
    for (std::ptrdiff_t first = 0; first < n && n > size; first += size)
      add(list, line, [&](ProblemLine& l) {
        auto& reqs = l.problem.reqs;
        reqs.erase(reqs.begin() + first, reqs.begin() + std::min(n, first + size));
      });
}

/// Plainer values for one length: none, half, one less.
std::vector<std::int64_t> smaller_lengths(std::int64_t n, std::int64_t least) {
  std::vector<std::int64_t> values;
  for (const std::int64_t value : {least, n / 2, n - n / 4, n - 1})
    if (value >= least && value < n && (values.empty() || values.back() != value)) values.push_back(value);
  return values;
}

void shorten_requests(Candidates& list, const ProblemLine& line) {
  for (std::size_t i = 0; i < line.problem.reqs.size(); ++i) {
    const Request r = line.problem.reqs[i];
    const std::int64_t fresh = r.seq_len() - r.cached_len;
    const auto set = [&](std::int64_t query, std::int64_t context, std::int64_t uncached) {
      add(list, line, [&](ProblemLine& l) {
        Request& req = l.problem.reqs[i];
        req.query_len = query;
        req.context_len = context;
        req.cached_len = context + query - std::min(uncached, query);
      });
    };
    for (const std::int64_t query : smaller_lengths(r.query_len, std::min<std::int64_t>(1, r.query_len)))
      set(query, r.context_len, fresh);
    for (const std::int64_t context : smaller_lengths(r.context_len, 0)) set(r.query_len, context, fresh);
    for (const std::int64_t uncached : smaller_lengths(fresh, 0)) set(r.query_len, r.context_len, uncached);
  }
}

void shrink_sizes(Candidates& list, const ProblemLine& line) {
  const Problem& p = line.problem;
  add(list, line, [](ProblemLine& l) { l.problem.num_q_heads = l.problem.num_kv_heads = 1; });
  add(list, line, [&](ProblemLine& l) { l.problem.num_q_heads = p.group(), l.problem.num_kv_heads = 1; });
  add(list, line, [](ProblemLine& l) { l.problem.num_q_heads = l.problem.num_kv_heads; });
  for (const std::int64_t group : smaller_lengths(p.group(), 1))
    add(list, line, [&](ProblemLine& l) { l.problem.num_q_heads = group * p.num_kv_heads; });
  for (const std::int64_t kv : smaller_lengths(p.num_kv_heads, 1))
    add(list, line, [&](ProblemLine& l) { l.problem.num_kv_heads = kv, l.problem.num_q_heads = kv * p.group(); });
  for (const std::int64_t d : {1, 2, 4, 8, 16, 32, 64})
    if (d < p.head_dim) add(list, line, [&](ProblemLine& l) { l.problem.head_dim = d; });
  for (const std::int64_t d : {1, 2, 4, 8, 16, 32, 64})
    if (d < p.out_dim()) add(list, line, [&](ProblemLine& l) { l.problem.v_head_dim = d; });
  for (const std::int64_t page : {1, 2, 4, 8, 16, 32})
    if (page < p.page_size) add(list, line, [&](ProblemLine& l) { l.problem.page_size = page; });
}

void drop_options(Candidates& list, const ProblemLine& line) {
  add(list, line, [](ProblemLine& l) { l.problem.sliding_window.reset(); });
  add(list, line, [](ProblemLine& l) { l.problem.logits_soft_cap.reset(); });
  add(list, line, [](ProblemLine& l) { l.problem.softmax_scale.reset(); });
  add(list, line, [](ProblemLine& l) { l.problem.alibi = false; });
  add(list, line, [](ProblemLine& l) { l.problem.sinks = false; });
  add(list, line, [](ProblemLine& l) { l.problem.lse = false; });
  add(list, line, [](ProblemLine& l) { l.problem.k_scale = ScaleKind::none; });
  add(list, line, [](ProblemLine& l) { l.problem.v_scale = ScaleKind::none; });
  add(list, line, [](ProblemLine& l) { l.problem.q_scale = ScaleKind::none; });
  add(list, line, [](ProblemLine& l) { l.problem.output_dtype = DType::none; });
  add(list, line, [](ProblemLine& l) { l.problem.padding = Padding::refused, l.problem.num_padding_rows = 0; });
  for (const std::int64_t rows : smaller_lengths(line.problem.num_padding_rows, 0))
    add(list, line, [&](ProblemLine& l) { l.problem.num_padding_rows = rows; });
  add(list, line, [](ProblemLine& l) { l.branches.clear(); });
  add(list, line, [](ProblemLine& l) { l.shared_pages = 0; });
  add(list, line, [](ProblemLine& l) { l.problem.latent = false; });
  add(list, line, [](ProblemLine& l) { remove_own_v(l); });
  add(list, line, [](ProblemLine& l) { l.num_pages = 0; });
  add(list, line, [](ProblemLine& l) { l.index_dtype = DType::i32; });
  if (line.problem.sliding_window)
    for (const std::int64_t window : smaller_lengths(*line.problem.sliding_window, 1))
      add(list, line, [&](ProblemLine& l) { l.problem.sliding_window = window; });
}

void drop_shapes(Candidates& list, const ProblemLine& line) {
  add(list, line, [](ProblemLine& l) { remove_shapes(l.problem); });
  add(list, line, [](ProblemLine& l) { l.problem.attention_chunk.reset(); });
  add(list, line, [](ProblemLine& l) {
    l.problem.has_prefix = l.problem.has_prefix_lens = false;
    l.problem.prefix_len = 0;
    for (Request& r : l.problem.reqs) r.prefix_len = 0;
  });
  add(list, line, [](ProblemLine& l) {
    l.problem.has_spans = l.problem.spans_beyond_window = false;
    l.problem.spans.clear();
    for (Request& r : l.problem.reqs) r.first_span = r.num_spans = 0;
  });
  add(list, line, [](ProblemLine& l) {
    l.problem.has_tree = false;
    for (Request& r : l.problem.reqs) r.tree_len = 0;
  });
}

void drop_masks(Candidates& list, const ProblemLine& line) {
  const auto each = [&](auto&& edit) {
    add(list, line, [&](ProblemLine& l) {
      for (Request& r : l.problem.reqs) edit(l.problem, r);
    });
  };
  each([](Problem& p, Request& r) {
    p.causal = r.causal = true;
    p.has_causal = false;
    p.window_right.reset();
  });
  // A single flag for all requests is simpler than one flag per request. A line that is causal already would return to itself.
  if (line.problem.has_causal)
    each([](Problem& p, Request& r) {
      p.causal = r.causal = false;
      p.has_causal = false;
    });
  if (line.problem.has_shapes()) drop_shapes(list, line);
  each([](Problem& p, Request& r) { p.has_q_begin = false, r.shift = 0; });
  each([](Problem& p, Request& r) { p.has_key_begin = false, r.key_begin = 0; });
  add(list, line, [](ProblemLine& l) { l.problem.window_right.reset(); });
  for (std::size_t i = 0; i < line.problem.reqs.size(); ++i) {
    add(list, line, [&](ProblemLine& l) { l.problem.reqs[i].key_begin = 0; });
    for (const std::int64_t shift : {line.problem.reqs[i].shift / 2, std::int64_t{0}})
      add(list, line, [&](ProblemLine& l) { l.problem.reqs[i].shift = shift; });
  }
}

void simplify_types(Candidates& list, const ProblemLine& line) {
  const auto one_type = [](ProblemLine& l, DType type) { l.problem.kv_dtype = type, l.problem.v_dtype = DType::none; };
  add(list, line, [&](ProblemLine& l) { one_type(l, l.problem.q_dtype = DType::f32); });
  if (!line.problem.has_equal_types()) {
    add(list, line, [&](ProblemLine& l) { one_type(l, l.problem.kv_dtype); });
    add(list, line, [&](ProblemLine& l) { one_type(l, l.problem.value_dtype()); });
  }
  add(list, line, [](ProblemLine& l) { l.problem.q_dtype = DType::f32; });
  if (line.problem.kv_dtype != line.problem.q_dtype) add(list, line, [&](ProblemLine& l) { one_type(l, l.problem.q_dtype); });
  add(list, line, [](ProblemLine& l) { l.problem.layout = CacheLayout::nhd; });
}

Candidates smaller(const ProblemLine& line) {
  Candidates list;
  drop_requests(list, line);
  drop_options(list, line);
  drop_masks(list, line);
  shrink_sizes(list, line);
  shorten_requests(list, line);
  simplify_types(list, line);
  return list;
}

}  // namespace

ProblemLine shrink(const ProblemLine& line, const std::function<bool(const ProblemLine&)>& fails, const ShrinkLimits& limits) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limits.seconds));
  ProblemLine best = line;
  int tries = 0;
  for (bool progress = true; progress;) {
    progress = false;
    for (const ProblemLine& candidate : smaller(best)) {
      if (tries++ >= limits.tries || Clock::now() > end) return best;
      if (!fails(candidate)) continue;
      best = candidate;
      progress = true;
      break;
    }
  }
  return best;
}

}  // namespace quire::verify_detail

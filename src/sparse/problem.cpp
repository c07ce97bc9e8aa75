// SPDX-License-Identifier: Apache-2.0
// problem_of_lists(): lists as an ordinary problem, for planning without tensors.
#include <algorithm>

#include "quire/sparse.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

/// Error for a property of the problem that key lists exclude. check_sparse() has the same rules for a batch.
Status goes_with_lists(const Problem& p, const ListShape& shape) {
  const auto refuse = [](const char* rule, std::string_view what, std::string_view expected) {
    return Status(Code::contract_violation, formatted("{} {}, expected {}", rule, what, expected), rule);
  };
  if (shape.width < 1) return {Code::invalid_argument, formatted("a list of {} entries, expected 1 or more", shape.width)};
  const std::pair<bool, const char*> beside[] = {{p.sliding_window.has_value(), "sliding_window"},
                                                 {p.window_right.has_value(), "window_right"},
                                                 {p.alibi, "alibi_slopes"},
                                                 {p.has_q_begin, "q_begin"},
                                                 {p.has_key_begin, "key_begin"},
                                                 {p.has_shapes(), "a chunk, a prefix, spans or a tree"}};
  for (const auto& [given, name] : beside)
    if (given) return refuse("Q-K03", formatted("{}: given beside key lists", name), "absent");
  for (const Request& r : p.reqs)
    if (r.cached_len != r.seq_len()) return refuse("Q-K03", "cached_lens: given beside key lists", "absent");
  if (shape.unit == ListUnit::slot && p.layout == CacheLayout::packed)
    return refuse("Q-K04", "cache.k: layout packed under lists of slots", "nhd or hnd");
  return {};
}

}  // namespace

std::string to_string(const ListShape& shape) {
  return formatted("{} {}{} of each row{}", shape.width, name(shape.unit), shape.width == 1 ? "" : "s",
                   shape.by_head ? " and KV head" : "");
}

Result<Problem> problem_of_lists(const Problem& problem, const ListShape& shape) {
  if (Status refused = goes_with_lists(problem, shape); !refused.ok()) return refused;
  Problem p = problem;
  if (shape.by_head) {
    p.num_q_heads = problem.group();
    p.num_kv_heads = 1;
  }
  const std::int64_t keys_of_entry = shape.unit == ListUnit::page ? problem.page_size : 1;
  if (shape.unit == ListUnit::slot) p.page_size = 1;
  p.causal = true;
  p.has_causal = false;
  p.reqs.clear();
  for (const Request& r : problem.reqs)
    for (std::int64_t i = 0; i < r.query_len; ++i) {
      const KeyPositions seen = problem.visible_keys(r, i, i);
      const std::int64_t keys = std::min(seen.end - seen.begin, shape.width * keys_of_entry);
      p.causal = p.causal && keys > 0;  // rows at the end of their keys see one at least
      p.reqs.push_back({.query_len = 1, .context_len = keys - 1, .cached_len = keys});
    }
  for (Request& r : p.reqs) r.causal = p.causal;
  return p;
}

}  // namespace quire

// SPDX-License-Identifier: Apache-2.0
// See reach.h.
#include "verify/reach.h"

#include <algorithm>

namespace quire::verify_detail {

void ReachCount::range(const char* name, double value) {
  const auto [at, fresh] = ranges_.try_emplace(name, value, value);
  at->second.first = std::min(at->second.first, value);
  at->second.second = std::max(at->second.second, value);
}

void ReachCount::add(const ProblemLine& line) {
  const Problem& p = line.problem;
  range("requests", static_cast<double>(p.reqs.size()));
  range("rows of the batch", static_cast<double>(p.num_tokens()));
  range("head_dim", static_cast<double>(p.head_dim));
  range("page_size", static_cast<double>(p.page_size));
  range("KV heads", static_cast<double>(p.num_kv_heads));
  range("query heads per KV head", static_cast<double>(p.group()));
  for (const Request& r : p.reqs) {
    range("rows of a request", static_cast<double>(r.query_len));
    range("context of a request", static_cast<double>(r.context_len));
  }
  if (p.sliding_window) range("sliding_window", static_cast<double>(*p.sliding_window));
  if (p.logits_soft_cap) range("logits_soft_cap", static_cast<double>(*p.logits_soft_cap));
  if (p.softmax_scale) range("softmax_scale", static_cast<double>(*p.softmax_scale));
  for (const AxisValue& value : axes())
    if (value.has(line)) seen_.insert(value.words);
}

Reach ReachCount::reach() const {
  Reach reach{ranges_, {}};
  for (const AxisValue& value : axes())
    if (!seen_.contains(value.words)) reach.never.push_back(value.words);
  if (strides_ == Strides::none) reach.never.emplace_back("strides of inputs");
  if (strides_ != Strides::any) reach.never.emplace_back("steps between elements of inputs, and negative strides");
  return reach;
}

}  // namespace quire::verify_detail

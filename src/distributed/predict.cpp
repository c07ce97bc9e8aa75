// SPDX-License-Identifier: Apache-2.0
// See rank_prediction.hpp.
#include "quire/rank_prediction.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "quire/distributed.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

constexpr double kMicro = 1e6;

/// Seconds of a problem on one GPU. False, with the reason, if there is no number.
bool seconds_of(const Problem& problem, const Device& device, double& seconds, std::string& kernel, std::string& why_not) {
  const Result<Plan> made = plan(problem, device, {});
  if (!made.ok()) return why_not = made.status().message(), false;
  const Prediction p = predict(made.value());
  if (p.seconds <= 0) return why_not = p.why_not.empty() ? "the costs of this device were not measured" : p.why_not, false;
  seconds = p.seconds;
  kernel = made->kernel;
  return true;
}

bool is_decode(const Problem& p) {
  return std::all_of(p.reqs.begin(), p.reqs.end(), [](const Request& r) { return r.query_len == 1; });
}
bool is_prompts(const Problem& p) {
  return std::all_of(p.reqs.begin(), p.reqs.end(), [](const Request& r) { return r.context_len == 0; });
}

Request request(std::int64_t query_len, std::int64_t context_len) {
  Request r;
  r.query_len = query_len;
  r.context_len = context_len;
  r.cached_len = query_len + context_len;
  return r;
}

std::int64_t element_bytes(const Problem& p) { return p.q_dtype == DType::f32 ? 4 : 2; }

/// Predicts the rank with the most keys, which is rank 0 of a context that is interleaved by page.
SharedSeconds decode_contexts(const Problem& whole, const Device& device, std::int32_t ranks, const RankLink& link) {
  const ContextShard shard{.rank = 0, .world = ranks, .interleave = std::max<std::int64_t>(whole.page_size, 1), .span = 0};
  SharedSeconds s;
  Problem own = whole;
  own.lse = true;
  own.reqs.clear();
  for (const Request& r : whole.reqs) own.reqs.push_back(request(1, shard.local_length(r.seq_len()) - 1));
  if (!seconds_of(own, device, s.compute, s.kernel, s.why_not)) return s;
  if (ranks == 1) return s;
  s.received_bytes = (ranks - 1) * whole.num_tokens() * whole.num_q_heads * (whole.head_dim * element_bytes(whole) + 4);
  s.exchange = link.exchange_seconds + static_cast<double>(s.received_bytes) / link.bytes_per_second;
  s.merge = link.merge_seconds;
  return s;
}

/// The prompts of rank i: chunks 2 * ranks - 1 - i and i, the later one first. All ranks have equal work.
Problem prompts_of(const Problem& whole, std::int32_t rank, std::int32_t ranks) {
  Problem own = whole;
  own.reqs.clear();
  for (const Request& r : whole.reqs) {
    const std::int64_t chunk = (r.query_len + 2 * ranks - 1) / (2 * ranks);
    for (const std::int64_t i : {2 * ranks - 1 - rank, rank}) {
      const std::int64_t begin = std::min(i * chunk, r.query_len), end = std::min(begin + chunk, r.query_len);
      if (end > begin) own.reqs.push_back(request(end - begin, begin));
    }
  }
  return own;
}

/// Predicts the slower of the first and the last rank: equal work is cut into unlike items.
SharedSeconds prompt_contexts(const Problem& whole, const Device& device, std::int32_t ranks, const RankLink& link) {
  SharedSeconds s;
  for (const std::int32_t rank : {0, ranks - 1}) {
    double seconds = 0;
    const Problem own = prompts_of(whole, rank, ranks);
    if (own.reqs.empty()) continue;
    if (!seconds_of(own, device, seconds, s.kernel, s.why_not)) return s;
    s.compute = std::max(s.compute, seconds);
  }
  std::int64_t tokens = 0;
  for (const Request& r : whole.reqs) tokens += r.query_len;
  if (ranks == 1) return s;
  s.received_bytes = (ranks - 1) * tokens / ranks * whole.num_kv_heads * whole.head_dim * 2 * element_bytes(whole);
  const double chunks = std::min<double>(link.head_chunks, static_cast<double>(whole.num_kv_heads));
  const double bytes_seconds = static_cast<double>(s.received_bytes) / link.bytes_per_second;
  // A rank waits for the whole first chunk of heads. Computing one chunk hides the transfer of the next, for as long as it runs.
  const double hidden = std::min(bytes_seconds * (chunks - 1) / chunks, s.compute * (chunks - 1) / chunks);
  s.exchange = link.exchange_seconds + bytes_seconds - hidden;
  return s;
}

SharedSeconds shared_heads(const Problem& whole, const Device& device, std::int32_t ranks) {
  SharedSeconds s;
  const HeadShard shard{.rank = 0, .world = ranks, .num_q_heads = whole.num_q_heads, .num_kv_heads = whole.num_kv_heads};
  if (const Findings findings = check_shard(shard); !findings.ok()) {
    s.why_not = findings.status().message();
    return s;
  }
  Problem own = whole;
  own.num_q_heads = shard.q_heads();
  own.num_kv_heads = shard.kv_heads();
  seconds_of(own, device, s.compute, s.kernel, s.why_not);
  return s;
}

SharedSeconds shared_contexts(const Problem& problem, const Device& device, std::int32_t ranks, const RankLink& link) {
  if (!problem.is_causal_at_end()) return {.why_not = "requests are not causal, or their rows stand elsewhere"};
  if (is_decode(problem)) return decode_contexts(problem, device, ranks, link);
  if (is_prompts(problem)) return prompt_contexts(problem, device, ranks, link);
  return {.why_not = "a batch of prompts and decode rows: ask for each of them alone"};
}

std::string advice_of(const RankPrediction& p) {
  if (!p.contexts.known() && !p.heads.known()) return "no number is known";
  const bool heads = p.heads.known() && (!p.contexts.known() || p.heads.total() <= p.contexts.total());
  const SharedSeconds& best = heads ? p.heads : p.contexts;
  if (p.ranks == 1) return "one rank is one GPU";
  if (p.why_no_one.empty() && p.one <= best.total()) return "one GPU is better: the exchange costs more than the others save";
  if (heads) return formatted("share heads: {:.2f} of one GPU, and nothing is exchanged", p.one > 0 ? best.total() / p.one : 0.0);
  return formatted("share contexts: {:.2f} of one GPU", p.one > 0 ? best.total() / p.one : 0.0);
}

std::string size_text(std::int64_t bytes) {
  const auto count = static_cast<double>(bytes);
  return bytes < 10'000'000 ? formatted("{:.1f} kB", count / 1e3) : formatted("{:.0f} MB", count / 1e6);
}

std::string shared_text(const char* label, const SharedSeconds& s, double one) {
  if (!s.known()) return formatted("{:<10}{}\n", label, s.why_not);
  std::string text =
      formatted("{:<10}{:.1f} us a layer: {:.1f} attention ({})", label, kMicro * s.total(), kMicro * s.compute, s.kernel);
  if (s.exchange > 0) text += formatted(", {:.1f} exchange of {}", kMicro * s.exchange, size_text(s.received_bytes));
  if (s.merge > 0) text += formatted(", {:.1f} merge", kMicro * s.merge);
  if (s.exchange == 0 && s.merge == 0) text += ", nothing to exchange";
  if (one <= 0) return text + "\n";
  return text + formatted("; {:.2f} of one GPU{}\n", s.total() / one, s.total() > one ? ": one GPU is better" : "");
}

}  // namespace

Result<RankPrediction> predict_ranks(const Problem& problem, const Device& device, std::int32_t ranks, const RankLink& link) {
  if (ranks < 1) return Status(Code::invalid_argument, formatted("ranks: {}, expected at least 1", ranks));
  if (!(link.bytes_per_second > 0)) return Status(Code::invalid_argument, "link: expected a bandwidth above 0");
  RankPrediction p;
  p.ranks = ranks;
  std::string kernel;
  seconds_of(problem, device, p.one, kernel, p.why_no_one);
  p.contexts = shared_contexts(problem, device, ranks, link);
  p.heads = shared_heads(problem, device, ranks);
  if (!p.why_no_one.empty() && !p.contexts.known() && !p.heads.known()) return Status(Code::unsupported, p.why_no_one);
  p.advice = advice_of(p);
  return p;
}

std::string to_string(const RankPrediction& p, const RankLink& link) {
  std::string text = formatted("{:<10}{}, each with a link of {:.0f} GB/s: predicted from measured costs of one GPU\n", "ranks",
                               p.ranks, link.bytes_per_second / 1e9);
  text += p.why_no_one.empty() ? formatted("{:<10}{:.1f} us a layer\n", "one GPU", kMicro * p.one)
                               : formatted("{:<10}{}\n", "one GPU", p.why_no_one);
  text += shared_text("contexts", p.contexts, p.one) + shared_text("heads", p.heads, p.one);
  return text + formatted("{:<10}{}\n", "advice", p.advice);
}

Result<double> parse_bandwidth(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(end, text.data() + text.size());
  const double factor = unit == "TB/s" ? 1e12 : unit == "GB/s" ? 1e9 : unit == "MB/s" ? 1e6 : 0;
  if (error != std::errc() || factor == 0 || !(value > 0) || !std::isfinite(value))
    return Status(Code::parse_error,
                  formatted("'{}': expected a bandwidth above 0 with its unit, as 450GB/s, 50GB/s or 900MB/s", text));
  return value * factor;
}

}  // namespace quire

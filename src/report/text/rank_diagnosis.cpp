// SPDX-License-Identifier: Apache-2.0
// A diagnosis of ranks for a terminal: who holds what, each part, each result, the cause; in ten lines what is wrong, and why.
#include "quire/rank_diagnosis.hpp"
#include "quire/report.hpp"
#include "report/text/entries.h"
#include "text/formatted.h"
#include "text/wrap.h"

namespace quire {
namespace {

using report::Entry;

constexpr std::size_t kRefutedRanks = 4;  // refuted suspects that are listed beside a cause
constexpr std::size_t kOpenRanks = 8;     // open suspects that are listed if no cause is known

std::string rank_line(std::string_view label, const std::string& text) { return formatted("{:<9}{}\n", label, text); }

std::string counted(std::int64_t wrong, std::int64_t elements, double worst) {
  if (wrong == 0) return formatted("right, worst error {:.2g} of the tolerance", worst);
  return formatted("wrong in {} of {} elements", wrong, elements);
}

std::string named_suspect(const RankSuspicion& s) {
  return formatted("{}ranks that {} ({})", s.detail.empty() ? "" : s.detail + ": ", s.text, s.fault);
}

std::string causes(const std::vector<RankSuspicion>& list) {
  std::string text;
  std::size_t refuted = 0;
  const bool known = !list.empty() && list.front().explains;
  if (!known) text += rank_line("cause", "unknown: none of the faults of ranks explains every element");
  for (std::size_t i = 0; i < list.size(); ++i) {
    const RankSuspicion& s = list[i];
    if (s.explains) {
      text += rank_line(i == 0 ? "cause" : "as good", named_suspect(s));
      if (i == 0 && !s.next.empty()) text += rank_line("next", s.next);
    } else if (refuted++ < (known ? kRefutedRanks : kOpenRanks)) {
      text += rank_line("refuted", formatted("{}: {}", named_suspect(s), s.refutation));
    }
  }
  return text;
}

std::string result_text(const RankResult& result) {
  return formatted("rank{} {}: {}", result.ranks.size() > 1 ? "s" : "", fmt::join(result.ranks, ", "),
                   counted(result.num_wrong, result.num_elements, result.worst_ratio));
}

std::string part_text(const RankPart& part) {
  if (!part.recorded)
    return rank_line("part", formatted("rank {}: not recorded, taken from fp64 attention over its keys", part.rank));
  std::string text =
      rank_line("part", formatted("rank {}: {}", part.rank, counted(part.num_wrong, part.num_elements, part.worst_ratio)));
  if (part.right) return text;
  if (!part.own) return text + causes(part.suspicions);
  text += rank_line("", formatted("rank {}'s own attention, as if it were alone:", part.rank));
  return text + to_string(*part.own);
}

std::string words_of(const ContextShard& s) {
  return s.contiguous() ? formatted("{}, contiguous, span {}", s.world, s.span)
                        : formatted("{}, interleaved by {}", s.world, s.interleave);
}

/// The cause of a wrong part or result, and the next step.
void add_cause(const std::vector<RankSuspicion>& list, std::vector<Entry>& entries) {
  if (list.empty() || !list.front().explains)
    return entries.push_back({"cause", "unknown: none of the faults of ranks explains every element", 1});
  entries.push_back({"cause", named_suspect(list.front()), 3});
  if (!list.front().next.empty()) entries.push_back({"next", list.front().next, 2});
}

/// A wrong part; of a cause in the rank's own attention, what its diagnosis says.
void add_wrong_part(const RankPart& part, std::vector<Entry>& entries) {
  entries.push_back(
      {"part", formatted("rank {}: {}", part.rank, counted(part.num_wrong, part.num_elements, part.worst_ratio)), 1});
  if (!part.own) return add_cause(part.suspicions, entries);
  const std::vector<Entry> own = report::entries_of(*part.own);
  entries.push_back(
      {"part", formatted("rank {}'s own attention, as if it were alone: {}", part.rank, name(part.own->verdict)), 1});
  entries.insert(entries.end(), own.begin() + 1, own.end());
}

std::vector<Entry> entries_of(const RankDiagnosis& d) {
  std::vector<Entry> entries{{"ranks", words_of(d.shard), 1}, {"verdict", std::string(name(d.verdict)), 1}};
  for (const std::string& line : d.disagreements) entries.push_back({"broken", line, 3});
  for (const RankPart& part : d.parts)
    if (part.recorded && !part.right) add_wrong_part(part, entries);
  for (const RankResult& result : d.results) {
    if (result.right) continue;
    entries.push_back({"result", result_text(result), 1});
    add_cause(result.suspicions, entries);
  }
  if (d.verdict == DiagnosisVerdict::right)
    entries.push_back({"compared", formatted("{} of {} rows, {} heads", d.compared_rows, d.num_tokens, d.num_q_heads), 1});
  return entries;
}

}  // namespace

std::string to_string(const RankDiagnosis& d, const DiagnosisText& as) {
  const auto columns = static_cast<std::size_t>(std::max<std::int64_t>(0, as.columns));
  return as.verbose ? wrapped(to_string(d), columns, report::kLabel) : report::fitted(entries_of(d), columns);
}

std::string to_string(const RankDiagnosis& d) {
  std::string text = rank_line("ranks", words_of(d.shard));
  if (d.verdict == DiagnosisVerdict::broken_batch) {
    for (const std::string& line : d.disagreements) text += rank_line("broken", line);
    return text + rank_line("verdict", std::string(name(d.verdict)));
  }
  text += rank_line("compared", formatted("{} of {} rows, {} heads", d.compared_rows, d.num_tokens, d.num_q_heads));
  for (const RankPart& part : d.parts) text += part_text(part);
  for (const RankResult& result : d.results) {
    text += rank_line("result", result_text(result));
    if (!result.right) text += causes(result.suspicions);
  }
  return text + rank_line("verdict", std::string(name(d.verdict)));
}

}  // namespace quire

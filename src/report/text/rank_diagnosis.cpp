// SPDX-License-Identifier: Apache-2.0
// A diagnosis of ranks for a terminal: who holds what, each part, each result, the cause.
#include "quire/rank_diagnosis.hpp"
#include "quire/report.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

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

}  // namespace

std::string to_string(const RankDiagnosis& d) {
  const ContextShard& s = d.shard;
  std::string text = rank_line("ranks", s.contiguous() ? formatted("{}, contiguous, span {}", s.world, s.span)
                                                       : formatted("{}, interleaved by {}", s.world, s.interleave));
  if (d.verdict == DiagnosisVerdict::broken_batch) {
    for (const std::string& line : d.disagreements) text += rank_line("broken", line);
    return text + rank_line("verdict", std::string(name(d.verdict)));
  }
  text += rank_line("compared", formatted("{} of {} rows, {} heads", d.compared_rows, d.num_tokens, d.num_q_heads));
  for (const RankPart& part : d.parts) text += part_text(part);
  for (const RankResult& result : d.results) {
    text += rank_line("result", formatted("rank{} {}: {}", result.ranks.size() > 1 ? "s" : "", fmt::join(result.ranks, ", "),
                                          counted(result.num_wrong, result.num_elements, result.worst_ratio)));
    if (!result.right) text += causes(result.suspicions);
  }
  return text + rank_line("verdict", std::string(name(d.verdict)));
}

}  // namespace quire

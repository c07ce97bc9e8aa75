// SPDX-License-Identifier: Apache-2.0
// A diagnosis for a terminal: the wrong cells, as a rule; the broken laws; the cause; refuted suspects, with numbers.
#include <algorithm>
#include <span>
#include <utility>

#include "quire/tools/report.hpp"
#include "report/text/diagnosis_words.h"
#include "text/runs.h"

namespace quire {
namespace {

using namespace report;

constexpr std::size_t kListedRequests = 8;
constexpr std::size_t kSuspects = 5;  // suspects that are listed if the cause is not known
constexpr std::size_t kRefuted = 12;  // refuted suspects that are listed beside a cause
constexpr std::size_t kFew = 2;       // causes as good as the named one, up to which their number is not printed

/// A label, and text behind it; a label is printed once for neighbours that share it.
class Lines {
 public:
  void add(std::string_view label, const std::string& text) {
    text_ += formatted("{:<9}{}\n", label == last_ ? "" : label, text);
    last_ = label;
  }
  void more(const std::string& text) { text_ += formatted("{:<9}{}\n", "", text); }
  std::string take() { return std::move(text_); }

 private:
  std::string text_, last_;
};

void add_as_good(std::span<const Suspicion> own, Lines& lines) {
  const AsGood same = as_good(own);
  for (const Suspicion* other : same.others)
    lines.add("as good", formatted("{}: {} on this batch", named(*other), share_text(other->explained)));
  if (same.by_head) lines.add("as good", "and by head: a number of each head's own fits as well");
}

/// Adds the lines of an uncertain result: the likely mechanism, what would give the same zeros, or how little the best one
/// explains.
void add_uncertain(std::span<const Suspicion> own, Lines& lines) {
  if (is_one_of_many(own.front())) {
    lines.add("cause", kOneOfMany);
    lines.add("one of", named(own.front()));
    return add_as_good(own, lines);
  }
  if (own.front().likely) {
    const Suspicion& best = own.front();
    lines.add("cause", formatted("{}: a kernel that {}", best.tied ? "one of these" : "likely", named(best)));
    lines.more(formatted("explains {} of the error{}{}", share_text(best.explained),
                         best.explained >= kPrintedAsAll ? "; other causes would look the same" : ", and not all of it",
                         best.scope.empty() ? "" : "; in " + best.scope + " only"));
    return add_as_good(own, lines);
  }
  const Tested t = tested(own);
  lines.add("cause", formatted("unknown: none of {} faults and mechanisms explains more than {} of the error", t.count,
                               share_text(t.most)));
}

/// The suspects of one part: the cause, what is as good, what to look at next.
void add_cause(const DiagnosisPart& part, std::span<const Suspicion> own, bool several, Lines& lines) {
  if (several) lines.add("cause", formatted("of {}:", part.pattern.scope_text));
  const Suspicion& best = own.front();
  if (!best.certain) return add_uncertain(own, lines);
  lines.add("cause", formatted("a kernel that {} ({})", best.text, best.fault.empty() ? best.mechanism : best.fault));
  lines.more(formatted("explains {} of the error{}{}", share_text(best.explained),
                       best.scope.empty() ? "" : ", in " + best.scope + " only",
                       best.combined ? "; two faults at once, found greedily: the second on top of the first" : ""));
  if (!best.detail.empty()) lines.more(best.detail);
  const std::size_t others = as_good(own).others.size();
  if (others > kFew)
    lines.more(formatted("{} other causes predict the same numbers on this batch; in f32 or with other lengths they may differ",
                         others));
  add_as_good(own, lines);
  if (!best.next.empty()) lines.add("next", best.next);
}

/// Refuted suspects, best first; rounding is always among them, with how far it moves these rows.
void add_refuted(std::span<const Suspicion> own, bool known, Lines& lines) {
  std::vector<const Suspicion*> refuted = refuted_of(own);
  if (!known) std::erase_if(refuted, [](const Suspicion* s) { return s->fault != kRounding && is_nothing(s->explained); });
  const std::size_t most = known ? kRefuted : kSuspects;
  for (std::size_t i = 0; i < std::min(most, refuted.size()); ++i)
    lines.add(known ? "refuted" : "suspect", formatted("{}: {}", refuted[i]->text, refuted[i]->refutation));
  if (refuted.size() > most) {
    lines.more(formatted("and {} more, which explain less (--json lists all)", refuted.size() - most));
    if (known) lines.more(formatted("{}: {}", refuted.back()->text, refuted.back()->refutation));
  }
  const auto hidden = std::ranges::count(own, Standing::cannot_show, &Suspicion::standing);
  if (hidden > 0) lines.add("no case", formatted("{} faults cannot show on this batch (--json says why)", hidden));
}

std::string wrong_text(const WrongRequest& w) {
  std::string what = w.last_dim < 0 ? "lse only" : formatted("dims {}-{}{}", w.first_dim, w.last_dim, w.lse ? " and lse" : "");
  what += formatted("; {} elements", w.elements + (w.lse ? w.cells : 0));
  if (w.nonfinite > 0) what += formatted(", {} of them NaN or infinite", w.nonfinite);
  if (w.largest_error > 0) what += formatted(", error up to {:.3g}", w.largest_error);
  return formatted("row{} {} (request {}: query_len {}, context_len {}, seq_len {}): {}, {}", w.tokens.size() == 1 ? "" : "s",
                   runs(w.tokens), w.req, w.query_len, w.context_len, w.seq_len, heads_text(w.heads), what);
}

/// "row 5336 (request 9: query_len 1, context_len 929, seq_len 930): all 64 heads, dims 0-127; ..." of the first wrong requests.
void add_wrong(const std::vector<WrongRequest>& wrong, Lines& lines) {
  for (std::size_t i = 0; i < std::min(wrong.size(), kListedRequests); ++i) lines.add("wrong", wrong_text(wrong[i]));
  if (wrong.size() > kListedRequests) lines.add("wrong", formatted("... and {} more requests", wrong.size() - kListedRequests));
}

/// What a search that time ended has left out.
void add_stopped(const Diagnosis& d, Lines& lines) {
  if (d.stopped_after <= 0) return;
  constexpr std::size_t kNamed = 4;
  const auto named = std::span(d.not_tried).first(std::min(kNamed, d.not_tried.size()));
  lines.add("stopped", formatted("after {:.3g} s; not tried: {}{} (--seconds gives more time, --full all; --json names them)",
                                 d.stopped_after, fmt::join(named, ", "),
                                 d.not_tried.size() > kNamed ? formatted(" and {} more", d.not_tried.size() - kNamed) : ""));
}

/// Adds the profile's name, who named it, and what it hides. Adds nothing for the plain profile.
void add_profile(const Diagnosis& d, Lines& lines) {
  if (d.profile.plain()) return;
  lines.add("profile",
            formatted("{} ({}): judged as a kernel that {}", to_string(d.profile),
                      d.profile_found ? "found by itself: --profile plain judges without" : "as given", in_words(d.profile)));
  const auto from = [](double factor) { return formatted("{:.2g} %", 100 * factor); };
  const std::string in_f32 = d.profile_found ? formatted("; in f32, from {} on", from(d.least_factor_in_f32)) : "";
  lines.add("profile",
            formatted("it hides small errors: a wrong factor on every output shows from {} on{}", from(d.least_factor), in_f32));
}

std::string broken_batch_text(const Diagnosis& d) {
  std::string text = formatted("verdict  {}\n", diagnosis_verdict_text(d));
  for (const Finding& finding : d.findings) text += formatted("{:<9}{}\n", "rule", finding.message);
  return text;
}

}  // namespace

namespace report {

std::vector<const Suspicion*> refuted_of(std::span<const Suspicion> own) {
  std::vector<const Suspicion*> refuted;
  bool unproven = false;
  for (const Suspicion& s : own) {
    // Faults that leave rows unwritten differ in which: one line is enough for what no bytes prove.
    const bool again = s.standing == Standing::unproven && std::exchange(unproven, true);
    if (!again && (s.standing == Standing::refuted || s.standing == Standing::unproven)) refuted.push_back(&s);
  }
  const auto rank = [](const Suspicion* s) { return s->fault == kRounding ? 2 : s->standing == Standing::unproven ? 1 : 0; };
  std::stable_sort(refuted.begin(), refuted.end(), [&](const Suspicion* a, const Suspicion* b) {
    if (rank(a) != rank(b)) return rank(a) < rank(b);
    return a->explained != b->explained ? a->explained > b->explained : a->largest_move > b->largest_move;
  });
  return refuted;
}

std::string diagnosis_verdict_text(const Diagnosis& d) {
  if (d.verdict == DiagnosisVerdict::broken_batch) return "broken batch: what a kernel makes of it is undefined";
  if (d.verdict != DiagnosisVerdict::right || d.profile.plain()) return std::string(name(d.verdict));
  return formatted("right for a kernel that {} (worst {:.2f} of the tolerance)", in_words(d.profile), d.worst_right);
}

std::string coverage_text(const Diagnosis& d) {
  return d.complete ? formatted("every one of the {} rows was compared with the fp64 reference", d.num_tokens)
                    : formatted("laws cover all {} rows; {} of them were compared with the fp64 reference (--full compares all)",
                                d.num_tokens, d.compared_rows);
}

}  // namespace report

std::string to_string(const Diagnosis& d) {
  if (d.verdict == DiagnosisVerdict::broken_batch) return broken_batch_text(d);
  Lines lines;
  lines.add("problem", d.problem);
  lines.add("verdict", diagnosis_verdict_text(d));
  add_profile(d, lines);
  if (d.verdict == DiagnosisVerdict::right) {
    lines.more(coverage_text(d));
    return lines.take();
  }
  for (const CellPattern& pattern : d.patterns) {
    lines.add("pattern", pattern.text);
    if (!pattern.also.empty()) lines.more(formatted("the same rows: {}", fmt::join(pattern.also, "; ")));
  }
  add_wrong(d.wrong, lines);
  lines.more(coverage_text(d));
  for (const LawFinding& law : d.laws)
    lines.add("law", formatted("{}: {} row{} ({}); {}", name(law.law), law.tokens.size(), law.tokens.size() == 1 ? "" : "s",
                               runs(law.tokens), law.text));
  const bool known = d.verdict == DiagnosisVerdict::cause_found;
  if (known && !d.wrong_padding.empty()) lines.add("fact", d.wrong_padding);
  if (!known)
    for (const std::string& fact : d.observations) lines.add("fact", fact);
  add_stopped(d, lines);
  for (const DiagnosisPart& part : d.parts) {
    const auto own = std::span<const Suspicion>(d.suspicions).subspan(part.first, part.count);
    add_cause(part, own, d.parts.size() > 1, lines);
    const bool any_nan = !own.front().certain && as_good(own).others.size() > kFew && d.nothing_finite;
    if (any_nan || is_one_of_many(own.front())) lines.add("next", any_nan ? kNextAfterNaN : kNextAfterZeros);
    add_refuted(own, known, lines);
  }
  return lines.take();
}

}  // namespace quire

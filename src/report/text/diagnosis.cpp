// SPDX-License-Identifier: Apache-2.0
// A diagnosis for a terminal: the wrong cells, as a rule; the broken laws; the cause; refuted suspects, with numbers.
#include <algorithm>
#include <span>
#include <utility>

#include "quire/report.hpp"
#include "text/formatted.h"
#include "text/runs.h"

namespace quire {
namespace {

constexpr std::size_t kListedRequests = 8;
constexpr std::size_t kSuspects = 5;      // suspects that are listed if the cause is not known
constexpr std::size_t kRefuted = 12;      // refuted suspects that are listed beside a cause
constexpr std::ptrdiff_t kFew = 2;        // causes as good as the named one, up to which their number is not printed
constexpr double kPrintedAsAll = 0.9995;  // share of the error that is printed as 100 %
constexpr std::string_view kRounding = "rounding";

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

std::string share_text(double share) { return formatted("{:.3g} %", 100 * std::max(0.0, share)); }

std::string named(const Suspicion& s) {
  const std::string& id = s.fault.empty() ? s.mechanism : s.fault;
  return formatted("{} ({}){}", s.text, id, s.detail.empty() ? "" : ": " + s.detail);
}

bool is_open(const Suspicion& s) { return s.standing == Standing::open; }

std::ptrdiff_t number_as_good(std::span<const Suspicion> own) {
  return std::find_if_not(own.begin() + 1, own.end(), is_open) - own.begin() - 1;
}

void add_as_good(std::span<const Suspicion> own, Lines& lines) {
  for (std::size_t i = 1; i < own.size() && is_open(own[i]); ++i)
    lines.add("as good", formatted("{}: {} on this batch", named(own[i]), share_text(own[i].explained)));
}

constexpr const char* kNextAfterNaN =
    "NaN does not tell a read of what must not be read from a row that was never written; repeat with finite garbage in place "
    "of NaN (poisoned_cache does, in its second run)";

/// Adds the lines of an uncertain result: the likely mechanism, or how little the best one explains.
void add_uncertain(std::span<const Suspicion> own, Lines& lines) {
  if (own.front().likely) {
    const Suspicion& best = own.front();
    lines.add("cause", formatted("{}: a kernel that {}", best.tied ? "one of these" : "likely", named(best)));
    lines.more(formatted("explains {} of the error{}{}", share_text(best.explained),
                         best.explained >= kPrintedAsAll ? "; other causes would look the same" : ", and not all of it",
                         best.scope.empty() ? "" : "; in " + best.scope + " only"));
    return add_as_good(own, lines);
  }
  double most = 0;
  std::size_t tested = 0;
  for (const Suspicion& s : own) {
    most = std::max(most, s.explained);
    tested += s.standing == Standing::cannot_show || s.fault == kRounding ? 0 : 1;
  }
  lines.add("cause",
            formatted("unknown: none of {} faults and mechanisms explains more than {} of the error", tested, share_text(most)));
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
  const std::ptrdiff_t others = number_as_good(own);
  if (others > kFew)
    lines.more(formatted("{} other causes predict the same numbers on this batch; in f32 or with other lengths they may differ",
                         others));
  add_as_good(own, lines);
  if (!best.next.empty()) lines.add("next", best.next);
}

/// Suspects that this batch could have shown, by what they explain; rounding comes last.
std::vector<const Suspicion*> refuted_of(std::span<const Suspicion> own) {
  std::vector<const Suspicion*> refuted;
  bool unproven = false;
  for (const Suspicion& s : own) {
    // Faults that leave rows unwritten differ in which: one line is enough for what no bytes prove.
    const bool again = s.standing == Standing::unproven && std::exchange(unproven, true);
    if (!again && (s.standing == Standing::refuted || s.standing == Standing::unproven)) refuted.push_back(&s);
  }
  std::stable_sort(refuted.begin(), refuted.end(), [](const Suspicion* a, const Suspicion* b) {
    return a->explained != b->explained ? a->explained > b->explained : a->largest_move > b->largest_move;
  });
  const auto numerics = std::find_if(refuted.begin(), refuted.end(), [](const Suspicion* s) { return s->fault == kRounding; });
  if (numerics != refuted.end()) std::rotate(numerics, numerics + 1, refuted.end());
  return refuted;
}

/// Refuted suspects, best first; rounding is always among them, with how far it moves these rows.
void add_refuted(std::span<const Suspicion> own, bool known, Lines& lines) {
  const std::vector<const Suspicion*> refuted = refuted_of(own);
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

void add_coverage(const Diagnosis& d, Lines& lines) {
  lines.more(d.complete
                 ? formatted("every one of the {} rows was compared with the fp64 reference", d.num_tokens)
                 : formatted("laws cover all {} rows; {} of them were compared with the fp64 reference (--full compares all)",
                             d.num_tokens, d.compared_rows));
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

/// "right", or "right for a kernel that rounds its softmax weights to bf16 (worst 0.63 of the tolerance)".
std::string diagnosis_verdict_text(const Diagnosis& d) {
  if (d.verdict != DiagnosisVerdict::right || d.profile.plain()) return std::string(name(d.verdict));
  return formatted("right for a kernel that {} (worst {:.2f} of the tolerance)", in_words(d.profile), d.worst_right);
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
  std::string text = "verdict  broken batch: what a kernel makes of it is undefined\n";
  for (const Finding& finding : d.findings) text += formatted("{:<9}{}\n", "rule", finding.message);
  return text;
}

}  // namespace

std::string to_string(const Diagnosis& d) {
  if (d.verdict == DiagnosisVerdict::broken_batch) return broken_batch_text(d);
  Lines lines;
  lines.add("problem", d.problem);
  lines.add("verdict", diagnosis_verdict_text(d));
  add_profile(d, lines);
  if (d.verdict == DiagnosisVerdict::right) {
    add_coverage(d, lines);
    return lines.take();
  }
  for (const CellPattern& pattern : d.patterns) lines.add("pattern", pattern.text);
  add_wrong(d.wrong, lines);
  add_coverage(d, lines);
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
    if (!own.front().certain && number_as_good(own) > kFew && d.nothing_finite) lines.add("next", kNextAfterNaN);
    add_refuted(own, known, lines);
  }
  return lines.take();
}

}  // namespace quire

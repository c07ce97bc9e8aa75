// SPDX-License-Identifier: Apache-2.0
// A diagnosis in at most ten lines: verdict, pattern, cause, next step. What does not fit is cut between words; the complete text
// (diagnosis.cpp) has it.
#include "quire/tools/report.hpp"
#include "report/text/diagnosis_words.h"
#include "report/text/entries.h"
#include "text/wrap.h"

namespace quire {
namespace {

using namespace report;

constexpr std::size_t kNamedAsGood = 3, kNamedRules = 3, kNamedSuspects = 2, kNamedFacts = 3;

std::string listed(const std::vector<std::string>& names, std::size_t most, const char* between) {
  const std::span<const std::string> shown = std::span(names).first(std::min(most, names.size()));
  std::string text = formatted("{}", fmt::join(shown, between));
  if (names.size() > most) text += formatted("{}{} more", between, names.size() - most);
  return text;
}

/// What else predicts the same numbers.
void add_as_good(std::span<const Suspicion> own, std::vector<Entry>& entries) {
  const AsGood same = as_good(own);
  std::vector<std::string> names;
  if (same.by_head) names.push_back("the same by head");
  for (const Suspicion* other : same.others) names.push_back(formatted("{} ({})", other->text, id_of(*other)));
  if (!names.empty()) entries.push_back({"as good", formatted("on this batch: {}", listed(names, kNamedAsGood, "; ")), 2});
}

void add_unknown(const Diagnosis& d, std::span<const Suspicion> own, std::vector<Entry>& entries) {
  if (is_one_of_many(own.front())) {
    entries.push_back({"cause", kOneOfMany, 2});
    entries.push_back({"one of", named(own.front()), 2});
    return add_as_good(own, entries);
  }
  const Tested t = tested(own);
  entries.push_back(
      {"cause",
       formatted("unknown: none of {} faults and mechanisms explains more than {} of the error", t.count, share_text(t.most)),
       2});
  std::size_t suspects = 0;
  for (const Suspicion* s : refuted_of(own))
    if (s->standing == Standing::refuted && !is_nothing(s->explained) && suspects++ < kNamedSuspects)
      entries.push_back({"suspect", formatted("{}: {}", named(*s), s->refutation), 1});
  if (d.parts.size() > 1) return;
  for (std::size_t i = 0; i < std::min(kNamedFacts, d.observations.size()); ++i)
    entries.push_back({"fact", d.observations[i], 1});
}

void add_next(const Diagnosis& d, std::span<const Suspicion> own, std::vector<Entry>& entries) {
  const Suspicion& best = own.front();
  const bool named_one = best.certain || best.likely;
  if (!best.certain && d.nothing_finite && as_good(own).others.size() > kNamedAsGood - 1) {
    entries.push_back({"next", kNextAfterNaN, 3});
  } else if (named_one && !best.next.empty()) {
    entries.push_back({"next", best.next, 2});
  } else if (is_one_of_many(best)) {
    entries.push_back({"next", kNextAfterZeros, 3});
  } else if (!named_one) {
    entries.push_back({"next",
                       d.stopped_after > 0 ? "give it more time, or a smaller batch that is still wrong"
                                           : "look at the facts and at the error map of the page; try a smaller batch that is "
                                             "still wrong",
                       2});
  }
}

void add_part(const Diagnosis& d, const DiagnosisPart& part, std::vector<Entry>& entries) {
  const auto own = std::span<const Suspicion>(d.suspicions).subspan(part.first, part.count);
  const Suspicion& best = own.front();
  const std::string of = d.parts.size() > 1 ? formatted("of {}: ", part.pattern.scope_text) : "";
  const std::string scope = best.scope.empty() ? "" : formatted("; in {} only", best.scope);
  if (best.certain) {
    const char* greedy = best.combined ? "; two faults at once, found greedily" : "";
    entries.push_back({"cause", formatted("{}a kernel that {}{}{}", of, named(best), scope, greedy), 3});
    add_as_good(own, entries);
  } else if (best.likely) {
    const bool all = best.explained >= kPrintedAsAll;
    entries.push_back(
        {"cause",
         formatted("{}{}: a kernel that {}{}; explains {} of the error{}", of, best.tied ? "one of these" : "likely", named(best),
                   scope, share_text(best.explained), all ? ", and other causes would look the same" : ""),
         3});
    add_as_good(own, entries);
  } else {
    add_unknown(d, own, entries);
  }
  if (&part == &d.parts.front()) add_next(d, own, entries);
}

}  // namespace

namespace report {

std::vector<Entry> entries_of(const Diagnosis& d) {
  std::vector<Entry> entries;
  const std::string stopped =
      d.stopped_after > 0 ? formatted("; time ended the search after {:.3g} s", d.stopped_after) : std::string();
  entries.push_back({"verdict", diagnosis_verdict_text(d) + stopped, 2});
  for (std::size_t i = 0; i < std::min(kNamedRules, d.findings.size()); ++i)
    entries.push_back({"rule", d.findings[i].message, 3});
  if (d.findings.size() > kNamedRules) entries.push_back({"rule", formatted("and {} more", d.findings.size() - kNamedRules), 1});
  if (d.verdict == DiagnosisVerdict::broken_batch) return entries;
  if (d.verdict == DiagnosisVerdict::right) {
    entries.push_back({"compared", coverage_text(d), 2});
    return entries;
  }
  if (!d.profile.plain())
    entries.push_back({"profile", formatted("{}: a kernel that {}", to_string(d.profile), in_words(d.profile)), 1});
  for (const CellPattern& pattern : d.patterns) {
    entries.push_back({"pattern", pattern.text, 3});
    if (!pattern.also.empty())
      entries.push_back({"pattern", formatted("the same rows: {}", listed(pattern.also, kNamedRules, "; ")), 1});
  }
  if (!d.wrong_padding.empty()) entries.push_back({"fact", d.wrong_padding, 2});
  for (const DiagnosisPart& part : d.parts) add_part(d, part, entries);
  return entries;
}

}  // namespace report

std::string to_string(const Diagnosis& d, const DiagnosisText& as) {
  const auto columns = static_cast<std::size_t>(std::max<std::int64_t>(0, as.columns));
  return as.verbose ? wrapped(to_string(d), columns, kLabel) : fitted(entries_of(d), columns);
}

}  // namespace quire

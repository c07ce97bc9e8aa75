// SPDX-License-Identifier: Apache-2.0
// Words: what is wrong, as a rule; which laws it breaks; the cause; what is refuted and by how much.
#include "diagnose/describe.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "diagnose/profile_report.h"
#include "text/formatted.h"

namespace quire::cause {
namespace {

using fault::Facts;

constexpr std::size_t kListedRequests = 8;
constexpr std::size_t kSuspects = 5;  // that are listed where the cause is not known
constexpr std::size_t kRefuted = 12;  // that are listed beside a cause
const std::string kCannot = "cannot show here: ";
const std::string kUnwritten = "nothing proves that these rows were never written; if so, it explains ";
constexpr double kFits = 0.011;  // other suspects this close to the best one are named beside it

std::string percent(double share) { return formatted("{:.3g} %", 100 * std::max(0.0, share)); }

/// Why a hypothesis is not the cause, with numbers.
std::string refutation(const Hypothesis& h, const Part& part) {
  if (!h.why_not.empty()) return kCannot + h.why_not;
  std::string text;
  if (h.fit.unwritten) {
    text = formatted("{}{}", kUnwritten, percent(h.fit.explained));
  } else if (h.fit.largest_move <= part.largest_tolerance || h.fit.largest_move < 0.5 * part.largest_error) {
    text = h.fit.largest_move == 0
               ? "cannot change these rows"
               : formatted("moves these rows by at most {:.2g}; observed {}", h.fit.largest_move, part.observed_text);
  } else {
    text = formatted("explains {}", percent(h.share));
    if (h.fit.largest_left > 0) text += formatted(", leaves {:.3g} of {}", h.fit.largest_left, part.observed_text);
  }
  const std::int64_t broken = h.scoped ? h.fit.broken_inside : h.fit.broken;
  if (broken > 0) text += formatted("; would break {} of the right rows looked at", broken);
  return text;
}

Suspicion suspicion(const Hypothesis& h, const Part& part, bool refuted) {
  Suspicion s;
  s.mechanism = h.mechanism;
  s.fault = h.fault;
  s.text = h.text;
  s.detail = h.detail;
  s.scope = h.scoped ? part.pattern.scope_text : "";
  s.next = h.next;
  s.explained = std::max(0.0, h.scoped ? h.share + kScopePenalty : h.share);
  s.largest_move = h.fit.largest_move;
  s.largest_left = h.fit.largest_left;
  s.certain = h.certain;
  if (refuted) s.refutation = refutation(h, part);
  return s;
}

/// Rounding is not in the catalogue: every kernel has it. It explains nothing that exceeds the tolerance.
Suspicion rounding(const Part& part) {
  Suspicion s;
  s.mechanism = s.fault = "rounding";
  s.text = "rounds differently: the kernel's numerics";
  s.largest_move = part.largest_tolerance;
  s.largest_left = part.largest_error;
  s.refutation = formatted("rounding moves these rows by at most {:.2g} (docs/reference/numerics.md); observed {}",
                           part.largest_tolerance, part.observed_text);
  return s;
}

std::string request_text(const Facts& f, std::int64_t req) {
  return formatted("request {}: query_len {}, context_len {}, seq_len {}", req, f.query_len(req), f.context_len(req),
                   f.seq_lens[Facts::at(req)]);
}

std::string coverage(const Facts& f, const Localisation& where) {
  if (where.complete) return formatted("every one of the {} rows was compared with the fp64 reference", f.num_tokens);
  return formatted("laws cover all {} rows; {} of them were compared with the fp64 reference (--full compares all)", f.num_tokens,
                   where.tokens.size());
}

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

std::string named(const Suspicion& s) {
  const std::string& id = s.fault.empty() ? s.mechanism : s.fault;
  return formatted("{} ({}){}", s.text, id, s.detail.empty() ? "" : ": " + s.detail);
}

/// Causes as good as the named one, up to which their number is not printed: a reader sees at a glance that there are others.
constexpr std::ptrdiff_t kFew = 2;

std::ptrdiff_t number_as_good(std::span<const Suspicion> own) {
  return std::find_if(own.begin() + 1, own.end(), [](const Suspicion& s) { return !s.refutation.empty(); }) - own.begin() - 1;
}

void add_as_good(std::span<const Suspicion> own, Lines& lines) {
  for (std::size_t i = 1; i < own.size() && own[i].refutation.empty(); ++i)
    lines.add("as good", formatted("{}: {} on this batch", named(own[i]), percent(own[i].explained)));
}

/// Whether no wrong element is finite.
bool all_nonfinite(const Localisation& where) {
  return std::all_of(where.rows.begin(), where.rows.end(),
                     [](const Compared& row) { return !row.wrong || (row.wrong_dims > 0 && row.nonfinite == row.wrong_dims); });
}

constexpr const char* kNextAfterNaN =
    "NaN does not tell a read of what must not be read from a row that was never written; repeat with finite garbage in place "
    "of NaN (poisoned_cache does, in its second run)";

/// Nothing is certain: the likely mechanism, or how little the best one explains.
void add_uncertain(std::span<const Suspicion> own, Lines& lines) {
  constexpr double kAll = 0.9995;  // printed as 100 %
  if (own.front().explained >= kLikely) {
    const Suspicion& best = own.front();
    lines.add("cause", formatted("likely: a kernel that {}", named(best)));
    lines.more(formatted("explains {} of the error{}{}", percent(best.explained),
                         best.explained >= kAll ? "; other causes would look the same" : ", and not all of it",
                         best.scope.empty() ? "" : "; in " + best.scope + " only"));
    return add_as_good(own, lines);
  }
  double most = 0;
  std::size_t tested = 0;
  for (const Suspicion& s : own) {
    most = std::max(most, s.explained);
    tested += s.refutation.starts_with(kCannot) || s.fault == "rounding" ? 0 : 1;
  }
  lines.add("cause",
            formatted("unknown: none of {} faults and mechanisms explains more than {} of the error", tested, percent(most)));
}

/// The suspects of one part: the cause, what is as good, what to look at next.
void add_cause(const Part& part, std::span<const Suspicion> own, bool several, Lines& lines) {
  if (several) lines.add("cause", formatted("of {}:", part.pattern.scope_text));
  const Suspicion& best = own.front();
  if (!best.certain) return add_uncertain(own, lines);
  lines.add("cause", formatted("a kernel that {} ({})", best.text, best.fault.empty() ? best.mechanism : best.fault));
  lines.more(
      formatted("explains {} of the error{}{}", percent(best.explained), best.scope.empty() ? "" : ", in " + best.scope + " only",
                part.ranking.front().combined ? "; two faults at once, found greedily: the second on top of the first" : ""));
  if (!best.detail.empty()) lines.more(best.detail);
  const std::ptrdiff_t others = number_as_good(own);
  if (others > kFew)
    lines.more(formatted("{} other causes predict the same numbers on this batch; in f32 or with other lengths they may differ",
                         others));
  add_as_good(own, lines);
  if (!best.next.empty()) lines.add("next", best.next);
}

/// Refuted suspects that this batch could have shown, best first; those that cannot show are counted by reason.
void add_refuted(std::span<const Suspicion> own, bool known, Lines& lines) {
  std::map<std::string, std::vector<std::string>> cannot;
  std::vector<const Suspicion*> refuted;
  std::size_t unwritten = 0;
  for (const Suspicion& s : own) {
    if (s.refutation.empty()) continue;
    // Faults that leave rows unwritten differ in which: one line is enough for what no bytes prove.
    if (s.refutation.starts_with(kUnwritten) && unwritten++ > 0) continue;
    if (s.refutation.starts_with(kCannot)) {
      cannot[s.refutation.substr(kCannot.size())].push_back(s.fault);
    } else {
      refuted.push_back(&s);
    }
  }
  std::stable_sort(refuted.begin(), refuted.end(), [](const Suspicion* a, const Suspicion* b) {
    return a->explained != b->explained ? a->explained > b->explained : a->largest_move > b->largest_move;
  });
  const std::size_t most = known ? kRefuted : kSuspects;
  // Rounding is always among the refuted ones, with how far it moves these rows.
  const auto numerics = std::find_if(refuted.begin(), refuted.end(), [](const Suspicion* s) { return s->fault == "rounding"; });
  if (numerics != refuted.end()) std::rotate(numerics, numerics + 1, refuted.end());
  for (std::size_t i = 0; i < std::min(most, refuted.size()); ++i)
    lines.add(known ? "refuted" : "suspect", formatted("{}: {}", refuted[i]->text, refuted[i]->refutation));
  if (refuted.size() > most) {
    lines.more(formatted("and {} more, which explain less (--json lists all)", refuted.size() - most));
    if (known) lines.more(formatted("{}: {}", refuted.back()->text, refuted.back()->refutation));
  }
  std::size_t count = 0;
  for (const auto& [reason, ids] : cannot) count += ids.size();
  if (count > 0) lines.add("no case", formatted("{} faults cannot show on this batch (--json says why)", count));
}

/// "row 5336 (request 9: query_len 1, context_len 929, seq_len 930): all 64 heads, dims 0-127; ..." of the first wrong requests.
std::vector<std::string> describe_wrong_rows(const Facts& f, const Localisation& where) {
  std::vector<std::string> lines;
  const std::vector<WrongRequest> all = wrong_requests(f, where);
  for (const WrongRequest& g : all) {
    if (lines.size() == kListedRequests) {
      lines.push_back(formatted("... and {} more requests", all.size() - kListedRequests));
      break;
    }
    std::string what = g.last_dim < 0 ? "lse only" : formatted("dims {}-{}{}", g.first_dim, g.last_dim, g.lse ? " and lse" : "");
    what += formatted("; {} elements", g.elements + (g.lse ? g.rows : 0));
    if (g.nonfinite > 0) what += formatted(", {} of them NaN or infinite", g.nonfinite);
    if (g.largest_error > 0) what += formatted(", error up to {:.3g}", g.largest_error);
    lines.push_back(formatted("row{} {} ({}): {}, {}", g.tokens.size() == 1 ? "" : "s", runs(g.tokens), request_text(f, g.req),
                              heads_text(g.heads), what));
  }
  return lines;
}

std::string text_of(const Found& found, const Diagnosis& d) {
  Lines lines;
  lines.add("problem", d.problem);
  lines.add("verdict", verdict_text(d.verdict, found.where));
  for (const std::string& line : profile_lines(found.where)) lines.add("profile", line);
  if (d.verdict == "right") {
    lines.more(coverage(found.facts, found.where));
    return lines.take();
  }
  for (const std::string& pattern : d.patterns) lines.add("pattern", pattern);
  for (const std::string& row : describe_wrong_rows(found.facts, found.where)) lines.add("wrong", row);
  lines.more(coverage(found.facts, found.where));
  for (const LawFinding& law : found.where.laws.findings)
    lines.add("law", formatted("{}: {} row{} ({}); {}", name(law.law), law.tokens.size(), law.tokens.size() == 1 ? "" : "s",
                               runs(law.tokens), law.text));
  const bool known = d.verdict == "cause found";
  if (known && !found.padding.empty()) lines.add("fact", found.padding);
  if (!known)
    for (const std::string& fact : d.observations) lines.add("fact", fact);
  std::size_t from = 0;
  for (const Part& part : found.parts) {
    const std::span<const Suspicion> own(d.suspicions.data() + from, part.ranking.size() + 1);
    add_cause(part, own, found.parts.size() > 1, lines);
    if (!own.front().certain && number_as_good(own) > kFew && all_nonfinite(found.where)) lines.add("next", kNextAfterNaN);
    add_refuted(own, known, lines);
    from += own.size();
  }
  return lines.take();
}

}  // namespace

std::string runs(const std::vector<std::int64_t>& numbers, std::size_t most) {
  std::string text;
  std::size_t count = 0;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    if (count++ == most) return text + ", ...";
    text += text.empty() ? "" : ", ";
    text += end - i == 1 ? formatted("{}", numbers[i]) : formatted("{}-{}", numbers[i], numbers[end - 1]);
    i = end;
  }
  return text;
}

std::vector<WrongRequest> wrong_requests(const Facts& f, const Localisation& where) {
  std::vector<WrongRequest> list;
  for (const Compared& row : where.rows) {
    if (!row.wrong) continue;
    const std::int64_t req = f.req_of(row.token);
    if (list.empty() || list.back().req != req) list.push_back({}), list.back().req = req;
    WrongRequest& g = list.back();
    g.heads.resize(Facts::at(f.num_q_heads));
    if (g.tokens.empty() || g.tokens.back() != row.token) g.tokens.push_back(row.token);
    g.heads[Facts::at(row.head)] = true;
    g.elements += row.wrong_dims;
    g.nonfinite += row.nonfinite;
    ++g.rows;
    g.lse = g.lse || row.wrong_lse;
    if (row.wrong_dims > 0) {
      g.first_dim = std::min(g.first_dim, row.first_dim);
      g.last_dim = std::max(g.last_dim, row.last_dim);
    }
    g.largest_error = std::max(g.largest_error, row.largest_error);
  }
  return list;
}

std::string heads_text(const std::vector<bool>& wrong) {
  std::vector<std::int64_t> list;
  for (std::size_t h = 0; h < wrong.size(); ++h)
    if (wrong[h]) list.push_back(static_cast<std::int64_t>(h));
  if (list.size() == wrong.size()) return formatted("all {} heads", wrong.size());
  return formatted("{} of {} heads ({})", list.size(), wrong.size(), runs(list));
}

void describe(const Found& found, Diagnosis& d) {
  for (const Pattern& pattern : found.patterns) d.patterns.push_back(pattern.text);
  if (d.verdict != "right") d.observations = observations(found.facts, found.observed, found.where);
  if (!found.padding.empty()) d.observations.insert(d.observations.begin(), found.padding);
  for (const Part& part : found.parts) {
    const double best = part.ranking.empty() ? 0 : part.ranking.front().share;
    const bool sure = !part.ranking.empty() && part.ranking.front().certain;
    // Suspects as good as the first one stand behind it, before those that are refuted.
    std::vector<Suspicion> refuted;
    for (const Hypothesis& h : part.ranking) {
      const bool whole = h.fit.wrong > 0 && h.fit.whole == h.fit.wrong;
      const bool fits = whole && (sure || best >= kLikely) && h.why_not.empty() && h.share > best - kFits;
      const bool first = &h == &part.ranking.front();
      (fits || first ? d.suspicions : refuted).push_back(suspicion(h, part, !fits));
    }
    std::move(refuted.begin(), refuted.end(), std::back_inserter(d.suspicions));
    d.suspicions.push_back(rounding(part));
  }
  d.text = text_of(found, d);
  d.json = json_of(found, d);
}

}  // namespace quire::cause

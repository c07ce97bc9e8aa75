// Words: what is wrong, which laws it breaks, the cause, what is refuted and by how much.
#include "diagnose/describe.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "diagnose/profile_report.h"
#include "quire/problem.hpp"
#include "report/pictures.h"
#include "text/formatted.h"

namespace quire::cause {
namespace {

using fault::Facts;
using Json = nlohmann::ordered_json;

constexpr std::size_t kListedRequests = 8;
const std::string kCannot = "cannot show here: ";
constexpr double kFits = 0.01;  // other suspects this close to the best one are named beside it

std::string percent(double share) { return formatted("{:.3g} %", 100 * std::max(0.0, share)); }

std::string joined(const Hypothesis& h, const char* between, std::string FaultInfo::* field) {
  std::string text;
  for (const fault::Fault* f : h.faults) text += (text.empty() ? "" : between) + f->info.*field;
  return text;
}

/// Why a hypothesis is not the cause, with numbers.
std::string refutation(const Hypothesis& h, const Evidence& evidence) {
  if (!h.why_not.empty()) return kCannot + h.why_not;
  const double observed = evidence.largest_error();
  std::string text;
  if (h.fit.largest_move <= evidence.largest_tolerance() || h.fit.largest_move < 0.5 * observed) {
    text = formatted("moves these rows by at most {:.2g}; observed {}", h.fit.largest_move, evidence.observed_text());
  } else {
    text = formatted("explains {}", percent(h.fit.explained));
    if (h.fit.largest_left > 0) text += formatted(", leaves {:.3g} of {}", h.fit.largest_left, evidence.observed_text());
  }
  if (h.fit.broken > 0) text += formatted("; would break {} of the right rows looked at", h.fit.broken);
  return text;
}

Suspicion suspicion(const Hypothesis& h, const Evidence& evidence, bool refuted) {
  Suspicion s;
  s.fault = joined(h, " + ", &FaultInfo::id);
  s.text = joined(h, ", and ", &FaultInfo::text);
  s.detail = h.detail;
  s.explained = std::max(0.0, h.fit.explained);
  s.largest_move = h.fit.largest_move;
  s.largest_left = h.fit.largest_left;
  if (refuted) s.refutation = refutation(h, evidence);
  return s;
}

/// Rounding is not in the catalogue: every kernel has it. It explains nothing that exceeds the tolerance.
Suspicion rounding(const Evidence& evidence) {
  Suspicion s;
  s.fault = "rounding";
  s.text = "rounds differently: the kernel's numerics";
  s.largest_move = evidence.largest_tolerance();
  s.largest_left = evidence.largest_error();
  s.refutation = formatted("rounding moves these rows by at most {:.2g} (docs/numerics.md); observed {}",
                           evidence.largest_tolerance(), evidence.observed_text());
  return s;
}

bool is_cause(const Diagnosis& d, std::size_t i) { return d.verdict == "cause found" && d.suspicions[i].refutation.empty(); }

std::string request_text(const Facts& f, std::int64_t req) {
  return formatted("request {}: query_len {}, context_len {}, seq_len {}", req, f.query_len(req), f.context_len(req),
                   f.seq_lens[Facts::at(req)]);
}

/// What the wrong rows of one request have in common.
struct Group {
  std::vector<std::int64_t> tokens;
  std::vector<bool> heads;
  std::int64_t elements = 0, rows = 0, first_dim = 1 << 30, last_dim = -1, nonfinite = 0;
  bool lse = false;
  double largest_error = 0;
};

std::map<std::int64_t, Group> groups(const Facts& f, const Localisation& where) {
  std::map<std::int64_t, Group> by_request;
  for (const Compared& row : where.rows) {
    if (!row.wrong) continue;
    Group& g = by_request[f.req_of(row.token)];
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
  return by_request;
}

std::string heads_text(const std::vector<bool>& wrong) {
  std::vector<std::int64_t> list;
  for (std::size_t h = 0; h < wrong.size(); ++h)
    if (wrong[h]) list.push_back(static_cast<std::int64_t>(h));
  if (list.size() == wrong.size()) return formatted("all {} heads", wrong.size());
  return formatted("{} of {} heads ({})", list.size(), wrong.size(), runs(list));
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

void add_cause(const Found& found, const Diagnosis& d, Lines& lines) {
  if (d.verdict != "cause found") {
    const Suspicion* best = d.suspicions.empty() ? nullptr : &d.suspicions.front();
    lines.add("cause", formatted("unknown: none of {} faults explains more than {} of the error", fault::catalogue().size(),
                                 best == nullptr ? "0 %" : percent(best->explained)));
    if (best != nullptr && best->explained > 0.02)
      lines.more(formatted("the nearest: {} ({}){}{}", best->text, best->fault, best->detail.empty() ? "" : ": ", best->detail));
    return;
  }
  const Suspicion& cause = d.suspicions.front();
  const Hypothesis& h = found.ranking.front();
  lines.add("cause", formatted("a kernel that {} ({})", cause.text, cause.fault));
  lines.more(formatted("explains {} of the error{}", percent(cause.explained),
                       h.faults.size() > 1 ? "; two faults at once, found greedily: the second on top of the first" : ""));
  if (!cause.detail.empty()) lines.more(cause.detail);
  for (std::size_t i = 1; i < d.suspicions.size() && is_cause(d, i); ++i)
    lines.add("as good", formatted("{} ({}): {} on this batch", d.suspicions[i].text, d.suspicions[i].fault,
                                   percent(d.suspicions[i].explained)));
  for (const fault::Fault* f : h.faults)
    if (!f->info.next.empty()) lines.add("next", f->info.next);
}

void add_refuted(const Diagnosis& d, Lines& lines) {
  std::map<std::string, std::vector<std::string>> cannot;
  for (const Suspicion& s : d.suspicions) {
    if (s.refutation.empty()) continue;
    if (s.refutation.starts_with(kCannot)) {
      cannot[s.refutation.substr(kCannot.size())].push_back(s.fault);
    } else {
      lines.add("refuted", formatted("{}: {}", s.text, s.refutation));
    }
  }
  for (const auto& [reason, ids] : cannot)
    lines.add("no case",
              formatted("{}{}", reason, ids.size() == 1 ? " (" + ids[0] + ")" : formatted(" ({} faults)", ids.size())));
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
  for (const std::string& row : describe_wrong_rows(found.facts, found.where)) lines.add("wrong", row);
  lines.more(coverage(found.facts, found.where));
  for (const LawFinding& law : found.where.laws.findings)
    lines.add("law", formatted("{}: {} row{} ({}); {}", name(law.law), law.tokens.size(), law.tokens.size() == 1 ? "" : "s",
                               runs(law.tokens), law.text));
  add_cause(found, d, lines);
  add_refuted(d, lines);
  return lines.take();
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json laws_json(const Laws& laws) {
  Json list = Json::array();
  for (const LawFinding& law : laws.findings)
    list.push_back({{"law", name(law.law)}, {"text", law.text}, {"rows", law.tokens.size()}, {"tokens", runs(law.tokens)}});
  return list;
}

Json suspicions_json(const Diagnosis& d) {
  Json list = Json::array();
  for (const Suspicion& s : d.suspicions) {
    const fault::Fault* known = fault::find(s.fault);
    list.push_back({{"fault", s.fault},
                    {"family", known != nullptr ? known->info.family : ""},
                    {"text", s.text},
                    {"detail", s.detail},
                    {"explained", s.explained},
                    {"largest_move", number(s.largest_move)},
                    {"largest_left", number(s.largest_left)},
                    {"refutation", s.refutation},
                    {"next", known != nullptr ? known->info.next : ""}});
  }
  return list;
}

Json wrong_json(const Facts& f, const Localisation& where) {
  Json requests = Json::array();
  std::int64_t rows = 0, elements = 0;
  for (const auto& [req, g] : groups(f, where)) {
    rows += g.rows;
    elements += g.elements;
    requests.push_back({{"req", req},
                        {"query_len", f.query_len(req)},
                        {"context_len", f.context_len(req)},
                        {"rows", runs(g.tokens)},
                        {"heads", heads_text(g.heads)},
                        {"elements", g.elements},
                        {"lse", g.lse},
                        {"largest_error", number(g.largest_error)}});
  }
  return {{"rows", rows}, {"elements", elements}, {"requests", requests}};
}

std::string json_of(const Found& found, const Diagnosis& d) {
  Json json = {{"quire_diagnose", 1},
               {"version", QUIRE_VERSION},
               {"problem", d.problem},
               {"verdict", d.verdict},
               {"profile", profile_json(found.where)},
               {"complete", d.complete},
               {"compared_rows", found.where.tokens.size()},
               {"laws", laws_json(found.where.laws)},
               {"wrong", wrong_json(found.facts, found.where)},
               {"suspicions", suspicions_json(d)}};
  json["pictures"]["error"] = report::error_picture(found.c.observed, found.where.reference, found.c.batch, found.where.tokens);
  json["pictures"]["pages"] = report::page_picture(found.c.batch, found.c.cache, found.c.options);
  json["pictures"]["rows"] = report::rows_picture(problem_of(found.c.batch, found.c.cache, found.c.options), "");
  return json.dump();
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

std::vector<std::string> describe_wrong_rows(const Facts& f, const Localisation& where) {
  std::vector<std::string> lines;
  const std::map<std::int64_t, Group> all = groups(f, where);
  for (const auto& [req, g] : all) {
    if (lines.size() == kListedRequests) {
      lines.push_back(formatted("... and {} more requests", all.size() - kListedRequests));
      break;
    }
    std::string what = g.last_dim < 0 ? "lse only" : formatted("dims {}-{}{}", g.first_dim, g.last_dim, g.lse ? " and lse" : "");
    what += formatted("; {} elements", g.elements + (g.lse ? g.rows : 0));
    if (g.nonfinite > 0) what += formatted(", {} of them NaN or infinite", g.nonfinite);
    if (g.largest_error > 0) what += formatted(", error up to {:.3g}", g.largest_error);
    lines.push_back(formatted("row{} {} ({}): {}, {}", g.tokens.size() == 1 ? "" : "s", runs(g.tokens), request_text(f, req),
                              heads_text(g.heads), what));
  }
  return lines;
}

void describe(const Found& found, Diagnosis& d) {
  const double best = found.ranking.empty() ? 0 : found.ranking.front().fit.explained;
  for (const Hypothesis& h : found.ranking) {
    const bool fits = d.verdict == "cause found" && h.why_not.empty() && h.fit.explained > best - kFits;
    d.suspicions.push_back(suspicion(h, found.evidence, !fits));
  }
  if (d.verdict != "right") d.suspicions.push_back(rounding(found.evidence));
  d.text = text_of(found, d);
  d.json = json_of(found, d);
}

}  // namespace quire::cause

// The search for a cause: contract, laws, localisation, hypotheses, words.
#include <new>
#include <nlohmann/json.hpp>

#include "diagnose/describe.h"
#include "quire/contract.hpp"
#include "quire/problem.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

Status check_observed(const Case& c) {
  const Tensor &o = c.observed, &q = c.batch.query;
  if (!o.present()) return {Code::invalid_argument, "the case has no observed output: there is nothing to diagnose"};
  if (o.rank != 3 || !is_floating(o.dtype) || o.shape[0] != q.shape[0] || o.shape[1] != q.shape[1] || o.shape[2] != q.shape[2])
    return {Code::invalid_argument,
            formatted("observed: {}, expected a floating type and the shape of query, {}", to_string(o), to_string(q))};
  const Tensor& l = c.observed_lse;
  if (l.present() && (l.rank != 2 || l.dtype != DType::f32 || l.shape[0] != q.shape[0] || l.shape[1] != q.shape[1]))
    return {Code::invalid_argument, formatted("observed_lse: {}, expected f32 [{}, {}]", to_string(l), q.shape[0], q.shape[1])};
  return {};
}

/// A batch that breaks a rule has no right output: the rule is the answer.
Diagnosis broken_batch(const Findings& findings) {
  Diagnosis d;
  d.verdict = "broken batch";
  d.text = "verdict  broken batch: what a kernel makes of it is undefined\n";
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& finding : findings.items) {
    d.text += formatted("{:<9}{}\n", "rule", finding.message);
    list.push_back(finding.message);
  }
  d.json = nlohmann::ordered_json({{"quire_diagnose", 1}, {"version", QUIRE_VERSION}, {"verdict", d.verdict}, {"findings", list}})
               .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return d;
}

Result<Diagnosis> search(const Case& c, const DiagnoseOptions& options) {
  const fault::Facts facts(c.batch, c.cache, c.options);
  const cause::Observed observed{c.observed, c.observed_lse};
  Result<cause::Localisation> where = cause::localise(facts, observed, options);
  if (!where.ok()) return where.status();
  Diagnosis d;
  const auto line = c.notes.find("problem");
  d.problem = line != c.notes.end() ? line->second : to_string(problem_of(c.batch, c.cache, c.options));
  d.complete = where->complete;
  d.profile = where->reference.profile;
  d.wrong_tokens = where->wrong_tokens();
  const cause::Evidence evidence(facts, observed, where.value());
  std::vector<cause::Hypothesis> ranking;
  d.verdict = "right";
  if (where->any_wrong()) {
    if (options.progress) options.progress("hypotheses");
    ranking = cause::rank(facts, evidence);
    d.verdict = !ranking.empty() && ranking.front().fit.explained >= cause::kCause ? "cause found" : "unknown cause";
  }
  cause::describe({c, facts, observed, where.value(), evidence, ranking}, d);
  return d;
}

}  // namespace

Result<Diagnosis> diagnose(const Case& c, const DiagnoseOptions& options) try {
  const Findings findings = check(c.batch, c.cache, c.options, Depth::tables);
  if (!findings.ok()) return broken_batch(findings);
  if (Status s = check_observed(c); !s.ok()) return s;
  return search(c, options);
} catch (const std::bad_alloc&) {
  return Status(Code::out_of_memory, "diagnose: not enough memory");
} catch (const std::exception& e) {
  return Status(Code::internal_error, std::string("diagnose: ") + e.what());
}

}  // namespace quire

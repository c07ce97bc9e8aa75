// SPDX-License-Identifier: Apache-2.0
// See failure.h.
#include "verify/failure.h"

#include "text/formatted.h"
#include "verify/judge.h"
#include "verify/supported.h"

namespace quire::verify_detail {

Smallest smallest_that_fails(const Target& target, const ProblemLine& line, const std::string& check, const Limits& limits,
                             double seconds) {
  const RoundedRows rounded = rounded_rows_of(target);
  const bool keeps = is_asked(limits.asked, line);  // the caller's own lines may lie outside
  const auto may_be_tried = [&](const ProblemLine& smaller) {
    return (!keeps || is_asked(limits.asked, smaller)) && (!limits.supports || limits.supports(smaller));
  };
  const auto finding = [&](const ProblemLine& smaller) -> std::string {
    if (!(smaller == line) && !may_be_tried(smaller)) return {};
    Result<Prepared> prepared = with_tolerance(prepare({"lines", "Shrunk", smaller, Special::none}), rounded);
    if (!prepared.ok()) return {};
    for (const CheckResult& c : judge(target, prepared.value(), {check}).checks)
      if (c.state == CheckState::fail) return formatted("{}: {}", check, c.text);
    return {};
  };
  const ProblemLine smallest =
      shrink(line, [&](const ProblemLine& smaller) { return !finding(smaller).empty(); }, {.seconds = seconds});
  Smallest result{to_string(smallest), finding(smallest)};
  return result.finding.empty() ? Smallest{} : result;  // a call that fails now and then
}

report::SharedPictures pictures_of_failure(const Target& target, const Prepared& p) {
  Judge again(target, p, {"values"});
  again.on_zeros();
  if (again.refused()) return {};
  nlohmann::ordered_json json;
  json["error"] = report::error_picture(again.output(), {}, p.expected, p.c.batch, p.tokens);
  if (!p.sparse) json["pages"] = report::page_picture(p.c.batch, p.c.cache, p.c.options);
  json["rows"] = report::rows_picture(p.entry.line.problem, again.result().kernel);
  return std::make_shared<const report::Pictures>(report::Pictures{std::move(json)});
}

}  // namespace quire::verify_detail

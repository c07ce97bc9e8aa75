// SPDX-License-Identifier: Apache-2.0
// See pictures_of_case.h.
#include "verify/pictures_of_case.h"

namespace quire::conformance {

report::SharedPictures pictures_of_failure(const Target& target, const Prepared& p) {
  Judge again(target, p, {"values"});
  again.on_zeros();
  if (again.refused()) return {};
  nlohmann::json json;
  json["error"] = report::error_picture(again.output(), {}, p.expected, p.c.batch, p.tokens);
  if (!p.sparse) json["pages"] = report::page_picture(p.c.batch, p.c.cache, p.c.options);
  json["rows"] = report::rows_picture(p.entry.line.problem, again.result().kernel);
  return std::make_shared<const report::Pictures>(report::Pictures{std::move(json)});
}

}  // namespace quire::conformance

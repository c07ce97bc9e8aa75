// SPDX-License-Identifier: Apache-2.0
// Renders the JSON of a verdict, a diagnosis or a bench run as a page: text from a file is checked, values of this process are
// not. The JSON is embedded so that no text in it can end the data block or begin a tag.
#include <algorithm>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <string_view>

#include "quire/tools/report.hpp"
#include "report/html/page.h"
#include "report/json/json.h"
#include "text/formatted.h"

namespace quire {
namespace {

using json = nlohmann::ordered_json;

struct Schema {
  const char* key;
  int version;
};
constexpr Schema kSchemas[] = {{"quire_verify", 1}, {"quire_diagnose", 2}, {"quire_bench", 1}};
/// Reports nest six deep. Far more than that is an attack on recursive code, ours or the browser's.
constexpr int kMaxDepth = 64;

int depth_of(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

/// Escapes the characters that could form a tag or a comment in HTML. JSON keeps its meaning, because these characters occur in
/// strings only.
std::string escaped(const std::string& text) {
  std::string out;
  out.reserve(text.size() + text.size() / 16);
  for (const char c : text) {
    switch (c) {
      case '<': out += "\\u003c"; break;
      case '>': out += "\\u003e"; break;
      case '&': out += "\\u0026"; break;
      default: out += c;
    }
  }
  return out;
}

/// Keys of all objects in the order of their bytes: documents that mean the same give one page.
json sorted(const json& value) {
  json out = value;
  if (value.is_array()) {
    for (json& item : out) item = sorted(item);
  } else if (value.is_object()) {
    std::map<std::string_view, const json*> members;
    for (const auto& [key, item] : value.get_ref<const json::object_t&>()) members[key] = &item;
    out = json::object();
    for (const auto& [key, item] : members) out.emplace(key, sorted(*item));
  }
  return out;
}

Status not_a_report(const json& document) {
  std::string found = "an object without such a key";
  if (!document.is_object()) found = formatted("a JSON {}", document.type_name());
  for (const Schema& schema : kSchemas)
    if (document.is_object() && document.contains(schema.key))
      found = formatted("\"{}\": {:.64}", schema.key, document[schema.key].dump(-1, ' ', true, json::error_handler_t::replace));
  return {Code::parse_error,
          formatted("report: expected \"quire_verify\": 1, \"quire_diagnose\": 2 or \"quire_bench\": 1, found {}", found)};
}

Result<std::string> render(std::string_view text) {
  if (depth_of(text) > kMaxDepth) return Status(Code::parse_error, formatted("report: JSON nested deeper than {}", kMaxDepth));
  const json document = json::parse(text);
  bool known = false;
  for (const Schema& schema : kSchemas)
    known = known || (document.is_object() && document.value(schema.key, json()) == schema.version);
  if (!known) return not_a_report(document);
  return report::page_of(document);
}

}  // namespace

std::string report::page_of(const Json& document) {
  std::string page(page_before_data());
  page += escaped(sorted(document).dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace));
  page += page_after_data();
  return page;
}

std::string to_html(const Diagnosis& diagnosis) { return report::page_of(report::json_of(diagnosis)); }
std::string to_html(const Verdict& verdict) { return report::page_of(report::json_of(verdict)); }
std::string to_html(const BenchReport& measured) { return report::page_of(report::json_of(measured)); }

Result<std::string> render_html(std::string_view json_text) {
  try {
    return render(json_text);
  } catch (const std::bad_alloc&) {
    return Status(Code::out_of_memory, formatted("report: not enough memory for a page of {} bytes of JSON", json_text.size()));
  } catch (const std::exception& error) {
    return Status(Code::parse_error, formatted("report: {:.300}", report::complaint(error)));
  }
}

}  // namespace quire

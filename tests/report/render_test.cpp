// SPDX-License-Identifier: Apache-2.0
// render_html(): what it refuses, that text cannot leave the data block, that the page asks nobody for anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "quire/tools/report.hpp"
#include "report/html/page.h"

namespace quire::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

std::string rendered(const std::string& text) {
  const Result<std::string> page = render_html(text);
  EXPECT_TRUE(page.ok()) << page.status().message();
  return page.ok() ? page.value() : "";
}

/// What the browser's JSON.parse will be given.
std::string data_of(const std::string& page) {
  const std::size_t begin = report::page_before_data().size();
  return page.substr(begin, page.size() - begin - report::page_after_data().size());
}

TEST(RenderHtml, RefusesWhatIsNoReport) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "parse error at line 1, column 1"},
      {R"({"quire_verify": 1)", "parse error at line 1"},
      {R"({"quire_verify": 1} trailing)", "parse error"},
      {"[1, 2]", "found a JSON array"},
      {"null", "found a JSON null"},
      {"{}", "found an object without such a key"},
      {R"({"quire_verify": 2})", "found \"quire_verify\": 2"},
      {R"({"quire_diagnose": 1})", "\"quire_diagnose\": 2 or \"quire_bench\": 1, found \"quire_diagnose\": 1"},
      {R"({"quire_diagnose": "2"})", "found \"quire_diagnose\": \"2\""},
      {R"({"quire_diagnose": true})", "found \"quire_diagnose\": true"},
      {"{\"quire_verify\": 1, \"target\": \"\xff\xfe\"}", "UTF-8"},
      {R"({"quire_verify": 1, "seconds": 1e999})", "number"},
  };
  for (const auto& [text, message] : cases) {
    const Result<std::string> page = render_html(text);
    ASSERT_FALSE(page.ok()) << text;
    EXPECT_EQ(page.status().code(), Code::parse_error) << text;
    EXPECT_THAT(page.status().message(), HasSubstr(message)) << text;
  }
}

TEST(RenderHtml, RefusesNestingThatWouldExhaustTheStack) {
  const std::string deep = R"({"quire_verify": 1, "cases": )" + std::string(1000000, '[') + std::string(1000000, ']') + "}";
  const Result<std::string> page = render_html(deep);
  ASSERT_FALSE(page.ok());
  EXPECT_THAT(page.status().message(), HasSubstr("nested deeper than 64"));
  EXPECT_TRUE(render_html(R"({"quire_verify": 1, "target": ")" + std::string(1000, '[') + "\"}").ok())
      << "brackets in text nest nothing";
}

TEST(RenderHtml, TakesAnEmptyReportOfEveryKind) {
  EXPECT_THAT(rendered(R"({"quire_verify": 1})"), HasSubstr("<!doctype html>"));
  EXPECT_THAT(rendered(R"({"quire_diagnose": 2})"), HasSubstr("<!doctype html>"));
  EXPECT_THAT(rendered(R"({"quire_bench": 1})"), HasSubstr("<!doctype html>"));
}

TEST(RenderHtml, EmbedsTheSameValues) {
  const json report = {{"quire_diagnose", 2},
                       {"file", "a<b>&\"\\\n\u2028 \u00e9 \U0001F600"},
                       {"seconds", 0.1},
                       {"suspicions", {{{"explained", 1.0}}}}};
  EXPECT_EQ(json::parse(data_of(rendered(report.dump()))), report);
}

TEST(RenderHtml, TextCannotEndTheDataBlock) {
  for (const char* attack :
       {"</script><script>alert(1)</script>", "<!--<script>", "--!>", "</SCRIPT >", "]]>", "<\\/script>", "&lt;/script&gt;"}) {
    const json report = {{"quire_verify", 1}, {"target", attack}, {attack, attack}};
    const std::string data = data_of(rendered(report.dump()));
    EXPECT_EQ(data.find_first_of("<>&"), std::string::npos) << attack;
    EXPECT_EQ(json::parse(data), report) << attack;
  }
}

TEST(RenderHtml, SameJsonSameBytes) {
  const std::string text = R"({"quire_verify": 1, "b": [1, 2.5, null], "a": {"z": 1, "y": 2}})";
  EXPECT_EQ(rendered(text), rendered(text));
  EXPECT_EQ(rendered(text), rendered(R"({ "a": {"y": 2, "z": 1}, "b": [1, 2.5, null], "quire_verify": 1 })"))
      << "neither order nor space counts";
}

std::string read_file(const std::string& name) {
  std::ifstream in(std::string(QUIRE_SOURCE_DIR) + "/src/report/html/page/" + name, std::ios::binary);
  EXPECT_TRUE(in.good()) << name;
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(Page, HoldsEverySourceFileUnchanged) {
  const std::string page = std::string(report::page_before_data()) + std::string(report::page_after_data());
  for (const char* name : {"page.css", "dom.js", "table.js", "grid_map.js", "pictures.js", "verify.js", "suspects.js",
                           "diagnose.js", "bench.js", "main.js"})
    EXPECT_NE(page.find(read_file(name)), std::string::npos) << name;
  EXPECT_THAT(page, Not(HasSubstr("{{")));
}

TEST(Page, LoadsNothingAndParsesNoHtml) {
  const std::string page = std::string(report::page_before_data()) + std::string(report::page_after_data());
  for (const char* way_out : {"http://", "https://", "//cdn", "@import", "url(", "src=", "fetch(", "XMLHttpRequest", "import(",
                              "WebSocket", "sendBeacon", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
                              "eval(", "new Function", "DOMParser", "localStorage"}) {
    std::string rest = page;
    const std::string name_space = "http://www.w3.org/2000/svg";  // a name, not an address
    rest.erase(rest.find(name_space), name_space.size());
    EXPECT_EQ(rest.find(way_out), std::string::npos) << way_out;
  }
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  for (const char c : page) ASSERT_TRUE(c == '\n' || (c >= 32 && c < 127)) << "only ASCII, so that no encoding can hurt";
}

}  // namespace
}  // namespace quire::test

// SPDX-License-Identifier: Apache-2.0
// See input.h.
#include "input.h"

#include <filesystem>

#include "progress.h"
#include "text/formatted.h"

namespace quire::cli {
namespace {

std::string join(const Words& words) { return formatted("{}", fmt::join(words, " ")); }

}  // namespace

bool names_a_file(const Words& words) {
  if (words.size() != 1) return false;
  std::error_code ignored;
  return words[0].find('=') == std::string::npos || std::filesystem::exists(words[0], ignored);
}

Result<ProblemLine> problem_line_of(const Words& words) { return parse_problem_line(join(words)); }

Result<Case> case_of(const Words& words, const Terminal& terminal) {
  const Progress progress(terminal, "preparing the batch");
  if (names_a_file(words)) return map_capture(words[0]);
  const Result<ProblemLine> line = problem_line_of(words);
  if (!line.ok()) return line.status();
  return make_case(line.value());
}

Result<Problem> problem_of_words(const Words& words) {
  if (!names_a_file(words)) {
    const Result<ProblemLine> line = problem_line_of(words);
    if (!line.ok()) return line.status();
    return line->problem;
  }
  const Result<Case> c = map_capture(words[0]);
  if (!c.ok()) return c.status();
  const Findings findings = check(c->batch, c->cache, c->options, Depth::tables);
  if (!findings.ok()) return findings.status();
  return problem_of(c->batch, c->cache, c->options);
}

std::string title_of(const Words& words) { return join(words); }

std::string depth_name(Depth depth) {
  switch (depth) {
    case Depth::metadata: return "metadata";
    case Depth::tables: return "tables";
    case Depth::contents: return "contents";
  }
  return "unknown";
}

}  // namespace quire::cli

// SPDX-License-Identifier: Apache-2.0
// A C++ user: generate a case, check, plan, attend, compare. Only installed headers.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <quire/quire.hpp>
#include <quire/tools/tools.hpp>

namespace {

int fail(const quire::Status& status) {
  std::fprintf(stderr, "%s: %s\n", quire::name(status.code()), status.message().c_str());
  return 1;
}

}  // namespace

int main() {
  auto line = quire::parse_problem_line("q=bf16 kv=bf16 heads=4:2 d=32 page=16 layout=nhd reqs=1x9,3x1@20 seed=5");
  if (!line.ok()) return fail(line.status());
  auto made = quire::make_case(line.value());
  if (!made.ok()) return fail(made.status());
  const quire::Case& c = made.value();
  if (auto findings = quire::check(c.batch, c.cache, c.options); !findings.ok()) return fail(findings.status());
  auto plan = quire::plan(c.batch, c.cache, c.options);
  if (!plan.ok()) return fail(plan.status());
  const std::size_t bytes = (quire::workspace_bytes(plan.value()) + 64) / 64 * 64;
  const std::unique_ptr<void, void (*)(void*)> workspace(std::aligned_alloc(64, bytes), std::free);
  auto status = quire::attend(plan.value(), c.batch, c.cache, c.options, {static_cast<std::byte*>(workspace.get()), bytes});
  if (!status.ok()) return fail(status);
  auto expected = quire::reference(c.batch, c.cache, c.options);
  if (!expected.ok()) return fail(expected.status());
  const quire::Comparison verdict = quire::compare(c.batch.output, c.batch.lse, expected.value());
  std::printf("%s\n%s\n", quire::to_string(plan.value()).c_str(), verdict.text.c_str());
  return verdict.ok ? 0 : 1;
}

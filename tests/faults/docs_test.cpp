// SPDX-License-Identifier: Apache-2.0
// docs/reference/faults.md is written from faults(): this test renders it and compares. QUIRE_UPDATE_DOCS=1 rewrites the file
// instead.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "quire/tools/faults.hpp"

namespace quire::test {
namespace {

constexpr const char* kIntro = R"(# The catalogue of faults

<!-- Written from src/faults/ by tests/faults/docs_test.cpp. To change it, edit a family there and run
     QUIRE_UPDATE_DOCS=1 ctest --test-dir build/dev -R faults/Docs -->

Mistakes that attention kernels and their callers have shipped, or could. Each is a mutant of an fp64 attention (`src/faults/`),
and the catalogue serves two tools: `quire verify` plants every fault and demands that its own checks notice it, and
`quire diagnose` asks which of them explains an output that somebody else produced. `attend_with_fault()` computes a batch as a
kernel with one of them would.

Every fault either shows on a batch, in an output that `compare()` rejects, or says why it cannot show there ("no sliding window is
set"). Many have parameters (which page, which split size); `quire diagnose` searches them. Ids are stable.

To add one, add it to its family's file in `src/faults/` and update this page. The suite then demands three geometries
(`tests/faults/geometries.h`) on which it shows.

)";

std::string render() {
  std::ostringstream text;
  text << kIntro;
  text << faults().size() << " faults.\n";
  std::string family;
  for (const FaultInfo& info : faults()) {
    if (info.family != family) {
      family = info.family;
      text << "\n## " << family << "\n\n| id | a kernel that ... | seen in | next step |\n|---|---|---|---|\n";
    }
    text << "| `" << info.id << "` | " << info.text << " | " << info.seen << " | " << info.next << " |\n";
  }
  return text.str();
}

TEST(Docs, FaultsPageAgreesWithTheCatalogue) {
  const std::string path = QUIRE_SOURCE_DIR "/docs/reference/faults.md";
  const std::string rendered = render();
  if (std::getenv("QUIRE_UPDATE_DOCS") != nullptr) std::ofstream(path) << rendered;
  std::ostringstream stored;
  stored << std::ifstream(path).rdbuf();
  EXPECT_EQ(stored.str(), rendered) << "docs/reference/faults.md is out of date: QUIRE_UPDATE_DOCS=1 rewrites it";
}

}  // namespace
}  // namespace quire::test

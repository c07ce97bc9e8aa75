// SPDX-License-Identifier: Apache-2.0
// The confusion table of docs/reference/confusion.md: every fault of the catalogue is planted on three geometries and diagnosed.
//
// At least 95 % of the captures must name the true cause first, all of them among the first three. A suspect that predicts the
// same output shares the place of the first one, and the table names it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "diagnose/diagnose_util.h"
#include "faults/geometries.h"
#include "verify/prepare.h"

namespace quire::test {
namespace {

constexpr int kGeometries = 3;

struct Trial {
  std::string fault, geometry;
  int place = 0;
  double explained = 0;
  std::string first;              ///< suspect that was named first, if not the fault
  std::vector<std::string> ties;  ///< suspects that share the fault's place
};

/// The fault on one case; nothing if it does not show there.
bool try_fault(const std::string& fault, const std::string& geometry, Case c, Trial& trial) {
  const Status status = attend_with_fault(c.batch, c.cache, c.options, fault);
  if (status.code() == Code::unsupported) return false;
  EXPECT_TRUE(status.ok()) << status.message();
  observe_output(c);
  const Diagnosis d = diagnosed(c);
  if (d.verdict == DiagnosisVerdict::right) return false;
  trial = {fault, geometry, place_of(d, fault), 0, {}, {}};
  for (const Suspicion& s : d.suspicions) {
    if (s.fault == fault) trial.explained = s.explained;
    if (s.fault != fault && s.refutation.empty()) trial.ties.push_back(s.fault.empty() ? s.mechanism : s.fault);
  }
  if (trial.place != 1) trial.first = d.suspicions.front().fault;
  return true;
}

/// A 32-bit offset only shows in a cache of more than 2^31 elements: sparse mappings, of which little is ever touched.
constexpr const char* kNeedsHugeCache = "element_offset_32_bit";
constexpr Geometry kHuge[] = {
    {"HugeGqa4", "q=f32 kv=fp8_e4m3fn kscale=tensor vscale=tensor heads=8:2 d=32 page=1024 reqs=3@40,1@1500"},
    {"HugeMhaWindow", "q=bf16 kv=fp8_e5m2 heads=4:4 d=64 page=512 window=100 layout=hnd reqs=9@600,1@900"},
    {"HugeMqaPacked",
     "q=f16 kv=fp8_e4m3fnuz kscale=tensor vscale=tensor heads=6:1 d=64 page=1024 layout=packed reqs=5@2000,1@70"},
};

void try_huge(std::vector<Trial>& all) {
  for (const Geometry& geometry : kHuge) {
    Case huge = made(geometry.line);
    ASSERT_TRUE(verify_detail::apply(verify_detail::Special::huge_offsets, huge));
    Trial trial;
    EXPECT_TRUE(try_fault(kNeedsHugeCache, geometry.name, huge, trial)) << geometry.name;
    all.push_back(trial);
  }
}

const std::vector<Trial>& trials() {
  static const std::vector<Trial> list = [] {
    std::vector<Trial> all;
    for (const FaultInfo& fault : faults()) {
      if (fault.id == kNeedsHugeCache) {
        try_huge(all);
        continue;
      }
      int shown = 0;
      // Start at different geometries, so that all of them are used.
      const std::size_t shift = all.size();
      const std::vector<Geometry>& some = fault.family == "positions"      ? masked_geometries()
                                          : fault.family == "head_dims"    ? own_v_geometries()
                                          : fault.family == "token_scales" ? token_scale_geometries()
                                          : fault.family == "block_scales" ? four_bit_geometries()
                                          : fault.family == "unlike_types" ? unlike_type_geometries()
                                          : fault.family == "latent_rows"  ? latent_row_geometries()
                                          : fault.family == "shapes"       ? shaped_geometries()
                                                                           : geometries();
      for (std::size_t i = 0; i < some.size() && shown < kGeometries; ++i) {
        Trial trial;
        const Geometry& geometry = some[(i + shift) % some.size()];
        if (!try_fault(fault.id, geometry.name, made(geometry.line), trial)) continue;
        ++shown;
        all.push_back(trial);
      }
      EXPECT_EQ(shown, kGeometries) << fault.id << " shows on too few geometries";
    }
    return all;
  }();
  return list;
}

void expect_true_cause_first() {
  std::size_t first = 0;
  for (const Trial& t : trials()) {
    first += t.place == 1 ? 1 : 0;
    EXPECT_TRUE(t.place >= 1 && t.place <= 3)
        << t.fault << " on " << t.geometry << ": place " << t.place << ", explains " << t.explained << "; first is " << t.first;
    if (t.place != 1)
      std::printf("%s on %s: place %d, first is %s\n", t.fault.c_str(), t.geometry.c_str(), t.place, t.first.c_str());
  }
  std::printf("%zu of %zu first\n", first, trials().size());
  EXPECT_GE(static_cast<double>(first), 0.95 * static_cast<double>(trials().size()));
}

std::string family_of(const std::string& id) {
  for (const FaultInfo& fault : faults())
    if (fault.id == id) return fault.family;
  return {};
}

/// One line per family; suspects that predict the same output are counted, not named: `ctest -R Confusion` prints what is not
/// first.
std::string table() {
  struct Counts {
    int captures = 0, first = 0, alone = 0;
  };
  std::map<std::string, Counts> by_family;
  Counts all;
  for (const Trial& t : trials())
    for (Counts* c : {&all, &by_family[family_of(t.fault)]})
      c->captures += 1, c->first += t.place == 1 ? 1 : 0, c->alone += t.place == 1 && t.ties.empty() ? 1 : 0;
  std::string text = fmt::format(
      "{} faults, {} captures: the true cause is first in {} ({:.1f} %), alone in {} of these.\n\n"
      "| family | captures | first | alone |\n|---|---|---|---|\n",
      faults().size(), all.captures, all.first, 100.0 * all.first / all.captures, all.alone);
  for (const auto& [family, c] : by_family) text += fmt::format("| {} | {} | {} | {} |\n", family, c.captures, c.first, c.alone);
  return text;
}

void expect_table_in_docs() {
  const std::string path = QUIRE_SOURCE_DIR "/docs/reference/confusion.md";
  std::ifstream file(path);
  std::stringstream content;
  content << file.rdbuf();
  const std::string marker = "<!-- table -->\n";
  const std::size_t at = content.str().find(marker);
  ASSERT_NE(at, std::string::npos) << path;
  const std::string expected = content.str().substr(0, at + marker.size()) + table();
  if (std::getenv("QUIRE_UPDATE_DOCS") != nullptr) {
    std::ofstream(path) << expected;
    return;
  }
  EXPECT_EQ(content.str(), expected) << "QUIRE_UPDATE_DOCS=1 writes it anew";
}

// One test, for every test is a process of its own and the trials take a minute.
TEST(Confusion, TheTrueCauseIsFirstAndTheTableInDocsSaysSo) {
  expect_true_cause_first();
  expect_table_in_docs();
}

}  // namespace
}  // namespace quire::test

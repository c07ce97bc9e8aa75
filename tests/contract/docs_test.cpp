// SPDX-License-Identifier: Apache-2.0
// docs/reference/contract.md is written from rules(): this test renders it and compares. QUIRE_UPDATE_DOCS=1 rewrites the file
// instead.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "contract/broken_cases.h"

namespace quire::test {
namespace {

struct Family {
  char letter;
  const char* title;
  const char* text;
};

constexpr Family kFamilies[] = {
    {'M', "Metadata", "Shapes, types, strides, memory and options. No tensor data is read."},
    {'T', "Tables", "The values of index tensors, scales, slopes and sinks. O(num_reqs + pages in use)."},
    {'S', "Slots", "Where new tokens are written: `check()` with a `slot_mapping`, and `check_append()`."},
    {'L', "Ledger",
     "Who wrote what is read, at depth tables and deeper if a `SlotLedger` is given. Call `check()` after the step's append. "
     "At depth contents, a ledger with digests also tells what was written. Neighbouring slots that break a rule alike are one "
     "finding."},
    {'C', "Contents", "The values that attention reads, and no others. O(bytes)."},
    {'G', "Merge", "The arguments of `check_merge()` and `check_merge_many()`."},
    {'D', "Distributed", "Shards, by `check_shard()`, and what ranks say about one step, by `check_ranks()` (shards.hpp)."},
    {'P', "Prefixes", "Runs of shared pages that a caller names, by `check_shared_runs()` (cascade.hpp)."},
    {'K', "Key lists", "The pages or slots that rows see, by `check_sparse()` (sparse.hpp)."},
    {'R', "Rows of MLA", "Caches of `fp8_ds_mla`: rows of 656 bytes with scales and a bf16 part (`latent_cache()`)."},
    {'V', "Visibility", "Chunks, spans, prefixes and trees: masks that are more than an order and a window."},
};

constexpr const char* kIntro = R"(# The contract

<!-- Written from src/contract/rules.inc by tests/contract/docs_test.cpp. To change it, edit rules.inc and run
     QUIRE_UPDATE_DOCS=1 ctest --test-dir build/dev -R contract/Docs -->

Every assumption that Quire makes about its input is a rule with an id. `check()` applies the rules at three depths:
*metadata* (no tensor data is read), *tables* (index tensors and small float tensors; `plan()` and `attend()` do this on
every call) and *contents* (every value that attention reads, whether a request reads a slot twice, and whether slots
hold what a ledger with digests recorded). It reports all findings, at most 16 in full per rule and a total of all, and
changes nothing. `append()` and `merge()` apply `check_append()` and `check_merge()` before they write.

A finding names the rule, the tensor, the index, what was found and what was expected:

    Q-T03 block_table[5][2]: page 913 outside [0, 512)

A rule that would have to read through something already found broken is left out, so a finding is never the echo of another one
of a different kind. Ids are stable: they are never reused, and a message can be looked up here.
)";

const char* depth_name(Depth depth) {
  return depth == Depth::metadata ? "metadata" : depth == Depth::tables ? "tables" : "contents";
}

std::string render() {
  std::ostringstream text;
  text << kIntro;
  for (const Family& family : kFamilies) {
    text << "\n## Q-" << family.letter << ": " << family.title << "\n\n" << family.text << "\n";
    for (const Rule& rule : rules()) {
      if (rule.id[2] != family.letter) continue;
      text << "\n**" << rule.id << "** (" << depth_name(rule.depth) << "). " << rule.statement << "<br>\n"
           << "Why: " << rule.why << "<br>\n"
           << "Breaks it: `" << rule.example << "`.";
      for (const BrokenCase& broken : broken_cases()) {
        if (broken.rule != rule.id) continue;
        std::string message = broken.message;
        if (const std::size_t star = message.find('*'); star != std::string::npos && rule.id == "Q-M05")
          message.replace(star, 1, "0x1001 is 1");
        text << " Message: `" << message << "`";
        break;
      }
      text << "\n";
    }
  }
  return text.str();
}

TEST(Docs, ContractPageAgreesWithTheRules) {
  const std::string path = QUIRE_SOURCE_DIR "/docs/reference/contract.md";
  const std::string rendered = render();
  if (std::getenv("QUIRE_UPDATE_DOCS") != nullptr) std::ofstream(path) << rendered;
  std::ostringstream stored;
  stored << std::ifstream(path).rdbuf();
  EXPECT_EQ(stored.str(), rendered) << "docs/reference/contract.md is out of date: QUIRE_UPDATE_DOCS=1 rewrites it";
}

TEST(Docs, EveryRuleSaysWhatWhyAndHow) {
  for (const Rule& rule : rules()) {
    EXPECT_FALSE(rule.statement.empty() || rule.why.empty() || rule.example.empty()) << rule.id;
    EXPECT_TRUE(rule.statement.ends_with(".") && rule.why.find('.') != std::string_view::npos) << rule.id;
  }
}

}  // namespace
}  // namespace quire::test

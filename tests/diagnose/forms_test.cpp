// SPDX-License-Identifier: Apache-2.0
// Plain faults in every form of a problem: masks with a shape, types of caches, V in K's rows and V of its own length. Keys come
// from the condition of batch.hpp, written out here key by key; the search has to name each fault where the fault shows.
#include <gtest/gtest.h>

#include <optional>

#include "diagnose/diagnose_util.h"
#include "faults/model.h"

namespace quire::test {
namespace {

using faults_detail::Facts;
using faults_detail::Key;
using faults_detail::Model;
using faults_detail::Row;
using faults_detail::RowHead;
using faults_detail::RowResult;

/// Changes of the mask: keys that a causal row sees beyond its own, keys that the window has more, and its own key.
struct MaskChange {
  std::int64_t order = 0, window = 0;
  bool hides_own = false;
};

std::int64_t chunk_of(const Facts& f, std::int64_t position) {
  const std::int64_t chunk = *f.options.attention_chunk;
  return (position >= 0 ? position : position - chunk + 1) / chunk;
}

bool is_visible(const Facts& f, const Row& row, std::int64_t key, const MaskChange& change) {
  const auto r = Facts::at(row.req);
  if (change.hides_own && key == row.q_pos) return false;
  const std::int64_t tree_begin = f.seq_lens[r] - f.tree_lens[r];
  if (key >= tree_begin) return f.tree_bit(row.token, key - tree_begin);
  const std::int64_t q = row.q_pos + f.key_begin[r], k = key + f.key_begin[r];
  bool together = false;
  for (const Span& span : f.spans[r]) together = together || (q >= span.begin && q < span.end && k >= span.begin && k < span.end);
  const bool ordered = row.causal ? k <= q + change.order : !f.options.window_right || k - q <= *f.options.window_right;
  if (!ordered && !together) return false;
  if (k < f.prefix_lens[r] || (together && f.options.spans_beyond_window)) return true;
  if (f.options.sliding_window && q - k >= *f.options.sliding_window + change.window) return false;
  return !f.options.attention_chunk || chunk_of(f, q) == chunk_of(f, k);
}

void change_mask(Model& m, const MaskChange& change) {
  m.keys = [f = m.facts, change](const Row& row, std::vector<Key>& keys) {
    for (std::int64_t k = 0; k < row.seq_len; ++k)
      if (is_visible(*f, row, k, change)) keys.push_back({k, 1});
  };
}

void other_kv_head(Model& m) {
  m.kv_head = [f = m.facts](const Row& row, faults_detail::Side) { return (row.query_head / f->group + 1) % f->num_kv_heads; };
}

void next_request(Model& m) {
  m.table = [f = m.facts](std::int64_t req, std::int64_t column) { return f->page((req + 1) % f->num_reqs, column); };
}

/// Each row but the first holds what belongs into the one above.
void row_above(Model& m) {
  m.row = [right = m.row](std::int64_t token, std::int64_t head) {
    Row row = right(std::max<std::int64_t>(token - 1, 0), head);
    row.token = token;
    return row;
  };
}

struct PlainFault {
  const char* name;
  void (*plant)(Model&);
  std::vector<const char*> names;  ///< faults and mechanisms that name it
};

const std::vector<PlainFault>& plain_faults() {
  static const std::vector<PlainFault> list = {
      {"own key skipped",
       [](Model& m) { change_mask(m, {.hides_own = true}); },
       {"causal_excludes_own_key", "tree_without_own_key"}},
      {"one key more than causal", [](Model& m) { change_mask(m, {.order = 1}); }, {"causal_sees_one_future_key"}},
      {"window one short", [](Model& m) { change_mask(m, {.window = -1}); }, {"window_one_short"}},
      {"another KV head", other_kv_head, {"kv_head_off_by_one", "kv_head"}},
      {"softmax_scale dropped", [](Model& m) { m.softmax_scale = [](const Row&) { return 1.0; }; }, {"scale_missing"}},
      {"pages of another request", next_request, {"table_row_of_neighbour", "table_row"}},
      {"row of another row", row_above, {"rows_shifted_by_one", "output_row"}}};
  return list;
}

struct Form {
  const char* name;
  const char* line;
};

const Form kForms[] = {
    {"Plain", "q=f32 heads=8:2 d=32 page=8 window=24 reqs=9@47,1@55,5@51,1@55 seed=1"},
    {"Int64", "q=f32 heads=8:2 d=32 page=8 window=24 index=i64 reqs=9@47,1@55,5@51,1@55 seed=2"},
    {"Fp8", "q=bf16 kv=fp8_e4m3fn kscale=head vscale=head heads=8:2 d=32 page=8 window=24 reqs=9@47,1@55,5@51,1@55 seed=3"},
    {"Int8", "q=bf16 kv=i8 kscale=token vscale=token heads=8:2 d=32 page=8 window=24 reqs=9@47,1@55,5@51,1@55 seed=4"},
    {"Nvfp4", "q=f16 kv=nvfp4 kscale=tensor vscale=tensor heads=8:2 d=32 page=8 window=24 reqs=9@47,1@55,5@51,1@55 seed=5"},
    {"Sinks", "q=f32 heads=8:2 d=32 page=8 sinks=1 window=24 reqs=9@47,1@55,5@51,1@55 seed=6"},
    {"Alibi", "q=f32 heads=8:2 d=32 page=8 alibi=1 window=24 reqs=9@47,1@55,5@51,1@55 seed=7"},
    {"SoftCap", "q=f32 heads=8:2 d=32 page=8 cap=5 window=24 reqs=9@47,1@55,5@51,1@55 seed=8"},
    {"Padding", "q=f32 heads=8:2 d=32 page=8 window=24 pad=5:zero reqs=9@47,1@55,5@51,1@55 seed=9"},
    {"Chunk", "q=f32 heads=8:2 d=32 page=8 window=24 chunk=32 reqs=9@47,1@55,5@51,1@55 seed=10"},
    {"Prefix", "q=f32 heads=8:2 d=32 page=8 window=24 prefix=5 reqs=9@47,1@55,5@51,1@55 seed=11"},
    {"NonCausal", "q=f32 heads=8:2 d=32 page=8 window=24 causal=0,1x1,0,1x1 wright=4 reqs=9@47,6@50,5@51,1@55 seed=12"},
    {"Span", "q=f32 heads=8:2 d=32 page=8 window=24 spans=0:48-53,2:51-54 reqs=9@47,1@55,5@51,1@55 seed=13"},
    {"Tree", "q=f32 heads=8:2 d=32 page=8 window=24 tree=9,0,5,0 reqs=9@47,6@50,5@51,1@55 seed=14"},
    {"Latent", "q=bf16 heads=8:1 d=48 dv=32 latent=1 page=8 window=24 reqs=9@47,1@55,5@51,1@55 seed=15"},
    {"OwnV", "q=f32 heads=8:2 d=32 dv=16 page=8 window=24 reqs=9@47,1@55,5@51,1@55 seed=16"},
    {"Shard", "q=f32 heads=8:2 d=32 page=8 window=24 kbegin=8,16,3,9 qbegin=55,70,54,64 reqs=9:56,1:56,5:56,1:56 seed=17"},
};

/// The output of a kernel with this change of the model.
Case planted(const char* line, void (*plant)(Model&)) {
  Case c = right(line);
  const Facts facts(c.batch, c.cache, c.options);
  Model model(facts);
  plant(model);
  for (std::int64_t token = 0; token < facts.num_tokens; ++token)
    for (std::int64_t head = 0; head < facts.num_q_heads; ++head) {
      const RowHead at{token, head};
      faults_detail::store_row(c.batch, at, evaluate(model, std::span(&at, 1)).front());
    }
  observe_output(c);
  return c;
}

bool names(const Diagnosis& d, const PlainFault& fault) {
  for (const Suspicion& s : d.suspicions) {
    if (!s.refutation.empty()) return false;
    for (const char* name : fault.names)
      if (s.fault == name || s.mechanism == name) return true;
  }
  return false;
}

class Forms : public testing::TestWithParam<Form> {};

TEST_P(Forms, EveryPlainFaultThatShowsIsNamed) {
  int shown = 0, named = 0;
  for (const PlainFault& fault : plain_faults()) {
    const Case c = planted(GetParam().line, fault.plant);
    const Diagnosis d = diagnosed(c);
    if (d.verdict == DiagnosisVerdict::right) continue;
    ++shown;
    const bool found = d.verdict == DiagnosisVerdict::cause_found && names(d, fault);
    named += found ? 1 : 0;
    EXPECT_TRUE(found) << fault.name << "\n" << to_string(d);
  }
  std::printf("%s: %d of %d named\n", GetParam().name, named, shown);
  EXPECT_GE(shown, 5);
}

std::string name_of(const testing::TestParamInfo<Form>& test) { return test.param.name; }
INSTANTIATE_TEST_SUITE_P(, Forms, testing::ValuesIn(kForms), name_of);

}  // namespace
}  // namespace quire::test

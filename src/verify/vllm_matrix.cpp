// SPDX-License-Identifier: Apache-2.0
// The notes matrix: the problems of vLLM's test_prefix_prefill.py (64 heads, 1 or 64 queries per KV head, head_dim 24 and 128,
// pages of 32, windows 0, 16 and 2048, f16 queries over f16, e4m3fn and e5m2 caches; contexted and with ALiBi), its lengths of
// seed 0, and data in which faults can show: N(0,1) values, real fp8 scales, N(0,1)-sized ALiBi scores.
//
// The 72 + 24 ids of that test collapse onto 48 problems: its two ops compute the same thing on one batch. Prefill requests find
// their context in the cache and their own rows in key / value; the decode request finds everything in the cache.
#include <array>

#include "text/formatted.h"
#include "verify/matrix.h"

namespace quire::verify_detail {
namespace {

/// random.seed(0); ten of randint(16, 1024), twice. The test then sets the last query_len to 1, except with ALiBi.
constexpr std::array<std::int64_t, 10> kQueryLens = {880, 410, 792, 927, 446, 57, 281, 1004, 539, 513};
constexpr std::array<std::int64_t, 10> kContextLens = {430, 956, 818, 865, 326, 1007, 504, 382, 613, 929};

struct Choice {
  int queries_per_kv, head_dim, window;
  const char* kv;
  bool alibi;
};

std::string requests(bool alibi, std::int64_t divisor) {
  std::string text;
  for (std::size_t i = 0; i < kQueryLens.size(); ++i) {
    const bool decode = !alibi && i + 1 == kQueryLens.size();
    const std::int64_t query = decode ? 1 : kQueryLens[i] / divisor, context = kContextLens[i] / divisor;
    text += formatted("{}{}@{}", i == 0 ? "" : ",", query, context);
    if (!decode) text += formatted("/{}", context);
  }
  return text;
}

void add(std::vector<Entry>& list, const Choice& c, std::int64_t divisor, int heads = 64) {
  const bool fp8 = std::string(c.kv) != "f16";
  // vLLM's packed layout wherever 16 / itemsize divides head_dim; 24 dims of fp8 are no multiple of 16.
  const bool packed = !fp8 || c.head_dim % 16 == 0;
  std::string text = formatted("q=f16 kv={} heads={}:{} d={} page=32 layout={} reqs={} index={} seed={}", c.kv, heads,
                               c.queries_per_kv == 1 ? heads : 1, c.head_dim, packed ? "packed" : "nhd",
                               requests(c.alibi, divisor), c.window == 0 ? "i64" : "i32", list.size());
  if (fp8) text += " kscale=tensor vscale=tensor";
  if (c.window > 0) text += formatted(" window={}", c.window);
  if (c.alibi) text += " alibi=1";
  const Result<ProblemLine> line = parse_problem_line(text);
  if (line.ok()) list.push_back({"notes", c.alibi ? "Alibi" : "Contexted", line.value(), Special::none});
}

/// Grouped heads first: their cases are smaller.
void add_all(std::vector<Entry>& list, std::int64_t divisor, int heads) {
  for (const int queries_per_kv : {64, 1})
    for (const int head_dim : {24, 128})
      for (const char* kv : {"f16", "fp8_e4m3fn", "fp8_e5m2"}) {
        for (const int window : {16, 0, 2048}) add(list, {queries_per_kv, head_dim, window, kv, false}, divisor, heads);
        add(list, {queries_per_kv, head_dim, 0, kv, true}, divisor, heads);
      }
}

}  // namespace

std::string notes_requests() { return requests(/*alibi=*/false, 1); }

std::vector<Entry> notes_matrix(bool quick) {
  std::vector<Entry> list;
  if (quick) {
    add(list, {1, 128, 0, "f16", false}, 8);
    add(list, {64, 24, 16, "fp8_e4m3fn", false}, 8);
    add(list, {64, 128, 0, "fp8_e5m2", true}, 8);
    return list;
  }
  add_all(list, 1, 64);
  return list;
}

std::vector<Entry> small_notes_matrix() {
  std::vector<Entry> list;
  add_all(list, 16, 8);
  return list;
}

}  // namespace quire::verify_detail

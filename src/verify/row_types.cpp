// SPDX-License-Identifier: Apache-2.0
// Queries and outputs of 8 bits (decision 20), on batches that split keys, fill tiles and merge. hazards() has no such cases:
// most of its shapes have rows outside the cache, which an 8-bit query may not have.
#include <algorithm>
#include <iterator>

#include "verify/matrix.h"

namespace quire::verify_detail {
namespace {

constexpr const char* kTypes[] = {
    "q=fp8_e4m3fn kv=fp8_e4m3fn out=bf16 qscale=head kscale=tensor vscale=head",
    "q=fp8_e4m3fn kv=fp8_e4m3fn layout=hnd qscale=tensor kscale=head vscale=tensor index=i64",
    "q=bf16 kv=bf16 layout=hnd out=fp8_e4m3fn",
    "q=fp8_e4m3fn kv=fp8_e4m3fn layout=packed out=f16",
    "q=f16 kv=fp8_e4m3fn out=fp8_e4m3fn kscale=head vscale=head",
    "q=fp8_e4m3fn kv=fp8_e4m3fn out=f32 qscale=head vscale=tensor",
    "q=bf16 kv=fp8_e5m2 layout=packed out=fp8_e4m3fn kscale=tensor vscale=tensor index=i64",
    "q=f32 kv=f32 out=fp8_e4m3fn",
};
constexpr const char* kRowShapes[] = {
    "heads=4:2 d=32 page=8 lse=1 reqs=3@20,1@30,5",
    "heads=8:2 d=64 page=16 window=20 sinks=1 lse=1 reqs=1@190,9@366,70@200",
    "heads=8:2 d=128 page=16 cap=8 alibi=1 lse=1 reqs=2x1@1300,2@9,140@300",
    "heads=6:3 d=256 page=32 reqs=1@70,20@5",
    "heads=16:1 d=128 page=16 scale=2 lse=1 reqs=1@3000,3@40,0@9",
};
constexpr std::size_t kQuickEntries = 4;

bool is_asked(const ProblemLine& line, const AskedTypes& asked) {
  const Problem& p = line.problem;
  return asked.types.empty() || (is_fp8(p.q_dtype) && std::ranges::any_of(asked.types, [&](const TypePair& t) {
                                   return t.query == p.q_dtype && t.cache == p.kv_dtype;
                                 }));
}

}  // namespace

std::vector<Entry> row_type_matrix(const AskedTypes& asked, bool quick) {
  std::vector<Entry> list;
  const AskedTypes sizes{.head_dims = asked.head_dims, .layouts = asked.layouts};
  std::size_t turn = 0;
  for (std::size_t shape = 0; shape < std::size(kRowShapes); ++shape)
    for (std::size_t type = 0; type < std::size(kTypes); ++type, ++turn) {
      const ProblemLine line = hazard_line(kTypes[type], kRowShapes[shape], 7000 + turn);
      if (!is_asked(line, asked) || (quick && (type != (2 * shape) % std::size(kTypes) || list.size() >= kQuickEntries)))
        continue;
      if (const auto legal = in_asked(line, sizes, turn)) list.push_back({"hazards", "EightBitRows", *legal, Special::none});
    }
  return list;
}

}  // namespace quire::verify_detail

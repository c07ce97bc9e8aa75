// SPDX-License-Identifier: Apache-2.0
// The hazards of contexts that are spread over ranks: the smallest batches that meet each, with how positions are dealt.
#include "verify/matrix.h"

namespace quire::verify_detail {
namespace {

struct ShardHazard {
  const char* name;
  const char* shape;
  std::int32_t world;
  std::int64_t interleave;
  std::int64_t span = 0;
  Special special = Special::none;
};

constexpr ShardHazard kShardHazards[] = {
    {"UnevenShards", "heads=4:2 d=16 page=8 lse=1 reqs=1@20,3@29,17@5,1@15", 3, 1},
    {"UnevenShards", "heads=6:3 d=32 page=4 lse=1 reqs=1@20,3@29,17@5,1@15", 2, 0, 20},
    {"UnevenShards", "heads=4:2 d=16 page=8 lse=1 reqs=1@61,2@90,1@33", 4, 8},
    {"EmptyShards", "heads=4:2 d=16 page=8 lse=1 reqs=1@2,1,2@1,0@3,1@30", 4, 4},
    {"EmptyShards", "heads=4:2 d=16 page=8 lse=1 reqs=3@2,1@5,1@9", 4, 0, 16},
    {"RequestOnOneRank", "heads=4:2 d=16 page=8 lse=1 reqs=1@9,5@10,1@40", 3, 16},
    {"RequestOnOneRank", "heads=4:2 d=16 page=16 lse=1 reqs=20@9,1@60", 2, 0, 64},
    {"ShardWithoutVisibleKey", "heads=4:2 d=16 page=8 window=4 lse=1 reqs=1@60,3@57,20@40", 4, 0, 16},
    {"ShardWithoutVisibleKey", "heads=4:2 d=16 page=4 window=5 lse=1 reqs=1@60,9@31", 3, 4},
    {"ChunkAcrossRuns", "heads=4:2 d=16 page=16 lse=1 reqs=40@13,1@40,7@6", 3, 4},
    {"ChunkAcrossRuns", "heads=4:2 d=16 page=8 lse=1 reqs=40@13,66@70", 2, 0, 32},
    {"BorderInsideAPage", "heads=4:2 d=32 page=16 lse=1 reqs=1@60,3@50", 2, 5},
    {"SinksOnce", "heads=4:2 d=16 page=8 sinks=1 lse=1 reqs=5@30,1@60,1", 3, 2},
    {"SinksOnce", "heads=4:2 d=16 page=8 sinks=1 lse=1 reqs=1@2,5@30", 2, 0, 16},
    {"WindowAcrossRuns", "heads=4:2 d=16 page=8 window=20 lse=1 reqs=9@60,1@90", 3, 4},
    {"SlopesAcrossShards", "heads=6:3 d=16 page=8 alibi=1 lse=1 reqs=20@40,1@90", 3, 0, 32},
    {"SoftCap", "heads=4:2 d=32 page=8 cap=2.5 lse=1 reqs=9@30,1@60", 2, 8},
    {"PeakySoftmax", "heads=4:2 d=32 page=8 scale=2 lse=1 reqs=5@60,1@90", 4, 2},
    {"ManyKeys", "heads=4:2 d=16 page=16 lse=1 reqs=1@3000,3@2047", 4, 16},
    {"ManyRanks", "heads=8:2 d=16 page=8 lse=1 reqs=1@77,4@50", 8, 2},
    {"ZeroLse", "heads=4:2 d=16 page=8 lse=1 reqs=1@3,1@2,2@2", 4, 1, 0, Special::zero_queries},
    {"NoVisibleScore", "q=f32 kv=f32 heads=4:2 d=16 page=8 lse=1 reqs=3@20,1@9", 3, 4, 0, Special::minus_infinite_scores},
    {"MinusInfiniteShard", "q=f32 kv=f32 heads=4:2 d=16 page=8 lse=1 reqs=3@20,1@9", 2, 4, 0, Special::minus_infinite_keys},
    {"EverythingAtOnce", "heads=6:2 d=48 page=5 cap=8 alibi=1 sinks=1 window=33 lse=1 reqs=40@50,1@200,0@7,5@2", 4, 0, 48},
    {"EverythingAtOnce", "heads=6:2 d=48 page=5 cap=8 sinks=1 window=33 lse=1 reqs=40@50,1@200,0@7,5@2", 3, 7},
};

constexpr const char* kShardTypes[] = {
    "q=f32 kv=f32 layout=nhd",
    "q=bf16 kv=bf16 layout=hnd index=i64",
    "q=f16 kv=fp8_e4m3fn layout=packed kscale=head vscale=tensor",
    "q=f32 kv=fp8_e5m2 layout=hnd kscale=head vscale=head",
    "q=f16 kv=f16 layout=packed",
};

}  // namespace

std::vector<Entry> shard_matrix(bool quick) {
  std::vector<Entry> list;
  std::uint64_t seed = 1;
  std::size_t turn = 0;
  for (const ShardHazard& h : kShardHazards) {
    const std::size_t combinations = h.special == Special::none ? std::size(kShardTypes) : 1;
    // The first of them is f32, in which every fault shows.
    for (std::size_t i = 0; i < (quick ? std::min<std::size_t>(combinations, 2) : combinations); ++i) {
      const std::size_t type = quick && i == 1 ? 1 + turn++ % (std::size(kShardTypes) - 1) : i;
      const bool own_types = std::string_view(h.shape).starts_with("q=");
      ProblemLine line = hazard_line(own_types ? "" : kShardTypes[type], h.shape, seed++);
      const ContextShard shard{.rank = 0, .world = h.world, .interleave = h.span > 0 ? 1 : h.interleave, .span = h.span};
      list.push_back({"shards", h.name, std::move(line), h.special, shard});
    }
  }
  return list;
}

}  // namespace quire::verify_detail

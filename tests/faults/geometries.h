// SPDX-License-Identifier: Apache-2.0
// Small batches on which planted faults must show: together they have every layout, cache type, group shape and option. Shared by
// the tests of the catalogue and of what builds on it.
#pragma once

#include <vector>

namespace quire::test {

struct Geometry {
  const char* name;
  const char* line;
};

inline const std::vector<Geometry>& geometries() {
  static const std::vector<Geometry> list = {
      {"Gqa4", "q=f32 heads=8:2 d=16 page=8 reqs=20@30,1@150,7@13,1@41 index=i64 pages=300 lse=1 seed=1"},
      {"MhaPackedWindow", "q=f16 heads=6 d=32 page=16 layout=packed reqs=33@47,1@170,0@20,3@16,1@90 window=24 index=i64 seed=2"},
      {"MqaOddPage", "q=bf16 heads=5:1 d=24 page=5 layout=hnd reqs=1@133,19@61,1@7,4@11 index=i64 pages=300 seed=3"},
      {"E4m3fnPackedGroup3",
       "q=f32 kv=fp8_e4m3fn heads=12:4 d=32 page=16 layout=packed kscale=head vscale=head scale=1 "
       "reqs=18@40/40,1@145,0@12,6@10/12,1@70 pages=300 seed=4"},
      {"E4m3fnuzWindowCap",
       "q=bf16 kv=fp8_e4m3fnuz heads=8:2 d=64 page=16 kscale=tensor vscale=tensor window=40 cap=20 "
       "reqs=45@77,1@200,1@30,2@60 seed=5"},
      {"E5m2Everything",
       "q=f16 kv=fp8_e5m2 heads=9:3 d=80 page=48 layout=hnd kscale=head vscale=tensor alibi=1 sinks=1 lse=1 cap=8 window=50 "
       "reqs=5@64,55@10,1@150 seed=6"},
      {"CachedLenBetween",
       "q=f32 kv=bf16 heads=8:4 d=40 page=8 alibi=1 sinks=1 lse=1 scale=0.7 kscale=tensor vscale=head "
       "reqs=12@50/56,30@20/20,1@99/99,1@140 seed=7"},
      {"WindowOne", "q=f32 heads=10:2 d=7 page=6 layout=hnd window=1 reqs=11@15,1@44,1@13,3@2 seed=8"},
      {"AlibiSinksWindow",
       "q=bf16 heads=4:2 d=128 page=32 layout=packed alibi=1 sinks=1 cap=30 scale=0.5 window=70 lse=1 "
       "reqs=0@30,21@100,1@260,3@40 seed=9"},
      {"LongDecode", "q=f16 heads=4:1 d=48 page=12 alibi=1 sinks=1 cap=15 reqs=1@700,1@300,1@65,1@1 pages=300 seed=10"},
      {"E4m3fnUnscaledV",
       "q=f32 kv=fp8_e4m3fn heads=4:2 d=24 page=8 kscale=tensor reqs=9@20/24,1@33,1@100,2@5 pages=300 seed=11"},
      {"E4m3fnHndUnscaledV",
       "q=bf16 kv=fp8_e4m3fn heads=3 d=40 page=10 layout=hnd kscale=head window=8 reqs=1@3,12@9,1@21,3@70 seed=12"},
      {"E4m3fnuzUnscaled", "q=f32 kv=fp8_e4m3fnuz heads=6:3 d=16 page=4 layout=packed reqs=5@7/9,1@90,20@33/33 seed=13"},
      {"WideF32", "q=f32 heads=40:20 d=128 page=16 scale=1 alibi=1 reqs=3@9,1@20 seed=14"},
      {"WideF16", "q=f16 heads=40 d=128 page=16 layout=hnd reqs=1@21,2@9 seed=15"},
      {"WideE4m3fn",
       "q=bf16 kv=fp8_e4m3fn heads=66 d=128 page=16 layout=packed kscale=tensor vscale=tensor reqs=1@20,3@5 seed=16"},
  };
  return list;
}

/// Geometries with requests that are not causal, shards of a context and rows without keys. Faults of the family "positions" show
/// on no other geometries.
inline const std::vector<Geometry>& masked_geometries() {
  static const std::vector<Geometry> list = {
      {"Encoder", "q=f32 heads=4:2 d=16 page=8 causal=0 lse=1 reqs=5:9,3:0,1:30,8@4 index=i64 pages=300 seed=17"},
      {"CausalByRequest",
       "q=bf16 heads=6:2 d=24 page=5 layout=hnd causal=1x1,1x0,1x1,1x0 window=9 wright=2 alibi=1 lse=1 "
       "reqs=6@8,6@8,3@20,1@17 seed=18"},
      {"ShardAlibiWindow",
       "q=f32 heads=4:2 d=16 page=4 window=12 alibi=1 lse=1 index=i64 reqs=6:20,3:9,4:7 kbegin=1x16,1x100,1x5 "
       "qbegin=1x30,1x105,1x9 pages=300 seed=19"},
      {"ShardSinks",
       "q=f16 kv=fp8_e4m3fn heads=4:2 d=32 page=8 kscale=head vscale=tensor alibi=1 sinks=1 window=40 lse=1 "
       "reqs=5:12,2:6,3:20 kbegin=1x64,1x7,1x24 qbegin=1x70,1x9,1x30 seed=20"},
      {"ShardByRequest",
       "q=f32 heads=4:2 d=16 page=8 causal=2x0,1x1 window=6 wright=3 alibi=1 lse=1 index=i64 reqs=6:20,3:4,5:12 "
       "kbegin=1x8,1x3,1x40 "
       "qbegin=1x12,1x2,1x44 pages=300 seed=21"},
      {"EncoderWindow", "q=f16 heads=4 d=40 page=10 causal=0 window=4 wright=1 lse=1 reqs=12@3,4:20,2:0 pages=300 seed=22"},
      {"CrossAttention",
       "q=bf16 heads=8:2 d=32 page=16 layout=packed causal=0 alibi=1 wright=5 reqs=4:25,9:3,1:40 index=i64 qbegin=1x10,1x0,1x7 "
       "seed=23"},
      {"CausalFirst", "q=f16 kv=bf16 heads=4:1 d=16 page=8 causal=1x1,2x0 wright=1 lse=1 reqs=9@4,6:15,2:0 pages=300 seed=25"},
      {"ShardWithoutKeys",
       "q=f32 heads=2:1 d=8 page=4 lse=1 index=i64 reqs=4:6,2:0,3:5 kbegin=1x8,1x3,1x4 qbegin=1x6,1x9,1x2 pages=300 seed=24"},
  };
  return list;
}

/// Geometries with chunks, prefixes, spans and trees. Faults of the family "shapes" show on no other geometries.
inline const std::vector<Geometry>& shaped_geometries() {
  static const std::vector<Geometry> list = {
      {"ChunkOfShard", "q=f32 heads=4:2 d=16 page=8 chunk=16 lse=1 reqs=30@40,1@70,5@20 kbegin=1x5,1x9,1x0 pages=300 seed=40"},
      {"ChunkWindow",
       "q=bf16 heads=6:2 d=24 page=5 layout=hnd chunk=20 window=30 kbegin=1x3,1x11 reqs=40@20,3@90 pages=300 seed=41"},
      {"ChunkFp8", "q=f16 kv=fp8_e4m3fn heads=4:1 d=32 page=16 chunk=33 kbegin=1x8,1x4 kscale=head reqs=50@30,9@70 seed=42"},
      {"StreamingSinks",
       "q=f32 heads=4:2 d=16 page=8 window=9 prefix=1x4,1x7,1x5 kbegin=1x2,1x0,1x3 lse=1 reqs=30@40,1@90,12 pages=300 seed=43"},
      {"PromptPrefix",
       "q=bf16 heads=6:2 d=24 page=5 layout=hnd window=6 prefix=1x30,1x25 kbegin=1x4,1x7 reqs=20@25,40@3 pages=300 seed=44"},
      {"PrefixChunk",
       "q=f16 heads=4:1 d=32 page=16 layout=packed chunk=16 prefix=1x3,1x9,1x6 kbegin=1x1,1x2,1x0 reqs=40@20,30,1@50 seed=45"},
      {"Images",
       "q=f32 heads=4:2 d=16 page=8 window=7 spans=0:3-20,0:30-50,1:5-16,2:0-9,2:12-30 lse=1 reqs=40@20,30,25@8 pages=300 "
       "seed=46"},
      {"ImagesBeyond",
       "q=bf16 heads=6:2 d=24 page=5 layout=hnd window=5 beyond=1 spans=0:3-20,0:30-50,1:5-16,1:20-28 reqs=40@20,30 pages=300 "
       "seed=47"},
      {"ImagesOfShard",
       "q=f16 heads=4:1 d=32 page=16 layout=packed window=9 spans=0:3-20,0:24-50,1:9-31,1:33-60 kbegin=1x2,1x4 reqs=50@4,60 "
       "seed=48"},
      {"Trees", "q=f32 heads=4:2 d=16 page=8 tree=1x20,1x12,1x30 lse=1 reqs=20@40,12@9,30@3 pages=300 seed=49"},
      {"TreesBf16", "q=bf16 heads=6:2 d=24 page=5 layout=hnd alibi=1 tree=1x24,1x17 reqs=24@20,17@30 pages=300 seed=50"},
      {"TreesWindow",
       "q=f16 heads=4:1 d=32 page=16 layout=packed window=30 prefix=2 tree=1x16,1x40,1x9 reqs=16@50,40@9,9@20 seed=51"},
  };
  return list;
}

/// Geometries with a V of its own head_dim, or in K's rows (MLA), for faults that show on no others.
inline const std::vector<Geometry>& own_v_geometries() {
  static const std::vector<Geometry> list = {
      {"ValuesNarrower", "q=f32 heads=8:2 d=24 dv=16 page=8 reqs=20@30,1@150,7@13/13 index=i64 pages=300 lse=1 seed=30"},
      {"ValuesWider", "q=bf16 heads=5:1 d=24 dv=40 page=5 layout=hnd reqs=1@133,19@61,1@7,4@11 pages=300 seed=31"},
      {"ValuesWiderPacked", "q=f16 heads=6:3 d=16 dv=48 page=16 layout=packed reqs=33@47,1@170,3@16 window=24 index=i64 seed=32"},
      {"ValuesNarrowerFp8",
       "q=f32 kv=fp8_e4m3fn heads=4:2 d=48 dv=32 page=8 kscale=head vscale=tensor alibi=1 sinks=1 lse=1 reqs=9@20/24,1@33,2@5 "
       "pages=300 seed=33"},
      {"ValuesMuchWider", "q=f32 heads=4:2 d=16 dv=136 page=4 reqs=9@30,1@40 pages=300 lse=1 seed=34"},
      {"Latent", "q=bf16 heads=16:1 d=72 dv=64 latent=1 page=16 reqs=9@70,1@150 pages=300 lse=1 seed=35"},
      {"LatentHnd", "q=f32 heads=6:2 d=24 dv=16 latent=1 page=8 layout=hnd reqs=5@30,1@99 index=i64 pages=300 seed=36"},
      {"LatentFp8", "q=f16 kv=fp8_e5m2 heads=4:1 d=40 dv=24 latent=1 page=8 reqs=12@50/56,1@140 pages=300 seed=37"},
  };
  return list;
}

/// Geometries whose tokens have scales of their own, for faults that show on no others.
inline const std::vector<Geometry>& token_scale_geometries() {
  static const std::vector<Geometry> list = {
      {"TokenScales", "q=f32 kv=i8 heads=6:3 d=24 page=8 kscale=token vscale=token reqs=9@40,1@70 pages=300 lse=1 seed=40"},
      {"TokenScalesHnd",
       "q=bf16 kv=i8 heads=8:2 d=32 page=16 layout=hnd kscale=token vscale=token reqs=5@60/63,1@99 pages=300 seed=41"},
      {"TokenScalesPacked",
       "q=f16 kv=fp8_e4m3fn heads=4:2 d=32 page=5 layout=packed kscale=token vscale=token index=i64 reqs=12@50,1@80 pages=300 "
       "seed=42"},
      {"TokenScalesOfValues", "q=f32 kv=i8 heads=4:2 d=16 page=4 kscale=head vscale=token reqs=7@30,1@40 pages=300 seed=43"},
  };
  return list;
}

/// Geometries whose K and V have types of their own, for faults that show on no others.
inline const std::vector<Geometry>& unlike_type_geometries() {
  static const std::vector<Geometry> list = {
      {"UnlikeTypes", "q=f32 kv=fp8_e4m3fn/fp8_e5m2 heads=6:3 d=24 page=8 kscale=head reqs=9@40,1@70 pages=300 lse=1 seed=50"},
      {"UnlikeTypesHnd", "q=bf16 kv=bf16/f16 heads=8:2 d=32 page=16 layout=hnd reqs=5@60/63,1@99 pages=300 seed=51"},
      {"UnlikeTypesPacked",
       "q=f16 kv=i8/fp8_e4m3fn heads=4:2 d=32 page=5 layout=packed kscale=token vscale=tensor index=i64 reqs=12@50,1@80 "
       "pages=300 "
       "seed=52"},
      {"UnlikeSizes", "q=f32 kv=fp8_e4m3fn/f32 heads=4:2 d=16 page=4 kscale=head reqs=7@30,1@40 pages=300 seed=53"},
  };
  return list;
}

/// Geometries with nvfp4 and mxfp4 caches, for faults that show on no others.
inline const std::vector<Geometry>& four_bit_geometries() {
  static const std::vector<Geometry> list = {
      {"Nvfp4", "q=f32 kv=nvfp4 heads=6:3 d=48 page=8 kscale=head vscale=tensor reqs=9@40,1@70 pages=300 lse=1 seed=60"},
      {"Mxfp4", "q=bf16 kv=mxfp4 heads=8:2 d=96 page=16 reqs=5@60/63,1@99 pages=300 seed=61"},
      {"Mxfp4Hnd", "q=f32 kv=mxfp4 heads=4:2 d=64 page=4 layout=hnd reqs=7@30,1@40 pages=300 seed=62"},
      {"Nvfp4Hnd", "q=f16 kv=nvfp4 heads=4:2 d=64 page=12 layout=hnd vscale=tensor index=i64 reqs=12@50,1@80 pages=300 seed=63"},
      {"Mxfp4OfValues", "q=f32 kv=i8/mxfp4 heads=4:2 d=64 page=4 kscale=token reqs=7@30,1@40 pages=300 seed=64"},
      {"Nvfp4OfValues", "q=bf16 kv=fp8_e4m3fn/nvfp4 heads=8:2 d=64 page=16 kscale=head reqs=5@60/63,1@99 pages=300 seed=65"},
  };
  return list;
}

/// Geometries of MLA's rows of 656 bytes, for faults that show on no others.
inline const std::vector<Geometry>& latent_row_geometries() {
  static const std::vector<Geometry> list = {
      {"LatentRows", "q=f32 kv=fp8_ds_mla heads=3:1 d=576 dv=512 latent=1 page=8 reqs=4@30,1@50 pages=300 lse=1 seed=60"},
      {"LatentRowsHnd",
       "q=bf16 kv=fp8_ds_mla heads=2:1 d=576 dv=512 latent=1 page=16 layout=hnd index=i64 reqs=3@40/42,1@70 pages=300 seed=61"},
      {"LatentRowsWindow",
       "q=f16 kv=fp8_ds_mla heads=4:1 d=576 dv=512 latent=1 page=5 window=24 sinks=1 lse=1 reqs=2@60,1@33 pages=300 seed=62"},
  };
  return list;
}

inline std::vector<Geometry> all_geometries() {
  std::vector<Geometry> all = geometries();
  all.insert(all.end(), masked_geometries().begin(), masked_geometries().end());
  all.insert(all.end(), own_v_geometries().begin(), own_v_geometries().end());
  all.insert(all.end(), shaped_geometries().begin(), shaped_geometries().end());
  all.insert(all.end(), token_scale_geometries().begin(), token_scale_geometries().end());
  all.insert(all.end(), unlike_type_geometries().begin(), unlike_type_geometries().end());
  all.insert(all.end(), four_bit_geometries().begin(), four_bit_geometries().end());
  all.insert(all.end(), latent_row_geometries().begin(), latent_row_geometries().end());
  return all;
}

}  // namespace quire::test

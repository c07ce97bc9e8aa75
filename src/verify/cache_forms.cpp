// SPDX-License-Identifier: Apache-2.0
// Caches of i8 and scales of tokens (decision 33), K and V of types of their own and nvfp4 and mxfp4 (decision 37), and rows
// of fp8_ds_mla (decision 38), on batches that split keys, fill tiles, merge and mask.
#include <algorithm>
#include <iterator>
#include <span>

#include "verify/matrix.h"

namespace quire::verify_detail {
namespace {

/// Shapes that every form meets, before those of its own.
constexpr const char* kShapes[] = {
    "heads=4:2 d=32 page=8 lse=1 reqs=3@20/21,1@30,5",
    "heads=8:2 d=64 page=16 window=20 sinks=1 lse=1 reqs=1@190,9@366,70@200/230",
    "heads=6:3 d=128 page=5 cap=8 alibi=1 lse=1 reqs=2x1@700,140@90",
    "heads=16:1 d=128 page=16 lse=1 reqs=1@3000,3@40,0@9",
};
constexpr const char* kScaledTypes[] = {
    "q=bf16 kv=i8 kscale=token vscale=token",
    "q=f16 kv=i8 layout=hnd kscale=token vscale=token index=i64",
    "q=f32 kv=fp8_e4m3fn layout=packed kscale=token vscale=token",
    "q=bf16 kv=fp8_e4m3fn layout=hnd kscale=token vscale=head",
    "q=f32 kv=i8 layout=packed kscale=tensor vscale=token",
    "q=bf16 kv=i8 layout=packed kscale=head vscale=head",
    "q=f16 kv=fp8_e5m2 vscale=token",
    "q=fp8_e4m3fn kv=fp8_e4m3fn qscale=tensor kscale=token vscale=token out=bf16",
};
constexpr const char* kScaledShapes[] = {
    "heads=4:2 d=24 dv=40 page=8 lse=1 reqs=9@20/24,1@33,70@9",
    "heads=4:2 d=32 page=8 causal=0 share=2 lse=1 reqs=5@20,3:0,40@16",
};
constexpr const char* kUnlikeTypes[] = {
    "q=bf16 kv=i8/fp8_e4m3fn kscale=token vscale=head",
    "q=bf16 kv=fp8_e4m3fn/bf16 layout=hnd kscale=tensor",
    "q=f16 kv=bf16/f16",
    "q=f32 kv=f32/i8 layout=packed vscale=token",
    "q=f16 kv=fp8_e5m2/fp8_e4m3fn layout=packed kscale=head vscale=tensor index=i64",
    "q=bf16 kv=bf16/fp8_e4m3fnuz layout=hnd vscale=token",
    "q=f32 kv=i8/f32 layout=hnd kscale=head",
};
constexpr const char* kUnlikeShapes[] = {
    "heads=4:2 d=32 dv=40 page=8 lse=1 reqs=9@20/24,1@33,70@9",
};
constexpr const char* kFourBitTypes[] = {
    "q=bf16 kv=nvfp4 kscale=tensor vscale=head",
    "q=f16 kv=mxfp4 layout=hnd index=i64",
    "q=f32 kv=fp8_e4m3fn/nvfp4 kscale=head vscale=tensor",
    "q=bf16 kv=i8/mxfp4 layout=hnd kscale=token",
    "q=f32 kv=mxfp4/nvfp4 layout=hnd",
    "q=bf16 kv=nvfp4/bf16",
    "q=f16 kv=nvfp4 layout=hnd",
};
constexpr const char* kFourBitShapes[] = {
    "heads=4:2 d=96 dv=32 page=8 lse=1 reqs=9@20/24,1@33,70@9",
    "heads=4:2 d=32 page=8 causal=0 share=2 lse=1 reqs=5@20,3:0,40@16",
};
constexpr const char* kLatentTypes[] = {"q=bf16 kv=fp8_ds_mla", "q=f32 kv=fp8_ds_mla layout=hnd index=i64",
                                        "q=f16 kv=fp8_ds_mla"};
constexpr const char* kLatentShapes[] = {
    "heads=16:1 d=576 dv=512 latent=1 page=64 lse=1 reqs=1@1500,1@40,3@20/21",
    "heads=5:1 d=576 dv=512 latent=1 page=5 window=20 sinks=1 lse=1 reqs=1@190,9@66,20@30/33",
    "heads=128:1 d=576 dv=512 latent=1 page=16 reqs=2x1@90",
    "heads=4:1 d=576 dv=512 latent=1 page=16 causal=0 share=2 lse=1 reqs=5@40,3:0,40@16",
};
constexpr std::size_t kMostQuick = 6;

/// Every type with every shape, or with a few in turns.
std::vector<Entry> entries_of(const char* name, std::span<const char* const> types, std::span<const char* const> own_shapes,
                              std::uint64_t first_seed, const AskedTypes& asked, bool quick) {
  std::vector<Entry> list;
  std::vector<const char*> shapes(std::begin(kShapes), std::end(kShapes));
  shapes.insert(shapes.end(), own_shapes.begin(), own_shapes.end());
  std::size_t turn = 0;
  for (std::size_t shape = 0; shape < shapes.size(); ++shape)
    for (std::size_t type = 0; type < types.size(); ++type, ++turn) {
      if (quick && (type != 3 * shape % types.size() || list.size() >= kMostQuick)) continue;
      if (const auto legal = in_asked(hazard_line(types[type], shapes[shape], first_seed + turn), asked, turn))
        list.push_back({"hazards", name, *legal, Special::none});
    }
  return list;
}

/// Quick: each type once.
void add_latent_rows(std::vector<Entry>& list, const AskedTypes& asked, bool quick) {
  const auto is_asked = [](const auto& choice, auto value) {
    return choice.empty() || std::ranges::find(choice, value) != choice.end();
  };
  if (!is_asked(asked.head_dims, 576)) return;
  for (std::size_t shape = 0; shape < std::size(kLatentShapes); ++shape)
    for (std::size_t type = 0; type < std::size(kLatentTypes); ++type)
      if (!quick || shape == type) {
        const ProblemLine line = hazard_line(kLatentTypes[type], kLatentShapes[shape], 8500 + 10 * shape + type);
        if (is_asked(asked.layouts, line.problem.layout)) list.push_back({"hazards", "LatentRows", line, Special::none});
      }
}

}  // namespace

std::vector<Entry> token_scale_matrix(const AskedTypes& asked, bool quick) {
  std::vector<Entry> list;
  if (!asked.types.empty()) return list;
  std::size_t turn = (std::size(kShapes) + std::size(kScaledShapes)) * std::size(kScaledTypes);
  list = entries_of("TokenScales", kScaledTypes, kScaledShapes, 8000, asked, quick);
  for (const std::string type : {"q=f32 kv=i8 kscale=tensor vscale=token", "q=bf16 kv=i8 layout=hnd kscale=token vscale=head"}) {
    const ProblemLine line = hazard_line(type, "heads=4:2 d=32 page=8 lse=1 reqs=5@100,1@300", 1);
    if (const auto legal = in_asked(line, asked, ++turn))
      list.push_back({"hazards", "IntegerExtremes", *legal, Special::every_fp8_code});
  }
  add_latent_rows(list, asked, quick);
  return list;
}

std::vector<Entry> unlike_type_matrix(const AskedTypes& asked, bool quick) {
  if (!asked.types.empty()) return {};
  return entries_of("UnlikeTypes", kUnlikeTypes, kUnlikeShapes, 9000, asked, quick);
}

std::vector<Entry> four_bit_matrix(const AskedTypes& asked, bool quick) {
  if (!asked.types.empty()) return {};
  return entries_of("FourBits", kFourBitTypes, kFourBitShapes, 10000, asked, quick);
}

}  // namespace quire::verify_detail

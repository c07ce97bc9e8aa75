// SPDX-License-Identifier: Apache-2.0
// The promises about bits: a request alone or in a batch, whole or in chunks.
#pragma once

#include <cstring>

#include "kernels/judge.h"
#include "semantics/page_walk.h"

namespace quire::test {

std::vector<std::uint32_t> bits_of(const Tensor& t);

inline constexpr const char* kInvarianceShapes[] = {
    "heads=4:2 d=16 page=16 lse=1 reqs=130@1000,1@2500,7@3,65@0",
    "heads=6:2 d=24 page=5 window=40 alibi=1 sinks=1 cap=9 lse=1 reqs=70@33,1@90,17@120",
};

/// Findings if a request's bits depend on the rest of the batch.
std::vector<std::string> judge_alone(const Case& c, const Attend& attend);

/// Prompts that have chunks of 512 rows. Few types and dims: every row costs its keys.
inline constexpr const char* kLongPromptShapes[] = {
    "q=bf16 kv=bf16 layout=nhd heads=4:1 d=16 page=16 lse=1 reqs=600@700,1@50",
    "q=f32 kv=fp8_e4m3fn layout=hnd kscale=head vscale=head heads=4:2 d=24 page=16 window=300 lse=1 reqs=530@0",
};

/// Output and lse of rows [0, rows) become NaN, so that a row that is not written again cannot pass for one that is.
void forget_rows(const Case& c, std::int64_t rows);

/// Findings if the bits of request 0 depend on how its prompt is chunked, or on who computes a chunk: the whole prompt is cut for
/// 13 threads, chunks take turns between plans and pools of one thread and of two.
std::vector<std::string> judge_chunked(const Case& c, const Attend& attend);

}  // namespace quire::test

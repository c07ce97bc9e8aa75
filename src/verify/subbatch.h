// SPDX-License-Identifier: Apache-2.0
// Part of a batch as a batch of its own: one request, or a chunk of its rows.
#pragma once

#include "quire/tools/capture.hpp"

namespace quire::verify_detail {

/// Rows [row_begin, row_end) of request r, over the same cache, writing into `output` and `lse` (views of all rows). The chunk's
/// own index tensors are int32 or int64 as the batch's.
Case slice(const Case& c, const Tensor& output, const Tensor& lse, std::int64_t r, std::int64_t row_begin, std::int64_t row_end);

/// Rows of request r.
std::int64_t query_len(const Batch& batch, std::int64_t r);

}  // namespace quire::verify_detail

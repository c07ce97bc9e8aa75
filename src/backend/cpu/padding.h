// SPDX-License-Identifier: Apache-2.0
// Stage: attend. Rows behind the last start, where the batch asks for zeros.
#pragma once

#include "quire/batch.hpp"

namespace quire::cpu {

/// Output 0 and lse -inf in rows [first, num_tokens).
void zero_rows(const Tensor& output, const Tensor& lse, std::int64_t first);

}  // namespace quire::cpu

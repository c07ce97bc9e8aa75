// SPDX-License-Identifier: Apache-2.0
// The output under suspicion, element by element.
#pragma once

#include "semantics/dtype.h"

namespace quire::diagnose_detail {

struct Observed {
  const Tensor& output;
  const Tensor& lse;  ///< may be absent

  double at(std::int64_t token, std::int64_t head, std::int64_t dim) const {
    return semantics::load(output.data, output.dtype,
                           token * output.stride[0] + head * output.stride[1] + dim * output.stride[2]);
  }
  double lse_at(std::int64_t token, std::int64_t head) const {
    return semantics::load(lse.data, lse.dtype, token * lse.stride[0] + head * lse.stride[1]);
  }
};

}  // namespace quire::diagnose_detail

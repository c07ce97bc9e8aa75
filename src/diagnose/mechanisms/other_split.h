// SPDX-License-Identifier: Apache-2.0
// A merge that takes the partial result of one split from another row or head, as where partial results are stored by other
// strides than they are read.
#pragma once

#include "diagnose/mechanisms/request_splits.h"

namespace quire::diagnose_detail {

void propose_other_splits(const Scene& scene, std::span<const CellOfRequest> cells, Proposals& list);

}  // namespace quire::diagnose_detail

// SPDX-License-Identifier: Apache-2.0
// Classes of wrong cells by their bytes, without a hypothesis: kept from before the call, zeros, NaN, another cell's right
// answer; and the order in which a wrong lse holds all right values.
#pragma once

#include <string>
#include <vector>

#include "diagnose/localise.h"
#include "diagnose/observed.h"

namespace quire::diagnose_detail {

/// "12 of 48 wrong cells hold what output held before the call, 36 another cell's answer (row 3 head 1 holds row 3 head 5)"; no
/// sentence if none of these classes has a cell.
std::vector<std::string> cell_bytes(const Facts& facts, const Observed& observed, const Localisation& where);

}  // namespace quire::diagnose_detail

// SPDX-License-Identifier: Apache-2.0
// Classes of wrong cells by their bytes, without a hypothesis: kept from before the call, zeros, NaN, another cell's right
// answer.
#pragma once

#include <string>

#include "diagnose/localise.h"
#include "diagnose/observed.h"

namespace quire::diagnose_detail {

/// Sets Compared::before of every wrong cell, and Compared::bytes of every wrong output.
void classify(const Facts& facts, const Observed& observed, Localisation& where);

/// "12 of 48 wrong cells hold what output held before the call, 36 another cell's answer (row 3 head 1 holds row 3 head 5)";
/// empty if none of these classes has a cell.
std::string cell_bytes(const Facts& facts, const Observed& observed, const Localisation& where);

}  // namespace quire::diagnose_detail

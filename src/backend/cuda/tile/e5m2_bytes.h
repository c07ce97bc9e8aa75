// SPDX-License-Identifier: Apache-2.0
// e5m2 codes as f16 by a permutation of bytes: an e5m2 code is the upper byte of the f16 of its value, infinities and NaN
// included. The permutation picks any two codes of a word, so that codes need no move to their places before.
#pragma once

#include <cstdint>

namespace quire::cuda::tile {

/// Selector of `prmt` (PTX ISA, default mode) for a word of codes and a word of zeros: f16 of the codes at bytes kLow and kHigh.
/// 4 is the first byte of the second word.
template <int kLow, int kHigh>
inline constexpr std::uint32_t kE5m2Selector = 4 | kLow << 4 | 4 << 8 | kHigh << 12;

}  // namespace quire::cuda::tile

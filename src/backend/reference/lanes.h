// SPDX-License-Identifier: Apache-2.0
// The loops that take nearly all of the oracle's time: one row of q against a block of keys, and its weights against a block of
// dims. Lanes never meet: each is the plain sum, in index order, so the width of a vector cannot change a bit.
#pragma once

#include <cstdint>
#include <vector>

namespace quire::reference_detail {

constexpr std::int64_t kLanes = 32;  // keys (scores) or dims (values) computed side by side: enough sums to hide their latency

struct Lanes {
  double sum[kLanes];
};

/// Loops compiled for one instruction set; all instruction sets give the same bits.
struct Loops {
  const char* name;
  /// dot[i] = sum_d q[d] k[d][i], magnitude[i] = sum_d |q[d] k[d][i]|; k is [head_dim][kLanes].
  void (*dot)(const double* k, const double* q, std::int64_t head_dim, Lanes& dot, Lanes& magnitude);
  /// out[i] = sum_n p[n] v[n][i], absolute[i] = sum_n floored[n] |v[n][i]|, scored[i] = sum_n scored_p[n] |v[n][i]|; v is
  /// [count][kLanes].
  void (*sum)(const double* v, const double* p, const double* floored, const double* scored_p, std::int64_t count, Lanes& out,
              Lanes& absolute, Lanes& scored);
  /// absolute[i] = sum_n p[n] |v[n][i]|; v is [count][kLanes].
  void (*sum_absolute)(const double* v, const double* p, std::int64_t count, Lanes& absolute);
};

/// Loops that this machine can run, widest first. The last entry runs on every machine.
std::vector<Loops> available_loops();

/// available_loops()[0], looked up once.
const Loops& widest_loops();

}  // namespace quire::reference_detail

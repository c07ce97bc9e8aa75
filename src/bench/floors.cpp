// SPDX-License-Identifier: Apache-2.0
// See driver.h.
#include "bench/driver.h"

#include <algorithm>

namespace quire {
namespace bench_detail {

std::int64_t kv_bytes_of(const Problem& p, const Request& r) {
  std::int64_t cached = 0, fresh = 0;
  for (const KeyPositions& keys : p.visible_ranges(r)) {
    cached += std::max<std::int64_t>(0, std::min(keys.end, r.cached_len) - keys.begin);
    fresh += std::max<std::int64_t>(0, keys.end - std::max(keys.begin, r.cached_len));
  }
  const std::int64_t fresh_bytes = (p.head_dim + p.out_dim()) * itemsize(p.q_dtype);
  return p.num_kv_heads * (cached * p.kv_bytes() + fresh * fresh_bytes);
}

std::int64_t kv_bytes_of(const Problem& p) {
  std::int64_t bytes = 0;
  for (const Request& r : p.reqs) bytes += kv_bytes_of(p, r);
  return bytes;
}

ComputeCeiling compute_ceiling(const Problem& p, const Ceilings& c) {
  ComputeCeiling best{"f32 FMA", c.fma_gflops};
  // The values of every fp8 format are bf16 values.
  const auto is_bf16 = [](DType type) { return type == DType::bf16 || is_fp8(type); };
  const bool in_bf16 = p.q_dtype == DType::bf16 && is_bf16(p.kv_dtype) && is_bf16(p.value_dtype());
  if (in_bf16 && c.bf16_dot_gflops > best.gflops) best = {"bf16 dot", c.bf16_dot_gflops};
  if (in_bf16 && c.amx_gflops > best.gflops) best = {"bf16 AMX", c.amx_gflops};
  if (p.q_dtype != DType::f32 && c.mma_gflops > best.gflops) best = {"16-bit mma", c.mma_gflops};
  return best;
}

}  // namespace bench_detail

Floor floor_of(const Problem& p, double read_gbs, double compute_gflops) {
  Floor floor;
  floor.read_gbs = read_gbs;
  floor.compute_gflops = compute_gflops;
  for (const Request& r : p.reqs) {
    const double reading = read_gbs > 0 ? static_cast<double>(bench_detail::kv_bytes_of(p, r)) / (read_gbs * 1e9) : 0;
    const double flops =
        2.0 * static_cast<double>((p.head_dim + p.out_dim()) * p.num_q_heads) * static_cast<double>(p.visible_pairs(r));
    const double computing = compute_gflops > 0 ? flops / (compute_gflops * 1e9) : 0;
    (reading >= computing ? floor.memory_seconds : floor.compute_seconds) += std::max(reading, computing);
  }
  floor.seconds = floor.memory_seconds + floor.compute_seconds;
  return floor;
}

}  // namespace quire

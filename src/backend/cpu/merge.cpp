// SPDX-License-Identifier: Apache-2.0
// cpu::merge(): two finished partial results over disjoint key sets become one.
#include "backend/cpu/entry.h"
#include "backend/cpu/parallel.h"
#include "semantics/dtype.h"
#include "semantics/softmax_state.h"

namespace quire::cpu {
namespace {

struct Rows {
  const Tensor& t;
  std::int64_t at(std::int64_t token, std::int64_t head) const { return token * t.stride[0] + head * t.stride[1]; }
  float lse(std::int64_t token, std::int64_t head) const { return static_cast<const float*>(t.data)[at(token, head)]; }
  float load(std::int64_t token, std::int64_t head, std::int64_t d) const {
    return semantics::load(t.data, t.dtype, at(token, head) + d * t.stride[2]);
  }
};

}  // namespace

Status merge(const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b, const Tensor& lse_b, const Tensor& out,
             const Tensor& lse, const MergeOptions& merge_options) {
  if (const Findings findings = check_merge(out_a, lse_a, out_b, lse_b, out, lse, Depth::contents, merge_options.output_scale);
      !findings.ok())
    return findings.status();
  const Rows a{out_a}, b{out_b}, la{lse_a}, lb{lse_b}, result{out};
  const std::int64_t num_heads = out.shape[1];
  const std::int64_t head_dim = out.shape[2];
  const Tensor& scale = merge_options.output_scale;
  const float output_scale = scale.present() ? *static_cast<const float*>(scale.data) : 1.0f;
  auto task = [&](std::int64_t token, int) {
    for (std::int64_t head = 0; head < num_heads; ++head) {
      const semantics::Merged m =
          semantics::combine(semantics::from_lse(la.lse(token, head)), semantics::from_lse(lb.lse(token, head)));
      // Normalised sides: each weighs weight * its sum of 1, over the union's sum. An empty side has weight 0 and is not read.
      const float norm = m.state.max == -INFINITY ? 1.0f : m.state.sum;
      const float wa = m.state.max == -INFINITY ? 0.0f : m.weight_a / norm;
      const float wb = m.state.max == -INFINITY ? 0.0f : m.weight_b / norm;
      for (std::int64_t d = 0; d < head_dim; ++d) {
        const float from_a = wa == 0.0f ? 0.0f : wa * a.load(token, head, d);
        const float from_b = wb == 0.0f ? 0.0f : wb * b.load(token, head, d);
        semantics::store(out.data, out.dtype, result.at(token, head) + d * out.stride[2], (from_a + from_b) / output_scale);
      }
      if (lse.present())
        static_cast<float*>(lse.data)[token * lse.stride[0] + head * lse.stride[1]] = semantics::log_sum_exp(m.state);
    }
  };
  return parallel_for("merge", merge_options.executor != nullptr ? *merge_options.executor : default_executor(), out.shape[0],
                      task);
}

}  // namespace quire::cpu

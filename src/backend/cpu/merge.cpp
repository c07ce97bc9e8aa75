// SPDX-License-Identifier: Apache-2.0
// cpu::merge() and merge_many(): finished partial results over disjoint key sets become one.
#include <algorithm>

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

/// Part i of a stack of partial results.
Tensor part_of(const Tensor& stack, std::int64_t i) {
  Tensor part = stack;
  part.rank = stack.rank - 1;
  std::copy(stack.shape.begin() + 1, stack.shape.end(), part.shape.begin());
  std::copy(stack.stride.begin() + 1, stack.stride.end(), part.stride.begin());
  part.data = static_cast<std::byte*>(stack.data) + i * stack.stride[0] * itemsize(stack.dtype);
  return part;
}

constexpr std::int64_t kDimsAtOnce = 64;  // sums that stay in the first-level cache; any number gives the same bits

/// sums[j] += weight * element first_dim + j of the row. The first part starts the sums.
void add_part(const Tensor& part, std::int64_t row, float weight, bool starts, std::int64_t first_dim, std::int64_t count,
              float* sums) {
  const bool plain = part.dtype == DType::f32 && part.stride[2] == 1;
  const float* plain_row = plain ? static_cast<const float*>(part.data) + row + first_dim : nullptr;
  for (std::int64_t j = 0; j < count; ++j) {
    const float value = weight == 0.0f ? 0.0f
                        : plain        ? weight * plain_row[j]
                                       : weight * semantics::load(part.data, part.dtype, row + (first_dim + j) * part.stride[2]);
    sums[j] = starts ? value : sums[j] + value;
  }
}

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

Status merge_many(const Tensor& outs, const Tensor& lses, const Tensor& out, const Tensor& lse,
                  const MergeOptions& merge_options) {
  if (const Findings findings = check_merge_many(outs, lses, out, lse, Depth::contents, merge_options.output_scale);
      !findings.ok())
    return findings.status();
  const auto num_parts = static_cast<int>(outs.shape[0]);
  const std::int64_t num_heads = out.shape[1], head_dim = out.shape[2];
  const Tensor& scale = merge_options.output_scale;
  const float output_scale = scale.present() ? *static_cast<const float*>(scale.data) : 1.0f;
  auto task = [&](std::int64_t token, int) {
    for (std::int64_t head = 0; head < num_heads; ++head) {
      const auto lse_of = [&](int i) { return Rows{part_of(lses, i)}.lse(token, head); };
      const semantics::SoftmaxState all = semantics::union_of(num_parts, lse_of);
      const std::int64_t to = Rows{out}.at(token, head);
      for (std::int64_t first = 0; first < head_dim; first += kDimsAtOnce) {
        float sums[kDimsAtOnce];
        const std::int64_t count = std::min(kDimsAtOnce, head_dim - first);
        for (int i = 0; i < num_parts; ++i) {
          const Tensor part = part_of(outs, i);
          add_part(part, Rows{part}.at(token, head), semantics::union_weight(all, lse_of(i)), i == 0, first, count, sums);
        }
        for (std::int64_t j = 0; j < count; ++j)
          semantics::store(out.data, out.dtype, to + (first + j) * out.stride[2], sums[j] / output_scale);
      }
      if (lse.present()) static_cast<float*>(lse.data)[Rows{lse}.at(token, head)] = semantics::log_sum_exp(all);
    }
  };
  return parallel_for("merge_many", merge_options.executor != nullptr ? *merge_options.executor : default_executor(),
                      out.shape[0], task);
}

}  // namespace quire::cpu

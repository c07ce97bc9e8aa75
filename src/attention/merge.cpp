// SPDX-License-Identifier: Apache-2.0
// Stage: attention. merge() and merge_many() go to where the partial results are.
#include "attention/dispatch.h"
#include "backend/cpu/entry.h"
#include "batch/caught.h"
#include "quire/attention.hpp"

namespace quire {

Status merge(const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b, const Tensor& lse_b, const Tensor& out,
             const Tensor& lse, const MergeOptions& merge_options) try {
  if (const gpu::Vendor* vendor = attention::vendor_of(out_a.memory))
    return gpu::merge(*vendor, out_a, lse_a, out_b, lse_b, out, lse, merge_options);
  return cpu::merge(out_a, lse_a, out_b, lse_b, out, lse, merge_options);
} catch (...) {
  return batch::caught("merge");
}

Status merge_many(const Tensor& outs, const Tensor& lses, const Tensor& out, const Tensor& lse,
                  const MergeOptions& merge_options) try {
  if (const gpu::Vendor* vendor = attention::vendor_of(outs.memory))
    return gpu::merge_many(*vendor, outs, lses, out, lse, merge_options);
  return cpu::merge_many(outs, lses, out, lse, merge_options);
} catch (...) {
  return batch::caught("merge_many");
}

}  // namespace quire

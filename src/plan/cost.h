// SPDX-License-Identifier: Apache-2.0
// What a piece of work costs, in bytes: the one model by which plans order, split and balance work. It decides who does what and
// when, never what is computed.
#pragma once

#include <cstdint>

#include "quire/plan.hpp"

namespace quire::plan_detail {

/// cost = bytes of K and V + flops / kFlopsPerByte + kItemBytes, for one KV head.
class CostModel {
 public:
  explicit CostModel(const Problem& p)
      : key_bytes_(static_cast<double>((p.head_dim + p.out_dim()) * itemsize(p.kv_dtype))),
        row_bytes_(static_cast<double>(2 * (p.head_dim + p.out_dim()) * p.group()) / kFlopsPerByte) {}

  /// `rows` query rows (each of all query heads of the group) against `keys` keys of one KV head.
  double operator()(std::int64_t rows, std::int64_t keys) const {
    return static_cast<double>(keys) * (key_bytes_ + row_bytes_ * static_cast<double>(rows)) + kItemBytes;
  }

 private:
  // One thread of a server core multiplies about as many bf16 pairs as this while it reads one byte of the cache from memory
  // (Emerald Rapids, 2026-11: 234 GFLOP/s of bf16 dot products, 29.6 GB/s of gathered pages).
  static constexpr double kFlopsPerByte = 8;
  // Taking an item, finding its first pages, loading its query rows and storing its output: a fraction of a microsecond.
  static constexpr double kItemBytes = 8192;

  double key_bytes_;  ///< K and V of one key
  double row_bytes_;  ///< what one query row against one key costs
};

}  // namespace quire::plan_detail

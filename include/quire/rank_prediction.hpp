// SPDX-License-Identifier: Apache-2.0
// Time of attention on several GPUs, predicted from the measured costs of one and the bandwidth of a link.
#pragma once

#include <cstdint>
#include <string>

#include "quire/plan.hpp"
#include "quire/predict.hpp"
#include "quire/problem.hpp"
#include "quire/status.hpp"

namespace quire {

struct RankLink {
  double bytes_per_second = 450e9;  ///< bytes that a rank receives per second; default: NVLink of an H100, one direction
  /// Least seconds of one exchange, and seconds of the merge, launches included. Source: two H100 of one host, NCCL in a CUDA
  /// graph (bench/results/h100x2-distributed.json).
  double exchange_seconds = 9e-6;
  double merge_seconds = 13e-6;
  std::int32_t head_chunks = 4;  ///< chunks of heads in a prefill: keys of chunk i + 1 travel while chunk i is computed
};

/// Predicted seconds of one layer, or the reason why there is no prediction.
struct SharedSeconds {
  double compute = 0, exchange = 0, merge = 0;
  std::int64_t received_bytes = 0;  ///< bytes that one rank receives
  std::string kernel;
  std::string why_not;
  bool known() const { return why_not.empty(); }
  double total() const { return compute + exchange + merge; }
};

struct RankPrediction {
  std::int32_t ranks = 1;
  double one = 0;  ///< seconds on one GPU
  std::string why_no_one;
  SharedSeconds contexts;  ///< context shards: interleaved by page for decode, zig-zag chunks for prompts
  SharedSeconds heads;     ///< head shards, which exchange nothing
  std::string advice;      ///< one sentence: the choice that is predicted to be fastest
};

/// contexts, decode (every request has one row):   compute of ceil(seq_len / ranks) keys + exchange of (out, lse) + merge
/// contexts, prompts (no request has a context):   compute of two of 2 * ranks chunks + the part of the keys' exchange that is
/// not
///                                                 hidden
/// heads:                                          compute of num_q_heads / ranks heads
///
/// invalid_argument: ranks < 1, or a bandwidth that is not positive; unsupported: the device's costs are not known.
Result<RankPrediction> predict_ranks(const Problem& problem, const Device& device, std::int32_t ranks, const RankLink& link = {});

/// The prediction in many lines; the first line says that all numbers are predicted.
std::string to_string(const RankPrediction& prediction, const RankLink& link);

/// Reads "450GB/s", "900MB/s" or "1.8TB/s" as bytes per second (decimal units); parse_error says what is expected.
Result<double> parse_bandwidth(const std::string& text);

}  // namespace quire

// Stage: explain. What work costs on the GPUs that were measured. Predictions are made from it and nothing else: no plan depends
// on it, no bit of an output.
//
// A list of a plan takes
//
//     launch + first + max(bytes of K and V / (read_share * ceiling), tiles * of_tile) + items * item + merge
//     of_tile = tile + keys * head_dim * key + rows * keys * (score + head_dim * product)
//
// with the items and tiles of the unit (a block, or a pair of blocks) that has most, and the rows and keys of one tile, as the
// matrix units see them; merge, if tiles come in parts. A list without rows takes its launch. The constants of a body are fitted
// by `bench/gpu/fit_costs.py` to some of the lines of a result file; docs/kernels/predicted.md says to which, and how far the
// others are off.
#pragma once

#include <array>
#include <string_view>

namespace quire::plan_detail {

/// The code that serves a list.
enum class Body { generic, mma_short, mma_tall, sm90_decode, sm90_prefill };

struct BodyCosts {
  Body body;
  bool fp8;           ///< of caches of 8-bit codes
  int head_dim;       ///< 0: those that have no row of their own
  double first_us;    ///< until the first keys are there, and from the last output to the next launch
  double item_us;     ///< finding an item, its query rows and pages; its output
  double tile_us;     ///< barriers, page ids
  double key_ps;      ///< an element of K and V: loads, and the conversion of codes
  double score_ps;    ///< an exponential and its sums
  double product_ps;  ///< the multiply-adds of one element of a row and one of a key, in both products
  double merge_us;    ///< partial results: written, waited for, read
  double read_share;  ///< of the read ceiling that its copies reach at best
};

/// Bodies that a device was not measured with have no row.
struct DeviceCosts {
  std::string_view product;  ///< part of the name that the driver gives
  int sm;                    ///< pretended devices of this architecture are taken for it; 0: none
  double read_tb_per_s;      ///< the read ceiling
  double call_us;            ///< a call's first two launches: counters, validation
  double launch_us;          ///< of each list
  std::array<BodyCosts, 10> bodies;
};

// NVIDIA H200, 2026-11-22, bench/results/h200-attend.json.
inline constexpr DeviceCosts kDeviceCosts[] = {
    {"H200",
     90,
     4.50,
     2.4,
     1.0,
     {{
         {Body::sm90_decode, false, 0, 6.55, 1.39, 0.556, 14.2, 0, 0, 1.56, 0.918},
         {Body::sm90_decode, true, 0, 0.792, 6.23, 1.4, 53.8, 0, 0, 0.59, 0.98},
         {Body::sm90_prefill, false, 0, 33.5, 2.39, 0, 0, 19.9, 0.299, 3, 1},
         {Body::mma_short, false, 0, 18, 1, 0.5, 50, 0, 0, 3, 0.92},
         {Body::mma_short, true, 0, 18, 1, 0.5, 150, 0, 0, 3, 0.92},
         {Body::mma_tall, false, 0, 18.7, 3.14, 0, 0, 972, 5.76, 4.01, 1},
         {Body::mma_tall, false, 256, 8, 2.5, 0, 0, 743, 15.8, 3, 1},
         {Body::mma_tall, true, 0, 8, 2.38, 0, 87.6, 384, 3, 3, 1},
         {Body::generic, false, 0, 10, 3, 1, 1e+03, 1e+03, 80, 3, 0.5},
         {Body::generic, true, 0, 10, 3, 1, 1e+03, 1e+03, 80, 3, 0.5},
     }}},
};

}  // namespace quire::plan_detail

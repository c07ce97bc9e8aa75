// Stage: explain. What work costs on the GPUs that were measured. Predictions are made from it and nothing else: no plan depends
// on it, no bit of an output.
//
// A list of a plan takes
//
//     launch + first + max(bytes of K and V / (read_share * ceiling), tiles * of_tile) + items * item + merge
//     of_tile = tile + keys * head_dim * key + rows * keys * (score + head_dim * product)
//
// with the items and tiles of the unit (a block, or a pair of blocks) that has most, and the rows and keys of one tile, as the
// matrix units see them; merge, if tiles come in parts. A list without rows takes its launch. Where decode and prefill run at the
// same time, beside_share of the former's time is added to the latter's. The constants of a body are fitted
// by `bench/gpu/fit_costs.py` to some of the lines of a result file; docs/kernels/predicted.md says to which, and how far the
// others are off.
#pragma once

#include <array>
#include <string_view>

namespace quire::plan_detail {

/// The code that serves a list. sm90_wide: decode with more than 8 score rows a tile.
enum class Body { generic, mma_short, mma_tall, sm90_decode, sm90_wide, sm90_prefill };

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

/// Bodies that a device was not measured with have no row, and no prediction.
struct DeviceCosts {
  std::string_view product;  ///< part of the name that the driver gives
  int sm;                    ///< pretended devices of this architecture are taken for it; 0: none
  double read_tb_per_s;      ///< the read ceiling
  double call_us;            ///< a call's first two launches: counters, validation
  double launch_us;          ///< of each list
  double beside_share;       ///< of a decode list\'s time that is left where prefill runs at the same time
  std::array<BodyCosts, 11> bodies;
};

// NVIDIA H200, 2026-11-22, bench/results/h200-attend.json.
inline constexpr DeviceCosts kDeviceCosts[] = {
    {"H200",
     90,
     4.50,
     2.4,
     1.0,
     0.65,
     {{
         {Body::sm90_decode, false, 0, 5.27, 1.67, 0.556, 14.2, 20, 0.3, 1.36, 0.946},
         {Body::sm90_decode, true, 0, 1.32, 4.32, 1.39, 54.3, 20, 0.3, 0.825, 0.98},
         {Body::sm90_prefill, false, 0, 17.2, 2.95, 0, 0, 20.1, 0.299, 3, 0.424},
         {Body::mma_short, false, 0, 12, 0.99, 0.618, 57.3, 0, 0, 2.91, 0.893},
         {Body::mma_short, false, 256, 40.9, 1.02, 0.5, 100, 0, 0, 3.15, 0.505},
         {Body::mma_short, true, 0, 19.1, 1.02, 0.662, 150, 0, 0, 3.19, 0.92},
         {Body::mma_tall, false, 0, 33.1, 5.6, 0, 0, 235, 3.84, 5.5, 1},
         {Body::mma_tall, false, 256, 8.16, 2.55, 0, 0, 681, 15.8, 3, 1},
         {Body::mma_tall, true, 0, 8, 2.45, 0, 87.6, 384, 3, 3, 1},
         {Body::generic, false, 0, 6.38, 2.27, 2.07, 645, 2.23e+03, 72.5, 2.55, 0.5},
         {Body::generic, true, 0, 9.64, 2.95, 0.956, 716, 948, 68.3, 2.98, 0.5},
     }}},
};

}  // namespace quire::plan_detail

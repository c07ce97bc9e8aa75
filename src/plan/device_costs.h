// SPDX-License-Identifier: Apache-2.0
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
// same time, all but beside_share of the former's time is saved, at most the latter's. The constants of a body are fitted
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
  std::string_view product;  ///< as `explain` prints it
  std::string_view driver;   ///< the name that the driver gives to it: products with other memory have other names
  int sm;                    ///< pretended devices of this architecture are taken for it if no product was named; 0: none
  double read_tb_per_s;      ///< the read ceiling
  double call_us;            ///< a call's first two launches: counters, validation
  double launch_us;          ///< of each list
  double beside_share;       ///< of a decode list's time that is left where prefill runs at the same time
  std::array<BodyCosts, 18> bodies;
};

// NVIDIA H200, 2026-11-22, bench/results/h200-attend.json.
inline constexpr DeviceCosts kH200 = {"H200",
                                      "NVIDIA H200",
                                      90,
                                      4.50,
                                      2.4,
                                      1.0,
                                      0.65,
                                      {{
                                          {Body::sm90_decode, false, 0, 3.28, 1.13, 0.556, 14.2, 20, 0.3, 1.2, 0.973},
                                          {Body::sm90_decode, true, 0, 2.07, 2.64, 0.631, 34.2, 19.8, 0.291, 0.862, 0.898},
                                          {Body::sm90_decode, false, 256, 4.42, 1.59, 0.6, 14.2, 20, 0.3, 1.4, 0.949},
                                          {Body::sm90_decode, true, 256, 3.37, 3.43, 0.633, 21.7, 19.8, 0.295, 1.39, 0.925},
                                          {Body::sm90_wide, false, 0, 4.03, 1.62, 1.14, 11.8, 10.3, 0.105, 2.51, 0.93},
                                          {Body::sm90_wide, true, 0, 5.72, 5.07, 0.603, 26.7, 9.47, 0.0957, 5.72, 0.9},
                                          {Body::sm90_prefill, false, 0, 2.04, 3.11, 0, 0, 21.9, 0.213, 24.9, 0.596},
                                          {Body::sm90_prefill, false, 256, 15.1, 2.73, 0, 0, 16.4, 0.3, 3, 0.42},
                                          {Body::sm90_prefill, true, 0, 4.37, 6, 0, 0, 5.83, 0.342, 3, 0.42},
                                          {Body::sm90_prefill, true, 256, 15.9, 2.89, 0, 0, 18.1, 0.429, 3, 0.42},
                                          {Body::mma_short, false, 0, 16.7, 1.17, 1.02, 101, 0, 0, 1.98, 0.902},
                                          {Body::mma_short, false, 256, 35.8, 1.02, 0.5, 100, 0, 0, 3.12, 0.52},
                                          {Body::mma_short, true, 0, 25.1, 1.04, 0.792, 153, 0, 0, 3.19, 0.92},
                                          {Body::mma_tall, false, 0, 52.2, 4.93, 0, 0, 188, 3.84, 7.16, 1},
                                          {Body::mma_tall, false, 256, 8.16, 2.55, 0, 0, 742, 15.8, 3, 1},
                                          {Body::mma_tall, true, 0, 8, 2.45, 0, 76.1, 351, 2.94, 3, 1},
                                          {Body::generic, false, 0, 17.8, 2.36, 0.237, 1.11e+03, 236, 75.4, 3.06, 0.5},
                                          {Body::generic, true, 0, 9.64, 2.95, 1.01, 972, 1e+03, 79.3, 2.98, 0.5},
                                      }}};

// NVIDIA H100 80GB HBM3, 2026-11-23, bench/results/h100-attend.json. call_us, launch_us and beside_share are the H200's: no timed
// line tells them from first_us.
inline constexpr DeviceCosts kH100 = {"H100",
                                      "NVIDIA H100 80GB HBM3",
                                      0,
                                      3.13,
                                      2.4,
                                      1.0,
                                      0.65,
                                      {{
                                          {Body::sm90_decode, false, 0, 3.38, 0.884, 0.556, 14.2, 20, 0.3, 1.27, 0.963},
                                          {Body::sm90_decode, true, 0, 2.05, 2.54, 0.561, 32.3, 19.8, 0.291, 0.801, 0.898},
                                          {Body::sm90_decode, false, 256, 4.38, 1.59, 0.6, 14.2, 20, 0.3, 1.4, 0.968},
                                          {Body::sm90_decode, true, 256, 4.09, 3.97, 0.633, 21.7, 19.8, 0.295, 1.39, 0.934},
                                          {Body::sm90_wide, false, 0, 3.92, 1.59, 1.66, 11.4, 10.2, 0.104, 2.47, 0.93},
                                          {Body::sm90_wide, true, 0, 5.84, 5.3, 0.615, 28, 9.56, 0.0965, 5.81, 0.9},
                                          {Body::sm90_prefill, false, 0, 2.05, 2.37, 0, 0, 22.7, 0.224, 26.2, 0.796},
                                          {Body::sm90_prefill, false, 256, 14.7, 2.68, 0, 0, 15.5, 0.3, 3, 0.42},
                                          {Body::sm90_prefill, true, 0, 2.2, 7.33, 0, 0, 5.15, 0.342, 3, 0.42},
                                          {Body::sm90_prefill, true, 256, 15.7, 2.86, 0, 0, 18.1, 0.429, 3, 0.42},
                                          {Body::mma_short, false, 0, 13.9, 1.24, 0.571, 60.5, 0, 0, 2.08, 0.902},
                                          {Body::mma_short, false, 256, 53.6, 1.03, 0.5, 100, 0, 0, 3.2, 0.701},
                                          {Body::mma_short, true, 0, 18.1, 1.04, 0.673, 153, 0, 0, 3.32, 0.92},
                                          {Body::mma_tall, false, 0, 55.7, 6.51, 0, 0, 199, 3.88, 7.16, 1},
                                          {Body::mma_tall, false, 256, 8.16, 2.55, 0, 0, 632, 15.5, 3, 1},
                                          {Body::mma_tall, true, 0, 8, 2.47, 0, 83.4, 384, 3, 3, 1},
                                          {Body::generic, false, 0, 54.5, 2.01, 0.205, 998, 205, 75.4, 3.22, 0.5},
                                          {Body::generic, true, 0, 9.64, 2.95, 0.992, 962, 971, 79.3, 2.98, 0.5},
                                      }}};

inline constexpr const DeviceCosts* kDeviceCosts[] = {&kH200, &kH100};

}  // namespace quire::plan_detail

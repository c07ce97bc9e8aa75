// SPDX-License-Identifier: Apache-2.0
// Stage: explain. Costs of work on the GPUs that were measured. Only predictions use these costs: no plan and no bit of an output
// depends on them.
//
// A list of a plan takes
//
//     launch + first + max(bytes of K and V / (read_share * ceiling), tiles * of_tile) + items * item + merge
//     of_tile = tile + keys * dim * key + rows * keys * (score + dim * product)
//
// with the items and tiles of the unit (a block, or a pair of blocks) that has most, the rows and keys of one tile, as the
// matrix units see them, and the mean of the head_dims of K and V; merge counts if tiles come in parts. A list without rows takes
// its launch. If decode and prefill run at the same time, (1 - beside_share) of decode's time is saved, at most the time of
// prefill. The costs of a kernel's bodies are in the kernel's file, src/plan/kernels/. `bench/gpu/fit_costs.py` fits costs to
// some lines of a result file; docs/kernels/predicted.md names these lines and gives the errors on the other lines.
#pragma once

#include <cstdint>
#include <string_view>

#include "plan/work.h"

namespace quire::plan_detail {

/// A GPU that was measured.
struct DeviceCosts {
  std::string_view product;  ///< name that `explain` prints
  std::string_view driver;   ///< the name that the driver gives to it: products with other memory have other names
  int sm;                    ///< pretended devices of this architecture are taken for it if no product was named; 0: none
  double read_tb_per_s;      ///< the read ceiling
  double call_us;            ///< a call's first two launches: counters, validation
  double launch_us;          ///< launch of one list
  double beside_share;       ///< share of a decode list's time that remains if prefill runs at the same time
};

// NVIDIA H200, 2026-11-22, bench/results/h200-attend.json.
inline constexpr DeviceCosts kH200 = {"H200", "NVIDIA H200", 90, 4.50, 2.4, 1.0, 0.65};

// NVIDIA H100 80GB HBM3, 2026-11-23, bench/results/h100-attend.json. call_us, launch_us and beside_share are the H200's: no timed
// line tells them from first_us.
inline constexpr DeviceCosts kH100 = {"H100", "NVIDIA H100 80GB HBM3", 0, 3.13, 2.4, 1.0, 0.65};

inline constexpr const DeviceCosts* kDeviceCosts[] = {&kH200, &kH100};

/// How a body copies rows of K and V from pages, where its ways take different times.
enum class PageRows : std::uint8_t {
  runs,    ///< whole runs of a page's tokens (Body::run_tokens), if the body needs them
  single,  ///< token by token: pages hold no whole runs
  packed   ///< from vLLM's packed layout
};

/// Cached values, as far as bodies take different times for them. Types, and kinds of scales, that no value names have no costs.
enum class Codes : std::uint8_t {
  none,          ///< 16-bit values
  fp8,           ///< fp8_e4m3fn or fp8_e5m2; scales of the tensor or of heads
  token_scaled,  ///< i8, fp8_e4m3fn or fp8_e5m2; a scale for each token of K and of V
  four_bits      ///< nvfp4 or mxfp4 both, or keys of fp8_e4m3fn and values of nvfp4
};

/// Costs of a kernel's body on a device. A body without a row for a device was not measured there, and has no prediction.
struct BodyCosts {
  const DeviceCosts* device;
  Role role;
  Codes codes;
  int head_dim;       ///< of K; 0: all dims that have no row of their own
  double first_us;    ///< until the first keys are there, and from the last output to the next launch
  double item_us;     ///< finding an item, its query rows and pages; its output
  double tile_us;     ///< barriers, page ids
  double key_ps;      ///< an element of K and V: loads, and the conversion of codes
  double score_ps;    ///< an exponential and its sums
  double product_ps;  ///< the multiply-adds of one element of a row and one of a key, in both products
  double merge_us;    ///< partial results: written, waited for, read
  double read_share;  ///< share of the read ceiling that the body's copies reach at best
  int value_dim = 0;  ///< head_dim of V; 0: K's
  PageRows rows = PageRows::runs;
};

/// Masks with a shape (Problem::has_shapes).
enum class Shape : std::uint8_t { chunk, prefix, spans, tree };

/// A mask with a shape, alone, over 16-bit caches, under which the costs of a body hold: no timed line is further off than 15 %.
struct ShapedMask {
  const DeviceCosts* device;
  Role role;
  int head_dim;
  Shape shape;
};

}  // namespace quire::plan_detail

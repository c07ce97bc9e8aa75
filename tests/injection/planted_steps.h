// SPDX-License-Identifier: Apache-2.0
// The kernels with steps that can be made wrong while the program runs (src/backend/cpu/faults.h). No std templates in here: see
// src/backend/cpu/attend_args.h.
#pragma once

#include <cstdint>

#include "backend/cpu/attend_args.h"

namespace quire::test {

/// Faults that are steps of a kernel, by their ids.
enum class Step {
  none,
  alibi_origin_shifted,
  masked_keys_multiplied,
  maximum_not_rescaled,
  merge_not_rescaled,
  merged_at_first_part,
  scales_on_new_rows,
  stale_accumulator,
};
inline Step wrong_step = Step::none;  ///< the one in force; changed between calls only

struct PlantedFaults {
  static bool is(Step step) { return wrong_step == step; }
  static bool is_scaled(bool fresh) { return !fresh || is(Step::scales_on_new_rows); }
  template <class View>
  static std::int64_t alibi_origin(const View& v, std::int64_t m) {
    return is(Step::alibi_origin_shifted) ? v.first_position : v.q_pos(m);
  }
  template <class T>
  static T at_start(const T& left) {
    return is(Step::stale_accumulator) ? left : T{};
  }
  static float correction(float factor) { return is(Step::maximum_not_rescaled) ? 1.0f : factor; }
  static float weight_of_earlier(float weight) { return is(Step::merge_not_rescaled) ? 1.0f : weight; }
  static bool is_finite(bool finite) { return finite || is(Step::masked_keys_multiplied); }
};

/// An instruction set, or a tile unit, whose kernel has these steps.
template <class V>
struct Planted : V {
  using Faults = PlantedFaults;
};

// *_probe.cpp
extern const cpu::KernelEntry kPlantedGeneric, kPlantedNeon, kPlantedAvx2, kPlantedAvx512, kPlantedAvx512Bf16, kPlantedAmx;

}  // namespace quire::test

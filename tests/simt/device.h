// SPDX-License-Identifier: Apache-2.0
// The host side of the stand-in: device arguments from tensors, work lists with room, and a call as its sequence of launches.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "backend/gpu/generic_args.h"
#include "backend/gpu/generic_sizes.h"
#include "quire/attention.hpp"
#include "quire/tools/capture.hpp"
#include "semantics/layout.h"
#include "simt/machine.h"

namespace quire::simt {

inline semantics::KvStrides row_strides(const Tensor& t) { return {0, t.stride[1], t.stride[0], 0, t.stride[2], t.shape[2]}; }

inline gpu::RowSource rows_of(const Tensor& t) {
  return t.present() ? gpu::RowSource{t.data, t.dtype, row_strides(t)} : gpu::RowSource{};
}

/// A scalar or [1] serves all heads.
inline gpu::PerHead per_head(const Tensor& t) {
  if (!t.present() || t.rank == 3) return {};
  return {static_cast<const float*>(t.data), t.rank == 1 && t.shape[0] > 1 ? t.stride[0] : 0};
}

inline gpu::LseRows lse_of(const Tensor& t) {
  return t.present() ? gpu::LseRows{static_cast<float*>(t.data), t.stride[0], t.stride[1]} : gpu::LseRows{};
}

gpu::GenericArgs attend_args(const Case& c);

/// The shape of a work list's tiles, and which requests it takes.
struct ListShape {
  std::int32_t tile_rows = gpu::kGenericTileRows;
  std::int32_t tile_keys = gpu::kGenericTileKeys;
  std::int32_t min_rows = 0;
  std::int32_t max_rows = 0x7FFFFFFF;
};

/// Device memory of one list of a call, with room for `max_slices`, everything in it poisoned.
struct WorkMemory {
  WorkMemory(const gpu::AttendArgs& a, std::int32_t max_slices, std::int32_t split_keys, std::int32_t target_items,
             const ListShape& shape = {});
  std::vector<gpu::WorkSlice> slices;
  std::vector<std::int32_t> numbers, parts_done;
  std::vector<float> acc, states;
  gpu::WorkList work;
};

/// Parameters of running a call on the stand-in device.
struct Device {
  int wave = 32;
  int blocks = 3;
  std::uint64_t seed = 0;
  std::int32_t split_keys = 0;
  std::int32_t target_items = 0;
  std::int32_t max_slices = 160;
  Fault fault;                                    ///< fault planted in every launch
  int counters_ahead = 0;                         ///< a fault: so many parts of every split tile count as done before they are
  std::set<std::string>* barriers = nullptr;      ///< barriers of all launches
  std::function<void(gpu::GenericArgs&)> tamper;  ///< a fault: what the attend kernel is told wrongly
  Launch launch(int num_blocks, int threads, int shared_bytes) const {
    return Launch{num_blocks, threads, wave, shared_bytes, seed, fault, barriers};
  }
};

/// The launches that fill one list; empty, or what the stand-in has against them.
std::string fill_list(const Device& device, const gpu::AttendArgs& a, WorkMemory& memory);

/// Runs the launch after the attend kernels, if the call asks for it; returns the stand-in's complaint, or "".
std::string fill_rows(const Device& device, const gpu::AttendArgs& a);

/// The sequence of launches of one attend call; empty, or what the stand-in has against it.
std::string attend(const Device& device, gpu::GenericArgs a, gpu::Outcome& outcome, WorkMemory& memory);

/// A call of several lists: kernel(args of the list) after all of them are filled.
Status run_lists(const Device& device, gpu::GenericArgs a, std::vector<WorkMemory>& lists, std::int64_t& rows,
                 const std::function<std::string(const gpu::AttendArgs&)>& kernel);

/// attend_generic for a made case: rows written, or why not.
Status attend(const Device& device, const Case& c, std::int64_t& rows);

}  // namespace quire::simt

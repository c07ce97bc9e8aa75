// SPDX-License-Identifier: Apache-2.0
// The portable kernels for AMD GPUs, by the names that vendor.cpp loads them under. Compiled by clang alone, without ROCm;
// checked for resources by tools/check_gpu_kernels.py; executed under emulation, never on AMD hardware.
#include "backend/gpu/runtime.h"

#include "backend/gpu/append.h"
#include "backend/gpu/append_four_bits.h"
#include "backend/gpu/attend_generic.h"
#include "backend/gpu/check_contents.h"
#include "backend/gpu/fill_rows.h"
#include "backend/gpu/merge.h"
#include "backend/gpu/reset.h"
#include "backend/gpu/schedule.h"
#include "backend/gpu/validate.h"

#define QUIRE_KERNEL(threads) \
  extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(threads, threads))) void

namespace gpu = quire::gpu;

QUIRE_KERNEL(gpu::kResetThreads) quire_reset(const gpu::ResetArgs args) { gpu::reset(args); }

QUIRE_KERNEL(gpu::kValidateThreads) quire_validate(const gpu::AttendArgs args) {
  gpu::validate(args, gpu::block_index(), gpu::num_blocks());
}

QUIRE_KERNEL(gpu::kScheduleThreads) quire_schedule(const gpu::AttendArgs args) {
  QUIRE_SHARED(memory, gpu::kScheduleSharedBytes);
  gpu::schedule(args, gpu::SharedArea(memory));
}

QUIRE_KERNEL(gpu::kGenericThreads) quire_attend_generic(const gpu::GenericArgs args) {
  QUIRE_SHARED(memory, gpu::kGenericSharedBytes);
  gpu::attend_generic(args, gpu::SharedArea(memory));
}

QUIRE_KERNEL(gpu::kFillThreads) quire_fill_rows(const gpu::AttendArgs args) { gpu::fill_rows(args); }

QUIRE_KERNEL(gpu::kAppendThreads) quire_validate_slots(const gpu::AppendArgs args) { gpu::validate_slots(args); }

QUIRE_KERNEL(gpu::kAppendThreads) quire_append(const gpu::AppendArgs args) { gpu::append(args); }

QUIRE_KERNEL(gpu::kAppendThreads) quire_append_four_bits(const gpu::AppendArgs args) { gpu::append_four_bits(args); }

QUIRE_KERNEL(gpu::kMergeThreads) quire_merge(const gpu::MergeArgs args) { gpu::merge(args); }

QUIRE_KERNEL(gpu::kMergeThreads) quire_merge_many(const gpu::MergeManyArgs args) { gpu::merge_many(args); }

/// Outcome in memory of each device: a static variable, because the library allocates nothing there.
extern "C" {
__attribute__((device, used)) gpu::Outcome quire_contents_answer;
}

QUIRE_KERNEL(gpu::kContentThreads) quire_check_contents(const gpu::GenericArgs args) { gpu::check_contents(args); }

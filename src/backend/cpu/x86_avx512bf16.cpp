// SPDX-License-Identifier: Apache-2.0
// cpu_avx512bf16: the kernel body for AVX-512 with AVX512-BF16 and AVX512-VBMI. Compiled with those flags; called only if CPUID
// shows them.
#if defined(__x86_64__)
#include "backend/cpu/attend_body.h"
#include "backend/cpu/simd_avx512bf16.h"

namespace quire::cpu {
namespace {

/// Query and cache are known to the plan; this step's keys, which may come in any type, are not. Keys that are not bf16 would be
/// rounded: then the f32 kernel does the call.
std::int64_t attend_pairs(const AttendArgs& args, const WorkItem& item, float* scratch) {
  const bool exact = args.key.data == nullptr || args.key.dtype == DType::bf16;
  return exact ? attend_item<Avx512Bf16Simd>(args, item, scratch) : kAvx512Entry.attend(args, item, scratch);
}

}  // namespace

const KernelEntry kAvx512Bf16Entry = {&plan_detail::rows::cpu_avx512bf16, attend_pairs, merge_item<Avx512Bf16Simd>};
}  // namespace quire::cpu
#endif

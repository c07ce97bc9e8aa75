// SPDX-License-Identifier: Apache-2.0
// cpu_avx512bf16 with a model in place of the bf16 dot product instruction, for processors without it. The object comes before
// the library's kernel. Keys that are not bf16 go to the f32 kernel, as in src/backend/cpu/x86_avx512bf16.cpp.
#if defined(__x86_64__)
#include "backend/cpu/attend_body.h"
#include "backend/cpu/simd_avx512bf16.h"
#include "bf16_dot/bf16_dot_model.h"

namespace quire::cpu {
namespace {

struct ModelSimd : Avx512Bf16Simd {
  static constexpr bool kWidensFp8 = false;  // widening needs AVX512-VBMI
  static Reg dot(Reg a, Reg b, Reg c) {
    alignas(64) float x[kWidth], y[kWidth], z[kWidth];
    _mm512_store_ps(x, a);
    _mm512_store_ps(y, b);
    _mm512_store_ps(z, c);
    for (int i = 0; i < kWidth; ++i) z[i] = bf16_dot_model(x[i], y[i], z[i]);
    return _mm512_load_ps(z);
  }
};

std::int64_t attend_pairs(const AttendArgs& args, const WorkItem& item, float* scratch) {
  const bool exact = args.key.data == nullptr || args.key.dtype == DType::bf16;
  return exact ? attend_item<ModelSimd>(args, item, scratch) : kAvx512Entry.attend(args, item, scratch);
}

}  // namespace

const KernelEntry kAvx512Bf16Entry = {&plan_detail::rows::cpu_avx512bf16, attend_pairs, merge_item<ModelSimd>};
}  // namespace quire::cpu
#endif

// SPDX-License-Identifier: Apache-2.0
// Rows of the CPU kernels, one for each instruction set: width of vectors, path for few rows, scratch memory.
#include "plan/kernel.h"
#include "plan/kernels/refusals.h"
#include "plan/scratch.h"
#include "text/formatted.h"

namespace quire::plan_detail {
namespace {

/// Products of bf16 pairs are exact for bf16 and fp8 values, and for no other.
std::vector<std::string> refuses_all_but_bf16_scores(const Problem& problem, const Device&) {
  std::vector<std::string> reasons;
  const auto is_bf16_or_fp8 = [](DType t) { return t == DType::bf16 || is_fp8(t); };
  if (problem.q_dtype != DType::bf16) reasons.push_back(formatted("q is {}, expected bf16", name(problem.q_dtype)));
  if (!is_bf16_or_fp8(problem.kv_dtype)) reasons.push_back(formatted("kv is {}, expected bf16 or fp8", name(problem.kv_dtype)));
  refuse_token_scales(problem, reasons);
  refuse_unlike_types(problem, reasons);
  return reasons;
}

std::vector<std::string> refuses_all_but_amx_scores(const Problem& problem, const Device& device) {
  std::vector<std::string> reasons = refuses_all_but_bf16_scores(problem, device);
  refuse_unequal_dims(problem, reasons);
  refuse_regions(problem, reasons);
  return reasons;
}

/// Pairs of bf16 on vectors pay where the device multiplies them at full rate.
std::string slower_at_half_rate(const Device& device) {
  if ((device.cpu_features & (kAvx512Bf16 | kFastBf16Dot)) != kAvx512Bf16) return {};
  return formatted("device {} runs vdpbf16ps at half rate, f32 products are faster; runs if asked for by name", device.name);
}

// Up to 8 rows, reading the cache in place wins, as value vectors are converted once per 4 rows instead of once.
constexpr CpuTraits kVectors = {.lanes = 16, .direct_rows = 8, .scratch_bytes = [](const Plan& plan) {
                                  return thread_scratch(plan).floats * static_cast<std::int64_t>(sizeof(float));
                                }};
// Three parts of five rows fill one tile of 16.
constexpr CpuTraits kAmxTiles = {
    .lanes = 32, .direct_rows = 5, .scratch_bytes = [](const Plan& plan) { return amx_scratch(plan).bytes; }};

constexpr std::string_view kTakesAll = "every valid problem", kTakesBf16 = "q=bf16 with kv=bf16 or any fp8";

constexpr KernelRow f32_row(std::string_view name, std::uint32_t features, std::string_view description,
                            std::string_view why_first = "its vectors are wider") {
  return {.info = {name, Backend::cpu, features, kTakesAll, description},
          .refuses = refuses_nothing,
          .why_first = why_first,
          .cpu = &kVectors};
}

}  // namespace

constinit const KernelRow rows::cpu_amx = {
    .info = {"cpu_amx", Backend::cpu, kAmxBf16 | kAvx512, "q=bf16 with kv=bf16 or any fp8, dv=d",
             "uses AMX; softmax weights are split into three bf16 numbers, so no precision is lost"},
    .refuses = refuses_all_but_amx_scores,
    .why_first = "it multiplies on matrix units",
    .cpu = &kAmxTiles};

constinit const KernelRow rows::cpu_avx512bf16 = {
    .info = {"cpu_avx512bf16", Backend::cpu, kAvx512 | kAvx512Bf16, kTakesBf16,
             "as cpu_avx512, but scores use the bf16 dot-product instruction; everything else is f32"},
    .refuses = refuses_all_but_bf16_scores,
    .why_first = "its dot products take pairs of bf16",
    .slower = slower_at_half_rate,
    .cpu = &kVectors};

constinit const KernelRow rows::cpu_avx512 =
    f32_row("cpu_avx512", kAvx512, "16 f32 lanes; tiles are converted from any dtype and layout first");
constinit const KernelRow rows::cpu_avx2 = f32_row("cpu_avx2", kAvx2, "as cpu_avx512, with 8 f32 lanes");
constinit const KernelRow rows::cpu_neon = f32_row("cpu_neon", kNeon, "as cpu_avx512, with 4 f32 lanes, on any AArch64");
constinit const KernelRow rows::cpu_generic =
    f32_row("cpu_generic", 0u, "portable C++ that needs no special instructions", kFirstInTable);

}  // namespace quire::plan_detail

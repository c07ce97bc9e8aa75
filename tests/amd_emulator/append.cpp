// SPDX-License-Identifier: Apache-2.0
// See move.h: append.
#include <array>

#include "amd_emulator/move.h"
#include "backend/gpu/launch_sizes.h"
#include "backend/gpu/resolve.h"
#include "kernels/move_cases.h"
#include "text/formatted.h"

namespace quire::amd {
namespace {

using test::AppendCase;

/// Cache after the two kernels, and whether they call the slots broken.
struct Appended {
  explicit Appended(std::uint64_t seed) : arrays(seed % 2 == 0 ? Against::front : Against::back) {}
  Arrays arrays;
  KVCache cache;
  bool broken = false;
  Status status;
};

/// Appends the rows of `c` to result.cache, which is placed.
void append_rows(const AppendCase& c, LaunchKernel kernel, std::uint64_t seed, Appended& result) {
  Arrays& arrays = result.arrays;
  const Tensor key = arrays.place("key", c.key, Use::input), value = arrays.place("value", c.value, Use::input);
  gpu::AppendArgs args = gpu::append_args(result.cache, key, value, arrays.place("slot_mapping", c.slot_mapping(), Use::input));
  args.outcome = new (arrays.take("outcome", sizeof(gpu::Outcome))) gpu::Outcome;
  const std::uint32_t blocks = 1 + static_cast<std::uint32_t>(seed % 3);
  result.status = launch(kernel, "quire_validate_slots", blocks, args, seed, arrays);
  if (result.status.ok() && gpu::appends_four_bits(args))
    result.status = launch(kernel, "quire_append_four_bits", blocks, args, seed, arrays);
  if (result.status.ok() && gpu::appends_others(args)) result.status = launch(kernel, "quire_append", blocks, args, seed, arrays);
  result.broken = args.outcome->broken != 0;
}

void append(const AppendCase& c, LaunchKernel kernel, std::uint64_t seed, Appended& result) {
  Arrays& arrays = result.arrays;
  KVCache& cache = result.cache = c.cache;
  cache.k = arrays.place("cache.k", c.cache.k, Use::output);
  cache.v = arrays.place("cache.v", c.cache.v, Use::output);
  const auto use_of = [](const Tensor& scale) { return scale.rank == 3 ? Use::output : Use::input; };  // append() finds these
  cache.k_scale = arrays.place("k_scale", c.cache.k_scale, use_of(c.cache.k_scale));
  cache.v_scale = arrays.place("v_scale", c.cache.v_scale, use_of(c.cache.v_scale));
  cache.k_block_scale = arrays.place("k_block_scale", c.cache.k_block_scale, Use::output);
  cache.v_block_scale = arrays.place("v_block_scale", c.cache.v_block_scale, Use::output);
  append_rows(c, kernel, seed, result);
}

/// The CPU's and the device's append() of equal cases.
void compare_with_cpu(const AppendCase& cpu, const AppendCase& device, LaunchKernel kernel, std::uint64_t seed,
                      const std::string& what, Judged& judged) {
  ++judged.cases;
  const auto finding = [&](const std::string& text) { judged.findings.push_back("append " + what + ": " + text); };
  if (const Status s = quire::append(cpu.cache, cpu.key, cpu.value, cpu.slot_mapping()); !s.ok()) return finding(s.message());
  if (test::same_bytes(cpu.cache, device.cache)) return finding("nothing was appended, so nothing is compared");
  Appended result(seed);
  append(device, kernel, seed, result);
  if (!result.status.ok()) return finding(result.status.message());
  if (result.broken) finding("slots within the cache are called broken");
  if (!test::same_bytes(cpu.cache, result.cache)) finding("the cache differs from the CPU's");
}

/// Rows of fp8_ds_mla, which begin as garbage.
struct LatentBytes {
  static constexpr std::int64_t kRow = 656;
  LatentBytes() { bytes.fill(0xA5); }
  Tensor rows() { return Tensor::contiguous(bytes.data(), DType::u8, AppendCase::kPages, AppendCase::kPageSize, kRow); }
  alignas(16) std::array<std::uint8_t, AppendCase::kPages * AppendCase::kPageSize * kRow> bytes;
};

/// The CPU's and the device's append() of latent rows.
void compare_latent_rows(DType source, bool gap, LaunchKernel kernel, std::uint64_t seed, Judged& judged) {
  ++judged.cases;
  const auto finding = [&](const std::string& text) {
    judged.findings.push_back(formatted("append fp8_ds_mla from {}{}: {}", name(source), gap ? " with gaps" : "", text));
  };
  const AppendCase c(source, source, CacheLayout::nhd, gap, 1, 512, 0, 64);
  LatentBytes cpu, device;
  if (const Status s = quire::append(latent_cache(cpu.rows()), c.key, c.value, c.slot_mapping()); !s.ok())
    return finding(s.message());
  if (cpu.bytes == device.bytes) return finding("nothing was appended, so nothing is compared");
  Appended result(seed);
  const Tensor placed = result.arrays.place("cache", device.rows(), Use::output);
  result.cache = latent_cache(placed);
  append_rows(c, kernel, seed, result);
  if (!result.status.ok()) return finding(result.status.message());
  if (result.broken) finding("slots within the cache are called broken");
  if (!test::same_bytes(cpu.rows(), placed)) finding("the cache differs from the CPU's");
}

}  // namespace

Judged judge_append(LaunchKernel kernel, std::uint64_t seed) {
  Judged judged;
  test::for_each_append([&](DType stored, DType source, CacheLayout layout, bool gap, int scales) {
    const AppendCase cpu(stored, source, layout, gap, 3, 16, scales), device(stored, source, layout, gap, 3, 16, scales);
    const std::string what = formatted("{} {} from {}{}", name(layout), name(stored), name(source), gap ? " with gaps" : "");
    compare_with_cpu(cpu, device, kernel, seed++, what, judged);
  });
  test::for_each_four_bit_append(
      [&](const std::string& what, const auto& make) { compare_with_cpu(make(), make(), kernel, seed++, what, judged); });
  for (const DType source : {DType::f32, DType::f16, DType::bf16})
    for (const bool gap : {false, true}) compare_latent_rows(source, gap, kernel, seed++, judged);
  const auto wide = [] { return AppendCase(DType::fp8_e5m2, DType::bf16, CacheLayout::packed, /*gap=*/false, 72, 64, 1); };
  compare_with_cpu(wide(), wide(), kernel, seed++, "of 72 heads", judged);

  AppendCase outside(DType::bf16, DType::bf16, CacheLayout::nhd, /*gap=*/false, 2, 8, 0);
  outside.slots.back() = AppendCase::kPages * AppendCase::kPageSize;
  Appended result(seed);
  append(outside, kernel, seed, result);
  ++judged.cases;
  if (!result.status.ok()) judged.findings.push_back("append to a slot outside: " + result.status.message());
  if (!result.broken) judged.findings.emplace_back("append to a slot outside: nobody noticed");
  if (!test::same_bytes(outside.cache, result.cache)) judged.findings.emplace_back("append to a slot outside: the cache changed");
  return judged;
}

}  // namespace quire::amd

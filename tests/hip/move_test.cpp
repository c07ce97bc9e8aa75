// SPDX-License-Identifier: Apache-2.0
// append(), merge() and the look at contents through the HIP host code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hip/on_fake.h"
#include "kernels/compare_merged.h"
#include "kernels/move_cases.h"
#include "verify/prepare.h"

namespace quire::test {
namespace {

class HipMove : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    ASSERT_FALSE(gpu_devices().empty());
    set_fake_device(GetParam());
  }
};

TEST_P(HipMove, AppendWritesTheBitsThatTheCpuWrites) {
  for_each_append([&](DType stored, DType source, CacheLayout layout, bool gap, int scales) {
    const AppendCase cpu(stored, source, layout, gap, 3, 16, scales), device(stored, source, layout, gap, 3, 16, scales);
    ASSERT_TRUE(append(cpu.cache, cpu.key, cpu.value, cpu.slot_mapping()).ok());
    Uploaded memory;
    KVCache cache = device.cache;
    for (Tensor* t : {&cache.k, &cache.v, &cache.k_scale, &cache.v_scale}) *t = memory.put(*t);
    const Status status = append(cache, memory.put(device.key), memory.put(device.value), memory.put(device.slot_mapping()));
    ASSERT_TRUE(status.ok()) << status.message();
    memory.fetch(cache.k, device.cache.k);
    memory.fetch(cache.v, device.cache.v);
    for (const auto& [there, here] : {std::pair{cache.k_scale, device.cache.k_scale}, {cache.v_scale, device.cache.v_scale}})
      if (here.rank == 3) memory.fetch(there, here);  // scales of tokens are written
    EXPECT_TRUE(same_bytes(cpu.cache, device.cache)) << name(layout) << " " << name(stored) << " from " << name(source);
  });
}

TEST_P(HipMove, AppendOfFourBitsWritesTheBitsThatTheCpuWrites) {
  for_each_four_bit_append([&](const std::string& what, const auto& make) {
    const AppendCase cpu = make(), device = make();
    ASSERT_TRUE(append(cpu.cache, cpu.key, cpu.value, cpu.slot_mapping()).ok());
    Uploaded memory;
    KVCache cache = device.cache;
    const auto tensors = [](KVCache& c) {
      return std::array{&c.k, &c.v, &c.k_scale, &c.v_scale, &c.k_block_scale, &c.v_block_scale};
    };
    for (Tensor* t : tensors(cache)) *t = memory.put(*t);
    const Status status = append(cache, memory.put(device.key), memory.put(device.value), memory.put(device.slot_mapping()));
    ASSERT_TRUE(status.ok()) << status.message();
    KVCache here = device.cache;
    for (std::size_t i = 0; i < tensors(here).size(); ++i)
      if (tensors(here)[i]->rank > 1) memory.fetch(*tensors(cache)[i], *tensors(here)[i]);  // a scale of a head is not written
    EXPECT_TRUE(same_bytes(cpu.cache, device.cache)) << what;
  });
}

TEST_P(HipMove, MergeAgreesWithFp64) {
  for_each_merge([&](DType dtype, bool gap, bool in_place) {
    const MergeCase c(dtype, gap);
    Uploaded memory;
    const Tensor out_a = memory.put(c.out_a), lse_a = memory.put(c.lse_a), out_b = memory.put(c.out_b),
                 lse_b = memory.put(c.lse_b);
    const Tensor out = in_place ? out_a : memory.put(c.out), lse = in_place ? lse_b : memory.put(c.lse);
    const Status status = merge(out_a, lse_a, out_b, lse_b, out, lse);
    ASSERT_TRUE(status.ok()) << status.message();
    memory.fetch(out, c.out);
    memory.fetch(lse, c.lse);
    EXPECT_EQ(compare_merged(c, c.out, c.lse), "") << name(dtype) << (gap ? " with gaps" : "") << (in_place ? " in place" : "");
  });
}

/// The device and the host find something in the contents of a case exactly if something was `planted`.
void expect_found(const Case& c, bool planted) {
  const auto there = cases::DeviceCase::upload(c, Memory::hip);
  ASSERT_TRUE(there.ok()) << there.status().message();
  const Result<bool> finite =
      device::runtime_of(Memory::hip)->contents_are_finite(there->batch(), there->cache(), there->options());
  ASSERT_TRUE(finite.ok()) << finite.status().message();
  EXPECT_EQ(finite.value(), !planted);
  const Findings findings = check(there->batch(), there->cache(), there->options(), Depth::contents);
  EXPECT_EQ(findings.ok(), !planted) << (findings.ok() ? "" : findings.status().message());
}

/// A NaN that attention would read is found on the device and named by the host; poison elsewhere is not.
TEST_P(HipMove, CheckFindsNaNInContents) {
  for (const bool planted : {true, false}) {
    Case c =
        make_case(parse_problem_line("q=f16 kv=fp8_e4m3fn heads=4:2 d=16 page=8 window=40 reqs=9@30/33,1@90").value()).value();
    ASSERT_TRUE(!planted || verify_detail::apply(verify_detail::Special::nan_in_a_key, c));
    expect_found(c, planted);
  }
}

/// A block scale that is NaN, in a row that attention reads.
TEST_P(HipMove, CheckFindsBadBlockScales) {
  for (const bool planted : {true, false}) {
    Case c =
        make_case(parse_problem_line("q=f16 kv=nvfp4/mxfp4 heads=4:2 d=32 page=8 window=40 reqs=9@30/33,1@90").value()).value();
    if (planted) {
      Tensor& t = c.cache.v_block_scale;
      std::fill_n(static_cast<std::uint8_t*>(t.data), t.num_elements(), std::uint8_t{0xFF});
    }
    expect_found(c, planted);
  }
}

INSTANTIATE_TEST_SUITE_P(, HipMove, testing::Values(0, 1, 2));

}  // namespace
}  // namespace quire::test

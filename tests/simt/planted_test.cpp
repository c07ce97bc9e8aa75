// SPDX-License-Identifier: Apache-2.0
// Faults that the stand-in must not let pass, planted in the machine and not in the kernels: each barrier removed in turn, fences
// without effect, shared arrays one element short, partial results merged too early.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <span>

#include "kernels/judge.h"
#include "simt/device.h"

namespace quire::test {
namespace {

// Several blocks, split tiles, several tiles of keys, two passes over the dims: every barrier is reached.
constexpr const char* kLines[] = {"q=f32 kv=f32 layout=nhd heads=4:2 d=16 page=8 lse=1 reqs=9@300,1@150,20@3",
                                  "q=f32 kv=f32 layout=nhd heads=2:1 d=272 page=8 lse=1 reqs=9@130"};

/// Findings about a device over a few orders of its threads.
std::vector<std::string> findings_of(simt::Device device, std::span<const char* const> lines = kLines) {
  std::vector<std::string> findings;
  for (const char* text : lines) {
    const verify_detail::Prepared p = prepared(made(parse_problem_line(text).value()));
    for (device.seed = 0; device.seed < 6 && findings.empty(); ++device.seed) {
      const Attend attend = [&](const Case& guarded, int, std::int64_t& rows) { return simt::attend(device, guarded, rows); };
      findings = judge_one_call(p, attend);
    }
  }
  return findings;
}

/// Whether the device's faults are noticed, in a process of their own: some lead to wild addresses.
bool found(const simt::Device& device, std::span<const char* const> lines = kLines) {
  const pid_t child = fork();
  if (child == 0) {
    ::alarm(30);
    if (std::freopen("/dev/null", "w", stderr) == nullptr) ::_exit(2);
    ::_exit(findings_of(device, lines).empty() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

const simt::Device kDevice{.blocks = 4, .split_keys = 64};

TEST(SimtPlanted, NothingIsFoundWithoutAFault) { EXPECT_FALSE(found(kDevice)) << testing::PrintToString(findings_of(kDevice)); }

TEST(SimtPlanted, EveryBarrierIsNeeded) {
  std::set<std::string> barriers;
  simt::Device device = kDevice;
  device.barriers = &barriers;
  findings_of(device);
  EXPECT_GE(barriers.size(), 12u);
  device.barriers = nullptr;
  for (const std::string& barrier : barriers) {
    device.fault.removed_barrier = barrier;
    EXPECT_TRUE(found(device)) << "nobody misses the barrier at " << barrier;
  }
}

// 20 bytes reach past the padding of the widest rows.
TEST(SimtPlanted, EveryPieceOfSharedMemoryHasAGuard) {
  for (int piece = 0; piece < 9; ++piece) {
    simt::Device device = kDevice;
    device.fault.short_piece = piece;
    device.fault.short_bytes = piece < 3 ? 20 : 1;
    EXPECT_TRUE(found(device)) << "piece " << piece;
  }
}

/// Changes each mask field of the attend kernel's arguments, with a correct work list.
TEST(SimtPlanted, EveryFieldOfMasksIsNeeded) {
  constexpr const char* kMasks[] = {
      "q=f32 heads=4:2 d=16 page=8 alibi=1 window=20 lse=1 reqs=9:70,20:40,3:0 kbegin=1x16,1x5,1x0 qbegin=1x60,1x30,1x8 "
      "causal=1x1,2x0 wright=4"};
  EXPECT_FALSE(found(kDevice, kMasks)) << testing::PrintToString(findings_of(kDevice, kMasks));
  const std::pair<const char*, std::function<void(gpu::AttendArgs&)>> faults[] = {
      {"masks_ignored", [](gpu::AttendArgs& a) { a.has_masks = false; }},
      {"causal_flag_ignored", [](gpu::AttendArgs& a) { a.causal.data = nullptr; }},
      {"causal_flag_of_first_request", [](gpu::AttendArgs& a) { a.causal.stride = 0; }},
      {"q_begin_ignored", [](gpu::AttendArgs& a) { a.q_begin.data = nullptr; }},
      {"q_begin_of_first_request", [](gpu::AttendArgs& a) { a.q_begin.stride = 0; }},
      {"key_begin_ignored", [](gpu::AttendArgs& a) { a.key_begin.data = nullptr; }},
      {"window_right_one_long", [](gpu::AttendArgs& a) { ++a.window_right; }},
      {"window_right_ignored", [](gpu::AttendArgs& a) { a.window_right = -1; }}};
  for (const auto& [name, tamper] : faults) {
    simt::Device device = kDevice;
    device.tamper = tamper;
    EXPECT_TRUE(found(device, kMasks)) << name;
  }
}

/// Changes each field of a mask's shape in the attend kernel's arguments, with a correct work list.
TEST(SimtPlanted, EveryFieldOfShapesIsNeeded) {
  constexpr const char* kShapes[] = {
      "q=f32 heads=4:2 d=16 page=8 window=20 chunk=90 lse=1 reqs=9@170,20@5,3@40 kbegin=1x16,1x0,1x5 prefix=1x30,1x0,1x11 "
      "spans=0:187-192,1:3-20,1:20-25,2:46-48",
      "q=f32 heads=4:2 d=16 page=8 window=4 prefix=3 lse=1 reqs=20@50,9@30 spans=0:20-65 beyond=1",
      "q=f32 heads=4:2 d=16 page=8 lse=1 reqs=9@70,20@5,3@40 tree=1x9,1x12,1x3",
      "q=f32 heads=4:2 d=16 page=8 lse=1 reqs=9@70,20@5,3@40 prefix=1x4,1x70,1x9"};
  EXPECT_FALSE(found(kDevice, kShapes)) << testing::PrintToString(findings_of(kDevice, kShapes));
  const std::pair<const char*, std::function<void(gpu::AttendArgs&)>> faults[] = {
      {"chunk_ignored", [](gpu::AttendArgs& a) { a.chunk = 0; }},
      {"prefix_ignored", [](gpu::AttendArgs& a) { a.prefix_lens.data = nullptr; }},
      {"prefix_of_first_request", [](gpu::AttendArgs& a) { a.prefix_lens.stride = 0; }},
      {"prefix_len_ignored", [](gpu::AttendArgs& a) { a.prefix_len = 0; }},
      {"span_ignored", [](gpu::AttendArgs& a) { a.spans = {}; }},
      {"spans_of_first_request", [](gpu::AttendArgs& a) { a.spans_of_request = 0; }},
      {"span_first_only", [](gpu::AttendArgs& a) { a.spans.count = a.spans.count > 0 ? 1 : 0; }},
      {"span_beyond_window_inverted", [](gpu::AttendArgs& a) { a.spans_beyond_window = false; }},
      {"tree_ignored", [](gpu::AttendArgs& a) { a.tree_lens.data = nullptr; }},
      {"tree_of_first_row", [](gpu::AttendArgs& a) { a.tree_bytes_of_row = 0; }},
      {"tree_first_byte_repeated", [](gpu::AttendArgs& a) { a.tree_bits.stride = 0; }}};
  for (const auto& [name, tamper] : faults) {
    simt::Device device = kDevice;
    device.tamper = tamper;
    EXPECT_TRUE(found(device, kShapes)) << name;
  }
}

/// Changes each field of a cache with block scales in the attend kernel's arguments.
TEST(SimtPlanted, EveryFieldOfBlocksIsNeeded) {
  constexpr const char* kBlocks[] = {
      "q=f32 kv=nvfp4/mxfp4 heads=4:2 d=64 page=8 kscale=head vscale=head lse=1 reqs=9@70,20@5,3@40"};
  EXPECT_FALSE(found(kDevice, kBlocks)) << testing::PrintToString(findings_of(kDevice, kBlocks));
  const std::pair<const char*, std::function<void(gpu::GenericArgs&)>> faults[] = {
      {"block_scales_dropped", [](gpu::GenericArgs& a) { a.k_blocks.scales.data = nullptr; }},
      {"block_scales_of_keys", [](gpu::GenericArgs& a) { a.v_blocks.scales = a.k_blocks.scales; }},
      {"block_scale_of_first_block", [](gpu::GenericArgs& a) { a.k_blocks.scales.block = 0; }},
      {"block_scale_type_confused", [](gpu::GenericArgs& a) { a.k_blocks.scales.cached = DType::mxfp4; }},
      {"block_of_other_size", [](gpu::GenericArgs& a) { a.v_blocks.scales.block *= 2; }},
      {"block_scales_of_first_head", [](gpu::GenericArgs& a) { a.k_blocks.scales.head = 0; }},
      {"block_scales_of_first_token", [](gpu::GenericArgs& a) { a.k_blocks.scales.token = 0; }},
      {"block_scales_of_first_page", [](gpu::GenericArgs& a) { a.v_blocks.scales.page = 0; }},
      {"codes_of_first_page", [](gpu::GenericArgs& a) { a.k_blocks.strides.page = 0; }},
      {"codes_of_first_token", [](gpu::GenericArgs& a) { a.v_blocks.strides.token = 0; }},
      {"codes_of_first_head", [](gpu::GenericArgs& a) { a.v_blocks.strides.head = 0; }}};
  for (const auto& [name, tamper] : faults) {
    simt::Device device = kDevice;
    device.tamper = tamper;
    EXPECT_TRUE(found(device, kBlocks)) << name;
  }
}

TEST(SimtPlanted, PartialsNeedTheirFence) {
  simt::Device device = kDevice;
  device.fault.no_fences = true;
  EXPECT_TRUE(found(device));
}

TEST(SimtPlanted, PartsMergedTooEarly) {
  simt::Device device = kDevice;
  device.counters_ahead = 1;
  EXPECT_TRUE(found(device));
}

}  // namespace
}  // namespace quire::test

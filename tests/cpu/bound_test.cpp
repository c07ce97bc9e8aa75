// SPDX-License-Identifier: Apache-2.0
// BoundAttend: a call that was bound once has the bits of attend() for every type of cache and each layer, and no tensor of the
// table of fields escapes its look at what changed.
#include <gmock/gmock.h>

#include <cstring>
#include <string>
#include <vector>

#include "batch/fields.h"
#include "quire/attention.hpp"
#include "quire/tools/capture.hpp"

namespace quire {
namespace {

using testing::HasSubstr;

constexpr const char* kForms[] = {"q=f32 kv=f32 heads=4:2 d=64",
                                  "q=f16 kv=f16 heads=4:2 d=64",
                                  "q=bf16 kv=bf16 heads=4:2 d=64",
                                  "q=bf16 kv=fp8_e4m3fn kscale=head vscale=tensor heads=4:2 d=64",
                                  "q=f32 kv=fp8_e4m3fnuz heads=4:2 d=64",
                                  "q=f16 kv=fp8_e5m2 heads=4:2 d=64 layout=hnd",
                                  "q=f32 kv=fp8_e5m2fnuz heads=4:2 d=64",
                                  "q=f32 kv=i8 kscale=head vscale=head heads=4:2 d=64",
                                  "q=f32 kv=i8 kscale=token vscale=token heads=4:2 d=64",
                                  "q=bf16 kv=fp8_e4m3fn kscale=token vscale=token heads=4:2 d=64",
                                  "q=f32 kv=nvfp4 heads=4:2 d=64",
                                  "q=bf16 kv=mxfp4 heads=4:2 d=64 layout=hnd",
                                  "q=f32 kv=nvfp4 kscale=head vscale=tensor heads=4:2 d=64",
                                  "q=f32 kv=f16/nvfp4 heads=4:2 d=64",
                                  "q=f32 kv=mxfp4/i8 vscale=token heads=4:2 d=64",
                                  "q=bf16 kv=fp8_e4m3fn/bf16 heads=4:2 d=64",
                                  "q=bf16 kv=fp8_ds_mla heads=4:1 d=576 dv=512 latent=1"};

Case layer(const std::string& form, int seed) {
  return make_case(parse_problem_line(form + " page=16 reqs=3x1@200,50@7 lse=1 seed=" + std::to_string(seed)).value()).value();
}

std::vector<std::byte> bytes_of(const Tensor& t) {
  const auto* begin = static_cast<const std::byte*>(t.data);
  return {begin, begin + t.num_elements() * itemsize(t.dtype)};
}

/// A call that was bound to a case, and its memory.
struct Bound {
  Case first;
  Plan plan;
  std::vector<std::byte> memory;
  std::span<std::byte> workspace;
  BoundAttend call;

  explicit Bound(const std::string& form)
      : first(layer(form, 3)),
        plan(quire::plan(first.batch, first.cache, first.options).value()),
        memory(workspace_bytes(plan) + 64),
        workspace(memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64, workspace_bytes(plan)),
        call(BoundAttend::make(plan, first.batch, first.cache, first.options).value()) {}
  Status run(const Case& c) const { return call.run(c.batch, c.cache, c.options, workspace); }
};

TEST(BoundAttend, HasTheBitsOfAttendForEveryTypeOfCacheAndEachLayer) {
  for (const std::string form : kForms) {
    const Bound bound(form);
    for (const int seed : {3, 4}) {
      const Case given = layer(form, seed), same = layer(form, seed);
      ASSERT_TRUE(bound.call.prepare(given.batch, given.cache, given.options, bound.workspace).ok()) << form;
      const Status status = bound.run(given);
      ASSERT_TRUE(status.ok()) << form << ": " << status.message();
      ASSERT_TRUE(attend(bound.plan, same.batch, same.cache, same.options, bound.workspace).ok()) << form;
      EXPECT_EQ(bytes_of(given.batch.output), bytes_of(same.batch.output)) << form;
      EXPECT_EQ(bytes_of(given.batch.lse), bytes_of(same.batch.lse)) << form;
    }
  }
}

/// Changes one tensor at a time, where change() does; each such call is refused and names the tensor.
template <typename Change>
void expect_each_is_seen(const char* form, const char* what, Change&& change) {
  const Bound bound(form);
  const std::vector<std::byte> before = bytes_of(bound.first.batch.output);
  for (std::size_t i = 0; i < batch::kNumTensors; ++i) {
    Case given = bound.first;
    std::size_t at = 0;
    bool changed = false;
    batch::for_each_tensor([&](const auto&, Tensor& t) { changed = at++ == i ? change(t) : changed; }, given);
    if (!changed) continue;
    const Status status = bound.run(given);
    EXPECT_EQ(status.code(), Code::invalid_argument) << batch::kTensors[i].name << ": " << what << ": " << status.message();
    EXPECT_THAT(status.message(), HasSubstr("bound call: " + std::string(batch::kTensors[i].name) + " is")) << what;
  }
  EXPECT_EQ(bytes_of(bound.first.batch.output), before) << "an output byte changed";
}

TEST(BoundAttend, SeesATensorThatIsMissingOrHasAnotherShapeOrStride) {
  constexpr const char* kForm = "q=f32 kv=nvfp4 heads=4:2 d=64 kscale=head vscale=head sinks=1 alibi=1";
  expect_each_is_seen(kForm, "missing", [](Tensor& t) { return t.present() && (t = {}, true); });
  expect_each_is_seen(kForm, "of another shape", [](Tensor& t) { return t.present() && t.rank > 0 && (++t.shape[0], true); });
  expect_each_is_seen(kForm, "of another stride", [](Tensor& t) { return t.present() && t.rank > 0 && (++t.stride[0], true); });
}

/// Frameworks give a tensor without elements any strides: NumPy's are those of its shape, others are 0.
TEST(BoundAttend, TakesAnyStridesOfATensorWithoutElements) {
  const Case c = make_case(parse_problem_line("q=f32 heads=4:2 d=64 page=16 reqs=2x0@9 lse=1").value()).value();
  const Plan plan = quire::plan(c.batch, c.cache, c.options).value();
  std::vector<std::byte> memory(workspace_bytes(plan) + 64);
  const std::span workspace(memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64,
                            workspace_bytes(plan));
  const BoundAttend call = BoundAttend::make(plan, c.batch, c.cache, c.options).value();
  Case given = c;
  for (Tensor* t : {&given.batch.query, &given.batch.output, &given.batch.lse}) t->stride = {};
  const Status status = call.run(given.batch, given.cache, given.options, workspace);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(BoundAttend, SeesBlockScalesThatShareMemoryWithTheOutput) {
  const Bound bound("q=f32 kv=nvfp4 heads=4:2 d=64");
  for (Tensor KVCache::* scales : {&KVCache::k_block_scale, &KVCache::v_block_scale}) {
    Case given = layer("q=f32 kv=nvfp4 heads=4:2 d=64", 3);
    const std::vector<std::byte> before = bytes_of(given.batch.output);
    (given.cache.*scales).data = given.batch.output.data;
    const Status whole = attend(bound.plan, given.batch, given.cache, given.options, bound.workspace), status = bound.run(given);
    EXPECT_EQ(status.code(), Code::contract_violation) << status.message();
    EXPECT_EQ(status.message(), whole.message());
    EXPECT_EQ(bytes_of(given.batch.output), before);
  }
}

}  // namespace
}  // namespace quire

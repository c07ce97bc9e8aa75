// SPDX-License-Identifier: Apache-2.0
// workspace_fits(): what attend() asks of a workspace on any device, by addresses alone.
#include "plan/fits.h"

#include <gmock/gmock.h>

#include <vector>

#include "quire/problem.hpp"
#include "quire/tools/capture.hpp"

namespace quire {
namespace {

/// Device memory that does not exist: only its addresses are looked at.
std::byte* device_address(std::uintptr_t at) {
  return reinterpret_cast<std::byte*>(at);  // NOLINT(performance-no-int-to-ptr): nobody follows it
}

TEST(WorkspaceFits, OnAGpuAddressesAreComparedToo) {
  for (const char* device : {"gfx942", "sm90"}) {
    const Case c = make_case(parse_problem_line("q=bf16 heads=4:2 d=64 page=16 reqs=3@20,1@70").value()).value();
    const Result<Plan> planned = plan(problem_of(c.batch, c.cache, c.options), find_device(device).value());
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    const Memory memory = planned->device.backend == Backend::cuda ? Memory::cuda : Memory::hip;
    const std::span<std::byte> workspace(device_address(0x7f0000000000), workspace_bytes(planned.value()));
    Batch batch = c.batch;
    KVCache cache = c.cache;
    std::uintptr_t next = 0x7e0000000000;
    for (Tensor* t :
         {&batch.query, &batch.output, &batch.query_start_loc, &batch.seq_lens, &batch.block_table, &cache.k, &cache.v}) {
      t->memory = memory;
      t->data = device_address(next += 1 << 24);
    }
    const auto fits = [&] { return plan_detail::workspace_fits(planned.value(), batch, cache, c.options, workspace); };
    EXPECT_TRUE(fits().ok()) << fits().message();
    for (Tensor* t : {&batch.output, &batch.query, &cache.k, &batch.block_table}) {
      void* const before = t->data;
      t->data = workspace.data() + workspace.size() - itemsize(t->dtype);
      EXPECT_EQ(fits().rule(), "Q-M37") << device << " " << fits().message();
      t->data = workspace.data() + workspace.size();
      EXPECT_TRUE(fits().ok()) << fits().message();
      t->data = before;
    }
  }
}

TEST(WorkspaceFits, NoMemoryIsRefusedBeforeAnyKernelRuns) {
  const Case c = make_case(parse_problem_line("q=bf16 heads=8:2 d=64 page=16 reqs=300@2000,1@70").value()).value();
  const Result<Plan> planned = plan(problem_of(c.batch, c.cache, c.options), host_device());
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  ASSERT_GT(workspace_bytes(planned.value()), 0u);
  const Status status = plan_detail::workspace_fits(planned.value(), c.batch, c.cache, c.options,
                                                    {static_cast<std::byte*>(nullptr), workspace_bytes(planned.value())});
  EXPECT_EQ(status.code(), Code::invalid_argument);
  EXPECT_THAT(status.message(), testing::HasSubstr("workspace is null"));
}

}  // namespace
}  // namespace quire

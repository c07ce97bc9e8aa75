// SPDX-License-Identifier: Apache-2.0
// The HIP backend on the fake runtime: which device is current there, and a call on it as a kernel under test of tests/kernels.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "cases/device_case.h"
#include "device/runtime.h"
#include "device/staging.h"
#include "kernels/judge.h"

namespace quire::test {

/// Devices 0 to 3 of the tests; the last has no kernels.
inline constexpr const char* kFakeDevices = "gfx942:sramecc+:xnack- gfx1100 gfx1201 gfx906";

/// A function of the runtime, past the library.
template <class F>
F* fake_function(const char* symbol) {
  void* library = dlopen(QUIRE_FAKE_HIP_LIBRARY, RTLD_NOW);
  return reinterpret_cast<F*>(dlsym(library, symbol));
}
inline void set_fake_device(int ordinal) { fake_function<int(int)>("hipSetDevice")(ordinal); }
inline int fake_device() {
  int ordinal = -1;
  fake_function<int(int*)>("hipGetDevice")(&ordinal);
  return ordinal;
}

/// Tensors in the fake's memory, with what lies between their elements, and back.
class Uploaded {
 public:
  Tensor put(const Tensor& t) {
    if (!t.present()) return t;
    const auto [begin, end] = device::span_of(t);
    Result<cases::DeviceBytes> made = cases::DeviceBytes::make(runtime_, static_cast<std::size_t>(end - begin));
    EXPECT_TRUE(made.ok()) << made.status().message();
    const auto* from = static_cast<const std::byte*>(t.data) + begin;
    EXPECT_TRUE(runtime_.copy_to_device(made->data(), from, static_cast<std::size_t>(end - begin)).ok());
    Tensor there = t;
    there.data = made->data() - begin;
    there.memory = Memory::hip;
    bytes_.push_back(std::move(made).value());
    return there;
  }
  void fetch(const Tensor& there, const Tensor& to) const {
    const auto [begin, end] = device::span_of(there);
    const Status s =
        runtime_.copy_to_host(static_cast<std::byte*>(to.data) + begin, static_cast<const std::byte*>(there.data) + begin,
                              static_cast<std::size_t>(end - begin));
    EXPECT_TRUE(s.ok()) << s.message();
  }

 private:
  const device::Runtime& runtime_ = *device::runtime_of(Memory::hip);
  std::vector<cases::DeviceBytes> bytes_;
};

/// plan(), attend(), attend_status() there, with NaN in the workspace.
inline Status attend_on_fake(const Case& c, const PlanSettings& settings, std::int64_t& rows) {
  const Result<cases::DeviceCase> there = cases::DeviceCase::upload(c, Memory::hip);
  if (!there.ok()) return there.status();
  const Result<Plan> planned = plan(there->batch(), there->cache(), there->options(), settings);
  if (!planned.ok()) return planned.status();
  const Result<cases::DeviceBytes> memory = there->poisoned(workspace_bytes(planned.value()));
  if (!memory.ok()) return memory.status();
  const std::span<std::byte> workspace(memory->data(), workspace_bytes(planned.value()));
  if (Status s = attend(planned.value(), there->batch(), there->cache(), there->options(), workspace); !s.ok()) return s;
  std::vector<RowCount> counts;
  const Status status =
      attend_status(planned.value(), there->batch(), there->cache(), there->options(), workspace, {.rows = &counts});
  for (const RowCount& count : counts) rows = count.rows;
  const Status fetched = there->download(c);
  return status.ok() ? fetched : status;
}

inline Attend on_fake(const PlanSettings& settings) {
  return [settings](const Case& c, int, std::int64_t& rows) { return attend_on_fake(c, settings, rows); };
}

}  // namespace quire::test

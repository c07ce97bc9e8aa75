// SPDX-License-Identifier: Apache-2.0
// See state.h. QUIRE_FAKE_HIP names the devices ("gfx942 gfx1100", empty: none), QUIRE_FAKE_HIP_FAILS a function that fails,
// QUIRE_FAKE_HIP_DUMP a folder where loaded code objects are to be seen.
#include "hip/fake/state.h"

#include <cstdlib>
#include <sstream>

namespace quire::fake {

State::State() {
  const char* named = std::getenv("QUIRE_FAKE_HIP");
  std::istringstream words_of(named != nullptr ? named : "gfx942");
  for (std::string arch; words_of >> arch;) devices.push_back(arch);
  const char* failing = std::getenv("QUIRE_FAKE_HIP_FAILS");
  if (failing != nullptr) fails = failing;
  const char* folder = std::getenv("QUIRE_FAKE_HIP_DUMP");
  if (folder != nullptr) dump_to = folder;
}

const Allocation* State::find(const void* address) const {
  for (const Allocation& a : memory)
    if (a.memory.holds(address)) return &a;
  return nullptr;
}

void* State::allocate(std::size_t bytes) {
  // Both sides are tried, so that reading before an array and behind it both fault.
  const auto side = memory.size() % 2 == 0 ? amd::Against::back : amd::Against::front;
  memory.push_back({current, amd::GuardedArray("an allocation", (bytes + 255) / 256 * 256, side)});
  memory.back().memory.allow(PROT_NONE);
  return memory.back().memory.data();
}

std::shared_ptr<void> State::open() const {
  for (const Allocation& a : memory) a.memory.allow(PROT_READ | PROT_WRITE);
  return {nullptr, [this](void*) {
            for (const Allocation& a : memory) a.memory.allow(PROT_NONE);
          }};
}

std::string State::drain(void* stream) {
  auto& work = streams[stream];
  const std::shared_ptr<void> opened = open();
  while (!work.empty()) {
    const std::function<std::string()> next = std::move(work.front());
    work.pop_front();
    if (std::string complaint = next(); !complaint.empty()) return complaint;
  }
  return {};
}

std::string State::drain_all() {
  for (auto& [stream, work] : streams)
    if (std::string complaint = drain(stream); !complaint.empty()) return complaint;
  return {};
}

State& state() {
  static auto* const one = new State;
  return *one;
}

}  // namespace quire::fake

// SPDX-License-Identifier: Apache-2.0
// Limits on what a calm machine shows (2 cores of a shared Xeon, 2026-11: calm runs have 0 to 5 % of calls disturbed, 1 to 8 %
// drift and hops of 54 ns; busy ones 60 %, 57 % and 6178 ns). Too strict a limit calls a usable run busy; too loose a one lets
// SLOW be said of noise.
#include "bench/driver.h"

#include <algorithm>

#include "text/formatted.h"

namespace quire::bench_detail {
namespace {

constexpr double kMostDisturbed = 0.25;  // share of a result's calls that may be disturbed
constexpr double kMostDrift = 0.25;      // relative change of a ceiling, from start to end
constexpr double kMostHop = 2000;        // ns for a cache line from core to core; between two sockets: about 300
constexpr double kMostOfFloor = 1.05;    // above, the ceilings were measured while other processes used the machine

}  // namespace

std::string busy_text(const Disturbance& d) {
  std::vector<std::string> signs;
  if (static_cast<double>(d.disturbed) > kMostDisturbed * static_cast<double>(d.calls))
    signs.push_back(formatted("{} of {} calls were interrupted", d.disturbed, d.calls));
  if (d.drift > kMostDrift) signs.push_back(formatted("its ceilings moved by {:.0f} %", 100 * d.drift));
  if (d.hop_ns > kMostHop) signs.push_back(formatted("a cache line took {:.0f} ns from core to core", d.hop_ns));
  if (d.of_floor > kMostOfFloor) signs.push_back(formatted("a result is at {:.0f} % of the ceilings", 100 * d.of_floor));
  if (signs.empty()) return {};
  return formatted("this machine was busy: {}; do not compare these times", fmt::join(signs, ", "));
}

std::string busy_text(const std::vector<Ceilings>& ceilings, const std::vector<BenchCaseResult>& cases) {
  Disturbance most;
  for (const Ceilings& c : ceilings) {
    most.drift = std::max(most.drift, c.drift);
    most.hop_ns = std::max(most.hop_ns, c.ping_pong_ns);
  }
  for (const BenchCaseResult& c : cases)
    for (const BenchResult& r : c.results) {
      most.of_floor = std::max(most.of_floor, r.of_floor);
      if (r.disturbed * most.calls < most.disturbed * r.calls || r.calls == 0) continue;
      most.calls = r.calls;
      most.disturbed = r.disturbed;
    }
  return busy_text(most);
}

}  // namespace quire::bench_detail

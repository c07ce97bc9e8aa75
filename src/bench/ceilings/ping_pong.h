// SPDX-License-Identifier: Apache-2.0
// How long a core waits for what another one has written.
#pragma once

namespace quire::benchmark {

/// Nanoseconds for one way, the best of several series; 0 if this process may use one core only.
double ping_pong_ns(int cores);

}  // namespace quire::benchmark

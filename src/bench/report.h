// SPDX-License-Identifier: Apache-2.0
// A report for people and for programs.
#pragma once

#include <string>

#include "quire/bench.hpp"

namespace quire::benchmark {

std::string text_of(const BenchReport& report);
/// The schema "quire.bench/1" of bench.md.
std::string json_of(const BenchReport& report, const BenchOptions& options);

/// A problem line for one line of a terminal: a batch of a hundred requests would bury the numbers. JSON has it whole.
std::string shortened(const std::string& line);
/// "1.23 ms"
std::string time_text(double seconds);
/// "cpu_avx512, 2 threads, batch-invariant"
std::string variant_text(const BenchVariant& variant, const std::string& kernel);

}  // namespace quire::benchmark

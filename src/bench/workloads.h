// SPDX-License-Identifier: Apache-2.0
// The files of bench/cases, inside the library: it reads no file at run time. Made by cmake/embed_cases.cmake.
#pragma once

#include <span>
#include <string_view>

namespace quire::bench_detail {

struct WorkloadFile {
  std::string_view name;  ///< "W1"
  std::string_view text;  ///< a case file
};
std::span<const WorkloadFile> workload_files() noexcept;

}  // namespace quire::bench_detail

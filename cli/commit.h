// SPDX-License-Identifier: Apache-2.0
// What was built.
#pragma once

namespace quire::cli {

/// The commit of the source tree, "-dirty" with uncommitted changes; "unknown" outside of a repository. Written at build time by
/// cmake/commit.cmake.
const char* commit();

}  // namespace quire::cli

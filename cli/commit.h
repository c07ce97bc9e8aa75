// SPDX-License-Identifier: Apache-2.0
// Commit of this build, for `quire info` and bench reports.
#pragma once

namespace quire::cli {

/// The commit of the source tree, "-dirty" with uncommitted changes; "unknown" outside of a repository. Written at build time by
/// cmake/commit.cmake.
const char* commit();

}  // namespace quire::cli

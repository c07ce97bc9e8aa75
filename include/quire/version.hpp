// SPDX-License-Identifier: Apache-2.0
// The version of these headers, for the preprocessor; CMake and the Python package read it from here.
#pragma once

#if !defined(__cplusplus) || __cplusplus < 202002L
#error "Quire needs C++20: compile with -std=c++20 or newer"
#endif

#define QUIRE_VERSION_MAJOR 0
#define QUIRE_VERSION_MINOR 1
#define QUIRE_VERSION_PATCH 0
/// 10000 * major + 100 * minor + patch, to compare with: `#if QUIRE_VERSION_NUMBER >= 200`.
#define QUIRE_VERSION_NUMBER (QUIRE_VERSION_MAJOR * 10000 + QUIRE_VERSION_MINOR * 100 + QUIRE_VERSION_PATCH)

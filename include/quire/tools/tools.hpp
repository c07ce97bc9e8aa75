// SPDX-License-Identifier: Apache-2.0
// All public headers of libquire_tools.
#pragma once

// clang-format off: the order is the order of the pipeline
#include "quire/tools/capture.hpp"
#include "quire/tools/compare_caches.hpp"
#include "quire/tools/faults.hpp"
#include "quire/tools/reference.hpp"
#include "quire/tools/compare.hpp"
#include "quire/tools/diagnose.hpp"
#include "quire/tools/verify.hpp"
#include "quire/tools/report.hpp"
#include "quire/tools/bench.hpp"
// clang-format on

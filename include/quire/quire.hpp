// SPDX-License-Identifier: Apache-2.0
// All public headers of libquire, in the order in which data flows.
#pragma once

// clang-format off: the order is the order of the pipeline
#include "quire/version.hpp"
#include "quire/status.hpp"
#include "quire/tensor.hpp"
#include "quire/cache.hpp"
#include "quire/batch.hpp"
#include "quire/problem.hpp"
#include "quire/contract.hpp"
#include "quire/page_pool.hpp"
#include "quire/devices.hpp"
#include "quire/plan.hpp"
#include "quire/roofline.hpp"
#include "quire/executor.hpp"
#include "quire/interrupt.hpp"
#include "quire/workspace.hpp"
#include "quire/attention.hpp"
#include "quire/cascade.hpp"
#include "quire/sparse.hpp"
#include "quire/shards.hpp"
// clang-format on

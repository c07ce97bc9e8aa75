// Stage: attend. The kernel that takes every valid problem.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"

namespace quire::gpu {

constexpr int kGenericThreads = 256;
constexpr int kGenericTileRows = 16;  ///< WorkList::tile_rows must be this
constexpr int kGenericTileKeys = 64;  ///< WorkList::tile_keys must be this
constexpr int kGenericSharedBytes = 48 * 1024;

/// Persistent: any number of blocks of kGenericThreads threads draw items from the work list until it is empty.
QUIRE_DEVICE void attend_generic(const AttendArgs& a, SharedArea shared);

}  // namespace quire::gpu

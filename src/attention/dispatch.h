// SPDX-License-Identifier: Apache-2.0
// Stage: attention. Dispatch of a call to the backend of the memory that holds its tensors.
#pragma once

#include "backend/gpu/entry.h"
#include "quire/tensor.hpp"
#if QUIRE_HAS_CUDA
#include "backend/cuda/entry.h"
#endif
#if QUIRE_HAS_HIP
#include "backend/hip/entry.h"
#endif

namespace quire::attention {

/// Vendor of the GPU that holds tensors in `memory`; null: the CPU backend takes the call, and its check refuses, by rule, memory
/// that this build cannot compute on.
inline const gpu::Vendor* vendor_of(Memory memory) noexcept {
#if QUIRE_HAS_CUDA
  if (memory == Memory::cuda) return &cuda::kVendor;
#endif
#if QUIRE_HAS_HIP
  if (memory == Memory::hip) return &hip::kVendor;
#endif
  (void)memory;
  return nullptr;
}

}  // namespace quire::attention

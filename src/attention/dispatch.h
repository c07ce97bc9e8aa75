// Where a call of the attention stage goes.
#pragma once

#include "device/runtime.h"
#include "quire/tensor.hpp"

namespace quire::attention {

/// The backend for tensors in `memory`. What this build cannot compute on goes to the CPU backend, whose check refuses it by
/// rule.
inline Backend backend_for(Memory memory) noexcept {
  if (memory == Memory::cuda && device::computes_in(memory)) return Backend::cuda;
  return Backend::cpu;
}

}  // namespace quire::attention

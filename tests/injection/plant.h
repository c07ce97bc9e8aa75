// SPDX-License-Identifier: Apache-2.0
// Switches one fault of our own kernels on.
#pragma once

#include "injection/injected.h"

namespace quire::test {

/// One fault in force as long as this lives.
class Plant {
 public:
  explicit Plant(cpu::Planted fault) { cpu::planted = fault; }
  Plant(const Plant&) = delete;
  Plant& operator=(const Plant&) = delete;
  ~Plant() { cpu::planted = cpu::Planted::none; }
};

}  // namespace quire::test

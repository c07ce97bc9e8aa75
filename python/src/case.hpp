// SPDX-License-Identifier: Apache-2.0
// A capture as Python holds it.
#pragma once

#include "quire/tools/capture.hpp"

namespace quire_python {

struct PyCase {
  quire::Case data;
};

}  // namespace quire_python

// SPDX-License-Identifier: Apache-2.0
// The fragments of the device that is compiled for.
#pragma once

#if defined(__GFX9__)
#include "backend/hip/matrix/mfma.h"
#elif defined(__GFX11__)
#include "backend/hip/matrix/wmma_gfx11.h"
#elif defined(__GFX12__)
#include "backend/hip/matrix/wmma_gfx12.h"
#endif

namespace quire::hip::matrix {

#if defined(__gfx90a__)
using ThisGpu = Gfx90a;
#elif defined(__gfx942__)
using ThisGpu = Gfx942;
#elif defined(__gfx950__)
using ThisGpu = Gfx950;
#elif defined(__gfx1100__)
using ThisGpu = Gfx1100;
#elif defined(__gfx1201__)
using ThisGpu = Gfx1201;
#else
#error "no fragments for this device"
#endif

}  // namespace quire::hip::matrix

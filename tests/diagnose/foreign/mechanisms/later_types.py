# SPDX-License-Identifier: Apache-2.0
"""Plants conversions of cached elements that lose bits, take another bias or another zero."""
import numpy as np

from mechanisms.element_type import read_as, what
from mechanisms.fault import plants

BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32}
LOW_BITS = {"float8_e4m3fn": [1, 2, 3], "bfloat16": [3, 4, 5], "float16": [6, 7, 8], "float32": [14, 16, 18]}


def masked(batch, mask, of, **parameters):
    """Keeps the bits of each element that a mask has."""
    bits = BITS[batch.k_cache.dtype.itemsize]
    return read_as(batch, lambda x: (x.view(bits) & bits(mask)).view(x.dtype).astype(np.float32), of, **parameters)


@plants("element_type", later=True)
def sign_bit_masked(draw, batch):
    """The sign is cut off before elements are widened."""
    return masked(batch, (1 << (8 * batch.k_cache.dtype.itemsize - 1)) - 1, what(draw))


@plants("element_type", later=True)
def low_bits_masked(draw, batch):
    """The last bits of the mantissa are cut off, as a narrower type keeps its upper bits."""
    n = draw.any(LOW_BITS[batch.k_cache.dtype.name])
    return masked(batch, (1 << 8 * batch.k_cache.dtype.itemsize) - (1 << n), what(draw), bits=n)


@plants("element_type", later=True)
def exponent_bias_off(draw, batch):
    """Bits of fp8 are moved into a wider type whose exponent counts from elsewhere."""
    n = draw.any([-8, -1, 1, 8])
    if batch.k_cache.dtype.itemsize != 1:
        return None
    return read_as(batch, lambda x: x.astype(np.float32) * np.float32(2.0 ** n), what(draw), bias=n)


@plants("element_type", later=True)
def codes_with_a_zero_point(draw, batch):
    """Codes of fp8 are read as unsigned integers around a zero point."""
    zero = draw.any([0, 127, 128])
    if batch.k_cache.dtype.itemsize != 1:
        return None
    return read_as(batch, lambda x: x.view(np.uint8).astype(np.float32) - zero, what(draw), zero=zero)

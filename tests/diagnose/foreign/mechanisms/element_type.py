# SPDX-License-Identifier: Apache-2.0
"""Plants caches that are read as another type or byte order."""
import ml_dtypes
import numpy as np

from mechanisms.fault import plants
from mechanisms.reread import reread, what


def read_as(batch, convert, what, **parameters):
    k_cache = convert(batch.k_cache) if what != "v" else batch.k_cache.astype(np.float32)
    v_cache = convert(batch.v_cache) if what != "k" else batch.v_cache.astype(np.float32)
    return reread(batch, k_cache, v_cache, what, **parameters)


@plants("element_type", classic=True)
def another_16_bit_type(draw, batch):
    if batch.k_cache.dtype.itemsize != 2:
        return None
    other = ml_dtypes.bfloat16 if batch.k_cache.dtype == np.float16 else np.float16
    return read_as(batch, lambda x: x.view(other).astype(np.float32), what(draw), read_as=np.dtype(other).name)


@plants("element_type", classic=True)
def another_fp8_type(draw, batch):
    if batch.k_cache.dtype.itemsize != 1:
        return None
    other = draw.any([ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz])
    return read_as(batch, lambda x: x.view(other).astype(np.float32), what(draw), read_as=np.dtype(other).name)


@plants("element_type")
def bytes_swapped(draw, batch):
    if batch.k_cache.dtype.itemsize == 1:
        return None
    bits = {2: np.uint16, 4: np.uint32}[batch.k_cache.dtype.itemsize]
    return read_as(batch, lambda x: x.view(bits).byteswap().view(x.dtype).astype(np.float32), what(draw))


@plants("element_type")
def fp8_read_as_integers(draw, batch):
    if batch.k_cache.dtype.itemsize != 1:
        return None
    return read_as(batch, lambda x: x.view(np.int8).astype(np.float32) / 128, what(draw), read_as="int8")

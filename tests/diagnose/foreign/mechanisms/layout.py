# SPDX-License-Identifier: Apache-2.0
"""Plants tensors read in the wrong order of dimensions."""
import numpy as np

from mechanisms.fault import Fault, plants
from mechanisms.reread import reread, what


def caches(batch, change, what, **parameters):
    """Reorders each page: change([pages, page_size, kv_heads, dim]) -> the same shape."""
    k_cache = change(batch.k_cache) if what != "v" else batch.k_cache
    v_cache = change(batch.v_cache) if what != "k" else batch.v_cache
    return reread(batch, k_cache, v_cache, what, **parameters)


@plants("layout", classic=True)
def heads_and_slots_exchanged(draw, batch):
    """nhd is read as hnd, or hnd as nhd."""
    if batch.num_kv_heads == 1 or batch.layout == "packed":
        return None
    n, p, h, d = batch.k_cache.shape

    def change(x):
        if batch.layout == "nhd":
            return x.reshape(n, h, p, d).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(n, p, h, d)
    return caches(batch, change, what(draw))


@plants("layout")
def value_page_transposed(draw, batch):
    n, p, h, d = batch.v_cache.shape

    def change(x):
        return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(n, h, d, p).transpose(0, 3, 1, 2)
    return caches(batch, change, "v")


@plants("layout")
def keys_packed_by_another_width(draw, batch):
    if batch.layout != "packed":
        return None
    n, p, h, d = batch.k_cache.shape
    x = 16 // batch.k_cache.dtype.itemsize
    y = draw.any([x // 2, x * 2])

    def change(c):
        stored = np.ascontiguousarray(c.reshape(n, p, h, d // x, x).transpose(0, 2, 3, 1, 4))
        return stored.reshape(n, h, d // y, p, y).transpose(0, 3, 1, 2, 4).reshape(n, p, h, d)
    return caches(batch, change, "k", width=y)


@plants("layout")
def key_and_value_exchanged(draw, batch):
    def edit(view):
        view.k, view.v = view.v, view.k
    return Fault({}, edit=edit)

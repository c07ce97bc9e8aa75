# SPDX-License-Identifier: Apache-2.0
"""Plants words, swizzled chunks, heads and pools that are read in another order."""
import numpy as np

from mechanisms.fault import plants
from mechanisms.layout import caches, what


@plants("layout", later=True)
def elements_of_a_word_reversed(draw, batch):
    """Elements of a word of 4, 8 or 16 bytes come in the other order."""
    n = draw.any([4, 8, 16]) // batch.k_cache.dtype.itemsize
    if n < 2:
        return None
    of = "k" if batch.layout == "packed" else what(draw)
    return caches(batch, lambda x: x.reshape(*x.shape[:-1], -1, n)[..., ::-1].reshape(x.shape), of, elements=n)


@plants("layout", later=True)
def chunks_swizzled_by_slot(draw, batch):
    """Chunks of 16 bytes were stored swizzled by the slot's number and are read as if they were not."""
    n, p, h, d = batch.k_cache.shape
    size = 16 // batch.k_cache.dtype.itemsize
    chunks = d // size
    period = min(draw.any([2, 4, 8]), chunks & -chunks)
    if period < 2 or batch.layout == "packed":
        return None
    order = np.arange(chunks)[None, :] ^ (np.arange(p) % period)[:, None]

    def change(x):
        split = x.reshape(n, p, h, chunks, size)
        return np.take_along_axis(split, order[None, :, None, :, None], axis=3).reshape(x.shape)
    return caches(batch, change, what(draw), period=period)


@plants("layout", later=True)
def heads_and_dims_exchanged(draw, batch):
    """The last two dimensions are read as [head_dim, kv_heads]."""
    n, p, h, d = batch.k_cache.shape
    if h == 1 or batch.layout != "nhd":
        return None
    return caches(batch, lambda x: x.reshape(n, p, d, h).transpose(0, 1, 3, 2), what(draw))


@plants("layout", later=True)
def pools_and_pages_exchanged(draw, batch):
    """One allocation of all pages of K, then of V, is read as K and V of each page in turn; or the other way round."""
    n, interleaved = batch.num_pages, draw.chance(0.5)
    stored = np.stack([batch.k_cache, batch.v_cache], axis=1 if interleaved else 0)
    stored = stored.reshape(2 * n, *batch.k_cache.shape[1:])
    k, v = (stored[:n], stored[n:]) if interleaved else (stored[0::2], stored[1::2])
    return caches(batch, lambda x: k if x is batch.k_cache else v, "both", stored_interleaved=interleaved)

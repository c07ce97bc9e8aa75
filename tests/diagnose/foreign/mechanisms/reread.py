# SPDX-License-Identifier: Apache-2.0
"""Reads K, V or both from a cache whose bytes were taken another way."""
import numpy as np

from mechanisms.fault import Fault


def reread(batch, k_cache, v_cache, what, **parameters):
    """Takes the cached keys and values of each request from these caches, which have the shape of the batch's."""
    def edit(view):
        r, n = view.request, batch.cached_len(view.request)
        pages = batch.pages_of(r)
        k = batch.dequantise(batch.slots(k_cache, pages, n), batch.k_scale, view.q.dtype)
        v = batch.dequantise(batch.slots(v_cache, pages, n), batch.v_scale, view.q.dtype)
        view.k, view.v = np.concatenate([k, view.k[n:]]), np.concatenate([v, view.v[n:]])
    return Fault({"of": what, **parameters}, edit=edit)


def what(draw):
    return draw.any(["both", "k", "v"])

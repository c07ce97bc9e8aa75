# SPDX-License-Identifier: Apache-2.0
"""The conformance suite on a small kernel of one's own, in the form that it supports."""
import numpy as np

import quire


def kernel(batch, cache, options):
    """Plain attention for f32, layout NHD, no options."""
    out = np.zeros(batch.query.shape, np.float32)
    page, kv_heads, dim = cache.k.shape[1:]
    group = out.shape[1] // kv_heads
    scale = options.softmax_scale or dim**-0.5
    for r, length in enumerate(batch.seq_lens):
        begin, end = batch.query_start_loc[r : r + 2]
        if begin == end:
            continue
        pages = batch.block_table[r][: -(-length // page)]
        keys, values = (np.concatenate(list(x[pages])) for x in (cache.k, cache.v))
        for row in range(begin, end):
            seen = length - (end - row) + 1
            for h in range(out.shape[1]):
                scores = keys[:seen, h // group] @ batch.query[row, h] * scale
                weights = np.exp(scores - scores.max())
                out[row, h] = weights @ values[:seen, h // group] / weights.sum()
    return out


LINES = ["q=f32 heads=4:2 d=32 page=16 reqs=1@20,3@29,17@5", "q=f32 heads=6:1 d=24 page=8 reqs=2x1@40,9@7"]
verdict = quire.verify(kernel, matrices=[], lines=LINES)
print(verdict)
assert verdict

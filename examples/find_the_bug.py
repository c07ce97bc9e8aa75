# SPDX-License-Identifier: Apache-2.0
"""An attention kernel with a bug, and quire.diagnose naming it. Try bugs of your own in `kernel`."""
import numpy as np

import quire


def kernel(batch, cache):
    """Plain attention for f32 and layout NHD. The bug: query heads take KV head h % num_kv_heads, not h // group."""
    out = np.empty(batch.query.shape, np.float32)
    page, kv_heads, dim = cache.k.shape[1:]
    for r, length in enumerate(batch.seq_lens):
        pages = batch.block_table[r][: -(-length // page)]
        keys, values = (np.concatenate(list(x[pages])) for x in (cache.k, cache.v))
        begin, end = batch.query_start_loc[r : r + 2]
        for row in range(begin, end):
            seen = length - (end - row) + 1
            for h in range(out.shape[1]):
                scores = keys[:seen, h % kv_heads] @ batch.query[row, h] / np.sqrt(dim)
                weights = np.exp(scores - scores.max())
                out[row, h] = weights @ values[:seen, h % kv_heads] / weights.sum()
    return out


case = quire.make_case("q=f32 heads=8:2 d=64 page=16 reqs=3x1@200,50@7")
diagnosis = quire.diagnose(case.batch, case.cache, case.options, observed=kernel(case.batch, case.cache))
print(diagnosis)
assert diagnosis.verdict == "cause found"

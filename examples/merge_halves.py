# SPDX-License-Identifier: Apache-2.0
"""Split-KV by hand: attention over two halves of the keys, merged exactly by their lse."""
import numpy as np

import quire

rng = np.random.default_rng(0)
cache = quire.KVCache(*rng.standard_normal((2, 8, 16, 2, 64), np.float32))
query = rng.standard_normal((1, 8, 64), np.float32)


def attention(pages):
    """Returns output and lse of one decode row over all keys of these pages."""
    lse = np.empty((1, 8), np.float32)
    batch = quire.Batch(query=query, query_start_loc=[0, 1], seq_lens=[16 * len(pages)], block_table=[pages], lse=lse)
    return quire.attend(batch, cache), lse


whole, lse_whole = attention([0, 1, 2, 3, 4, 5, 6, 7])
merged, lse = quire.merge(*attention([0, 1, 2]), *attention([3, 4, 5, 6, 7]))
print(f"largest difference: output {np.abs(merged - whole).max():.1e}, lse {np.abs(lse - lse_whole).max():.1e}")
assert np.abs(merged - whole).max() < 1e-5

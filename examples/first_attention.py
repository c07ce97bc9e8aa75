# SPDX-License-Identifier: Apache-2.0
"""One prompt of five tokens over a paged cache, checked against the fp64 reference."""
import numpy as np

import quire

rng = np.random.default_rng(0)
cache = quire.KVCache(*np.zeros((2, 8, 16, 2, 64), np.float32))  # K and V: [num_pages, page_size, num_kv_heads, head_dim]
new_k, new_v = rng.standard_normal((2, 5, 2, 64), np.float32)
quire.append(cache, new_k, new_v, np.arange(48, 53))  # slot = page * page_size + offset: page 3

batch = quire.Batch(
    query=rng.standard_normal((5, 4, 64), np.float32),  # [num_tokens, num_q_heads, head_dim]
    query_start_loc=[0, 5],
    seq_lens=[5],
    block_table=[[3]],
)
out = quire.attend(batch, cache)
print(quire.compare(out, None, quire.reference(batch, cache)))

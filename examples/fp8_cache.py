# SPDX-License-Identifier: Apache-2.0
"""Measures the error of an fp8 cache: the same keys and values in f32 and in e4m3, with a scale per KV head."""
import numpy as np

import quire

rng = np.random.default_rng(0)
new_k, new_v = rng.standard_normal((2, 200, 2, 64), np.float32)
slots = np.arange(200)

exact = quire.KVCache(*np.zeros((2, 13, 16, 2, 64), np.float32))
scales = [np.abs(x).max(axis=(0, 2)) / 448 for x in (new_k, new_v)]  # 448: the largest e4m3fn value
codes = quire.KVCache(*np.zeros((2, 13, 16, 2, 64), np.uint8), dtype="fp8_e4m3fn", k_scale=scales[0], v_scale=scales[1])
for cache in (exact, codes):
    quire.append(cache, new_k, new_v, slots)

batch = quire.Batch(query=rng.standard_normal((1, 8, 64), np.float32), query_start_loc=[0, 1], seq_lens=[200],
                    block_table=[list(range(13))])
want, got = quire.attend(batch, exact), quire.attend(batch, codes)
print(f"kernel right for the stored codes: {quire.compare(got, None, quire.reference(batch, codes)).ok}")
print(f"quantisation: largest error {np.abs(got - want).max():.4f} of outputs up to {np.abs(want).max():.2f}")

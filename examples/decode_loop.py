# SPDX-License-Identifier: Apache-2.0
"""Continuous decoding of three requests with quire.PagePool: pages on demand, a shared prompt, and an end."""
import numpy as np

import quire

STEPS, HEADS, KV_HEADS, DIM = 6, 4, 2, 32
rng = np.random.default_rng(0)
pool = quire.PagePool(num_pages=24, page_size=4, num_layers=1, num_kv_heads=KV_HEADS, head_dim=DIM, dtype="f32")
cache = pool.cache(0)
tokens, done = {}, {}  # by request: all its tokens, and how many of them are in the cache


def add(request, prompt):
    tokens[request], done[request] = list(prompt), pool.add(request, prompt)
    print(f"request {request}: {done[request]} of {len(prompt)} prompt tokens are in the cache already")


def step():
    """Appends what is new, attends once for all requests, and pretends to sample a token for each."""
    starts, slots, tables = [0], [], []
    for request, known in tokens.items():
        pool.reserve(request, len(known))
        slots.append(pool.slots(request, done[request], len(known)))
        tables.append(pool.block_table(request))
        starts.append(starts[-1] + len(known) - done[request])
    quire.append(cache, *rng.standard_normal((2, starts[-1], KV_HEADS, DIM), np.float32), np.concatenate(slots))
    width = max(map(len, tables))
    batch = quire.Batch(
        query=rng.standard_normal((starts[-1], HEADS, DIM), np.float32),
        query_start_loc=starts,
        seq_lens=[len(known) for known in tokens.values()],
        block_table=np.array([np.pad(table, (0, width - len(table))) for table in tables]),
    )
    quire.attend(batch, cache)
    for request, known in tokens.items():
        pool.commit(request, len(known))
        done[request] = len(known)
        known.append(int(rng.integers(1000)))
        pool.push_token(request, known[-1])


add(0, [1, 2, 3, 4, 5, 6, 7, 8, 9])
step()
add(1, [1, 2, 3, 4, 5, 6, 7, 8, 20])  # begins like request 0: two full pages are shared
add(2, [30, 31])
for _ in range(STEPS):
    step()
print(pool.stats)
for request in list(tokens):
    pool.release(request)
print("pages in use at the end:", pool.stats.pages_in_use)

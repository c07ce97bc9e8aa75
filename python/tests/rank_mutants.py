# SPDX-License-Identifier: Apache-2.0
"""Ranks that make one mistake, from the equations in NumPy fp64: what each rank's part is, and what all of them have in the end.

    part k:  o_k = sum_j exp(s_j - lse_k) v_j over the keys j of rank k        lse_k = log sum_j exp(s_j)
    result:  o = sum_k exp(lse_k - lse) o_k                                    lse = log sum_k exp(lse_k)

Shares no code with quire.diagnose, quire.distributed or src/faults; captures are written as files.
"""

import ml_dtypes
import numpy as np
from sharded import rank_cache

import quire
from quire.distributed import ContextShard


class Ranks:
    """The deal of positions, and the scores' options."""

    def __init__(self, job, world, interleave=1, span=0, **options):
        self.job, self.world, self.interleave, self.span, self.options = job, world, interleave, span, options

    def owner(self, p):
        return np.minimum(p // self.span, self.world - 1) if self.span else p // self.interleave % self.world

    def place(self, p):
        """The number of positions below p that its owner holds."""
        return p - self.owner(p) * self.span if self.span else p // (self.interleave * self.world) * self.interleave + p % self.interleave

    def held(self, rank, length):
        return int((self.owner(np.arange(length)) == rank).sum())

    def shard(self, rank):
        return ContextShard.contiguous(rank, self.world, self.span) if self.span else ContextShard(rank, self.world, self.interleave)


def scores(ranks, request, row, head, positions_of_bias=None):
    """Scores of all keys of a request that the row sees, and -inf elsewhere."""
    job, o = ranks.job, ranks.options
    n, length = int(job.query_lens[request]), int(job.seq_lens[request])
    q = job.q[job.query_start_loc[request] + row, head].astype(np.float64)
    keys = job.dense_k[request][:, head // (job.q.shape[1] // job.k.shape[2])]
    s = keys @ q / np.sqrt(len(q))
    at, p = length - n + row, np.arange(length)
    if "slopes" in o:
        s = s + float(o["slopes"][head]) * ((p if positions_of_bias is None else positions_of_bias) - at)
    visible = p <= at
    if "window" in o:
        visible &= at - p < o["window"]
    return np.where(visible, s, -np.inf)


def part(ranks, request, row, head, keys, s, sink):
    """(o, lse) over the keys where `keys` is true."""
    s = np.where(keys, s, -np.inf)
    extra = float(ranks.options["sinks"][head]) if sink and "sinks" in ranks.options else -np.inf
    top = max(s.max(initial=-np.inf), extra)
    values = ranks.job.dense_v[request][:, head // (ranks.job.q.shape[1] // ranks.job.k.shape[2])]
    if top == -np.inf:
        return np.zeros(values.shape[1]), -np.inf
    p = np.exp(s - top)
    total = p.sum() + np.exp(extra - top)
    return p @ values / total, top + np.log(total)


def own_keys(ranks, request, row, rank):
    return ranks.owner(np.arange(int(ranks.job.seq_lens[request]))) == rank


def parts_of(ranks, keys=own_keys, sink=lambda rank: rank == 0, bias=None):
    """o [world, tokens, heads, dim] and lse [world, tokens, heads]; `keys` says which keys a rank folds in."""
    job = ranks.job
    tokens, heads, dim = job.q.shape
    o, lse = np.zeros((ranks.world, tokens, heads, dim)), np.full((ranks.world, tokens, heads), -np.inf)
    for request, n in enumerate(job.query_lens):
        for row in range(n):
            for head in range(heads):
                token = job.query_start_loc[request] + row
                where = None if bias is None else bias(np.arange(int(job.seq_lens[request])))
                s = scores(ranks, request, row, head, where)
                for rank in range(ranks.world):
                    folded = keys(ranks, request, row, rank)
                    visible_anyway = s
                    if "window_on_rank" in ranks.options:  # the mask itself is the mistake
                        free = Ranks(job, ranks.world, ranks.interleave, ranks.span, **{k: v for k, v in ranks.options.items() if k != "window"})
                        visible_anyway = scores(free, request, row, head)
                    o[rank, token, head], lse[rank, token, head] = part(ranks, request, row, head, folded, visible_anyway, sink(rank))
    return o, lse


def normalised(o, lse, weights=None):
    """The right merge, with each part `weights[k]` times."""
    weights = np.ones(len(o)) if weights is None else np.asarray(weights, float)
    used = np.where(weights[:, None, None] > 0, lse, -np.inf)
    top = used.max(axis=0)
    top = np.where(np.isfinite(top), top, 0)
    w = weights[:, None, None] * np.exp(used - top)
    total = w.sum(axis=0)
    return (w[..., None] * o).sum(axis=0) / np.where(total > 0, total, 1)[..., None]


def rounded(x, dtype):
    with np.errstate(invalid="ignore"):
        return x.astype(dtype).astype(np.float64)


def undivided(o, lse):
    top = lse.max(axis=0)
    return (np.exp(lse - np.where(np.isfinite(top), top, 0))[..., None] * o).sum(axis=0)


#: Mistakes of the merge: what becomes of right parts.
MERGES = {
    "rank_part_missing": lambda o, lse, rank: normalised(o, lse, [k != rank for k in range(len(o))]),
    "rank_part_twice": lambda o, lse, rank: normalised(o, lse, [1 + (k == rank) for k in range(len(o))]),
    "rank_parts_averaged": lambda o, lse, rank: o.mean(axis=0),
    "rank_parts_added": lambda o, lse, rank: o.sum(axis=0),
    "rank_merge_undivided": lambda o, lse, rank: undivided(o, lse),
    "rank_lse_base_2": lambda o, lse, rank: normalised(o, lse / np.log(2)),
    "rank_lse_natural_as_base_2": lambda o, lse, rank: normalised(o, lse * np.log(2)),
    "one_rank_lse_base_2": lambda o, lse, rank: normalised(o, np.stack([x / np.log(2) if k == rank else x for k, x in enumerate(lse)])),
    "rank_weights_swapped": lambda o, lse, rank: normalised(o, lse[[1, 0, *range(2, len(o))]]),
    "empty_rank_weighs": lambda o, lse, rank: normalised(o, np.where(np.isneginf(lse), 0.0, lse)),
    "empty_rank_is_nan": lambda o, lse, rank: np.where(np.isneginf(lse).any(axis=0)[..., None], np.nan, normalised(o, lse)),
    "zero_lse_is_empty": lambda o, lse, rank: normalised(o, np.where(lse == 0, -np.inf, lse)),
    "rank_part_alone": lambda o, lse, rank: o[rank],
    "rank_lse_rounded": lambda o, lse, rank: normalised(o, rounded(lse, ml_dtypes.bfloat16)),
    "rank_heads_shifted": lambda o, lse, rank: np.roll(normalised(o, lse), -1, axis=1),
}


def _context(ranks, request):
    return int(ranks.job.seq_lens[request] - ranks.job.query_lens[request])


def _behind(ranks, request, row):
    return int(ranks.job.query_lens[request]) - 1 - row


def border_twice(ranks, request, row, rank):
    mine = own_keys(ranks, request, row, rank)
    return mine | np.concatenate([[False], mine[:-1]])


def stale(ranks, request, row, rank, late=None):
    mine, p = own_keys(ranks, request, row, rank), np.arange(int(ranks.job.seq_lens[request]))
    return mine & ((p < _context(ranks, request)) | (late is not None and rank != late))


def rest_dropped(ranks, request, row, rank):
    length = int(ranks.job.seq_lens[request])
    return own_keys(ranks, request, row, rank) & (ranks.place(np.arange(length)) < length // ranks.world)


def local_mask(ranks, request, row, rank):
    length = int(ranks.job.seq_lens[request])
    return own_keys(ranks, request, row, rank) & (ranks.place(np.arange(length)) < ranks.held(rank, length) - _behind(ranks, request, row))


def local_window(ranks, request, row, rank):
    length = int(ranks.job.seq_lens[request])
    last = ranks.held(rank, length - _behind(ranks, request, row)) - 1
    return own_keys(ranks, request, row, rank) & (last - ranks.place(np.arange(length)) < ranks.options["window"])


#: Mistakes of what a rank attends to.
KEYS = {
    "border_key_twice": dict(keys=border_twice),
    "stale_rank_lengths": dict(keys=stale),
    "rank_rest_dropped": dict(keys=rest_dropped),
    "causal_mask_on_rank": dict(keys=local_mask),
    "window_on_rank": dict(keys=local_window),
    "sink_on_every_rank": dict(sink=lambda rank: True),
    "alibi_on_rank": dict(),  # bias: places in the rank's cache
}


def stored(x, dtype):
    with np.errstate(invalid="ignore", over="ignore"):
        return x.astype(dtype)


def write(folder, ranks, parts, results, *, record=True):
    """One capture per rank; results: one array for all ranks, or one for each. record: the parts are in the captures, in f32."""
    job, o = ranks.job, ranks.options
    kinds = {"window": "sliding_window", "slopes": "alibi_slopes", "sinks": "sinks"}
    options = quire.Options(**{kinds[name]: value for name, value in o.items() if name in kinds})
    paths = []
    for rank in range(ranks.world):
        cache, table = rank_cache(job, ranks.shard(rank))
        arrays = dict(query=job.q, query_start_loc=job.query_start_loc, seq_lens=job.seq_lens, block_table=table)
        if record:
            arrays.update(output=stored(parts[0][rank], np.float32), lse=stored(parts[1][rank], np.float32))
        order = f"span={ranks.span}" if ranks.span else f"interleave={ranks.interleave}"
        result = results[rank] if isinstance(results, list) else results
        paths.append(str(folder / f"rank{rank}.safetensors"))
        quire.write_capture(paths[-1], quire.Batch(**arrays), cache, options, stored(result, job.q.dtype),
                            notes={"context_shard": f"rank={rank} world={ranks.world} {order}"})  # fmt: skip
    return paths

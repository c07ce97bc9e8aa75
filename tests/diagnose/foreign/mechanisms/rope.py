# SPDX-License-Identifier: Apache-2.0
"""Plants wrong rotations (RoPE) of keys or queries: missing, twice, shifted, another base or style."""
import numpy as np

from batches import rotate
from mechanisms.fault import Fault, plants


def keys(batch, turn, **parameters):
    """Turns K: turn(k, positions) -> k."""
    def edit(view):
        view.k = turn(view.k, view.k_pos)
    return Fault({"of": "k", **parameters}, edit=edit) if batch.rope else None


def queries(batch, turn, **parameters):
    def edit(view):
        view.q = turn(view.q, view.q_pos)
    return Fault({"of": "q", **parameters}, edit=edit) if batch.rope else None


@plants("rope", classic=True)
def missing_on_keys(draw, batch):
    return keys(batch, lambda k, p: rotate(k, p, batch.rope, -1.0))


@plants("rope", classic=True)
def twice_on_keys(draw, batch):
    return keys(batch, lambda k, p: rotate(k, p, batch.rope))


@plants("rope")
def missing_on_queries(draw, batch):
    return queries(batch, lambda q, p: rotate(q, p, batch.rope, -1.0))


@plants("rope")
def twice_on_queries(draw, batch):
    return queries(batch, lambda q, p: rotate(q, p, batch.rope))


@plants("rope", classic=True)
def queries_shifted(draw, batch):
    n = draw.choice([1, -1, 2, 5, -3, 16])
    return queries(batch, lambda q, p: rotate(q, np.full(len(p), n), batch.rope), positions=n)


@plants("rope")
def queries_of_a_chunk_from_zero(draw, batch):
    return queries(batch, lambda q, p: rotate(q, np.full(len(p), p[0]), batch.rope, -1.0))


@plants("rope")
def keys_shifted(draw, batch):
    n = draw.choice([1, -1, 2, 4])
    return keys(batch, lambda k, p: rotate(k, np.full(len(p), n), batch.rope), positions=n)


@plants("rope")
def another_base_on_queries(draw, batch):
    base = draw.any([b for b in (10000.0, 500000.0, 1000000.0) if b != (batch.rope or (0,))[0]])

    def turn(q, p):
        return rotate(rotate(q, p, batch.rope, -1.0), p, (base, batch.rope[1]))
    return queries(batch, turn, base=base)


@plants("rope")
def another_style_on_queries(draw, batch):
    def turn(q, p):
        style = "interleaved" if batch.rope[1] == "neox" else "neox"
        return rotate(rotate(q, p, batch.rope, -1.0), p, (batch.rope[0], style))
    return queries(batch, turn)

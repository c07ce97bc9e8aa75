# SPDX-License-Identifier: Apache-2.0
"""Plants wrong causal masks."""
import numpy as np

from attention import Numerics
from mechanisms.fault import Fault, plants
from mechanisms.keys import mask


def inside(q, k, view):
    return (q - k < view.window) if view.window else np.ones(np.broadcast_shapes(q.shape, k.shape), bool)


@plants("mask", classic=True)
def not_causal(draw, batch):
    return mask(lambda q, k, view: inside(q, k, view))


@plants("mask")
def strictly_causal(draw, batch):
    return mask(lambda q, k, view: (k < q) & inside(q, k, view))


@plants("mask")
def causal_by_tiles(draw, batch):
    t = draw.choice([8, 16, 32, 64, 128])
    return mask(lambda q, k, view: (k // t <= q // t) & inside(q, k, view), tile=t)


@plants("mask", classic=True)
def causal_from_the_top_left(draw, batch):
    """Row i sees keys 0..i, as torch's is_causal means for a rectangle."""
    return mask(lambda q, k, view: (k <= q - view.q_pos[0]) & inside(q, k, view))


@plants("mask")
def prefix_seen_by_all(draw, batch):
    n = draw.log_integer(8, 200)
    return mask(lambda q, k, view: ((k <= q) | (k < n)) & inside(q, k, view), prefix=n)


@plants("mask")
def anti_causal_chunk(draw, batch):
    """The chunk's own keys are masked the wrong way round."""
    return mask(lambda q, k, view: (k >= q) | (k < view.q_pos[0]))


@plants("mask")
def hidden_keys_score_zero(draw, batch):
    """Masked scores are multiplied by 0 where -inf was meant."""
    class Zero(Numerics):
        def __init__(self, view):
            self.view = view

        def scores(self, s, q_pos, k_pos):
            return np.where((k_pos <= q_pos) & inside(q_pos, k_pos, self.view), s, 0).astype(s.dtype)

    def edit(view):
        view.mask = lambda q, k: np.ones(np.broadcast_shapes(q.shape, k.shape), bool)
        return Zero(view)
    return Fault({}, edit=edit)

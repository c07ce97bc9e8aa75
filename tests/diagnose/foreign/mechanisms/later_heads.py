# SPDX-License-Identifier: Apache-2.0
"""Plants groups of heads, scales of heads and slopes that are computed for another number of heads."""
import numpy as np

from mechanisms.alibi import slopes
from mechanisms.factor import on_out, on_scores
from mechanisms.fault import per_head, plants
from mechanisms.head import kv_heads, what


@plants("kv_head", later=True)
def group_off_by_one(draw, batch):
    """The group's size is rounded or padded to one head more or less."""
    g = max(1, batch.group + draw.any([-1, 1]))
    if g == batch.group:
        return None
    return kv_heads(batch, lambda h: np.minimum(h // g, batch.num_kv_heads - 1), what(draw), group=g)


@plants("factor_out", later=True)
def v_scale_of_the_first_head(draw, batch):
    """A scale per head is read as one for all."""
    if batch.v_scale is None or np.size(batch.v_scale) == 1:
        return None
    scale = per_head(batch, batch.v_scale)
    return on_out(scale[0] / scale)


@plants("factor_scores", later=True)
def k_scale_twice(draw, batch):
    """The scale is multiplied into the keys and into softmax_scale."""
    return None if batch.k_scale is None else on_scores(per_head(batch, batch.k_scale))


@plants("alibi_slope", later=True)
def slopes_of_the_nearest_power_of_two(draw, batch):
    """Slopes are those of the next smaller or larger power of two, the rest interpolated or left away."""
    n, up = batch.num_heads, draw.chance(0.5)
    below = 1 << (n.bit_length() - 1)
    if below == n:
        return None

    def some(count):
        return 2.0 ** (-8.0 * (np.arange(count) + 1) / count)
    generated = some(2 * below)[:n] if up else np.concatenate([some(below), some(2 * below)[0::2]])[:n]
    return slopes(batch, lambda s: generated, up=up)

# SPDX-License-Identifier: Apache-2.0
"""Plants rotations of some dims alone, by rounded positions, by another base, or for another place of the prompt."""
import ml_dtypes
import numpy as np

from batches import rotate
from mechanisms.fault import plants
from mechanisms.rope import keys, queries


def one_side(draw, batch, turn, **parameters):
    """Turns queries or keys."""
    return draw.any([keys, queries])(batch, turn, **parameters)


@plants("rope", later=True)
def last_pairs_not_rotated(draw, batch):
    """Dims behind a part of the head are not rotated, as models with partial rotation want it."""
    half = batch.dim // 2
    pairs = draw.any([half // 4, half // 2, 3 * half // 4])

    def turn(x, p):
        pair = np.arange(batch.dim) % half if batch.rope[1] == "neox" else np.arange(batch.dim) // 2
        return np.where(pair < pairs, x, rotate(x, p, batch.rope, -1.0))
    return one_side(draw, batch, turn, pairs=pairs)


@plants("rope", later=True)
def positions_in_bf16(draw, batch):
    """Positions above 256 are rounded before the angles are taken."""
    def turn(x, p):
        return rotate(x, p.astype(ml_dtypes.bfloat16).astype(np.float64) - p, batch.rope)
    return one_side(draw, batch, turn)


@plants("rope", later=True)
def another_base_on_keys(draw, batch):
    base = draw.any([b for b in (10000.0, 100000.0, 500000.0, 1000000.0) if b != (batch.rope or (0,))[0]])
    return keys(batch, lambda k, p: rotate(rotate(k, p, batch.rope, -1.0), p, (base, batch.rope[1])), base=base)


@plants("rope", later=True)
def first_keys_rotated_for_another_place(draw, batch):
    """Cached keys of a text are used again at another place of the prompt, without turning them there."""
    n, shift = draw.log_integer(16, 400), draw.any([-64, -16, 16, 64, 256])
    return keys(batch, lambda k, p: rotate(k, np.where(p < n, shift, 0), batch.rope), tokens=n, positions=shift)

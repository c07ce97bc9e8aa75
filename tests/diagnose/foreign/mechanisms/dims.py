# SPDX-License-Identifier: Apache-2.0
"""Plants wrong dims: dropped, repeated, permuted, tail zero; of the output, of V, or of the dot product."""
import numpy as np

from mechanisms.fault import Fault, plants


def on_out(change, **parameters):
    return Fault(parameters, output=lambda out, lse: (change(out.copy()), lse))


@plants("dims", classic=True)
def tail_zero(draw, batch):
    n = draw.choice([8, 16, 32, batch.dim // 2])

    def change(out):
        out[..., -n:] = 0
        return out
    return on_out(change, last=n)


@plants("dims")
def second_half_repeats_the_first(draw, batch):
    half = batch.dim // 2
    return on_out(lambda out: np.concatenate([out[..., :half], out[..., :half]], axis=-1))


@plants("dims")
def halves_swapped(draw, batch):
    return on_out(lambda out: np.roll(out, batch.dim // 2, axis=-1))


@plants("dims", classic=True)
def dims_interleaved(draw, batch):
    order = np.arange(batch.dim).reshape(2, -1).T.reshape(-1)
    return on_out(lambda out: out[..., order])


@plants("dims")
def lane_from_its_neighbour(draw, batch):
    m = draw.any([4, 8, 16])
    lane = draw.integer(0, m - 2)

    def change(out):
        out[..., lane::m] = out[..., lane + 1::m]
        return out
    return on_out(change, modulo=m, lane=lane)


@plants("dims")
def dims_rotated(draw, batch):
    n = draw.choice([1, -1, 2, 8])
    return on_out(lambda out: np.roll(out, n, axis=-1), shift=n)


@plants("dims", classic=True)
def dot_over_fewer_dims(draw, batch):
    n = draw.choice([8, 16, 32, batch.dim // 2])

    def edit(view):
        view.q = view.q.copy()
        view.q[..., -n:] = 0
    return Fault({"last": n}, edit=edit)


@plants("dims")
def key_dims_permuted(draw, batch):
    order = np.arange(batch.dim).reshape(2, -1).T.reshape(-1)

    def edit(view):
        view.k = view.k[..., order]
    return Fault({}, edit=edit)


@plants("dims")
def lane_zero(draw, batch):
    m = draw.any([4, 8, 16])
    lane = draw.integer(0, m - 1)

    def change(out):
        out[..., lane::m] = 0
        return out
    return on_out(change, modulo=m, lane=lane)

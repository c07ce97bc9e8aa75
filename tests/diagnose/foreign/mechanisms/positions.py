# SPDX-License-Identifier: Apache-2.0
"""Plants wrong positions of query rows: shifted, from 0 in a chunk, another request's."""
import numpy as np

from mechanisms.fault import Fault, plants


def at(change, **parameters):
    def edit(view):
        view.q_pos = np.maximum(change(view.q_pos, view), 0)
    return Fault(parameters, edit=edit)


@plants("positions", classic=True)
def chunk_from_zero(draw, batch):
    return at(lambda p, view: p - p[0])


@plants("positions")
def shifted_back(draw, batch):
    n = draw.choice([1, 2, 5, batch.page_size])
    return at(lambda p, view: p - n, tokens=n)


@plants("positions")
def last_position_for_all_rows(draw, batch):
    return at(lambda p, view: 0 * p + p[-1])


@plants("positions")
def first_position_for_all_rows(draw, batch):
    return at(lambda p, view: 0 * p + p[0])


@plants("positions")
def context_of_a_neighbour(draw, batch):
    shift = draw.any([-1, 1])

    def change(p, view):
        return p - p[0] + int(batch.context_lens[(view.request + shift) % batch.num_requests])
    return at(change, shift=shift)


@plants("positions")
def chunk_reversed(draw, batch):
    return at(lambda p, view: p[::-1])

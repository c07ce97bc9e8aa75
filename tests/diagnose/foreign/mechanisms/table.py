# SPDX-License-Identifier: Apache-2.0
"""Plants reads of another request's row of the block table, or another request's lengths."""
import numpy as np

from mechanisms.fault import Fault, plants
from mechanisms.page import tables


def row_of(batch, source, **parameters):
    """Reads the row source(r); entries that are no page wrap, as memory of a larger pool would be read."""
    def change(pages, r):
        return batch.block_table[source(r) % batch.num_requests, :len(pages)] % batch.num_pages
    return tables(batch, change, **parameters)


@plants("table_row", classic=True)
def row_of_a_neighbour(draw, batch):
    shift = draw.any([-1, 1])
    return row_of(batch, lambda r: r + shift, shift=shift)


@plants("table_row")
def row_of_the_first(draw, batch):
    return row_of(batch, lambda r: 0)


@plants("table_row")
def stride_off(draw, batch):
    """The table is read with another number of columns."""
    add = draw.any([-1, 1])
    flat, columns = batch.block_table.reshape(-1), batch.block_table.shape[1] + add

    def change(pages, r):
        return flat[(r * columns + np.arange(len(pages))) % len(flat)] % batch.num_pages
    return tables(batch, change, columns=columns)


@plants("table_row")
def row_of_some_other(draw, batch):
    other = draw.integer(0, batch.num_requests - 1)
    return row_of(batch, lambda r: other, row=other)


@plants("table_row")
def length_of_a_neighbour(draw, batch):
    """A row sees as many keys as the neighbour's length says, at most its own."""
    shift = draw.any([-1, 1])

    def edit(view):
        n = int(batch.seq_lens[(view.request + shift) % batch.num_requests])
        window = view.window or 10 ** 9
        view.mask = lambda q, k: (k <= q) & (q - k < window) & (k < n)
    return Fault({"shift": shift}, edit=edit)


@plants("table_row")
def table_transposed(draw, batch):
    """The table is read column by column."""
    flat, count = batch.block_table.T.reshape(-1), batch.block_table.shape[1]

    def change(pages, r):
        return flat[(r * count + np.arange(len(pages))) % len(flat)] % batch.num_pages
    return tables(batch, change)

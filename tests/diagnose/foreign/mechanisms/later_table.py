# SPDX-License-Identifier: Apache-2.0
"""Plants block tables that are read with another width or type, or by a stale order of requests."""
import numpy as np

from conditions import condition
from mechanisms.fault import plants
from mechanisms.page import k_v_or_both, tables
from mechanisms.table import row_of


def from_memory(draw, batch, entries, columns, **parameters):
    """Reads a table as if each row had this many of these entries; what is no page wraps."""
    def change(pages, r):
        return entries[(r * columns + np.arange(len(pages))) % len(entries)] % batch.num_pages
    return tables(batch, change, k_v_or_both(draw), columns=columns, **parameters)


@plants("table_row", later=True)
def columns_of_another_width(draw, batch):
    """The row's stride is that of a padded table, or of one that is as wide as the longest request."""
    width = batch.block_table.shape[1]
    longest = max(len(batch.pages_of(r)) for r in range(batch.num_requests))
    columns = draw.any([-(-width // 8) * 8, 1 << (width - 1).bit_length(), longest])
    return None if columns == width else from_memory(draw, batch, batch.block_table.reshape(-1), columns)


@plants("table_row", later=True)
def entries_of_64_bits_read_as_32(draw, batch):
    """Every second entry is the upper half of a number: 0, or -1 where nothing is stored."""
    low = batch.block_table.reshape(-1)
    words = np.stack([low, low >> 31], axis=1).reshape(-1)
    return from_memory(draw, batch, words, batch.block_table.shape[1])


@plants("table_row", later=True)
def rows_not_reordered(draw, batch):
    """The batch was sorted, decode rows or long requests first, but its table was not."""
    by = draw.any(["decode first", "prefill first", "longest first"])
    key = {"decode first": batch.query_lens > 1, "prefill first": batch.query_lens == 1,
           "longest first": -batch.seq_lens}
    order = np.argsort(key[by], kind="stable")
    return None if (np.diff(order) == 1).all() else row_of(batch, lambda r: order[r], order=by)


@plants("table_row", later=True)
def rows_after_a_finished_request(draw, batch):
    """A request ended and its row was removed from all tensors but this one: the rows behind are one too far."""
    if batch.num_requests < 3:
        return None
    first = draw.integer(1, batch.num_requests - 2)
    fault = row_of(batch, lambda r: min(r + 1, batch.num_requests - 1) if r >= first else r, first=first)
    fault.home, fault.fixed = [condition("request", "from", first)], True
    return fault


@plants("table_row", later=True)
def row_of_the_first_beam(draw, batch):
    """Requests are taken for beams or samples of one prompt, whose first has the table."""
    n = draw.any([2, 3, 4])
    return row_of(batch, lambda r: r // n * n, beams=n)

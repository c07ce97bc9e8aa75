# SPDX-License-Identifier: Apache-2.0
"""Plants rows that tiles, packed groups and padded batches read from or write to the wrong place."""
import numpy as np

from conditions import condition
from mechanisms.fault import Fault, plants
from mechanisms.row import output_rows, query_rows


def exchanged(batch, distance):
    """Gives for each token the one whose row in the request differs in one bit, or itself where there is none."""
    request, row = batch.cells.rows["request"], batch.cells.rows["row"]
    there = (row ^ distance) < batch.query_lens[request]
    return batch.query_start_loc[request] + np.where(there, row ^ distance, row)


def first_of_tile(batch, tile):
    request, row = batch.cells.rows["request"], batch.cells.rows["row"]
    return batch.query_start_loc[request] + row // tile * tile


@plants("query_row", later=True)
def query_rows_exchanged(draw, batch):
    """Rows 1, 2, 4 or 8 apart are loaded in each other's place of a fragment."""
    n = draw.any([1, 2, 4, 8])
    return query_rows(batch, exchanged(batch, n), distance=n)


@plants("query_row", later=True)
def query_row_of_the_first_of_a_tile(draw, batch):
    n = draw.any([2, 4, 8, 16, 64])
    return query_rows(batch, first_of_tile(batch, n), tile=n)


@plants("query_row", later=True)
def query_row_of_a_padded_batch(draw, batch):
    """Rows are looked up as if each request had as many as the longest, or as a power of two above it."""
    longest = int(batch.query_lens.max())
    n = draw.any([longest, 1 << (longest - 1).bit_length()])
    return query_rows(batch, batch.cells.rows["request"] * n + batch.cells.rows["row"], rows=n)


@plants("output_row", later=True)
def output_rows_exchanged(draw, batch):
    n = draw.any([1, 2, 4, 8])
    return output_rows(exchanged(batch, n), np.arange(batch.num_heads), distance=n)


@plants("output_row", later=True)
def output_row_of_the_first_of_a_tile(draw, batch):
    n = draw.any([2, 4, 8, 16, 64])
    return output_rows(first_of_tile(batch, n), np.arange(batch.num_heads), tile=n)


@plants("output_row", later=True)
def packed_rows_and_heads_exchanged(draw, batch):
    """Rows and heads of a group are packed into one dimension row by row and unpacked head by head, or reversed."""
    if batch.group == 1:
        return None
    by_row, rows = draw.chance(0.5), batch.cells.rows
    length, row, head = rows["query_len"][:, None], rows["row"][:, None], np.arange(batch.num_heads)[None, :]
    group = batch.group
    packed = row * group + head % group if by_row else head % group * length + row
    from_row, from_head = (packed % length, packed // length) if by_row else (packed // group, packed % group)
    token = batch.query_start_loc[rows["request"]][:, None] + from_row
    head = head // group * group + from_head
    return Fault({"by_row": by_row}, output=lambda out, lse: (out[token, head], lse[token, head]))


@plants("output_row", later=True)
def decode_rows_in_order_of_length(draw, batch):
    """Decode requests run longest or shortest first, and their rows are not put back."""
    rows = np.flatnonzero(batch.cells.rows["query_len"] == 1)
    longest_first = draw.chance(0.5)
    length = batch.cells.rows["seq_len"][rows]
    source = np.arange(batch.num_tokens)
    source[rows] = rows[np.argsort(-length if longest_first else length, kind="stable")]
    if (source == np.arange(batch.num_tokens)).all():
        return None
    fault = output_rows(source, np.arange(batch.num_heads), longest_first=longest_first)
    fault.home, fault.fixed = [condition("query_len", "is", 1)], True
    return fault


@plants("not_written", later=True)
def rows_of_a_warp_zero(draw, batch):
    """One warp of a tile stores zeros: it left its loop before the first key."""
    tile = draw.any([16, 32])
    first = draw.any(range(0, tile, 4))
    home = [condition("row", "modulo", tile, *range(first, first + 4))]
    return Fault({"tile": tile, "first": first, "holds": "zero"}, output=lambda out, lse: (0 * out, lse), home=home,
                 fixed=True)

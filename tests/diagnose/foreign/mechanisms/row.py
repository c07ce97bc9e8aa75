# SPDX-License-Identifier: Apache-2.0
"""Plants rows that are another's: of the query, or of the output."""
import numpy as np

from mechanisms.fault import Fault, plants


def query_rows(batch, source, **parameters):
    q = batch.q[source % batch.num_tokens].astype(np.float32)

    def edit(view):
        view.q = q[batch.rows(view.request)]
    return Fault(parameters, edit=edit)


@plants("query_row", classic=True)
def query_row_next_to_it(draw, batch):
    shift = draw.any([1, -1, 2])
    return query_rows(batch, np.arange(batch.num_tokens) + shift, shift=shift)


@plants("query_row")
def query_row_of_the_first(draw, batch):
    request = batch.cells.rows["request"]
    return query_rows(batch, batch.query_start_loc[request])


@plants("query_row")
def query_row_of_the_last(draw, batch):
    request = batch.cells.rows["request"]
    return query_rows(batch, batch.query_start_loc[request + 1] - 1)


@plants("query_row")
def query_row_of_the_request_number(draw, batch):
    """The request's number indexes rows, as if all requests had one row."""
    return query_rows(batch, batch.cells.rows["request"])


def output_rows(rows, heads, **parameters):
    def output(out, lse):
        return out[rows][:, heads], lse[rows][:, heads]
    return Fault(parameters, output=output)


@plants("output_row", classic=True)
def output_rows_shifted(draw, batch):
    shift = draw.any([1, -1, 2])
    return output_rows(np.roll(np.arange(batch.num_tokens), shift), np.arange(batch.num_heads), shift=shift)


@plants("output_row")
def output_heads_shifted(draw, batch):
    shift = draw.any([1, -1, batch.group])
    return output_rows(np.arange(batch.num_tokens), np.roll(np.arange(batch.num_heads), shift), head_shift=shift)


@plants("output_row")
def output_rows_reversed_in_requests(draw, batch):
    request, row = batch.cells.rows["request"], batch.cells.rows["row"]
    return output_rows(batch.query_start_loc[request + 1] - 1 - row, np.arange(batch.num_heads))


@plants("output_row")
def output_heads_transposed(draw, batch):
    if batch.group == 1 or batch.num_kv_heads == 1:
        return None
    order = np.arange(batch.num_heads).reshape(batch.num_kv_heads, batch.group).T.reshape(-1)
    return output_rows(np.arange(batch.num_tokens), order)


@plants("output_row")
def output_row_of_another_request(draw, batch):
    """All rows of a request receive the first row of its neighbour."""
    request = batch.cells.rows["request"]
    return output_rows(batch.query_start_loc[(request + 1) % batch.num_requests], np.arange(batch.num_heads))

# SPDX-License-Identifier: Apache-2.0
"""Evaluates conditions of the report's schema on a batch: which (token, head) cells a scope or a pattern selects."""
import numpy as np


class Cells:
    """Attributes of the rows and heads of a batch, from its index tensors alone."""

    def __init__(self, query_start_loc, seq_lens, block_table, page_size, window, num_heads, num_kv_heads):
        qsl, seq = np.asarray(query_start_loc, np.int64), np.asarray(seq_lens, np.int64)
        lengths = np.diff(qsl)
        request = np.repeat(np.arange(len(lengths)), lengths)
        token = np.arange(qsl[-1])
        row = token - qsl[request]
        q_pos = seq[request] - lengths[request] + row
        first = np.zeros_like(q_pos) if window is None else np.maximum(q_pos - window + 1, 0)
        self.first_page, self.last_page = first // page_size, q_pos // page_size
        self.table = np.asarray(block_table)
        self.rows = {
            "request": request, "token": token, "row": row, "rows_from_end": lengths[request] - 1 - row,
            "query_len": lengths[request], "seq_len": seq[request], "context_len": (seq - lengths)[request],
            "q_pos": q_pos, "num_keys": q_pos - first + 1, "page_offset": q_pos % page_size,
            "num_pages": self.last_page - self.first_page + 1}
        head = np.arange(num_heads)
        group = num_heads // num_kv_heads
        self.heads = {"head": head, "kv_head": head // group, "head_in_group": head % group}
        self.shape = (len(token), num_heads)

    def reads(self, pages):
        """Says of each row whether one of its visible keys lies in one of these physical pages."""
        out = np.zeros(self.shape[0], bool)
        for t in range(self.shape[0]):
            entries = self.table[self.rows["request"][t], self.first_page[t]:self.last_page[t] + 1]
            out[t] = np.isin(entries, pages).any()
        return out

    def select(self, conditions):
        """Gives bool [T, H] for a conjunction; conditions on dims do not narrow the cells."""
        chosen = np.ones(self.shape, bool)
        for c in conditions:
            attribute, values = c["attribute"], c["values"]
            if attribute == "dim":
                continue
            if attribute == "page":
                reads = self.reads(values)
                chosen &= (reads if c["test"] == "reads" else ~reads)[:, None]
            elif attribute in self.rows:
                chosen &= holds(self.rows[attribute], c["test"], values)[:, None]
            else:
                chosen &= holds(self.heads[attribute], c["test"], values)[None, :]
        return chosen


def holds(x, test, values):
    """Evaluates one test on an array of attribute values."""
    if test == "is":
        return np.isin(x, values)
    if test == "from":
        return x >= values[0]
    if test == "to":
        return x <= values[0]
    if test == "between":
        return (x >= values[0]) & (x <= values[1])
    if test == "modulo":
        return np.isin(x % values[0], values[1:])
    raise ValueError(f"test {test!r}: expected is, from, to, between, modulo")


def condition(attribute, test, *values):
    return {"attribute": attribute, "test": test, "values": [int(v) for v in values]}

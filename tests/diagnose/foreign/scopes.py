# SPDX-License-Identifier: Apache-2.0
"""Draws scopes: which rows, heads and dims a fault happens to, as conditions of the report's schema."""
import numpy as np

from conditions import condition


def row_scopes(draw, batch):
    """Gives functions that draw one condition on rows each; every third is held out."""
    lens, seq, rows = batch.query_lens, batch.seq_lens, batch.cells.rows
    n = batch.num_requests

    def quantile(x):
        x = np.unique(x)
        return int(x[draw.integer(0, len(x) - 1)]) if len(x) < 3 else int(x[draw.integer(1, len(x) - 1)])

    return [
        lambda: condition("query_len", "is", 1),
        lambda: condition("query_len", "from", quantile(lens)),
        lambda: condition("query_len", "from", 2),
        lambda: condition("row", "from", draw.integer(1, max(1, int(lens.max()) // 2))),
        lambda: condition("request", "modulo", 2, draw.integer(0, 1)),
        lambda: condition("q_pos", "from", quantile(rows["q_pos"])),
        lambda: condition("rows_from_end", "is", 0),
        lambda: condition("row", "is", 0),
        lambda: condition("request", "is", *sorted({draw.integer(0, n - 1) for _ in range(draw.integer(1, 3))})),
        lambda: condition("request", "from", draw.integer(1, n - 1)),
        lambda: condition("q_pos", "to", quantile(rows["q_pos"])),
        lambda: condition("seq_len", "from", quantile(seq)),
        lambda: condition("seq_len", "to", quantile(seq)),
        lambda: condition("request", "modulo", 3, draw.integer(0, 2)),
        lambda: condition("context_len", "is", 0) if (batch.context_lens == 0).any() else condition("row", "from", 4),
        lambda: condition("num_pages", "from", max(2, quantile(rows["num_pages"]))),
        lambda: condition("token", "from", draw.integer(1, batch.num_tokens - 1)),
        lambda: condition("row", "modulo", *((m := draw.any([2, 4, 8, 16])), draw.integer(0, min(m, int(lens.max())) - 1))),
        lambda: condition("page_offset", "is", draw.any([0, batch.page_size - 1])),
    ]


def head_scopes(draw, batch):
    """Gives functions that draw one condition on heads each; every third is held out."""
    h, kv, group = batch.num_heads, batch.num_kv_heads, batch.group

    def between():
        a = draw.integer(0, h - 1)
        return condition("head", "between", a, draw.integer(a, h - 1))

    choices = [
        between,
        lambda: condition("head", "from", draw.integer(1, h - 1)),
        lambda: condition("head", "modulo", *((m := draw.any([2, 4])), draw.integer(0, m - 1))),
        lambda: condition("head", "is", draw.integer(0, h - 1)),
    ]
    if kv > 1:
        choices.append(lambda: condition("kv_head", "is", draw.integer(0, kv - 1)))
    if group > 1:
        choices.append(lambda: condition("head_in_group", "is", draw.integer(0, group - 1)))
    return choices


def dim_scopes(draw, batch):
    d = batch.dim

    def between():
        a = draw.integer(0, d // 8 - 1) * 8
        return condition("dim", "between", a, a + 8 * draw.integer(1, (d - a) // 8) - 1)

    return [between, lambda: condition("dim", "from", d // 2),
            lambda: condition("dim", "modulo", 8, draw.integer(0, 7))]


def random_scope(draw, batch, fault):
    """Draws a scope for a fault: its home, or conditions on rows; sometimes on heads; sometimes on dims."""
    scope = list(fault.home)
    if not fault.fixed and draw.chance(0.7):
        scope.append(draw.choice(row_scopes(draw, batch))())
    if draw.chance(0.3 if fault.fixed else 0.4):
        scope.append(draw.choice(head_scopes(draw, batch))())
    if fault.dims and draw.chance(0.25):
        scope.append(draw.choice(dim_scopes(draw, batch))())
    return scope


def dims_of(scope, dim):
    """Gives the dims that a scope selects, bool [D]."""
    from conditions import holds
    chosen = np.ones(dim, bool)
    for c in scope:
        if c["attribute"] == "dim":
            chosen &= holds(np.arange(dim), c["test"], c["values"])
    return chosen

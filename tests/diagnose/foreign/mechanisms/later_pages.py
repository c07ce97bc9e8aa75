# SPDX-License-Identifier: Apache-2.0
"""Plants pages of another size, stages that are not advanced, prefixes of another prompt."""
import numpy as np

from conditions import condition
from mechanisms.fault import Fault, plants
from mechanisms.page import k_v_or_both, tables


def by_slot(batch, slot_of, what, **parameters):
    """Reads the slot slot_of(position, row of the table) for each position; slots behind the pool wrap."""
    def edit(view):
        n = batch.cached_len(view.request)
        row = batch.block_table[view.request].astype(np.int64)
        slots = slot_of(np.arange(n), row) % (batch.num_pages * batch.page_size)
        for name, cache, scale in (("k", batch.k_cache, batch.k_scale), ("v", batch.v_cache, batch.v_scale)):
            if what in ("both", name):
                x = batch.dequantise(cache.reshape(-1, batch.num_kv_heads, batch.dim)[slots], scale, view.q.dtype)
                setattr(view, name, np.concatenate([x, getattr(view, name)[n:]]))
    return Fault({"of": what, **parameters}, edit=edit)


@plants("page", later=True)
def page_size_mistaken(draw, batch):
    """A kernel was compiled for pages of twice or half the size."""
    size = draw.any([2 * batch.page_size] + [batch.page_size // 2] * (batch.page_size % 2 == 0))

    def slot_of(j, row):
        return row[np.minimum(j // size, len(row) - 1)] * size + j % size
    return by_slot(batch, slot_of, k_v_or_both(draw), size=size)


@plants("page", later=True)
def first_part_of_each_page_repeated(draw, batch):
    """Pages are cut into smaller ones for the kernel, and all parts of a page get the first one's address."""
    parts = [n for n in (2, 3, 4) if batch.page_size % n == 0]
    if not parts:
        return None
    p, part = batch.page_size, batch.page_size // draw.any(parts)
    return by_slot(batch, lambda j, row: row[j // p] * p + j % part, k_v_or_both(draw), size=part)


@plants("page", later=True)
def stage_not_advanced(draw, batch):
    """A pipeline of some stages wraps too late: each first stage still holds the page before."""
    stages = draw.any([2, 3, 4])

    def change(pages, r):
        at = np.arange(stages, len(pages), stages)
        pages[at] = pages[at - 1]
        return pages
    return tables(batch, change, k_v_or_both(draw), stages=stages)


@plants("page", later=True)
def window_starts_at_the_first_entry(draw, batch):
    """The table is read from its start where it should be read from the window's first page."""
    def change(pages, r):
        skipped = max(int(batch.context_lens[r]) - batch.window + 1, 0) // batch.page_size
        pages[skipped:] = pages[:max(len(pages) - skipped, 0)].copy()
        return pages
    return tables(batch, change, k_v_or_both(draw)) if batch.window else None


@plants("page", later=True)
def prefix_of_another_prompt(draw, batch):
    """Hashes of two prompts collide, so that the first pages of a request are another's."""
    long = [r for r in range(batch.num_requests) if len(batch.pages_of(r)) >= 2]
    if len(long) < 2:
        return None
    r, other = draw.any(long), draw.any(long)
    n = draw.integer(1, min(len(batch.pages_of(r)), len(batch.pages_of(other))))
    if (batch.pages_of(r)[:n] == batch.pages_of(other)[:n]).all():
        return None

    def change(pages, request):
        if request == r:
            pages[:n] = batch.pages_of(other)[:n]
        return pages
    fault = tables(batch, change, "both", request=r, other=other, pages=n)
    fault.home, fault.fixed = [condition("request", "is", r)], True
    return fault

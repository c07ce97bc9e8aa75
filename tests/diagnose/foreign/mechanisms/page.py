# SPDX-License-Identifier: Apache-2.0
"""Plants reads of the wrong page or slot."""
import numpy as np

from conditions import condition
from mechanisms.fault import Fault, plants


def tables(batch, change, what="both", **parameters):
    """Changes the page list of a request: change(pages, request) -> pages; for K, for V or for both."""
    def edit(view):
        r = view.request
        k, v = batch.gather(r, pages=change(batch.pages_of(r).copy(), r))
        view.k = k if what != "v" else view.k
        view.v = v if what != "k" else view.v
    return Fault({"of": what, **parameters}, edit=edit)


def k_v_or_both(draw):
    return draw.any(["both", "both", "k", "v"])


@plants("page", classic=True)
def v_from_the_page_before(draw, batch):
    return tables(batch, lambda pages, r: np.concatenate([pages[:1], pages[:-1]]), "v")


@plants("page")
def one_entry_is_anothers(draw, batch):
    long = [r for r in range(batch.num_requests) if len(batch.pages_of(r)) >= 2]
    if not long:
        return None
    r = draw.any(long)
    entry = draw.integer(0, len(batch.pages_of(r)) - 1)
    used = np.unique(np.concatenate([batch.pages_of(x) for x in range(batch.num_requests)]))
    page = int(draw.any(used))
    if page in batch.pages_of(r):
        return None

    def change(pages, request):
        if request == r:
            pages[entry] = page
        return pages
    fault = tables(batch, change, k_v_or_both(draw), request=r, entry=entry, page=page)
    fault.home, fault.fixed = [condition("request", "is", r)], True
    return fault


@plants("page")
def pages_shifted(draw, batch):
    shift = draw.choice([1, -1, 2])
    return tables(batch, lambda pages, r: np.roll(pages, shift), k_v_or_both(draw), shift=shift)


@plants("page")
def page_ids_off_by_one(draw, batch):
    add = draw.any([1, -1])
    return tables(batch, lambda pages, r: (pages + add) % batch.num_pages, k_v_or_both(draw), add=add)


@plants("page")
def pages_reversed(draw, batch):
    return tables(batch, lambda pages, r: pages[::-1], k_v_or_both(draw))


@plants("page")
def page_ids_wrap(draw, batch):
    n = 1 << max(1, int(np.log2(batch.num_pages)))
    return tables(batch, lambda pages, r: pages % n, k_v_or_both(draw), modulo=n)


@plants("page")
def last_page_is_the_first(draw, batch):
    def change(pages, r):
        pages[-1:] = pages[:1]
        return pages
    return tables(batch, change, k_v_or_both(draw))


@plants("page")
def slots_rotated(draw, batch):
    shift, what, p = draw.choice([1, -1, 2]), k_v_or_both(draw), batch.page_size

    def edit(view):
        n = batch.cached_len(view.request) // p * p
        order = (np.arange(n) // p) * p + (np.arange(n) + shift) % p
        if what != "v":
            view.k = np.concatenate([view.k[order], view.k[n:]])
        if what != "k":
            view.v = np.concatenate([view.v[order], view.v[n:]])
    return Fault({"shift": shift, "of": what}, edit=edit)


@plants("page")
def two_entries_swapped_for_v(draw, batch):
    long = [r for r in range(batch.num_requests) if len(batch.pages_of(r)) >= 3]
    if not long:
        return None
    r = draw.any(long)
    i = draw.integer(0, len(batch.pages_of(r)) - 3)

    def change(pages, request):
        if request == r:
            pages[[i, i + 1]] = pages[[i + 1, i]]
        return pages
    fault = tables(batch, change, "v", request=r, entry=i)
    fault.home, fault.fixed = [condition("request", "is", r)], True
    return fault


@plants("page", classic=True)
def tile_runs_past_the_page(draw, batch):
    """A tile of keys is larger than a page and is read as if its pages were neighbours in memory."""
    p = batch.page_size
    tiles = [t for t in (16, 32, 64, 128) if p % t]
    if not tiles:
        return None
    tile, what = draw.any(tiles), k_v_or_both(draw)

    def edit(view):
        r, n = view.request, batch.cached_len(view.request)
        j = np.arange(n)
        first = j // tile * tile
        slots = (batch.block_table[r, first // p].astype(np.int64) * p + first % p + j % tile) % (batch.num_pages * p)
        for name, cache, scale in (("k", batch.k_cache, batch.k_scale), ("v", batch.v_cache, batch.v_scale)):
            if what in ("both", name):
                flat = cache.reshape(-1, batch.num_kv_heads, batch.dim)[slots]
                setattr(view, name, np.concatenate([batch.dequantise(flat, scale, view.q.dtype), getattr(view, name)[n:]]))
    return Fault({"tile": tile, "of": what}, edit=edit)

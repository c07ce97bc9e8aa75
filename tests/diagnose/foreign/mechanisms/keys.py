# SPDX-License-Identifier: Apache-2.0
"""Plants wrong sets of keys: widened, narrowed or shifted by tokens, tiles or pages."""
import numpy as np

from mechanisms.fault import Fault, plants


def only(keep, batch, **parameters):
    """Drops visible keys: keep(q_pos, k_pos, view) -> bool."""
    def edit(view):
        view.mask = lambda q, k: _right(view, q, k) & keep(q, k, view)
    return Fault(parameters, edit=edit)


def _right(view, q, k):
    seen = k <= q
    return seen if view.window is None else seen & (q - k < view.window)


def mask(function, **parameters):
    """Replaces the mask: function(q_pos, k_pos, view) -> bool."""
    def edit(view):
        view.mask = lambda q, k: function(q, k, view)
    return Fault(parameters, edit=edit)


def sizes(draw, batch):
    """Draws a step: a few tokens, a tile or a page."""
    return draw.choice([1, 2, 3, 8, 16, 32, 64, batch.page_size, 2 * batch.page_size])


@plants("key_range", classic=True)
def length_rounded_down_to_a_page(draw, batch):
    p = batch.page_size
    return only(lambda q, k, view: k < (q + 1) // p * p, batch, page=p)


@plants("key_range", classic=True)
def length_rounded_up_to_a_page(draw, batch):
    p = batch.page_size

    def edit(view):
        r, n = view.request, len(view.k_pos)
        if batch.cached_len(r) == n:    # slots behind the last token hold whatever the page held before
            full = -(-n // p) * p
            pages = batch.pages_of(r)
            view.k = batch.dequantise(batch.slots(batch.k_cache, pages, full), batch.k_scale, view.q.dtype)
            view.v = batch.dequantise(batch.slots(batch.v_cache, pages, full), batch.v_scale, view.q.dtype)
            view.k_pos = np.arange(full)
        window = view.window or 10 ** 9
        view.mask = lambda q, k: (k < (q // p + 1) * p) & (q - k < window)
    return Fault({"page": p}, edit=edit)


@plants("key_range")
def last_keys_dropped(draw, batch):
    n = sizes(draw, batch)
    return only(lambda q, k, view: k <= q - n, batch, tokens=n)


@plants("key_range", classic=True)
def last_page_dropped(draw, batch):
    p = batch.page_size
    return only(lambda q, k, view: k < q // p * p, batch, page=p)


@plants("key_range")
def first_keys_dropped(draw, batch):
    n = sizes(draw, batch)
    return only(lambda q, k, view: k >= n, batch, tokens=n)


@plants("key_range")
def only_the_first_keys(draw, batch):
    n = draw.choice([64, 128, 256, 512, 1024])
    return only(lambda q, k, view: k < n, batch, tokens=n)


@plants("key_range", classic=True)
def context_ignored(draw, batch):
    return only(lambda q, k, view: k >= view.q_pos[0], batch)


@plants("key_range")
def own_chunk_ignored(draw, batch):
    return only(lambda q, k, view: k < view.q_pos[0], batch)


@plants("key_range")
def length_rounded_down_to_a_tile(draw, batch):
    t = draw.choice([32, 64, 128, 256])
    return only(lambda q, k, view: k < (q + 1) // t * t, batch, tile=t)


@plants("key_range")
def one_tile_dropped(draw, batch):
    t, i = draw.choice([16, 32, 64, 128]), draw.integer(0, 3)
    return only(lambda q, k, view: k // t != i, batch, tile=t, index=i)


@plants("key_range")
def one_lane_of_keys_dropped(draw, batch):
    m = draw.any([4, 8, 16])
    c = draw.integer(0, m - 1)
    return only(lambda q, k, view: k % m != c, batch, modulo=m, lane=c)


@plants("key_range")
def one_page_dropped(draw, batch):
    i, p = draw.integer(0, 4), batch.page_size
    return only(lambda q, k, view: k // p != i, batch, page=p, index=i)


@plants("key_range")
def future_keys_seen(draw, batch):
    n = sizes(draw, batch)
    return mask(lambda q, k, view: (k <= q + n) & (q - k < (view.window or 10 ** 9)), tokens=n)


@plants("key_range", classic=True)
def window_ignored(draw, batch):
    return mask(lambda q, k, view: k <= q) if batch.window else None


@plants("key_range", classic=True)
def window_off_by_some(draw, batch):
    n = draw.any([-1, 1]) * sizes(draw, batch)
    if not batch.window or batch.window + n < 1:
        return None
    return mask(lambda q, k, view: (k <= q) & (q - k < view.window + n), tokens=n)


@plants("key_range")
def window_of_another_layer(draw, batch):
    w = draw.log_integer(4, 400)
    return None if w == batch.window else mask(lambda q, k, view: (k <= q) & (q - k < w), window=w)


@plants("key_range")
def window_in_whole_pages(draw, batch):
    p, up = batch.page_size, draw.chance(0.5)
    if not batch.window:
        return None

    def seen(q, k, view):
        first = np.maximum(q - view.window + 1, 0)
        first = first // p * p if up else -(-first // p) * p
        return (k <= q) & (k >= np.minimum(first, q))
    return mask(seen, page=p, widened=up)


@plants("key_range")
def window_from_the_end_of_the_request(draw, batch):
    if not batch.window:
        return None
    return mask(lambda q, k, view: (k <= q) & (k >= min(int(view.q_pos[-1]) - view.window + 1, int(view.q_pos[0]))))


@plants("key_range")
def shared_prefix_dropped(draw, batch):
    """Keys of pages that requests share are not attended to, as where a cascade's first half is lost."""
    pages, counts = np.unique(np.concatenate([np.unique(batch.pages_of(r)) for r in range(batch.num_requests)]), return_counts=True)
    shared = pages[counts > 1]
    if not len(shared):
        return None
    length = [int(np.isin(batch.pages_of(r), shared).sum()) * batch.page_size for r in range(batch.num_requests)]
    return only(lambda q, k, view: k >= length[view.request], batch)

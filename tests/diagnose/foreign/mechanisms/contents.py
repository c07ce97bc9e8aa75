# SPDX-License-Identifier: Apache-2.0
"""Plants wrong contents of a page or a slot: zero, stale, another's, scaled, of another type; K or V alone."""
import ml_dtypes
import numpy as np

from conditions import condition
from mechanisms.fault import Fault, plants


def used_pages(batch):
    """Lists pages that some row sees."""
    seen = set()
    for t in range(batch.num_tokens):
        r = batch.cells.rows["request"][t]
        last = min(batch.cells.last_page[t], len(batch.pages_of(r)) - 1)
        seen.update(int(p) for p in batch.block_table[r, batch.cells.first_page[t]:last + 1])
    return sorted(seen)


def in_page(draw, batch, change, page, what=None, **parameters):
    """Changes a physical page's content: change(stored page [page_size, kv_heads, dim], cache) -> the same."""
    what = what or draw.any(["both", "k", "v"])
    caches = []
    for name in "kv":
        cache = batch.k_cache if name == "k" else batch.v_cache
        if what in ("both", name):
            cache = cache.copy()
            cache[page] = change(cache[page].astype(np.float32), cache).astype(cache.dtype)
        caches.append(cache)

    def edit(view):
        r, n = view.request, batch.cached_len(view.request)
        if page in batch.pages_of(r):
            k = batch.dequantise(batch.slots(caches[0], batch.pages_of(r), n), batch.k_scale, view.q.dtype)
            v = batch.dequantise(batch.slots(caches[1], batch.pages_of(r), n), batch.v_scale, view.q.dtype)
            view.k, view.v = np.concatenate([k, view.k[n:]]), np.concatenate([v, view.v[n:]])
    return Fault({"page": page, "of": what, **parameters}, edit=edit, home=[condition("page", "reads", page)], fixed=True)


@plants("page_contents", classic=True)
def page_zero(draw, batch):
    return in_page(draw, batch, lambda x, cache: 0 * x, draw.any(used_pages(batch)))


@plants("page_contents", classic=True)
def page_is_anothers(draw, batch):
    used = used_pages(batch)
    other = draw.any(used)
    page = draw.any(used)
    return None if page == other else in_page(draw, batch, lambda x, c: c[other].astype(np.float32), page, source=other)


@plants("page_contents")
def page_is_stale(draw, batch):
    page = draw.any(used_pages(batch))
    seed = draw.integer(0, 10 ** 6)
    return in_page(draw, batch, lambda x, c: np.random.default_rng(seed).standard_normal(x.shape) * np.nanstd(x), page)


@plants("page_contents")
def page_times_a_number(draw, batch):
    f = draw.choice([0.5, 2.0, 4.0, -1.0])
    return in_page(draw, batch, lambda x, c: np.clip(f * x, -448, 448), draw.any(used_pages(batch)), factor=f)


@plants("page_contents")
def half_a_page_zero(draw, batch):
    half = batch.page_size // 2
    if half == 0:
        return None
    first = draw.any([True, False])

    def change(x, cache):
        x[slice(0, half) if first else slice(half, None)] = 0
        return x
    return in_page(draw, batch, change, draw.any(used_pages(batch)), first_half=first)


@plants("page_contents")
def page_of_another_type(draw, batch):
    """A page's bits were written in another type of the same size."""
    itemsize = batch.k_cache.dtype.itemsize
    if itemsize not in (1, 2):
        return None
    other = ml_dtypes.float8_e5m2 if itemsize == 1 else (
        np.float16 if batch.k_cache.dtype != np.float16 else ml_dtypes.bfloat16)

    def change(x, cache):
        y = x.astype(other).view(cache.dtype).astype(np.float32)
        return y
    return in_page(draw, batch, change, draw.any(used_pages(batch)), written_as=np.dtype(other).name)


@plants("page_contents")
def slots_rotated_in_a_page(draw, batch):
    n = draw.integer(1, max(1, batch.page_size - 1))
    return in_page(draw, batch, lambda x, c: np.roll(x, n, axis=0), draw.any(used_pages(batch)), shift=n)


@plants("page_contents")
def k_and_v_of_a_page_swapped(draw, batch):
    page = draw.any(used_pages(batch))
    swapped = batch.v_cache[page].astype(np.float32)
    return in_page(draw, batch, lambda x, c: swapped, page, "k")


@plants("page_contents", classic=True)
def own_token_not_yet_written(draw, batch):
    """The step's own slots hold what the page held before, as attention ran before the append."""
    kind, what = draw.any(["zero", "stale"]), draw.any(["both", "both", "k", "v"])
    seed = draw.integer(0, 10 ** 6)

    def edit(view):
        own = slice(int(view.q_pos[0]), None)
        rng = np.random.default_rng([seed, view.request])
        for name in ("k", "v"):
            x = getattr(view, name)
            if what in ("both", name):
                x = x.copy()
                x[own] = 0 if kind == "zero" else rng.standard_normal(x[own].shape) * np.std(x)
                setattr(view, name, x)
    return Fault({"holds": kind, "of": what}, edit=edit)


@plants("page_contents")
def two_pages_exchanged(draw, batch):
    """Two physical pages hold each other's content, as after a swap that went wrong."""
    used = used_pages(batch)
    a, b, what = draw.any(used), draw.any(used), draw.any(["both", "k", "v"])
    if a == b:
        return None
    exchange = {a: b, b: a}

    def edit(view):
        pages = batch.pages_of(view.request)
        k, v = batch.gather(view.request, view.q.dtype, np.array([exchange.get(int(p), p) for p in pages], np.int64))
        view.k, view.v = k if what != "v" else view.k, v if what != "k" else view.v
    return Fault({"pages": [a, b], "of": what}, edit=edit, home=[condition("page", "reads", a, b)], fixed=True)

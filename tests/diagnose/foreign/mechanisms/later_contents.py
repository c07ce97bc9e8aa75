# SPDX-License-Identifier: Apache-2.0
"""Plants pages that a copy or a write left in part: slots, heads or elements that are another's, a scale forgotten."""
import numpy as np

from mechanisms.contents import in_page, used_pages
from mechanisms.fault import Fault, plants


def two_pages(draw, batch):
    """Draws a page and another one that gives the wrong content; None where both are one."""
    page, other = draw.any(used_pages(batch)), draw.any(used_pages(batch))
    return None if page == other else (page, other)


@plants("page_contents", later=True)
def page_copied_in_part(draw, batch):
    """A copy on write stops after some slots; those behind keep another request's tokens."""
    pages, n = two_pages(draw, batch), draw.integer(1, batch.page_size - 1)
    if pages is None:
        return None

    def change(x, cache):
        x[n:] = cache[pages[1]][n:].astype(np.float32)
        return x
    return in_page(draw, batch, change, pages[0], copied=n, source=pages[1])


@plants("page_contents", later=True)
def heads_of_a_page_not_copied(draw, batch):
    """A transfer moves the KV heads of one shard alone; the other heads keep another page's."""
    pages = two_pages(draw, batch)
    if pages is None or batch.num_kv_heads == 1:
        return None
    n, first = draw.integer(1, batch.num_kv_heads - 1), draw.chance(0.5)

    def change(x, cache):
        part = slice(0, n) if first else slice(n, None)
        x[:, part] = cache[pages[1]][:, part].astype(np.float32)
        return x
    return in_page(draw, batch, change, pages[0], border=n, first_heads=first, source=pages[1])


@plants("page_contents", later=True)
def slots_of_a_page_overwritten(draw, batch):
    """A few tokens of another request were appended to the wrong slots."""
    pages, n = two_pages(draw, batch), draw.integer(1, 3)
    if pages is None:
        return None
    slot, source = (draw.integer(0, batch.page_size - n) for _ in range(2))

    def change(x, cache):
        x[slot:slot + n] = cache[pages[1]][source:source + n].astype(np.float32)
        return x
    return in_page(draw, batch, change, pages[0], slot=slot, slots=n, source=pages[1])


@plants("page_contents", later=True)
def own_tokens_one_slot_late(draw, batch):
    """The step's tokens were appended one slot too far: the first own slot keeps what it held."""
    what, seed = draw.any(["both", "both", "k", "v"]), draw.integer(0, 10 ** 6)
    if batch.cached_lens is not None:
        return None

    def edit(view):
        own = int(view.q_pos[0])
        rng = np.random.default_rng([seed, view.request])
        for name in ("k", "v"):
            x = getattr(view, name)
            if what in ("both", name):
                stale = (rng.standard_normal(x[:1].shape) * np.std(x)).astype(x.dtype)
                setattr(view, name, np.concatenate([x[:own], stale, x[own:-1]]))
    return Fault({"of": what}, edit=edit)


@plants("page_contents", later=True)
def page_written_without_the_scale(draw, batch):
    """Real values were stored as codes, without division by the scale."""
    what = draw.any(["k", "v"])
    scale = batch.k_scale if what == "k" else batch.v_scale
    if scale is None:
        return None
    scale = np.broadcast_to(np.asarray(scale, np.float32), batch.num_kv_heads)[:, None]
    return in_page(draw, batch, lambda x, cache: x * scale, draw.any(used_pages(batch)), what)


@plants("page_contents", later=True)
def page_shifted_by_some_elements(draw, batch):
    """A page was copied from an address that is some elements off, so that rows begin inside of another row."""
    n = draw.any([-1, 1]) * draw.any([1, 2, 4, 8, 16, 24])
    if batch.layout == "packed":
        return None

    def change(x, cache):
        stored = x if batch.layout == "nhd" else x.transpose(1, 0, 2)
        moved = np.roll(stored.reshape(-1), n).reshape(stored.shape)
        return moved if batch.layout == "nhd" else moved.transpose(1, 0, 2)
    return in_page(draw, batch, change, draw.any(used_pages(batch)), elements=n)

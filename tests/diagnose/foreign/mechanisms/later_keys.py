# SPDX-License-Identifier: Apache-2.0
"""Plants sets of keys that warps, windows, contexts and tiles of rows get wrong."""
from mechanisms.fault import plants
from mechanisms.keys import mask, only
from mechanisms.mask import inside
from mechanisms.positions import at


@plants("key_range", later=True)
def tiles_of_one_warp_dropped(draw, batch):
    """Warps take tiles of keys in turn, and one warp's part is never added."""
    tile, warps = draw.any([8, 16, 32, 64]), draw.any([2, 4])
    i = draw.integer(0, warps - 1)
    return only(lambda q, k, view: k // tile % warps != i, batch, tile=tile, warps=warps, index=i)


@plants("key_range", later=True)
def first_and_last_keys_alone(draw, batch):
    """The middle was evicted, as a cache that streams keeps the first keys and the most recent ones."""
    first, last = draw.any([1, 4, 16, 64]), draw.any([32, 64, 128, 256])
    return only(lambda q, k, view: (k < first) | (q - k < last), batch, first=first, last=last)


@plants("key_range", later=True)
def half_of_the_window(draw, batch):
    """The window is taken for the width of both sides together."""
    return only(lambda q, k, view: q - k < (view.window + 1) // 2, batch) if batch.window else None


@plants("key_range", later=True)
def end_of_the_context_dropped(draw, batch):
    """The context is read in whole pages or tiles; what is left before the chunk is skipped."""
    t = draw.any([batch.page_size, 16, 64, 128])
    return only(lambda q, k, view: (k < view.q_pos[0] // t * t) | (k >= view.q_pos[0]), batch, tile=t)


@plants("key_range", later=True)
def attention_in_chunks(draw, batch):
    """A row sees the keys of its own chunk of positions alone, as layers with local attention do."""
    n = draw.any([32, 64, 128, 256, 512])
    return only(lambda q, k, view: k >= q // n * n, batch, chunk=n)


@plants("mask", later=True)
def causal_by_a_row_of_the_tile(draw, batch):
    """All rows of a tile are masked as its first or its last one."""
    tile, last = draw.any([4, 8, 16, 32, 64]), draw.chance(0.5)

    def seen(q, k, view):
        row = (q - view.q_pos[0]) // tile * tile + (tile - 1 if last else 0)
        return (k <= view.q_pos[0] + row) & inside(q, k, view)
    return mask(seen, tile=tile, last=last)


@plants("positions", later=True)
def chunk_padded_to_a_tile(draw, batch):
    """A chunk's rows are counted from the end of its last tile, which is padded."""
    tile = draw.any([8, 16, 32, 64])
    return at(lambda p, view: p + -len(p) % tile, tile=tile)

# SPDX-License-Identifier: Apache-2.0
"""Plants reads of another KV head or another query head."""
import numpy as np

from mechanisms.fault import Fault, plants


def kv_heads(batch, change, what, **parameters):
    heads = np.arange(batch.num_heads)
    wrong = change(heads)

    def edit(view):
        if what == "both":
            view.kv_head = wrong
            return
        # K and V of different heads: one pair of heads per query head.
        right = heads // batch.group
        k, v = (wrong, right) if what == "k" else (right, wrong)
        view.k, view.v, view.kv_head = view.k[:, k], view.v[:, v], heads
    return Fault({"of": what, **parameters}, edit=edit) if batch.num_kv_heads > 1 else None


def what(draw):
    return draw.any(["both", "both", "k", "v"])


@plants("kv_head", classic=True)
def head_modulo_kv_heads(draw, batch):
    return kv_heads(batch, lambda h: h % batch.num_kv_heads, what(draw)) if batch.group > 1 else None


@plants("kv_head")
def kv_head_zero(draw, batch):
    return kv_heads(batch, lambda h: 0 * h, what(draw))


@plants("kv_head")
def kv_head_of_a_neighbour(draw, batch):
    shift = draw.integer(1, max(1, batch.num_kv_heads - 1))
    return kv_heads(batch, lambda h: (h // batch.group + shift) % batch.num_kv_heads, what(draw), shift=shift)


@plants("kv_head")
def kv_heads_reversed(draw, batch):
    return kv_heads(batch, lambda h: batch.num_kv_heads - 1 - h // batch.group, what(draw))


@plants("kv_head")
def group_of_another_size(draw, batch):
    g = draw.any([max(1, batch.group // 2), batch.group * 2])
    return kv_heads(batch, lambda h: np.minimum(h // g, batch.num_kv_heads - 1), what(draw), group=g) if g != batch.group else None


def query_heads(batch, order, **parameters):
    def edit(view):
        view.q = view.q[:, order]
    return Fault(parameters, edit=edit)


@plants("query_head")
def query_of_the_next_head(draw, batch):
    shift = draw.any([1, -1, batch.group])
    return query_heads(batch, np.roll(np.arange(batch.num_heads), -shift), shift=shift)


@plants("query_head")
def query_heads_swapped_in_pairs(draw, batch):
    return query_heads(batch, np.arange(batch.num_heads) ^ 1) if batch.num_heads % 2 == 0 else None


@plants("query_head")
def query_heads_transposed(draw, batch):
    """Heads are ordered group by group where they are ordered KV head by KV head."""
    if batch.group == 1 or batch.num_kv_heads == 1:
        return None
    return query_heads(batch, np.arange(batch.num_heads).reshape(batch.num_kv_heads, batch.group).T.reshape(-1))


@plants("query_head")
def query_of_the_first_head_of_the_group(draw, batch):
    return query_heads(batch, np.arange(batch.num_heads) // batch.group * batch.group) if batch.group > 1 else None

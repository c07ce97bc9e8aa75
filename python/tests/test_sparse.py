# SPDX-License-Identifier: Apache-2.0
"""quire.sparse: equal to a gather in float64, what is said of a call, what is refused; the same on a GPU if there is one."""

import re
from pathlib import Path

import numpy as np
import pytest
from gpus import needs_gpu, torch

import quire

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "sparse.md"


class Step:
    """Rows at the end of their contexts, N(0,1), pages in random order, and NaN in every slot that no list holds."""

    def __init__(self, *, rows=5, heads=8, kv_heads=2, dim=64, page=16, context=200, unit="slot", by_head=False, width=40, latent=0,
                 layout="nhd", seed=1):  # fmt: skip
        random = np.random.default_rng(seed)
        self.heads, self.kv_heads, self.page, self.unit, self.latent, self.layout = heads, kv_heads, page, unit, latent, layout
        per_row = -(-context // page)
        pages = rows * per_row + 3
        self.table = random.permutation(pages)[: rows * per_row].reshape(rows, per_row).astype(np.int32)
        self.lens = random.integers(context // 2, context + 1, rows).astype(np.int32)
        self.query = random.standard_normal((rows, heads, dim)).astype(np.float32)
        shape = (pages, page, kv_heads, dim) if layout == "nhd" else (pages, kv_heads, page, dim)
        self.k = random.standard_normal(shape).astype(np.float32)
        self.v = self.k[..., :latent] if latent else random.standard_normal(shape).astype(np.float32)
        lists_of_row = kv_heads if by_head else 1
        self.ids = np.full((rows, lists_of_row, width), -1, np.int32)
        self.num_keys = np.zeros((rows, lists_of_row), np.int32)
        self.slots = {}
        for r in range(rows):
            for h in range(lists_of_row):
                size = 1 if unit == "slot" else page
                choices = -(-int(self.lens[r]) // size)
                chosen = random.permutation(choices)[: random.integers(1, width + 1)]
                if self.lens[r] % size:
                    chosen = np.concatenate([chosen[chosen != choices - 1], chosen[chosen == choices - 1]])
                positions = np.concatenate([np.arange(c * size, min((c + 1) * size, self.lens[r])) for c in chosen])
                slots = self.table[r][positions // page] * page + positions % page
                self.ids[r, h, : len(chosen)] = slots if unit == "slot" else self.table[r][chosen]
                self.num_keys[r, h] = len(positions)
                for k in range(kv_heads) if not by_head else [h]:
                    self.slots[r, k] = slots
        if not by_head:
            self.ids, self.num_keys = self.ids[:, 0], self.num_keys[:, 0]
        for h in range(kv_heads):
            seen = np.unique(np.concatenate([self.slots[r, h] for r in range(rows)]))
            hidden = np.setdiff1d(np.arange(pages * page), seen)
            for tensor in (self.k,) if latent else (self.k, self.v):
                self.head(tensor, h)[hidden // page, hidden % page] = np.nan

    def head(self, tensor, head):
        """``[pages, page, dims]`` of one KV head, a view."""
        return tensor[:, :, head] if self.layout == "nhd" else tensor[:, head]

    def made(self, move=lambda array: array):
        """Batch, cache and lists, by way of ``move``."""
        k = move(self.k)
        v = k[..., : self.latent] if self.latent else move(self.v)
        rows = len(self.lens)
        batch = quire.Batch(query=move(self.query), query_start_loc=move(np.arange(rows + 1, dtype=np.int32)), seq_lens=move(self.lens),
                            block_table=move(self.table))  # fmt: skip
        lists = quire.sparse.key_lists(move(self.ids), move(self.num_keys), unit=self.unit)
        return batch, quire.KVCache(k, v, self.layout), lists

    def expected(self, query=None, k=None, v=None):
        """In float64, straight from the cache."""
        query, k, v = (np.asarray(a, np.float64) for a in (self.query if query is None else query, self.k if k is None else k, self.v if v is None else v))
        out = np.zeros((*query.shape[:2], v.shape[-1]))
        for (r, h), slots in self.slots.items():
            keys, values = (self.head(t, h)[slots // self.page, slots % self.page] for t in (k, v))
            rows = slice(h * (self.heads // self.kv_heads), (h + 1) * (self.heads // self.kv_heads))
            scores = query[r, rows] @ keys.T / np.sqrt(query.shape[-1])
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out[r, rows] = weights @ values / weights.sum(-1, keepdims=True)
        return out


FORMS = [
    {},
    {"by_head": True},
    {"unit": "page", "width": 6},
    {"unit": "page", "width": 6, "by_head": True, "layout": "hnd"},
    {"layout": "hnd"},
    {"latent": 48, "kv_heads": 1, "heads": 16},
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_equals_a_gather(form):
    step = Step(**form)
    batch, cache, lists = step.made()
    plan = quire.sparse.plan(batch, cache, lists=lists)
    out = quire.sparse.attend(batch, cache, lists=lists, plan=plan)
    np.testing.assert_allclose(out, step.expected(), atol=2e-6, rtol=2e-5)
    assert not quire.sparse.check(batch, cache, lists=lists)


def test_counts_entries_in_front_of_minus_one():
    step = Step()
    batch, cache, _ = step.made()
    lists = quire.sparse.key_lists(step.ids.astype(np.int64))
    out = quire.sparse.attend(batch, cache, lists=lists, plan=quire.sparse.plan(batch, cache, lists=lists))
    np.testing.assert_allclose(out, step.expected(), atol=2e-6, rtol=2e-5)


def test_an_empty_list_gives_zero():
    step = Step()
    batch, cache, _ = step.made()
    lists = quire.sparse.key_lists(np.full((5, 8), -1, np.int32))
    assert not np.asarray(quire.sparse.attend(batch, cache, lists=lists, plan=quire.sparse.plan(batch, cache, lists=lists))).any()


def test_says_what_it_does():
    batch, cache, lists = Step(by_head=True).made()
    plan = quire.sparse.plan(batch, cache, lists=lists)
    assert plan.reason == (
        "lists of up to 40 slots of each row and KV head: the cache is seen as pages of one token, each row as a request, and each of 2 "
        "KV heads as a batch"
    )
    assert len(plan.kernels) == 2 and "batch 1" in str(plan) and plan.reason in repr(plan)
    assert "slots by row i32 [5, 2, 40]" in repr(lists) and lists.unit == "slot" and lists.owner == "row"


def test_refuses():
    step = Step()
    batch, cache, lists = step.made()
    plan = quire.sparse.plan(batch, cache, lists=lists)

    def refusal(ids=step.ids, num_keys=step.num_keys, **form):
        return str(quire.sparse.check(batch, cache, lists=quire.sparse.key_lists(ids, num_keys, **form)))

    assert "Q-K01 ids: shape [4, 40]" in refusal(step.ids[:4])
    assert "Q-K02 num_keys: absent, expected num_keys beside pages" in refusal(num_keys=None, unit="page")
    assert "Q-K07" in refusal(np.full_like(step.ids, -1))
    assert "Q-K08" in refusal(np.full_like(step.ids, step.ids[0, 0]))
    assert "Q-K09 ids[0][0]: slot" in refusal(step.ids[::-1])
    other = quire.sparse.key_lists(step.ids[::-1], step.num_keys[::-1])
    with pytest.raises(quire.ContractError, match="Q-K09"):
        quire.sparse.attend(batch, cache, lists=other, plan=plan)
    with pytest.raises(quire.ContractError, match="Q-K03 sliding_window"):
        quire.sparse.plan(batch, cache, quire.Options(sliding_window=8), lists=lists)
    with pytest.raises(quire.ArgumentError, match='unit: "token" is neither "page" nor "slot"'):
        quire.sparse.key_lists(step.ids, unit="token")


def test_the_guides_example_runs_and_prints_what_the_guide_shows(capsys):
    text = PAGE.read_text()
    for source in re.findall(r"test_sparse.py -->\n```python\n(.*?)```", text, re.DOTALL):
        exec(compile(source, str(PAGE), "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed and printed[0] in text


MLA = {"latent": 512, "dim": 576, "kv_heads": 1, "heads": 64, "width": 300, "context": 700}


def on_device(dtype="float16"):
    def move(array):
        tensor = torch.from_numpy(np.ascontiguousarray(array)).cuda()
        return tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor

    return move


def rounded(array):
    return np.asarray(array, np.float16).astype(np.float64)


@needs_gpu
@pytest.mark.parametrize("form", [f for f in FORMS if f != {"layout": "hnd"}] + [MLA, {**MLA, "unit": "page", "width": 12}], ids=str)
def test_on_a_gpu(form):
    step = Step(**form)
    batch, cache, lists = step.made(on_device())
    plan = quire.sparse.plan(batch, cache, lists=lists)
    out = quire.sparse.attend(batch, cache, lists=lists, plan=plan)
    expected = step.expected(*(rounded(a) for a in (step.query, step.k, step.v)))
    np.testing.assert_allclose(out.cpu().numpy(), expected, atol=4e-3, rtol=4e-3)
    if quire.info.gpu_devices()[0].sm == 90 and (step.unit == "page" or step.latent == 512):
        assert set(plan.kernels) == {"cuda_sm90_mla" if step.latent == 512 else "cuda_sm90"}
    room = torch.empty(plan.workspace_bytes + 256, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again = quire.sparse.attend(batch, cache, lists=lists, plan=plan, workspace=room)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(again, out)


@needs_gpu
def test_a_gpu_says_what_is_wrong():
    step = Step()
    move = on_device()
    batch, cache, lists = step.made(move)
    plan = quire.sparse.plan(batch, cache, lists=lists)
    with_hole = step.ids.copy()
    with_hole[2, 0] = -1
    broken = quire.sparse.key_lists(move(with_hole), move(step.num_keys))
    with pytest.raises(quire.ContractError, match=r"Q-K07 ids\[2\]\[0\]: slot -1 outside"):
        quire.sparse.attend(batch, cache, lists=broken, plan=plan)
    assert "Q-K09" in str(quire.sparse.check(batch, cache, lists=quire.sparse.key_lists(move(step.ids[::-1]), move(step.num_keys[::-1]))))
    with pytest.raises(quire.ContractError, match="Q-K05 row_starts: absent"):
        quire.sparse.plan(batch, cache, lists=quire.sparse.KeyLists(move(step.ids), move(step.num_keys)))
    with pytest.raises(quire.ContractError, match="Q-K02 num_keys: absent, expected num_keys beside lists in device memory"):
        quire.sparse.plan(batch, cache, lists=quire.sparse.KeyLists(move(step.ids), row_starts=lists.num_keys.new_zeros(6)))
    hnd = Step(layout="hnd")
    batch, cache, lists = hnd.made(move)
    with pytest.raises(quire.ContractError, match="Q-K04 cache.k: pages are 32 steps of a token apart"):
        quire.sparse.plan(batch, cache, lists=lists)


@needs_gpu
def test_empty_lists_on_a_gpu():
    step = Step(unit="page", width=6)
    move = on_device()
    batch, cache, _ = step.made(move)
    none = step.num_keys.copy()
    none[1] = 0
    lists = quire.sparse.key_lists(move(step.ids), move(none), unit="page")
    plan = quire.sparse.plan(batch, cache, lists=lists, empty_lists=True)
    out = quire.sparse.attend(batch, cache, lists=lists, plan=plan).cpu().numpy()
    expected = step.expected(*(rounded(a) for a in (step.query, step.k, step.v)))
    assert not out[1].any()
    np.testing.assert_allclose(np.delete(out, 1, 0), np.delete(expected, 1, 0), atol=4e-3, rtol=4e-3)
    with pytest.raises(quire.ContractError, match="Q-T06"):
        quire.sparse.attend(batch, cache, lists=lists, plan=quire.sparse.plan(batch, cache, lists=lists))

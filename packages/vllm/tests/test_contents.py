# SPDX-License-Identifier: Apache-2.0
"""What slots hold and what rows come out: layouts by probe, digests, fp64. Needs torch, not vLLM."""

import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import quire  # noqa: E402
from quire_vllm.audit import rows as fp64  # noqa: E402
from quire_vllm.audit.layout import LayoutError, probe  # noqa: E402
from quire_vllm.audit.memory import Memory, slot_digests  # noqa: E402
from quire_vllm.audit.values import Values, not_finite  # noqa: E402

PAGE, HEADS, DIM = 8, 2, 16


def _packed(key, value, cache, slots):
    """vLLM's one tensor: K then V in the last dim."""
    for t, slot in enumerate(slots.tolist()):
        cache[slot // PAGE, :, slot % PAGE, :DIM], cache[slot // PAGE, :, slot % PAGE, DIM:] = key[t].to(cache.dtype), value[t].to(cache.dtype)


def _scrambled(key, value, cache, slots):
    """K column by column, V row by row, in halves of the page, as a CPU kernel may want it."""
    k, v = cache.view(len(cache), HEADS, 2 * PAGE, DIM).chunk(2, dim=2)
    for t, slot in enumerate(slots.tolist()):
        k[slot // PAGE].view(HEADS, DIM, PAGE)[:, :, slot % PAGE] = key[t].to(cache.dtype)
        v[slot // PAGE, :, slot % PAGE] = value[t].to(cache.dtype)


def _broken(key, value, cache, slots):
    _packed(key, key, cache, slots)  # V is never stored


@pytest.mark.parametrize("write", [_packed, _scrambled])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_any_layout_is_found_by_writing(write, dtype):
    cache = torch.zeros(5, HEADS, PAGE, 2 * DIM, dtype=dtype)
    layout = probe(write, cache, PAGE, HEADS, DIM, torch.float32)
    key, value = torch.randn(2, PAGE, HEADS, DIM).to(dtype).to(torch.float32)
    write(key, value, cache, torch.arange(3 * PAGE, 4 * PAGE))
    read = layout.read(cache, torch.tensor([3]))[0].to(torch.float32)
    assert torch.equal(read[:, 0], key)
    assert torch.equal(read[:, 1], value)


def test_a_layout_that_cannot_be_read_is_refused():
    with pytest.raises(LayoutError, match="readable elements"):
        probe(_broken, torch.zeros(5, HEADS, PAGE, 2 * DIM), PAGE, HEADS, DIM, torch.float32)


def test_every_changed_bit_changes_a_digest():
    rows = torch.randn(6, 2, HEADS, 3, dtype=torch.float32)
    before = slot_digests(rows)
    for bit in range(0, rows[0].numel() * 32, 7):
        other = rows.clone()
        other[2].view(torch.int32).reshape(-1)[bit // 32] ^= 1 << (bit % 31)
        assert (slot_digests(other) != before).nonzero().reshape(-1).tolist() == [2]


@pytest.mark.parametrize("copy", [False, True])
def test_memory_tells_a_write_from_an_overwrite(copy):
    memory, slots = Memory(100, copy), np.arange(40, 46)
    rows = torch.randn(6, 2, HEADS, DIM)
    assert len(memory.changed(slots, np.full(6, 1), rows)) == 0
    rows[3] = 0
    assert memory.changed(slots, np.full(6, 1), rows).tolist() == [3]
    rows[4] = 7
    assert len(memory.changed(slots, np.array([1, 1, 1, 1, 2, 1]), rows)) == 0
    assert (memory.before(43) is not None) == copy


def _call(line="q=f32 heads=4:2 d=16 page=8 reqs=3@40 seed=3"):
    case = quire.make_case(line)
    layer = fp64.Layer(4, 2, 16, 0.25)
    table = np.asarray(case.batch.block_table)[0, : -(-43 // PAGE)]
    k, v = (torch.from_numpy(np.asarray(x)[table].copy()) for x in (case.cache.k, case.cache.v))
    query = torch.from_numpy(np.asarray(case.batch.query).copy())
    output = torch.from_numpy(np.asarray(quire.attend(case.batch, case.cache, quire.Options(softmax_scale=0.25))).copy())
    return layer, query, output, torch.stack([k, v], 2)


def test_right_rows_pass_and_a_wrong_head_does_not():
    layer, query, output, kv = _call()
    assert fp64.judge(layer, query, output, kv, 43, [0, 2], range(0, 2)).ok
    wrong = output.clone()
    wrong[2, 3] = output[2, 0]
    assert fp64.judge(layer, query, wrong, kv[:, :, :, :1], 43, [0, 2], range(0, 1)).ok  # heads 0 and 1 are right
    judged = fp64.judge(layer, query, wrong, kv[:, :, :, 1:], 43, [0, 2], range(1, 2))
    assert not judged.ok
    assert not judged.rounding


def test_written_rows_are_compared_bit_by_bit():
    layer = fp64.Layer(4, HEADS, DIM, 0.25)
    key, value = torch.randn(2, 5, HEADS, DIM, dtype=torch.bfloat16)
    stored = torch.stack([key, value], 1)
    assert len(fp64.written_wrong(layer, stored, key, value)) == 0
    stored[3, 1, 0, 5] = 1e3
    assert fp64.written_wrong(layer, stored, key, value).tolist() == [3]


def test_fp8_rows_may_be_rounded_either_way_and_no_further():
    layer = fp64.Layer(4, HEADS, DIM, 0.25, cache_dtype="fp8_e4m3fn", k_scale=np.ones(1, np.float32), v_scale=np.ones(1, np.float32))
    key, value = torch.randn(2, 5, HEADS, DIM)
    nearest = torch.stack([key, value], 1).to(torch.float8_e4m3fn).view(torch.uint8)
    magnitude = nearest & 0x7F
    truncated = torch.where(magnitude > 0, nearest - 1, nearest)
    assert len(fp64.written_wrong(layer, nearest, key, value)) == 0
    assert len(fp64.written_wrong(layer, truncated, key, value)) == 0
    far = nearest.clone()
    far[2, 0, 0, 0] ^= 0x08
    assert fp64.written_wrong(layer, far, key, value).tolist() == [2]


def test_one_head_is_read_as_that_part_of_all():
    cache = torch.randn(5, HEADS, PAGE, 2 * DIM)
    layout = probe(_packed, cache, PAGE, HEADS, DIM, torch.float32)
    pages, offsets = torch.tensor([3, 1, 4]), torch.tensor([0, 7, 2])
    every = layout.read_slots(cache, pages, offsets)
    for head in range(HEADS):
        assert torch.equal(layout.head(head).read_slots(cache, pages, offsets), every[:, :, head : head + 1])


@pytest.mark.parametrize(("dtype", "raw"), [(torch.float16, None), (torch.bfloat16, None), (torch.float8_e4m3fn, None), (torch.uint8, "fp8_e4m3fn")])
def test_slots_that_are_not_finite_are_named(dtype, raw):
    rows = torch.randn(6, 2, HEADS, DIM).to(torch.float8_e4m3fn if raw else dtype).view(dtype)
    assert not_finite(rows, raw).tolist() == []
    (rows.view(torch.uint8) if rows.element_size() == 1 else rows)[4, 1, 0, 3] = 0x7F if rows.element_size() == 1 else float("nan")
    assert not_finite(rows, raw).tolist() == [4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_rows_that_are_not_finite_are_told_once(dtype, value):
    request = [types.SimpleNamespace(name=n, number=i, scheduled=2) for i, n in enumerate("abc")]
    tables = types.SimpleNamespace(rows=[request[0], None, request[1], request[2]], query_start_loc=np.array([0, 2, 4, 6, 8]))
    values, output = Values(), torch.randn(8, HEADS, DIM).to(dtype)
    values.see(output, tables)
    assert values.read() == []
    output[3, 0, 0] = output[4, 0, 0] = value  # a row of nobody, and one that is not a request's last
    output[5, 1, DIM - 1] = value
    values.see(output, tables)
    assert values.read() == [request[1]]
    values.see(output, tables)
    assert values.read() == []

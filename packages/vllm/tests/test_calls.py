# SPDX-License-Identifier: Apache-2.0
"""A layer's calls against fp64, on vLLM's one tensor for K and V; and the lines at start. Needs torch, not vLLM."""

import types

import pytest

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import quire  # noqa: E402
from quire_vllm import calls, explaining  # noqa: E402

PAGE, HEADS, KV_HEADS, DIM = 16, 6, 2, 32
LENS = [(5, 40), (1, 33), (1, 7), (0, 0)]  # query_len, seq_len; the last is vLLM's padding


def _metadata(rows):
    starts = torch.tensor([0, 5, 6, 7, 7], dtype=torch.int32)
    table = torch.arange(1, 13, dtype=torch.int32).reshape(4, 3)
    slots = [int(table[r, p // PAGE]) * PAGE + p % PAGE for r, (q, n) in enumerate(LENS) for p in range(n - q, n)]
    return types.SimpleNamespace(
        num_actual_tokens=rows, query_start_loc=starts, seq_lens=torch.tensor([n for _, n in LENS], dtype=torch.int32), block_table=table,
        slot_mapping=torch.tensor(slots + [-1] * (rows - len(slots))), bound={},
    )  # fmt: skip


def _nhd(kv):
    """The same blocks with the order [blocks, block_size, kv_heads, ...] in memory."""
    return kv.transpose(1, 2).contiguous().transpose(1, 2)


@pytest.mark.parametrize("order", [lambda kv: kv, _nhd], ids=["hnd", "nhd"])
@pytest.mark.parametrize(
    ("dtype", "cache"), [(torch.float32, "auto"), (torch.bfloat16, "auto"), (torch.bfloat16, "fp8_e4m3"), (torch.float16, "fp8_e5m2")]
)
@pytest.mark.parametrize("options", [{}, {"window": 9, "sinks": True}, {"cap": 20.0, "slopes": True}], ids=["plain", "window", "cap"])
def test_a_layer_is_right(order, dtype, cache, options):
    torch.manual_seed(2)
    rows = 9  # two of them are padding
    m = _metadata(rows)
    slopes = torch.linspace(-0.1, 0.2, HEADS) if options.get("slopes") else None
    sinks = torch.randn(HEADS, dtype=dtype) if options.get("sinks") else None
    call = calls.LayerCall(0.2, DIM, options.get("window"), options.get("cap"), slopes, cache)
    layer = types.SimpleNamespace(_k_scale=torch.tensor(0.5), _v_scale=torch.tensor(2.0))
    kv = torch.randn(13, KV_HEADS, PAGE, 2 * DIM).to(dtype)
    kv = order(kv if cache == "auto" else kv.to({"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}[cache]).view(torch.uint8))
    key, value, query = torch.randn(rows, KV_HEADS, DIM).to(dtype), torch.randn(rows, KV_HEADS, DIM).to(dtype), torch.randn(rows, HEADS, DIM).to(dtype)
    output = torch.full((rows, HEADS, DIM), 7.0, dtype=dtype)
    for _ in range(2):  # the second layer of a step takes the bound call of the first
        call.append(layer, key, value, kv, m.slot_mapping)
        call.attend(layer, query, kv, m, output, sinks)
    assert len(m.bound) == 1
    assert torch.all(output[7:] == 7.0)
    scales = (torch.tensor([0.5]), torch.tensor([2.0])) if cache != "auto" else (None, None)
    batch = quire.Batch(query=query[:7], query_start_loc=m.query_start_loc, seq_lens=m.seq_lens, block_table=m.block_table)
    view = quire.KVCache(kv[..., :DIM], kv[..., DIM:], "hnd", *scales, dtype=calls.FP8.get(cache))
    expected = quire.reference(batch, view, quire.Options(softmax_scale=0.2, sliding_window=options.get("window"), logits_soft_cap=options.get("cap"),
                                                          alibi_slopes=slopes, sinks=None if sinks is None else sinks.float()))  # fmt: skip
    rounded = None if dtype is torch.float32 else "bf16" if dtype is torch.bfloat16 else "f16"
    comparison = quire.compare(output[:7], None, expected, weights=rounded)
    assert comparison.ok, comparison.text
    if cache == "auto":
        stored = kv[int(m.block_table[1, 2]), :, 0]  # position 32 of the second request
        assert torch.equal(stored[:, :DIM], key[5])
        assert torch.equal(stored[:, DIM:], value[5])


class Counted(TorchDispatchMode):
    """The operators of Quire that run, by name."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        if function.namespace == "quire":
            self.names.append(function._opname)
        return function(*args, **(kwargs or {}))


def test_the_first_layer_of_a_pass_prepares_for_the_others():
    """The way of a GPU, on a CPU: operators are the same there."""
    torch.manual_seed(3)
    m = _metadata(9)
    m.max_query_len, m.max_seq_len = 5, 40
    layers = [calls.LayerCall(0.2, DIM, window, None, None, "auto") for window in (None, None, 9, None)]
    kvs = [torch.randn(13, KV_HEADS, PAGE, 2 * DIM) for _ in layers]
    query = torch.randn(9, HEADS, DIM)

    def forward():
        found = []
        for layer, kv in zip(layers, kvs):
            layer.view(types.SimpleNamespace(), kv)
            found.append(torch.full((9, HEADS, DIM), 7.0))
            layer._on_gpu(query, m, found[-1])
        return found

    with Counted() as counted:
        outputs = forward()
        assert counted.names == ["prepare", "attend", "attend", "prepare", "attend", "attend"]
        m.seq_lens[1] = 20  # the same metadata again: a capture after a warm-up, a draft model's next token
        again = forward()
    assert counted.names[6:] == counted.names[:6]
    for lens, outs in ((33, outputs), (20, again)):
        m.seq_lens[1] = lens
        batch = quire.Batch(query=query[:7], query_start_loc=m.query_start_loc, seq_lens=m.seq_lens, block_table=m.block_table)
        for layer, kv, out in zip(layers, kvs, outs):
            options = quire.Options(softmax_scale=0.2, sliding_window=layer.window)
            expected = quire.reference(batch, quire.KVCache(kv[..., :DIM], kv[..., DIM:], "hnd"), options)
            comparison = quire.compare(out[:7], None, expected)
            assert comparison.ok, comparison.text
            assert torch.all(out[7:] == 7.0)


def test_a_moved_cache_is_found_again():
    m, call = _metadata(7), calls.LayerCall(0.2, DIM, None, None, None, "auto")
    layer, query = types.SimpleNamespace(), torch.randn(7, HEADS, DIM)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        kv, output = torch.randn(13, KV_HEADS, PAGE, 2 * DIM), torch.empty(7, HEADS, DIM)
        call.attend(layer, query, kv, m, output, None)
        found.append(output)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_rows_of_other_strides_are_bound_anew():
    torch.manual_seed(4)
    m, call = _metadata(9), calls.LayerCall(0.2, DIM, None, None, None, "auto")
    kv, query = torch.randn(13, KV_HEADS, PAGE, 2 * DIM), torch.randn(9, HEADS, DIM)
    found = []
    for rows in (query, torch.cat([query, query], 2)[..., :DIM], query):  # the second as a layer that splits a wider product has them
        found.append(torch.full((9, HEADS, DIM), 7.0))
        call.attend(types.SimpleNamespace(), rows, kv, m, found[-1], None)
    assert len(m.bound) == 1
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    m.block_table[0, 0] = 99
    with pytest.raises(quire.ContractError, match="Q-T03"):
        call.attend(types.SimpleNamespace(), query, kv, m, found[0], None)


def test_start_says_which_kernel_serves_which_layers():
    def impl(window=None):
        return types.SimpleNamespace(num_heads=9, num_kv_heads=3, head_size=64, kv_cache_dtype="fp8", sinks=None,
                                     call=calls.LayerCall(0.125, 64, window, None, None, "fp8"))  # fmt: skip

    impls = {"layers.0": impl(), "layers.1": impl(128), "layers.2": impl()}
    full, windowed = explaining.lines_of(types.SimpleNamespace(block_size=16), impls, torch.bfloat16)
    assert full.startswith("quire: 2 layers, layers.0 to layers.2: prefill on cpu_")
    assert full.endswith("; q=bf16 kv=fp8_e4m3fn heads=9:3 d=64 page=16 layout=hnd")
    assert windowed.startswith("quire: layers.1: prefill on cpu_")
    assert windowed.endswith("window=128")


@pytest.mark.parametrize("name,arch,expected", [
    ("auto", "gfx942", None), ("fp8", "gfx950", "fp8_e4m3fn"), ("fp8_e5m2", "gfx950", "fp8_e5m2"),
    ("fp8", "gfx942", "fp8_e4m3fnuz"), ("fp8_e4m3", "gfx942", "fp8_e4m3fnuz"), ("fp8_e5m2", "gfx942", "fp8_e5m2fnuz"),
])  # fmt: skip
def test_gfx94x_means_the_fnuz_types(monkeypatch, name, arch, expected):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(calls, "_arch", lambda tensor: arch)
    cache = types.SimpleNamespace(dtype=torch.uint8, is_cuda=True)
    assert calls.cache_dtype(name, cache) == expected

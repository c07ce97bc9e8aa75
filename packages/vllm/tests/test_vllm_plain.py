# SPDX-License-Identifier: Apache-2.0
"""What quire_vllm.ops's readers make of engines' calls on a device: the arguments that reach the bindings, which no value on the device tells.

Tensors of torch's meta device stand for those of a GPU: they have no values, so a reader that looks at one raises.
"""

import pytest

torch = pytest.importorskip("torch")

import quire
import quire_vllm.ops as ops
from quire import _quire
from quire._fields import FIELDS
from quire_vllm.ops import _attention
from quire_vllm.ops._request import Request


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


Q, OUT, STARTS, LENS, TABLE = meta(6, 8, 64), meta(6, 8, 64), meta(4, dtype=torch.int32), meta(3, dtype=torch.int32), meta(3, 4, dtype=torch.int32)
K, V, KEY, VALUE = meta(12, 16, 2, 64), meta(12, 16, 2, 64), meta(6, 2, 64), meta(6, 2, 64)
PACKED_K, PACKED_V, FP8 = meta(12, 2, 8, 16, 8), meta(12, 2, 64, 16), torch.uint8
ONE, SCALAR, HEADS = meta(1, dtype=torch.float32), meta(dtype=torch.float32), meta(2, dtype=torch.float32)
SLOPES = meta(8, dtype=torch.float32)
SLOTS = meta(6, dtype=torch.int64)
OUT8 = meta(6, 8, 64, dtype=torch.float8_e4m3fn)


def recorded(monkeypatch, call, name):
    """The arguments of ``name``, of the bindings, that a call ends in."""
    found = []
    monkeypatch.setattr(_quire, name, found.append)
    call()
    monkeypatch.undo()
    (arguments,) = found
    return arguments


def same(name, a, b):
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):  # a scale of one number may be a view
        return a is b or (name.endswith("scale") and a.numel() == b.numel())
    return a is b or (type(a) is type(b) and not isinstance(a, torch.Tensor) and a == b)


def differences(got, expected):
    got, expected = vars(Request(got)), vars(Request(expected))
    assert got.keys() == expected.keys()
    return [f"{name}: {got[name]!r}, expected {expected[name]!r}" for name in got if not same(name, got[name], expected[name])]


def unified(**changed):
    call = dict(q=Q, k=K, v=V, out=OUT, cu_seqlens_q=STARTS, max_seqlen_q=4, seqused_k=LENS, max_seqlen_k=60, softmax_scale=0.125, causal=True,
                window_size=(-1, -1), block_table=TABLE, softcap=0, q_descale=None, k_descale=None, v_descale=None)  # fmt: skip
    return lambda: ops.unified_attention(**{**call, **changed})


def chunked(**changed):
    call = dict(query=Q, key=KEY, value=VALUE, output=OUT, kv_cache_dtype="auto", key_cache=PACKED_K, value_cache=PACKED_V, block_table=TABLE,
                query_start_loc=STARTS, seq_lens=LENS, max_seq_len=60, max_query_len=4, k_scale=None, v_scale=None, sm_scale=0.125)  # fmt: skip
    return lambda: ops.chunked_prefill_paged_decode(**{**call, **changed})


def context(**changed):
    call = dict(q=Q, k=None, v=None, o=OUT, kv_cache_dtype="auto", k_cache=PACKED_K, v_cache=PACKED_V, b_loc=TABLE, b_start_loc=STARTS,
                b_seq_len=LENS, max_seq_len=60, max_input_len=4, k_scale=None, v_scale=None, sm_scale=0.125)  # fmt: skip
    return lambda: ops.context_attention_fwd(**{**call, **changed})


PLAIN = dict(query=Q, output=OUT, query_start_loc=STARTS, seq_lens=LENS, block_table=TABLE, cache_dtype="bf16", softmax_scale=0.125,
                       padding="left", max_query_len=4, max_seq_len=None, wait=False)  # fmt: skip
UNIFIED = PLAIN | dict(k=K, v=V, layout="nhd", max_seq_len=60)
PACKED = PLAIN | dict(k=PACKED_K, v=PACKED_V, layout="packed")
NEW = dict(key=KEY, value=VALUE, cached_lens="decode")  # cached_lens that a kernel of Quire's computes
K8, V8 = meta(12, 16, 2, 64, dtype=FP8), meta(12, 16, 2, 64, dtype=FP8)
PACKED_K8, PACKED_V8 = meta(12, 2, 4, 16, 16, dtype=FP8), meta(12, 2, 64, 16, dtype=FP8)
FLAGS = meta(3, dtype=torch.bool)
E4M3 = dict(k=K8, v=V8, cache_dtype="fp8_e4m3fn")

UNIFIED_CALLS = {
    "plain": (dict(), dict()),
    "cap": (dict(softcap=30.0), dict(logits_soft_cap=30.0)),
    "cap below 0 is off": (dict(softcap=-1.0), dict()),
    "window": (dict(window_size=(15, 0)), dict(sliding_window=16)),
    "window of the own key": (dict(window_size=(0, 0)), dict(sliding_window=1)),
    "no window": (dict(window_size=None), dict()),
    "sinks": (dict(sinks=SLOPES), dict(sinks=SLOPES)),
    "slopes": (dict(alibi_slopes=SLOPES), dict(alibi_slopes=SLOPES)),
    "scales of other caches": (dict(k_descale=ONE, v_descale=SCALAR), dict()),
    "fp8": (dict(k=K8, v=V8), E4M3),
    "scales": (dict(k=K8, v=V8, k_descale=ONE, v_descale=SCALAR), E4M3 | dict(k_scale=ONE, v_scale=SCALAR)),
    "scales of the host": (dict(k=K8, v=V8, k_descale=0.5, v_descale=2.0), E4M3 | dict(k_scale=0.5, v_scale=2.0)),
    "scales of heads": (dict(k=K8, v=V8, k_descale=HEADS, v_descale=HEADS), E4M3 | dict(k_scale=HEADS, v_scale=HEADS)),
    "expanded scales": (dict(k=K8, v=V8, k_descale=HEADS.expand(3, 2), v_descale=HEADS.expand(3, 2)), E4M3 | dict(k_scale=HEADS, v_scale=HEADS)),
    "flavour": (dict(k=K8, v=V8, fp8_flavour="fnuz"), dict(k=K8, v=V8, cache_dtype="fp8_e4m3fnuz")),
    "no scale": (dict(softmax_scale=None), dict(softmax_scale=None)),
    "whole scale": (dict(softmax_scale=1), dict(softmax_scale=1.0)),
    "wait": (dict(wait=True), dict(wait=True)),
    "what changes nothing": (dict(kv_quant_mode=1, use_td=True, mm_prefix_clamp_sliding_window=True), dict()),
    "no mode": (dict(kv_quant_mode=None), dict()),
    "no row": (dict(max_seqlen_q=0), dict(max_query_len=1)),
    "no key": (dict(max_seqlen_k=0), dict(max_seq_len=1)),
    "scale of another query": (dict(q_descale=ONE), dict()),
    "fp8 output": (dict(out=OUT8, output_scale=ONE), dict(output=OUT8, output_scale=ONE)),
    "not causal": (dict(causal=False, window_size=(15, 15)), dict(causal=False, sliding_window=16, window_right=15)),
    "flags": (dict(causal=FLAGS), dict(causal_per_request=FLAGS)),
}  # fmt: skip
CHUNKED_CALLS = {
    "plain": (dict(), NEW),
    "decode": (dict(max_query_len=1), dict(max_query_len=1)),
    "no bound": (dict(max_query_len=None), NEW | dict(max_query_len=None)),
    "all in the cache": (dict(key=None, value=None), dict()),
    "window": (dict(sliding_window=16), NEW | dict(sliding_window=16)),
    "window 0 is off": (dict(sliding_window=0), NEW),
    "window below 0 is off": (dict(sliding_window=-1), NEW),
    "sinks and slopes": (dict(sinks=SLOPES, alibi_slopes=SLOPES), NEW | dict(sinks=SLOPES, alibi_slopes=SLOPES)),
    "scales": (dict(key_cache=PACKED_K8, value_cache=PACKED_V8, kv_cache_dtype="fp8", k_scale=ONE, v_scale=SCALAR),
               NEW | dict(k=PACKED_K8, v=PACKED_V8, cache_dtype="fp8_e4m3fn", k_scale=ONE, v_scale=SCALAR)),
    "fp8 output": (dict(output=OUT8, output_scale=ONE), NEW | dict(output=OUT8, output_scale=ONE)),
    "not causal": (dict(causal=False), NEW | dict(causal=False)),
}  # fmt: skip
CONTEXT_CALLS = {
    "plain": (dict(), dict()),
    "window": (dict(sliding_window=16), dict(sliding_window=16)),
    "fp8 output": (dict(o=OUT8, fp8_out_scale=ONE), dict(output=OUT8, output_scale=ONE)),
}  # fmt: skip
CASES = [
    pytest.param(call, plain | expected, changed, id=f"{call.__name__}: {name}")
    for call, plain, cases in ((unified, UNIFIED, UNIFIED_CALLS), (chunked, PACKED, CHUNKED_CALLS), (context, PACKED, CONTEXT_CALLS))
    for name, (changed, expected) in cases.items()
]


@pytest.mark.parametrize("call, expected, changed", CASES)
def test_what_reaches_the_bindings(monkeypatch, call, expected, changed):
    assert differences(recorded(monkeypatch, call(**changed), "attend_arrays"), expected) == []


@pytest.mark.parametrize("name", ["sliding_window", "max_query_len", "k", "causal"])
def test_a_fault_in_a_reader_is_found(monkeypatch, name):
    read = _attention.read_unified
    faulty = lambda *args: read(*args) | {name: 7}  # noqa: E731
    monkeypatch.setattr(_attention, "read_unified", faulty)
    (found,) = differences(recorded(monkeypatch, unified(), "attend_arrays"), UNIFIED)
    assert found.startswith(f"{name}: 7, expected")


@pytest.mark.parametrize("name, value", [("qq_bias", SLOPES), ("kv_quant_mode", 2), ("chunk_lookback", 3),
                                         ("use_alibi_sqrt", True), ("k_scale_cache", ONE)])  # fmt: skip
def test_what_is_refused_is_refused_on_a_device(name, value):
    with pytest.raises(quire.UnsupportedError, match=name):
        unified(**{name: value})()


def test_slopes_beside_sinks_are_refused():
    with pytest.raises(quire.UnsupportedError, match="alibi_slopes with sinks"):
        unified(alibi_slopes=SLOPES, sinks=SLOPES)()


@pytest.mark.parametrize("op, layout, caches", [(ops.reshape_and_cache_flash, "nhd", (K, V)), (ops.reshape_and_cache, "packed", (PACKED_K, PACKED_V))])
def test_append_hands_over_what_it_was_given(monkeypatch, op, layout, caches):
    got = recorded(monkeypatch, lambda: op(KEY, VALUE, *caches, SLOTS, "auto", ONE, ONE), "append_arrays")
    assert all(got[name] is given for name, given in zip("k v key value slot_mapping".split(), (*caches, KEY, VALUE, SLOTS), strict=True))
    assert (got.get("layout", "nhd"), got["cache_dtype"], got["k_scale"], got["v_scale"]) == (layout, "bf16", None, None)  # a bf16 cache has no scale


def test_a_request_has_every_field_of_the_table():
    assert {f.argument for f in FIELDS} <= set(vars(Request({})))

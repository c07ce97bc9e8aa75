# SPDX-License-Identifier: Apache-2.0
"""quire.vllm's short way for engines' calls on a device asks for what the long one asks for, or leaves the call to it.

Tensors of torch's meta device stand for those of a GPU: nothing is computed, and the arguments of _quire.attend_arrays() and
_quire.append_arrays() are compared.
"""

import inspect

import pytest

torch = pytest.importorskip("torch")

import quire
import quire.vllm as ops

ATTEND = ("query output k v query_start_loc seq_lens block_table layout cache_dtype cached_lens key value lse k_scale v_scale softmax_scale "
          "sliding_window logits_soft_cap alibi_slopes sinks padding max_query_len max_seq_len stream wait remember q_scale output_scale").split()  # fmt: skip
DEFAULTS = {"remember": True, "cache_dtype": "", "layout": "nhd"}


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


Q, OUT, STARTS, LENS, TABLE = meta(6, 8, 64), meta(6, 8, 64), meta(4, dtype=torch.int32), meta(3, dtype=torch.int32), meta(3, 4, dtype=torch.int32)
K, V, KEY, VALUE = meta(12, 16, 2, 64), meta(12, 16, 2, 64), meta(6, 2, 64), meta(6, 2, 64)
PACKED_K, PACKED_V, FP8 = meta(12, 2, 8, 16, 8), meta(12, 2, 64, 16), torch.uint8
ONE, SCALAR, HEADS = meta(1, dtype=torch.float32), meta(dtype=torch.float32), meta(2, dtype=torch.float32)
SLOPES = meta(8, dtype=torch.float32)
SLOTS = meta(6, dtype=torch.int64)


def recorded(monkeypatch, call, name, names, long_way):
    """The arguments of ``name`` that a call reaches the bindings with, and how often it went the short way."""
    found, short = [], []
    monkeypatch.setattr(ops._quire, name, lambda *args, **named: found.append({**dict(zip(names, args)), **named}))
    way = "_attend_plain" if name == "attend_arrays" else "_append_plain"
    plain = getattr(ops, way)

    def counted(*args, **named):
        went = not long_way and plain(*args, **named)
        short.append(went)
        return went

    monkeypatch.setattr(ops, way, counted)
    call()
    monkeypatch.undo()
    (arguments,) = found
    return arguments, any(short)


def same(name, a, b):
    if isinstance(a, str) and isinstance(b, torch.Tensor):  # cached_lens, by Quire's kernel or by torch's
        return name == "cached_lens" and a == "decode" and tuple(b.shape) == tuple(LENS.shape)
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):  # the long way makes vectors of scales
        return a is b or (name.endswith("scale") and a is not None and b is not None and a.numel() == b.numel())
    return a == b and type(a) is type(b)


def both_ways(monkeypatch, call):
    short, went = recorded(monkeypatch, call, "attend_arrays", ATTEND, False)
    long, _ = recorded(monkeypatch, call, "attend_arrays", ATTEND, True)
    for name in ATTEND:
        a, b = (arguments.get(name, DEFAULTS.get(name)) for arguments in (short, long))
        assert same(name, a, b), f"{name}: {a!r} the short way, {b!r} the long one"
    return went


def unified(**changed):
    call = dict(q=Q, k=K, v=V, out=OUT, cu_seqlens_q=STARTS, max_seqlen_q=4, seqused_k=LENS, max_seqlen_k=60, softmax_scale=0.125, causal=True,
                window_size=(-1, -1), block_table=TABLE, softcap=0, q_descale=None, k_descale=None, v_descale=None)  # fmt: skip
    return lambda: ops.unified_attention(**{**call, **changed})


def chunked(**changed):
    call = dict(query=Q, key=KEY, value=VALUE, output=OUT, kv_cache_dtype="auto", key_cache=PACKED_K, value_cache=PACKED_V, block_table=TABLE,
                query_start_loc=STARTS, seq_lens=LENS, max_seq_len=60, max_query_len=4, k_scale=None, v_scale=None, sm_scale=0.125)  # fmt: skip
    return lambda: ops.chunked_prefill_paged_decode(**{**call, **changed})


K8, V8 = meta(12, 16, 2, 64, dtype=FP8), meta(12, 16, 2, 64, dtype=FP8)
SHORT = [
    dict(), dict(softcap=30.0), dict(softcap=-1.0), dict(window_size=(15, 0)), dict(window_size=(0, 0)), dict(window_size=None), dict(sinks=SLOPES),
    dict(alibi_slopes=SLOPES), dict(k_descale=ONE, v_descale=SCALAR), dict(k=K8, v=V8, k_descale=ONE, v_descale=SCALAR), dict(k=K8, v=V8),
    dict(k=K8, v=V8, k_descale=0.5, v_descale=2.0), dict(k=K8, v=V8, fp8_flavour="fnuz"), dict(softmax_scale=None), dict(wait=False),
    dict(kv_quant_mode=1, use_td=True, mm_prefix_clamp_sliding_window=True),
]  # fmt: skip
LONG = [
    dict(max_seqlen_q=0), dict(max_seqlen_k=0), dict(softmax_scale=1), dict(k=K8, v=V8, k_descale=HEADS, v_descale=HEADS),
    dict(k=K8, v=V8, k_descale=ONE.expand(3, 2), v_descale=ONE.expand(3, 2)), dict(q_descale=ONE),
    dict(out=meta(6, 8, 64, dtype=torch.float8_e4m3fn), output_scale=ONE), dict(kv_quant_mode=None),
]  # fmt: skip


@pytest.mark.parametrize("changed", SHORT, ids=lambda c: ",".join(c) or "plain")
def test_unified_attention_goes_the_short_way(monkeypatch, changed):
    assert both_ways(monkeypatch, unified(**changed))


@pytest.mark.parametrize("changed", LONG, ids=",".join)
def test_unified_attention_goes_the_long_way(monkeypatch, changed):
    assert not both_ways(monkeypatch, unified(**changed))


@pytest.mark.parametrize(
    "changed",
    [dict(), dict(max_query_len=1), dict(key=None, value=None), dict(sliding_window=16), dict(sliding_window=0), dict(sliding_window=-1),
     dict(sinks=SLOPES, alibi_slopes=SLOPES),
     dict(key_cache=meta(12, 2, 4, 16, 16, dtype=FP8), value_cache=meta(12, 2, 64, 16, dtype=FP8), kv_cache_dtype="fp8", k_scale=ONE,
          v_scale=ONE)],
    ids=lambda c: ",".join(c) or "plain",
)  # fmt: skip
def test_chunked_prefill_paged_decode_goes_the_short_way(monkeypatch, changed):
    assert both_ways(monkeypatch, chunked(**changed))


def test_a_fault_in_the_short_way_is_found(monkeypatch):
    plain = ops._attend_plain

    def faulty(*args, **named):
        args = list(args)
        args[12] = 7  # the window
        return plain(*args, **named)

    monkeypatch.setattr(ops, "_attend_plain", faulty)
    short, _ = recorded(monkeypatch, unified(), "attend_arrays", ATTEND, False)
    monkeypatch.setattr(ops, "_attend_plain", plain)
    long, _ = recorded(monkeypatch, unified(), "attend_arrays", ATTEND, True)
    assert not same("sliding_window", short["sliding_window"], long["sliding_window"])


@pytest.mark.parametrize("name, value", [("qq_bias", SLOPES), ("rswa_window", 4), ("kv_quant_mode", 2), ("chunk_lookback", 3),
                                         ("use_alibi_sqrt", True), ("k_scale_cache", ONE), ("mm_prefix_range", ONE)])  # fmt: skip
def test_what_is_refused_is_refused_on_a_device(name, value):
    with pytest.raises(quire.UnsupportedError, match=name):
        unified(**{name: value})()


def test_slopes_beside_sinks_are_refused():
    with pytest.raises(quire.UnsupportedError, match="alibi_slopes with sinks"):
        unified(alibi_slopes=SLOPES, sinks=SLOPES)()


APPEND = "k v key value slot_mapping layout cache_dtype k_scale v_scale".split()


@pytest.mark.parametrize("op, layout, caches", [(ops.reshape_and_cache_flash, "nhd", (K, V)), (ops.reshape_and_cache, "packed", (PACKED_K, PACKED_V))])
def test_append_hands_over_what_it_was_given(monkeypatch, op, layout, caches):
    got, short = recorded(monkeypatch, lambda: op(KEY, VALUE, *caches, SLOTS, "auto", ONE, ONE), "append_arrays", APPEND, False)
    assert short
    assert all(got[name] is given for name, given in zip(APPEND, (*caches, KEY, VALUE, SLOTS)))
    assert (got["layout"], got["cache_dtype"], got["k_scale"], got["v_scale"]) == (layout, "bf16", None, None)  # no fp8, no scale


def test_the_positions_of_attend_arrays_are_those_of_this_file():
    """Its docstring begins with its signature."""
    text = inspect.getdoc(ops._quire.attend_arrays).splitlines()[0]
    order = [text.index(f"{name}:") for name in ATTEND]
    assert order == sorted(order)

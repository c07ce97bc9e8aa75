# SPDX-License-Identifier: Apache-2.0
"""Names, positions and defaults of quire_vllm.ops's ops beside those recorded of vLLM 0.11, 0.20 and 0.33 (vllm_signatures.json)."""

import inspect
import json
import pathlib
import warnings

import numpy as np
import pytest

import quire
import quire_vllm.ops as ops

RECORDED = json.loads(pathlib.Path(__file__).with_name("vllm_signatures.json").read_text())
VERSIONS = ["0.11.0", "0.20.0", "0.33.0"]
NAMES = sorted({name for version in VERSIONS for name in RECORDED[version]})
OURS_ALONE = {"wait", "fp8_flavour"}
"""Keywords that vLLM does not have."""


def differences(signature, name):
    """What differs between a signature and the recorded ones of `name`, in words."""
    ours = list(signature.parameters.values())
    by_name = {p.name: p for p in ours}
    found, theirs = [], set()
    for version in VERSIONS:
        recorded = RECORDED[version].get(name, [])
        theirs.update(parameter for parameter, *_ in recorded)
        for place, (parameter, *default) in enumerate(recorded):
            mine = by_name.get(parameter)
            if mine is None:
                found.append(f"{version}: {parameter} is missing")
                continue
            if default != ([] if mine.default is mine.empty else [mine.default]):
                found.append(f"{version}: {parameter} has the default {mine.default}, recorded {default}")
            at_place = ours[place] if place < len(ours) else None
            if at_place is not None and at_place.kind is at_place.POSITIONAL_OR_KEYWORD and at_place.name != parameter:
                found.append(f"{version}: position {place} is {at_place.name}, recorded {parameter}")
    for p in ours:
        if p.name not in theirs and not (p.name in OURS_ALONE and p.kind is p.KEYWORD_ONLY):
            found.append(f"{p.name} is in no version")
    return found


def agreed_positions(name):
    """How many leading positions mean the same in every version that has them."""
    recorded = [[parameter for parameter, *_ in RECORDED[v][name]] for v in VERSIONS if name in RECORDED[v]]
    for place in range(max(map(len, recorded))):
        if len({names[place] for names in recorded if place < len(names)}) > 1:
            return place
    return max(map(len, recorded))


@pytest.mark.parametrize("name", NAMES)
def test_signature(name):
    signature = inspect.signature(getattr(ops, name))
    assert differences(signature, name) == []
    taken = [p for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert len(taken) == agreed_positions(name)


def test_every_op_is_recorded():
    functions = {n for n in ops.__all__ if inspect.isfunction(getattr(ops, n)) and n not in ("settings",)}
    assert functions == set(NAMES)


def test_a_changed_signature_is_seen():
    def changed(name, change):
        parameters = list(inspect.signature(getattr(ops, name)).parameters.values())
        change(parameters)
        return differences(inspect.Signature(parameters), name)

    def swap(p):
        p[3], p[4] = p[4], p[3]

    assert any("position 3" in text for text in changed("unified_attention", swap))
    assert any("is missing" in text for text in changed("merge_attn_states", lambda p: p.pop()))
    assert any("default" in text for text in changed("merge_attn_states", lambda p: p.append(p.pop().replace(default=1.0))))
    renamed = changed("reshape_and_cache", lambda p: p.insert(0, p.pop(0).replace(name="rows")))
    assert "rows is in no version" in renamed


def small_call():
    """Two requests over a cache of ones, as unified_attention takes them."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((3, 2, 8)).astype(np.float32)
    k, v = (rng.standard_normal((4, 4, 1, 8)).astype(np.float32) for _ in range(2))
    return dict(
        q=q, k=k, v=v, out=np.zeros_like(q), cu_seqlens_q=np.array([0, 1, 3], np.int32), max_seqlen_q=2,
        seqused_k=np.array([5, 6], np.int32), max_seqlen_k=6, softmax_scale=0.3, causal=True, window_size=(-1, -1),
        block_table=np.array([[0, 1], [2, 3]], np.int32), softcap=0.0, q_descale=None, k_descale=None, v_descale=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    "name, value",
    [
        ("kv_quant_mode", 2),
        ("qq_bias", np.zeros((3, 3), np.float32)),
        ("use_alibi_sqrt", True),
        ("k_scale_cache", np.ones((4, 4, 1), np.float32)),
        ("v_scale_cache", np.ones((4, 4, 1), np.float32)),
        ("chunk_lookback", 0),
    ],
)
def test_what_is_not_supported_is_refused_by_name(name, value):
    with pytest.raises(quire.UnsupportedError, match=rf"^{name}: ") as raised:
        ops.unified_attention(**{**small_call(), name: value})
    assert isinstance(raised.value, NotImplementedError)


def _dense(call, visible):
    """Softmax over the keys that visible(q, k, request) marks, in float64."""
    out, starts = np.zeros(call["q"].shape), call["cu_seqlens_q"]
    for r, seq in enumerate(call["seqused_k"]):
        pages = call["block_table"][r]
        k, v = (call[name][pages].reshape(-1, 8)[:seq].astype(np.float64) for name in ("k", "v"))
        for i in range(starts[r], starts[r + 1]):
            pos = seq - (starts[r + 1] - i)
            seen = np.array([visible(pos, key, r) for key in range(seq)])
            scores = np.where(seen, call["q"][i].astype(np.float64) @ k.T * call["softmax_scale"], -np.inf)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            out[i] = weights / weights.sum(axis=-1, keepdims=True) @ v
    return out


def _long_call(**more):
    rng = np.random.default_rng(3)
    q = rng.standard_normal((17, 2, 8)).astype(np.float32)
    k, v = (rng.standard_normal((12, 4, 1, 8)).astype(np.float32) for _ in range(2))
    call = dict(small_call(), q=q, k=k, v=v, out=np.zeros_like(q), cu_seqlens_q=np.array([0, 12, 17], np.int32), max_seqlen_q=12,
                seqused_k=np.array([14, 22], np.int32), max_seqlen_k=22, block_table=np.arange(12, dtype=np.int32).reshape(2, 6))  # fmt: skip
    return {**call, **more}


@pytest.mark.parametrize("clamped", [False, True])
def test_ranges_of_images_are_seen_both_ways(clamped):
    ranges = np.array([[[3, 9], [0, 0]], [[1, 4], [18, 20]]], np.int32)
    call = _long_call(window_size=(3, 0))
    ops.unified_attention(**call, mm_prefix_range=ranges, mm_prefix_clamp_sliding_window=clamped)

    def visible(q, k, r):
        together = any(a <= q <= b and a <= k <= b for a, b in ranges[r] if a < b)
        return (k <= q and q - k < 4) or (together and (not clamped or q - k < 4))

    np.testing.assert_allclose(call["out"], _dense(call, visible), atol=2e-5)


def test_a_prompt_stays_visible_behind_its_window():
    prefixes, window = np.array([2, 9], np.int32), 3
    call = _long_call(window_size=(5, 0))
    ops.unified_attention(**call, rswa_prefix_lens=prefixes, rswa_window=window)
    np.testing.assert_allclose(call["out"], _dense(call, lambda q, k, r: k <= q and (q - k < window or k < prefixes[r])), atol=2e-5)


def test_what_changes_no_result_is_taken():
    plain, hinted = small_call(), small_call()
    ops.unified_attention(**plain)
    ops.unified_attention(**hinted, use_td=True, kv_quant_mode=1, mm_prefix_clamp_sliding_window=True, rswa_window=None, chunk_lookback=-1)
    assert np.array_equal(plain["out"], hinted["out"]) and np.any(plain["out"])


def test_drifting_positions_are_not_taken():
    with pytest.raises(TypeError, match="positional"):
        ops.unified_attention(*small_call().values(), np.ones(2, np.float32))


@pytest.mark.parametrize("op", ["chunked_prefill_paged_decode", "context_attention_fwd"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_everything_in_the_cache(op, interleaved):
    """key and value None: the new tokens are read from the cache; its values may be interleaved."""
    call = small_call()
    ops.unified_attention(**call)
    k = call["k"].reshape(4, 4, 1, 2, 4).transpose(0, 2, 3, 1, 4).copy()
    v = call["v"].transpose(0, 2, 3, 1).copy()
    if interleaved:
        v = v.reshape(4, 1, 8, 1, 4).transpose(0, 1, 3, 2, 4).reshape(4, 1, 8, 4).copy()
    out = np.full_like(call["q"], np.nan)
    options = dict(chunked_prefill_paged_decode="use_interleaved_v_cache", context_attention_fwd="interleaved_v_pack_factor")
    positional = (call["q"], None, None, out, "auto", k, v, call["block_table"], call["cu_seqlens_q"], call["seqused_k"], 6, 2, None, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # interleaved caches are copied, and say so
        getattr(ops, op)(*positional, sm_scale=0.3, **{options[op]: 4 if interleaved else 0})
    np.testing.assert_allclose(out, call["out"], rtol=1e-5, atol=1e-6)


def test_writing_interleaved_values_is_refused():
    rows, cache = np.zeros((1, 1, 8), np.float32), small_call()
    with pytest.raises(quire.UnsupportedError, match=r"^interleaved_v: "):
        ops.reshape_and_cache(rows, rows, cache["k"], cache["v"], np.array([0]), "auto", None, None, True)
    with pytest.raises(quire.UnsupportedError, match=r"^interleaved_v_pack_factor: "):
        ops.triton_reshape_and_cache_flash(rows, rows, cache["k"], cache["v"], np.array([0]), "auto", None, None, 8)


@pytest.mark.parametrize("per_head", [False, True])
def test_descales_in_the_shape_that_vllm_expands(per_head):
    """[num_reqs, num_kv_heads] of equal rows is one scale per KV head; rows that differ are refused by name."""
    call = small_call()
    call.update(k=np.full((4, 4, 2, 8), 0x38, np.uint8), v=np.full((4, 4, 2, 8), 0x38, np.uint8))  # 1.0
    call["v"][:, :, 1] = 0x40  # 2.0
    scales = np.array([0.5, 0.25 if per_head else 0.5], np.float32)
    call["v_descale"] = np.broadcast_to(scales, (2, 2))
    ops.unified_attention(**call, kv_quant_mode=1)
    np.testing.assert_allclose(call["out"][:, 0], scales[0], rtol=1e-6)
    np.testing.assert_allclose(call["out"][:, 1], 2 * scales[1], rtol=1e-6)
    call["v_descale"] = np.array([[0.5, 0.5], [0.5, 0.25]], np.float32)
    with pytest.raises(quire.UnsupportedError, match="^v_descale: "):
        ops.unified_attention(**call)

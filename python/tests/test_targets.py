# SPDX-License-Identifier: Apache-2.0
"""The adapters: each computes through its library where that runs here, else through a stand-in that records what it was given."""

import math
import types

import numpy as np
import pytest

import quire
import quire_vllm.ops
from quire import targets
from quire.targets import vllm_ops

try:
    import torch
except ImportError:
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")

MIXED = "heads=4:2 d=32 page=16 reqs=20@30,1@47,5@3 seed=4"
LINES = [
    f"q=f16 {MIXED}",
    f"q=bf16 {MIXED} window=9",
    f"q=f16 {MIXED.replace('20@30', '20@30/41')} share=1",
    "q=f32 heads=2 d=48 page=16 layout=hnd reqs=7@9/9,1@40/41,0@4 scale=0.3",
    "q=f16 heads=6:2 d=32 page=16 layout=packed reqs=1@9,1@70,1 seed=9",
    "q=bf16 kv=fp8_e4m3fn heads=4:2 d=32 page=32 reqs=1@60,1@5 kscale=tensor vscale=tensor",
]


def judge(target, line):
    """Runs a target on a case as verify() does, with NaN in everything that must not be read; None if refused."""
    case = quire.make_case(line)
    runner = targets.Runner(target)
    try:
        runner.attend(case)
    except quire.UnsupportedError:
        return None
    lse = case.batch.lse if case.batch.lse is not None and "lse" not in runner.skip else None
    weights = case.batch.dtype if runner.rounded_weights else None
    found = quire.compare(case.batch.output, lse, quire.reference(case.batch, case.cache, case.options), weights=weights)
    assert found.ok, f"{line}\n{found.text}"
    return case


def attend(batch, cache, options):
    return quire.attend(batch, cache, options)


# --- what a target may be ---


def test_functions_of_a_case_or_of_its_parts():
    for function in (attend, lambda case: quire.attend(case.batch, case.cache, case.options), quire.attend):
        assert judge(function, LINES[0]) is not None


def test_returned_arrays_are_taken_bit_by_bit():
    def with_lse(batch, cache, options):
        out = np.empty_like(batch.output)
        lse = np.empty_like(batch.lse)
        parts = dict(query=batch.query, query_start_loc=batch.query_start_loc, seq_lens=batch.seq_lens, block_table=batch.block_table)
        return quire.attend(quire.Batch(**parts, output=out, lse=lse), cache, options), lse

    assert judge(with_lse, LINES[0] + " lse=1") is not None


@pytest.mark.parametrize("wrong", ["dtype", "shape"])
def test_returned_arrays_must_fit(wrong):
    def attend(batch, cache, options):
        out = np.zeros(batch.output.shape, np.float16)
        return out.astype(np.float32) if wrong == "dtype" else out[:, :1]

    with pytest.raises(quire.ArgumentError, match="returned output as f32, expected f16" if wrong == "dtype" else "of shape"):
        targets.Runner(attend).attend(quire.make_case(LINES[0]))


def test_runner_knows_names_and_promises():
    class Mine(targets.Target):
        name = "mine"
        skip = {"lse": "returns none"}
        kernel = "fast"
        batch_invariant = True

        def attend(self, batch, cache, options):
            return quire.attend(batch, cache, options)

        def variants(self):
            return {"again": self.attend}

    runner = targets.Runner(Mine())
    assert (runner.name, runner.batch_invariant, runner.in_place, runner.skip) == ("mine", True, False, {"lse": "returns none"})
    assert runner.attend(quire.make_case(LINES[0])) == "fast" and list(runner.variants) == ["again"]
    assert targets.Runner(attend).name == "attend"
    with pytest.raises(quire.ArgumentError, match="neither a name nor a callable"):
        targets.Runner(3)


def test_load():
    assert targets.load("quire_vllm.ops:merge_attn_states") is quire_vllm.ops.merge_attn_states
    with pytest.raises(quire.ArgumentError, match='"nonsense" is none of torch_sdpa, .* and not module:function or FILE.py:function'):
        targets.load("nonsense")
    with pytest.raises(ImportError):
        targets.load("flash_attn")


def test_importing_targets_imports_no_library():
    import subprocess
    import sys

    code = "import quire.targets, sys; assert not {'torch', 'vllm', 'flash_attn', 'flashinfer'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- torch ---


@needs_torch
@pytest.mark.parametrize("line", [*LINES, f"q=bf16 {MIXED} alibi=1", "q=f32 kv=fp8_e5m2fnuz heads=2 d=7 page=5 reqs=3@9 kscale=head vscale=head"])
def test_torch_sdpa(line):
    assert judge(targets.load("torch_sdpa"), line) is not None


@needs_torch
def test_torch_sdpa_refuses():
    for line in (f"q=f16 {MIXED} sinks=1", f"q=f16 {MIXED} cap=30"):
        assert judge(targets.load("torch_sdpa"), line) is None


@needs_torch
def test_torch_sdpa_on_whole_pages_lets_nan_through_its_mask():
    """The adapter that leaves hiding to the mask exists to show this."""
    with pytest.raises(AssertionError, match="NaN"):
        judge(targets.load("torch_sdpa_masked"), LINES[0])


# --- vLLM's ops, with quire_vllm.ops as the provider ---


@pytest.mark.parametrize("device", [None, pytest.param("cpu", marks=needs_torch)])
@pytest.mark.parametrize("op", vllm_ops.MODULES)
@pytest.mark.parametrize("line", [*LINES, "q=f16 heads=4:2 d=32 page=16 reqs=9@30,1@20 alibi=1 window=20 scale=0.1"])
def test_vllm_ops(op, device, line):
    case = judge(vllm_ops.VllmOp(op, provider=quire_vllm.ops, device=device), line)
    assert (case is None) == (op == "context_attention_fwd" and "fp8" in line)


def test_vllm_op_notices_a_fault():
    """The adapter hands on what the op returns, wrong or not."""
    def unified_attention(**arguments):
        quire_vllm.ops.unified_attention(**arguments)
        arguments["out"][3] = 0

    with pytest.raises(AssertionError, match="token 3"):
        judge(vllm_ops.VllmOp("unified_attention", types.SimpleNamespace(unified_attention=unified_attention), device=None), LINES[0])


@needs_torch
def test_vllm_without_a_gpu_or_without_vllm():
    with pytest.raises((ImportError, RuntimeError)):
        vllm_ops.VllmOp("unified_attention", device="cuda")


# --- vLLM's CPU attention, a stand-in ---


class FakeCpuOps:
    """The three functions, with a cache layout of its own: [pages, heads, page_size, dim] is filled row by row."""

    def cpu_attn_reshape_and_cache(self, key, value, key_cache, value_cache, slot_mapping, isa, k_scale, v_scale, kv_cache_dtype):
        assert isa in ("vec", "vec16", "amx")
        if kv_cache_dtype != "auto":  # codes as numbers, or numbers to be quantised
            assert kv_cache_dtype == "fp8_e4m3"
            scaled = (rows / scale for rows, scale in ((key, k_scale), (value, v_scale)))
            key, value = (rows.float().to(torch.float8_e4m3fn).view(torch.uint8) for rows in scaled)
        pages, heads, page, dim = key_cache.shape
        for rows, into in ((key, key_cache), (value, value_cache)):
            into.copy_(rows.view(pages, page, heads, dim).transpose(1, 2))

    def cpu_attn_get_scheduler_metadata(self, **arguments):
        self.metadata = arguments
        return torch.zeros(1)

    def cpu_attention_with_kv_cache(self, query, key_cache, value_cache, output, query_start_loc, seq_lens, scale, causal,
                                    alibi_slopes, sliding_window, block_table, softcap, scheduler_metadata, s_aux, k_scale, v_scale,
                                    kv_cache_dtype):  # fmt: skip
        if query_start_loc.dtype != torch.int32:
            raise RuntimeError("expected scalar type Int but found Long")
        batch = quire.Batch(query=query, output=output, query_start_loc=query_start_loc, seq_lens=seq_lens, block_table=block_table)
        options = quire.Options(scale, None if sliding_window < 0 else sliding_window, softcap or None, alibi_slopes, s_aux)
        scales = (k_scale, v_scale, "fp8_e4m3fn") if kv_cache_dtype != "auto" else ()
        quire.attend(batch, quire.KVCache(key_cache, value_cache, "hnd", *scales), options)


@needs_torch
@pytest.mark.parametrize("quantise", [False, True])
def test_vllm_cpu_fp8(quantise):
    """Codes arrive as they are, also through a quantiser that rounds to nearest."""
    from quire.targets.vllm_cpu import VllmCpu

    line = "q=bf16 kv=fp8_e4m3fn heads=4:2 d=32 page=32 reqs=1@31,32@64 kscale=tensor vscale=tensor"
    assert judge(VllmCpu(FakeCpuOps(), quantise=quantise), line) is not None


@needs_torch
@pytest.mark.parametrize("line", [
    "q=f16 heads=4:2 d=32 page=32 reqs=20@30,1@47,5@3",
    "q=bf16 heads=4:2 d=64 page=32 reqs=20@30/30,1@47/48 window=9 cap=20 sinks=1 alibi=1",
])  # fmt: skip
def test_vllm_cpu(line):
    from quire.targets.vllm_cpu import VllmCpu

    ops = FakeCpuOps()
    assert judge(VllmCpu(ops), line) is not None
    assert ops.metadata["sliding_window_size"] == (9 if "window" in line else -1)


@needs_torch
def test_vllm_cpu_refuses_in_the_words_of_vllm():
    from quire.targets.vllm_cpu import VllmCpu

    runner = targets.Runner(VllmCpu(FakeCpuOps()))
    for line, reason in {
        "q=f16 heads=2 d=32 page=32 reqs=3 index=i64": "expected scalar type Int but found Long",
        "q=f16 heads=2 d=24 page=32 reqs=3": "head_size 24",
        "q=f16 heads=2 d=32 page=16 reqs=3": "block_size 16",
        "q=f16 kv=fp8_e4m3fnuz heads=2 d=32 page=32 reqs=3": "kv cache of fp8_e4m3fnuz",
    }.items():
        with pytest.raises(quire.UnsupportedError, match=reason):
            runner.attend(quire.make_case(line))


# --- FlashAttention and FlashInfer: stand-ins; not run against the real libraries ---


def fake_flash_attn(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size,
                    softcap, alibi_slopes, return_attn_probs, block_table):  # fmt: skip
    assert causal and dropout_p == 0 and cu_seqlens_q.dtype == torch.int32
    assert int(cu_seqlens_k.diff().max()) == max_seqlen_k and int(cu_seqlens_q.diff().max()) == max_seqlen_q
    lse = torch.empty(q.shape[:2], dtype=torch.float32)
    batch = quire.Batch(query=q, query_start_loc=cu_seqlens_q, seq_lens=cu_seqlens_k.diff(), block_table=block_table, lse=lse)
    window = window_size[0] + 1 if window_size[0] >= 0 else None
    out = quire.attend(batch, quire.KVCache(k, v), quire.Options(softmax_scale, window, softcap or None, alibi_slopes))
    return (out, torch.where(torch.isneginf(lse), -lse, lse).T, None) if return_attn_probs else out


@needs_torch
@pytest.mark.parametrize("line", [f"q=f16 {MIXED} lse=1", f"q=bf16 {MIXED} window=9 cap=20", f"q=f16 {MIXED} alibi=1"])
def test_flash_attn_varlen(line):
    from quire.targets.flash_attn_varlen import FlashAttnVarlen

    target = FlashAttnVarlen(types.SimpleNamespace(flash_attn_varlen_func=fake_flash_attn), device="cpu", page_multiple=16)
    assert (judge(target, line) is None) == ("alibi" in line)  # made slopes include negative ones


@needs_torch
def test_flash_attn_refuses_small_pages():
    from quire.targets.flash_attn_varlen import FlashAttnVarlen

    target = FlashAttnVarlen(types.SimpleNamespace(flash_attn_varlen_func=fake_flash_attn), device="cpu")
    with pytest.raises(quire.UnsupportedError, match="multiples of 256"):
        targets.Runner(target).attend(quire.make_case(LINES[0]))


class FakeFlashInferWrapper:
    def __init__(self, workspace, kv_layout):
        assert kv_layout == "NHD"

    def plan(self, qo_indptr, kv_indptr, kv_indices, kv_last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, *, causal,
             window_left, logits_soft_cap, sm_scale, q_data_type, kv_data_type):  # fmt: skip
        assert causal
        pages = kv_indptr.diff()
        self.seq_lens = torch.where(pages > 0, (pages - 1) * page_size + kv_last_page_len, 0)
        self.table = torch.zeros(len(pages), max(1, int(pages.max())), dtype=torch.int32)
        for r in range(len(pages)):
            self.table[r, : int(pages[r])] = kv_indices[kv_indptr[r] : kv_indptr[r + 1]]
        self.starts = qo_indptr
        self.options = quire.Options(sm_scale, window_left + 1 if window_left >= 0 else None, logits_soft_cap)

    def run(self, q, kv, return_lse=False, k_scale=None, v_scale=None):
        lse = torch.empty(q.shape[:2], dtype=torch.float32)
        batch = quire.Batch(query=q, query_start_loc=self.starts, seq_lens=self.seq_lens, block_table=self.table, lse=lse)
        out = quire.attend(batch, quire.KVCache(*kv, "nhd", k_scale, v_scale), self.options)
        return (out, lse / math.log(2.0)) if return_lse else out


@needs_torch
@pytest.mark.parametrize("line", [f"q=f16 {MIXED} lse=1", f"q=bf16 {MIXED} window=9 cap=20", LINES[5], f"q=f16 {MIXED} sinks=1"])
def test_flashinfer(line):
    from quire.targets.flashinfer_wrapper import FlashInferPrefill

    target = FlashInferPrefill(types.SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=FakeFlashInferWrapper), device="cpu")
    assert (judge(target, line) is None) == ("sinks" in line)

# SPDX-License-Identifier: Apache-2.0
"""Outputs and queries of fp8_e4m3fn: rounding, every CPU kernel against the fp64 reference, planted faults, merge, vLLM's names, torch."""

import re

import ml_dtypes
import numpy as np
import pytest

import quire
import quire_vllm.ops as ops

try:
    import torch
except ImportError:
    torch = None

E4M3 = ml_dtypes.float8_e4m3fn
needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")
OUTPUTS = [
    "q=bf16 heads=8:2 d=64 page=16 lse=1 reqs=9@60,1@300,1@2 out=fp8_e4m3fn",
    "q=f16 kv=fp8_e4m3fn heads=6:3 d=40 page=8 layout=hnd kscale=head vscale=head sinks=1 cap=30 reqs=17@30,1@70 out=fp8_e4m3fn",
    "q=f32 kv=bf16 heads=4:4 d=24 page=32 alibi=1 window=20 lse=1 reqs=5@90/90,3x1@40 pad=2:zero out=fp8_e4m3fn",
    "q=bf16 heads=4:1 d=64 page=16 reqs=1@9000 out=fp8_e4m3fn",
]
QUERIES = [
    "q=fp8_e4m3fn heads=8:4 d=128 page=16 lse=1 qscale=head kscale=head vscale=tensor reqs=33@200,1@700 out=bf16",
    "q=fp8_e4m3fn heads=8:1 d=64 page=16 qscale=tensor reqs=5@64,1@90 window=40 out=f32",
    "q=fp8_e4m3fn heads=6:3 d=24 page=8 qscale=head kscale=tensor reqs=5@64,1@90 cap=20 out=f16",
    "q=fp8_e4m3fn heads=4:2 d=32 page=16 layout=packed qscale=tensor vscale=head reqs=2x40,1@90 out=fp8_e4m3fn",
    "q=fp8_e4m3fn heads=4:2 d=32 page=16 reqs=7@20,1@5000 out=bf16",
]


def stored(real, scale):
    """The rule of decision 20, by ml_dtypes: which gives NaN beyond 464 where Quire saturates."""
    with np.errstate(all="ignore"):
        quotient = np.asarray(real, np.float32) / np.float32(scale)
    return np.clip(quotient, -448, 448).astype(E4M3)


def bits(array):
    return np.asarray(array).view(np.uint8)


def answer(case, kernel=None):
    """(output, kernel that wrote it)."""
    plan = quire.plan(case.batch, case.cache, case.options, kernel=kernel)
    return quire.attend(case.batch, case.cache, case.options, plan), plan.kernel


def judged(case, output):
    return quire.compare(output, None, quire.reference(case.batch, case.cache, case.options))


@pytest.mark.parametrize("line", OUTPUTS + QUERIES)
@pytest.mark.parametrize("kernel", [k.name for k in quire.info.kernels() if k.backend == "cpu"])
def test_kernels_against_the_reference(line, kernel):
    case = quire.make_case(line)
    try:
        output, used = answer(case, kernel)
    except quire.UnsupportedError as refused:
        pytest.skip(str(refused))
    assert used == kernel
    verdict = judged(case, output)
    assert verdict.ok, verdict


def test_outputs_saturate_somewhere_and_not_everywhere():
    """What the judgement of the cases above rests on: some results are beyond 448, most are not."""
    case = quire.make_case(OUTPUTS[0])
    output, _ = answer(case)
    share = np.mean(np.abs(np.asarray(output).astype(np.float32)) == 448)
    assert 0.01 < share < 0.5


def identity_case(values, scale):
    """Each request is one token: its output is its V."""
    n = len(values)
    values = np.asarray(values, np.float32).reshape(n, 1, 1, 1)
    out = np.zeros((n, 1, 1), E4M3)
    batch = quire.Batch(query=np.ones((n, 1, 1), np.float32), query_start_loc=np.arange(n + 1, dtype=np.int32),
                        seq_lens=np.ones(n, np.int32), block_table=np.arange(n, dtype=np.int32)[:, None], output=out,
                        output_scale=scale)  # fmt: skip
    quire.attend(batch, quire.KVCache(np.ones_like(values), values, "nhd"))
    return out.reshape(n)


def test_rounding_saturation_and_nan():
    codes = np.arange(256, dtype=np.uint8).view(E4M3).astype(np.float32)
    finite = np.sort(np.unique(codes[np.isfinite(codes)]))
    ties = (finite[1:] + finite[:-1]) / 2
    beyond = [449, 463.9, 464, 465, 1e6, np.inf, -np.inf, -500]
    for scale in (1.0, 0.5, 3 / 1024, 0.7):
        real = np.concatenate([finite, ties, np.nextafter(ties, np.inf), np.nextafter(ties, -np.inf), beyond]).astype(np.float32)
        real = (real * np.float32(scale)).astype(np.float32)
        got = identity_case(real, scale)
        assert np.array_equal(bits(got), bits(stored(real + 0.0, scale)))  # a zero is +0
    assert np.isnan(identity_case([np.nan, 1.0], 1.0).astype(np.float32)).tolist() == [True, False]


FAULTS = {
    "not saturated": lambda real, scale: (real / scale).astype(np.float32).astype(E4M3),
    "multiplied": lambda real, scale: stored(real, 1 / scale),
    "truncated": lambda real, scale: truncated(stored(real, scale), real / scale),
    "scale dropped": lambda real, scale: stored(real, 1.0),
    "rounded up": lambda real, scale: truncated(stored(real, scale), real / scale, up=True),
}


def truncated(codes, exact, up=False):
    """Codes of one magnitude less where rounding went up; or one more where it went down."""
    magnitude, limit = np.abs(codes.astype(np.float32)), np.abs(exact)
    raw = bits(codes).copy()
    raw[(magnitude > limit) & ~up] -= 1
    raw[(magnitude < limit) & (magnitude < 448) & up] += 1
    return raw.view(E4M3)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault):
    case = quire.make_case(OUTPUTS[0])
    output, _ = answer(case)
    scale = float(np.asarray(case.batch.output_scale))
    expected = quire.reference(case.batch, case.cache, case.options)
    plain = quire.make_case(OUTPUTS[0].replace(" out=fp8_e4m3fn", ""))
    real = quire.reference(plain.batch, plain.cache, plain.options).out.reshape(np.asarray(output).shape)
    assert judged(case, output).ok
    assert quire.compare(stored(real, scale), None, expected).ok
    assert not quire.compare(np.ascontiguousarray(FAULTS[fault](real, scale)), None, expected).ok


@pytest.mark.parametrize("fault", ["q_scale of another head", "q_scale dropped"])
def test_wrong_query_scales_are_seen(fault):
    case = quire.make_case(QUERIES[0])
    b = case.batch
    scales = np.asarray(b.q_scale)
    wrong = np.roll(scales, 1) if fault == "q_scale of another head" else np.ones_like(scales)
    out = np.zeros(b.query.shape, ml_dtypes.bfloat16)
    names = ("query", "query_start_loc", "seq_lens", "block_table")
    quire.attend(quire.Batch(**{n: getattr(b, n) for n in names}, output=out, q_scale=wrong), case.cache, case.options)
    assert not judged(case, out).ok
    quire.attend(quire.Batch(**{n: getattr(b, n) for n in names}, output=out, q_scale=scales), case.cache, case.options)
    assert judged(case, out).ok


def partials(dtype=np.float32):
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((7, 3, 16)).astype(dtype) for _ in range(2))
    la, lb = (rng.standard_normal((7, 3)).astype(np.float32) for _ in range(2))
    la[2, 1], lb[4], la[4] = -np.inf, -np.inf, -np.inf
    return a, la, b, lb


def test_merge_rounds_by_the_same_rule():
    a, la, b, lb = partials()
    plain, lse = quire.merge(a, la, b, lb)
    out = np.zeros(a.shape, E4M3)
    _, lse8 = quire.merge(a, la, b, lb, out=out, output_scale=0.004)
    assert np.array_equal(bits(out), bits(stored(plain, 0.004))) and np.array_equal(lse, lse8)
    assert np.mean(np.abs(out.astype(np.float32)) == 448) > 0.01
    with pytest.raises(quire.ContractError, match="^Q-G02 out: dtype fp8_e4m3fn"):
        quire.merge(a, la, b, lb, out=out)
    with pytest.raises(quire.ContractError, match="^Q-T17 output_scale: 0"):
        quire.merge(a, la, b, lb, out=out, output_scale=0.0)


def test_what_does_not_fit_is_refused():
    case = quire.make_case(OUTPUTS[0])
    b = case.batch
    names = ("query", "query_start_loc", "seq_lens", "block_table", "output")
    given = {n: getattr(b, n) for n in names}
    for changes, message in [
        ({}, "Q-M12 output: dtype fp8_e4m3fn without output_scale"),
        ({"output_scale": np.ones(3, np.float32)}, r"Q-M39 output_scale: f32 \[3\]"),
        ({"output_scale": float("nan")}, "Q-T17 output_scale: nan"),
        ({"output_scale": 1.0, "q_scale": 2.0}, "Q-M40 q_scale: given beside query of bf16"),
    ]:
        with pytest.raises(quire.ContractError, match="^" + message):
            quire.attend(quire.Batch(**{**given, **changes}), case.cache, case.options)
    with pytest.raises(quire.ArgumentError, match="^output: None"):
        quire.attend(quire.Batch(**{**given, "output": None}, output_scale=1.0), case.cache, case.options)


def test_captures_keep_scales(tmp_path):
    case = quire.make_case(QUERIES[3])
    output, _ = answer(case)
    path = str(tmp_path / "fp8.safetensors")
    quire.write_capture(path, case.batch, case.cache, case.options, observed=output)
    back = quire.read_capture(path)
    assert np.array_equal(np.asarray(back.batch.q_scale), np.asarray(case.batch.q_scale))
    assert float(np.asarray(back.batch.output_scale)) == float(np.asarray(case.batch.output_scale))
    assert quire.diagnose(back).verdict == quire.diagnose(back).verdict
    assert judged(back, back.observed).ok


# --- vLLM's names and torch -----------------------------------------------------------------------------------------------------------


def torch_job(dtype=None):
    torch.manual_seed(0)
    q = torch.randn(11, 4, 32)
    k, v = (torch.randn(8, 16, 2, 32) for _ in range(2))
    call = dict(
        cu_seqlens_q=torch.tensor([0, 9, 10, 11], dtype=torch.int32), max_seqlen_q=9, seqused_k=torch.tensor([40, 33, 1], dtype=torch.int32),
        max_seqlen_k=40, softmax_scale=0.2, causal=True, window_size=(-1, -1), softcap=0.0, k_descale=None, v_descale=None, q_descale=None,
        block_table=torch.tensor([[0, 1, 2], [3, 4, 5], [6, 0, 0]], dtype=torch.int32),
    )  # fmt: skip
    return q.to(dtype or torch.bfloat16), k.to(dtype or torch.bfloat16), v.to(dtype or torch.bfloat16), call


@needs_torch
@pytest.mark.parametrize("scale_shape", [(), (1,)])
def test_unified_attention_with_output_scale(scale_shape):
    q, k, v, call = torch_job(torch.float32)
    exact = torch.empty_like(q)
    ops.unified_attention(q, k, v, exact, **call)
    out = torch.zeros(q.shape, dtype=torch.float8_e4m3fn)
    ops.unified_attention(q, k, v, out, **call, output_scale=torch.full(scale_shape, 0.003))
    assert np.array_equal(out.view(torch.uint8).numpy(), bits(stored(exact.numpy(), 0.003)))


@needs_torch
def test_unified_attention_with_fp8_query():
    """As vLLM passes it: one q_descale, k_descale and v_descale expanded over requests."""
    q, k, v, call = torch_job()
    fp8 = torch.float8_e4m3fn
    q8, k8, v8 = (q / 0.75).to(fp8), (k / 0.5).to(fp8), (v / 0.25).to(fp8)
    call.update(q_descale=torch.tensor(0.75), k_descale=torch.full((3, 2), 0.5), v_descale=torch.tensor(0.25).expand(3, 2))
    out, plain = torch.zeros_like(q), torch.zeros(q.shape)
    ops.unified_attention(q8, k8, v8, out, **call, kv_quant_mode=1)
    exact = dict(call, q_descale=None, k_descale=None, v_descale=None)
    ops.unified_attention(q8.float() * 0.75, k8.float() * 0.5, v8.float() * 0.25, plain, **exact)
    torch.testing.assert_close(out.float(), plain, atol=1e-2, rtol=1e-2)
    per_head = torch.tensor([0.75, 1.5]).expand(3, 2)
    ops.unified_attention(q8, k8, v8, out, **dict(call, q_descale=per_head))
    ops.unified_attention(q8.float() * torch.tensor([0.75, 0.75, 1.5, 1.5])[:, None], k8.float() * 0.5, v8.float() * 0.25, plain, **exact)
    torch.testing.assert_close(out.float(), plain, atol=1e-2, rtol=1e-2)


@needs_torch
@pytest.mark.parametrize("op", ["chunked_prefill_paged_decode", "context_attention_fwd", "paged_attention_rocm"])
@pytest.mark.parametrize("skip_decode", [False, True])
def test_packed_ops_with_output_scale(op, skip_decode):
    q, k, v, call = torch_job(torch.float32)
    kp, vp = k.view(8, 16, 2, 8, 4).permute(0, 2, 3, 1, 4).contiguous(), v.permute(0, 2, 3, 1).contiguous()
    starts, seq, table = call["cu_seqlens_q"], call["seqused_k"], call["block_table"]
    exact, out, scale = torch.zeros_like(q), torch.zeros(q.shape, dtype=torch.float8_e4m3fn), torch.tensor([0.003])

    def run(into, scale):
        if op == "paged_attention_rocm":
            ops.paged_attention_rocm(into, None, None, None, q, kp, vp, 2, 0.2, table, seq, starts, 16, 40, None, "auto", None, None, scale)
            return
        named = {"output_scale": scale} if op.startswith("chunked") else {"fp8_out_scale": scale, "skip_decode": skip_decode}
        getattr(ops, op)(q, None, None, into, "auto", kp, vp, table, starts, seq, 40, 9, None, None, sm_scale=0.2, **named)

    run(exact, None)
    run(out, scale)
    assert np.array_equal(out.view(torch.uint8).numpy(), bits(stored(exact.numpy(), 0.003))) and bool((exact != 0).any())


@needs_torch
@pytest.mark.parametrize("context", [None, 4, 0])
def test_merge_attn_states_with_output_scale(context):
    a, la, b, lb = (torch.from_numpy(x) for x in partials())
    exact, out = torch.zeros_like(a), torch.zeros(a.shape, dtype=torch.float8_e4m3fn)
    lses = torch.zeros(3, 7), torch.zeros(3, 7)
    for into, lse, scale in ((exact, lses[0], None), (out, lses[1], torch.tensor([0.004]))):
        ops.merge_attn_states(into, a, la.T.contiguous(), b, lb.T.contiguous(), lse, context, scale)
    if context is not None:
        exact[context:] = torch.where(torch.isinf(lb[context:]).unsqueeze(-1), 0.0, b[context:])  # an empty suffix is 0
    assert np.array_equal(out.view(torch.uint8).numpy(), bits(stored(exact.numpy(), 0.004)))
    assert torch.equal(lses[0], lses[1])


@needs_torch
def test_torch_operators():
    import quire.torch as qt

    q, k, v, call = torch_job(torch.float32)
    lens = call["cu_seqlens_q"], call["seqused_k"], call["block_table"]
    exact = qt.attend(q, k, v, *lens, softmax_scale=0.2)
    scale = torch.tensor([0.003])
    out = qt.attend(q, k, v, *lens, softmax_scale=0.2, output_scale=scale)
    assert out.dtype == torch.float8_e4m3fn
    assert np.array_equal(out.view(torch.uint8).numpy(), bits(stored(exact.numpy(), 0.003)))
    a, la, b, lb = (torch.from_numpy(x) for x in partials())
    merged, _ = qt.merge(a, la, b, lb)
    merged8, _ = qt.merge(a, la, b, lb, output_scale=scale)
    assert np.array_equal(merged8.view(torch.uint8).numpy(), bits(stored(merged.numpy(), 0.003)))
    fp8 = torch.float8_e4m3fn
    q8, k8, v8 = q.to(fp8), k.to(fp8), v.to(fp8)
    into = torch.zeros(q.shape, dtype=torch.bfloat16)
    qt.attend(q8, k8, v8, *lens, softmax_scale=0.2, output=into, q_scale=torch.tensor(0.5))
    plain = qt.attend(q8.float() * 0.5, k8.float(), v8.float(), *lens, softmax_scale=0.2)
    torch.testing.assert_close(into.float(), plain, atol=1e-2, rtol=1e-2)
    with pytest.raises(quire.ArgumentError, match="^output: None"):
        qt.attend(q8, k8, v8, *lens)
    torch.library.opcheck(torch.ops.quire.merge, (a, la, b, lb, scale), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize(
    "device, kernel_of_output, kernel_of_query",
    [("sm90", "cuda_sm90", "cuda_sm90"), ("sm80", "cuda_mma", "cuda_generic"), ("gfx942", "hip_generic", "hip_generic")],
)
def test_kernels_on_gpus(device, kernel_of_output, kernel_of_query):
    """Those of Hopper take both, others refuse and say why."""
    line = "q=bf16 kv=bf16 heads=8:2 d=128 page=16 reqs=1x1@2048"
    for changed, kernel, reason in [
        (line + " out=fp8_e4m3fn", kernel_of_output, "out is fp8_e4m3fn, expected bf16 (as q)"),
        (line.replace("bf16", "fp8_e4m3fn") + " out=bf16", kernel_of_query, "q is fp8_e4m3fn, expected f16 or bf16"),
    ]:
        text = str(quire.explain(changed, device=device))
        assert re.search(rf"^kernel +{kernel}$", text, re.MULTILINE)
        assert reason in text or not kernel.endswith("_generic")
    assert not re.search(r"^kernel +\w+_generic$", str(quire.explain(line, device=device)), re.MULTILINE)

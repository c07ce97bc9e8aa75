# SPDX-License-Identifier: Apache-2.0
"""quire_vllm.ops on torch tensors of a GPU: every id of vLLM's test_prefix_prefill.py at its own sizes, 72 with windows and 24 with ALiBi.

Shapes, parameters, layouts and calls are rebuilt from a description of that test. Its data is not: values are N(0,1) instead of
+-1e-3 (where an output of zeros would pass), fp8 caches hold quantised values instead of zeros, caches are NaN wherever nothing may be
read, the output is NaN before the call, and the tolerance is derived (see dense.py) instead of chosen.
"""

import functools
import os
import warnings
import zlib
from types import SimpleNamespace

import pytest
from dense import SUBNORMAL, UNIT
from gpus import needs_gpu, torch

import quire_vllm.ops as ops

pytestmark = needs_gpu

SEED = int(os.environ.get("QUIRE_SEED", "0"))
HEADS, PAGE, REQS, MOST = 64, 32, 10, 1024
PAGES_PER_REQ = 2 * MOST // PAGE
OPS = ["chunked_prefill_paged_decode", "context_attention_fwd"]
STORED = {"auto": "float16", "fp8": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
K_SCALE, V_SCALE = 0.5, 0.25  # scales of fp8 caches; upstream has 1 and caches of zeros


def raw(dtype):
    """fp8 as vLLM keeps it: uint8."""
    return torch.uint8 if dtype.itemsize == 1 else dtype


def packed(k, v):
    """vLLM's layouts from [pages, page, heads, dim], with 8 elements in a chunk for every type, as upstream's test packs."""
    pages, page, heads, dim = k.shape
    k, v = k.view(raw(k.dtype)), v.view(raw(v.dtype))
    return k.view(pages, page, heads, dim // 8, 8).permute(0, 2, 3, 1, 4).contiguous(), v.permute(0, 2, 3, 1).contiguous()


@functools.lru_cache(maxsize=1)
def batch_of(op, kv, dim, per_kv, decode):
    """The batch of an id; `decode`: the last request has one query row. dense_k and dense_v: what attention should read, in f64."""
    torch.manual_seed(zlib.crc32(repr((op, kv, dim, per_kv, decode, SEED)).encode()))
    cuda = functools.partial(torch.randn, device="cuda", dtype=torch.float16)
    kv_heads, stored = HEADS // per_kv, getattr(torch, STORED[kv])
    query_lens, context_lens = torch.randint(16, MOST, (REQS,)), torch.randint(16, MOST, (REQS,))
    if decode:
        query_lens[-1] = 1
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), query_lens.cumsum(0)])
    b = SimpleNamespace(query_lens=query_lens.tolist(), starts=starts.tolist(), longest=int(query_lens.max()), dense_k=[], dense_v=[])
    b.query, b.key, b.value = (cuda(b.starts[-1], heads, dim) for heads in (HEADS, kv_heads, kv_heads))
    b.query_start_loc, b.seq_lens = starts.to("cuda", torch.int32), (query_lens + context_lens).to("cuda", torch.int32)
    b.block_table = torch.randperm(REQS * PAGES_PER_REQ, device="cuda").to(torch.int32).view(REQS, PAGES_PER_REQ)
    k_scale, v_scale = (1.0, 1.0) if kv == "auto" else (K_SCALE, V_SCALE)
    b.k_scale, b.v_scale = (torch.tensor([s], device="cuda") for s in (k_scale, v_scale))
    caches = []
    for new, dense, scale in ((b.key, b.dense_k, k_scale), (b.value, b.dense_v, v_scale)):
        cache = torch.full((REQS * PAGES_PER_REQ * PAGE, kv_heads, dim), float("nan"), device="cuda").to(stored)
        for r, (first, last, context) in enumerate(zip(b.starts, b.starts[1:], context_lens.tolist())):
            from_cache = op.startswith("chunked") and last - first == 1  # the chunked op reads the decode row's own token there
            length = context + (last - first if from_cache else 0)
            rows = torch.cat([cuda(context, kv_heads, dim), new[first:last]]).float()
            at = torch.arange(length, device="cuda")
            slots = b.block_table[r].long()[at // PAGE] * PAGE + at % PAGE
            codes = (rows[:length] / scale).to(stored)
            cache.view(raw(stored))[slots] = codes.view(raw(stored))  # torch cannot index fp8 tensors
            dense.append(torch.cat([codes.double() * scale, rows[length:].double()]))
        caches.append(cache.view(-1, PAGE, kv_heads, dim))
    b.k_cache, b.v_cache = packed(*caches)
    return b


def expected(q, k, v, window, slopes):
    """One request in f64: output, sum p|v|, and the bound on the terms of a score that the tolerance needs."""
    n, length, group = q.shape[0], k.shape[0], q.shape[1] // k.shape[1]
    q, k, v = q.double().transpose(0, 1), *(t.transpose(0, 1).repeat_interleave(group, 0) for t in (k, v))
    back = (length - n + torch.arange(n, device="cuda"))[:, None] - torch.arange(length, device="cuda")[None, :]
    hidden = (back < 0) | (back >= window if window else False)
    scale = q.shape[2] ** -0.5
    scores, terms = scale * (q @ k.mT), scale * (q.abs() @ k.abs().mT)
    if slopes is not None:
        scores -= slopes.double()[:, None, None] * back
        terms += slopes.double().abs()[:, None, None] * back
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    magnitude = terms.masked_fill(hidden, 0).amax(-1, keepdim=True)
    return [t.transpose(0, 1) for t in (weights @ v, weights @ v.abs(), magnitude)]


def rounded_weights(b, first, last):
    """What the weights of long rows lose on Hopper, where they are rounded to f16 (docs/reference/numerics.md, "Rounded weights")."""
    rows = (last - first) * b.query.shape[1] // b.key.shape[1]
    long = rows > 8 and b.query.shape[2] in (64, 128, 256) and torch.cuda.get_device_capability() == (9, 0)
    return 1.01 * UNIT["f16"] if long else 0.0


def judge(b, output, window=0, slopes=None):
    for r, (first, last) in enumerate(zip(b.starts, b.starts[1:])):
        out, abs_pv, magnitude = expected(b.query[first:last], b.dense_k[r], b.dense_v[r], window, slopes)
        work = b.query.shape[2] + b.dense_k[r].shape[0]
        tolerance = 1.01 * UNIT["f16"] * out.abs() + 2.0**-24 * (32 + 8 * work**0.5 * (1 + magnitude)) * abs_pv + SUBNORMAL["f16"]
        tolerance += rounded_weights(b, first, last) * abs_pv
        error = (output[first:last].double() - out).abs()
        bad = ~(error <= tolerance)
        assert not bad.any(), f"request {r}: {int(bad.sum())} of {bad.numel()} wrong, worst {error.max():.3g}"


def call(b, op, kv, **options):
    """Both ops by keyword, twice, as upstream does; the output is poisoned before each call."""
    output = torch.empty_like(b.query)
    lengths = (b.query_start_loc, b.seq_lens, b.longest)
    if op == "chunked_prefill_paged_decode":
        names = "query key value output key_cache value_cache block_table query_start_loc seq_lens max_query_len"
    else:
        names = "q k v o k_cache v_cache b_loc b_start_loc b_seq_len max_input_len"
    tensors = dict(zip(names.split(), (b.query, b.key, b.value, output, b.k_cache, b.v_cache, b.block_table, *lengths)))
    for _ in range(2):
        output.fill_(torch.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            getattr(ops, op)(kv_cache_dtype=kv, k_scale=b.k_scale, v_scale=b.v_scale, max_seq_len=MOST, **tensors, **options)
    return output


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("window", [0, 16, 2048])
@pytest.mark.parametrize("kv", STORED)
@pytest.mark.parametrize("dim", [24, 128])
@pytest.mark.parametrize("per_kv", [1, 64])
def test_contexted_kv_attention(per_kv, dim, kv, window, op):
    b = batch_of(op, kv, dim, per_kv, decode=True)
    judge(b, call(b, op, kv, sliding_window=window), window=window)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("kv", STORED)
@pytest.mark.parametrize("dim", [24, 128])
@pytest.mark.parametrize("per_kv", [1, 64])
def test_contexted_kv_attention_alibi(per_kv, dim, kv, op):
    b = batch_of(op, kv, dim, per_kv, decode=False)
    slopes = torch.pow(2.0, -torch.arange(1, HEADS + 1, device="cuda") / 8)
    judge(b, call(b, op, kv, alibi_slopes=slopes), slopes=slopes)


@pytest.mark.parametrize("op", OPS)
def test_the_judge_sees_a_wrong_window_a_lost_key_and_a_wrong_scale(op):
    b = batch_of(op, "fp8", 128, 64, decode=True)
    for fault in ("window", "key", "scale"):
        broken = SimpleNamespace(**vars(b))
        if fault == "key":
            broken.seq_lens = b.seq_lens.clone()
            broken.seq_lens[0] -= 1  # the newest keys move by one
        if fault == "scale":
            broken.v_scale = b.v_scale * 1.01
        output = call(broken, op, "fp8", sliding_window=17 if fault == "window" else 16)
        with pytest.raises(AssertionError, match="wrong, worst"):
            judge(b, output, window=16)

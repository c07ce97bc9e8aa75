#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Microseconds of the host for one layer of a step, on a GPU with torch: what a call costs before its kernels run.

usage: host_cost.py [--commit TEXT] [--out FILE] [--calls N] [--repeats N]      prints JSON, and writes it to FILE

A layer's call is enqueued N times with nothing waited for, and the host's time is divided by N; then the stream is waited for. The median
of the repeats is given, and the least. The problems are short ones, so that the device keeps up and a launch never waits for room in the
queue. Before anything is timed each way of calling is compared, on fresh N(0,1) inputs, with the fp64 reference: a way that is wrong has
the words of the finding in place of times. Peers are timed where their packages are installed, on the same inputs.
"""
import argparse
import datetime
import gc
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

import quire

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packages/vllm"))
import quire_vllm.ops

LAYERS = 32
# Name, problem line.
PROBLEMS = {
    "decode 8 x 1k": "q=bf16 kv=bf16 heads=32:8 d=128 page=16 index=i32 reqs=8x1@1023 seed={seed}",
    "decode 64 x 1k": "q=bf16 kv=bf16 heads=32:8 d=128 page=16 index=i32 reqs=64x1@1023 seed={seed}",
    "15 decode, 64-row chunk": "q=bf16 kv=bf16 heads=32:8 d=128 page=16 index=i32 reqs=15x1@1023,64@960 seed={seed}",
}


def on_gpu(array: np.ndarray) -> torch.Tensor:
    if array.dtype.itemsize == 2 and array.dtype != np.float16:
        return torch.from_numpy(np.ascontiguousarray(array).view(np.int16)).cuda().view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array)).cuda()


class Step:
    """One step's tensors on the device, two layers of them, and the case that they come from."""

    def __init__(self, line: str):
        self.line = line
        self.case = quire.make_case(line)
        b, c = self.case.batch, self.case.cache
        self.starts, self.lens, self.table = (on_gpu(a) for a in (b.query_start_loc, b.seq_lens, b.block_table))
        q, k, v = on_gpu(b.query), on_gpu(c.k), on_gpu(c.v)
        self.layers = [(q, k, v, torch.empty_like(q)), (q.clone(), k.clone(), v.clone(), torch.empty_like(q))]
        lengths = np.diff(np.asarray(b.query_start_loc, np.int64))
        self.max_q, self.max_k = int(lengths.max()), int(np.max(b.seq_lens))
        self.page = k.shape[1]
        self.scale = float(q.shape[2]) ** -0.5
        # vLLM's packed layout, and this step's rows; x = 8 for 16-bit caches
        pages, page, heads, dim = k.shape
        self.packed = [
            (k.view(pages, page, heads, dim // 8, 8).permute(0, 2, 3, 1, 4).contiguous(), v.permute(0, 2, 3, 1).contiguous())
            for _, k, v, _ in self.layers
        ]
        self.key, self.value = self.new_rows()
        self.expected = None

    def new_rows(self) -> "tuple[torch.Tensor, torch.Tensor]":
        """The rows of this step as the cache holds them, so that both sources agree."""
        _, k, v, _ = self.layers[0]
        starts, lens, table = self.starts.tolist(), self.lens.tolist(), self.table.tolist()
        slots = []
        for r, seq in enumerate(lens):
            for p in range(seq - (starts[r + 1] - starts[r]), seq):
                slots.append(table[r][p // self.page] * self.page + p % self.page)
        self.slots = at = torch.tensor(slots, device="cuda")
        return k.reshape(-1, *k.shape[2:])[at], v.reshape(-1, *v.shape[2:])[at]

    def batch(self, layer: int = 0) -> "quire.Batch":
        q, _, _, out = self.layers[layer]
        return quire.Batch(query=q, output=out, query_start_loc=self.starts, seq_lens=self.lens, block_table=self.table)

    def cache(self, layer: int = 0) -> "quire.KVCache":
        return quire.KVCache(self.layers[layer][1], self.layers[layer][2])

    def judge(self, weights: str = "bf16") -> "str | None":
        """The output of layer 0 against the fp64 reference; None if it is right."""
        torch.cuda.synchronize()
        if self.expected is None:
            self.expected = quire.reference(self.case.batch, self.case.cache, self.case.options)
        bits = self.layers[0][3].view(torch.int16).cpu().numpy()
        result = quire.compare(bits, None, self.expected, dtype="bf16", weights=weights)
        return None if result.ok else str(result)


def ways(step: Step) -> dict:
    """Name: (a function that is one layer's work, whether it writes the output of layer 0)."""
    q, k, v, out = step.layers[0]
    batch, cache = step.batch(), step.cache()
    plan = quire.plan(batch, cache, max_query_len=step.max_q, max_seq_len=step.max_k)
    workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device="cuda")
    bound = quire.bind(batch, cache, plan=plan, workspace=workspace)

    def unified(wait):
        quire_vllm.ops.unified_attention(
            q, k, v, out, step.starts, step.max_q, step.lens, step.max_k, step.scale, True, (-1, -1), step.table, 0.0, None, None, None,
            wait=wait,
        )  # fmt: skip

    def chunked(wait):
        kp, vp = step.packed[0]
        quire_vllm.ops.chunked_prefill_paged_decode(
            q, step.key, step.value, out, "auto", kp, vp, step.table, step.starts, step.lens, step.max_k, step.max_q, None, None,
            sm_scale=step.scale, wait=wait,
        )  # fmt: skip

    found = {
        "bound call": (lambda: bound(q, k, v, out), True),
        "attend, plan and workspace kept": (lambda: quire.attend(batch, cache, None, plan, workspace), True),
        "attend, wait=False, plan kept": (lambda: quire.attend(batch, cache, None, plan, wait=False), True),
        "attend, waits": (lambda: quire.attend(batch, cache), True),
        "Batch and attend, plan and workspace kept": (lambda: quire.attend(step.batch(), cache, None, plan, workspace), True),
        "Batch": (step.batch, False),
        "KVCache": (step.cache, False),
        "plan": (lambda: quire.plan(batch, cache, max_query_len=step.max_q, max_seq_len=step.max_k), False),
        "bind": (lambda: quire.bind(batch, cache, plan=plan, workspace=workspace), False),
        "vllm.unified_attention": (lambda: unified(None), True),
        "vllm.unified_attention, wait=True": (lambda: unified(True), True),
        "vllm.chunked_prefill_paged_decode": (lambda: chunked(None), True),
        "vllm.chunked_prefill_paged_decode, wait=True": (lambda: chunked(True), True),
        "append": (lambda: quire.append(cache, step.key, step.value, step.slots), False),
        "vllm.reshape_and_cache_flash": (
            lambda: quire_vllm.ops.reshape_and_cache_flash(step.key, step.value, k, v, step.slots, "auto", None, None), False,
        ),
    }
    try:
        import quire.torch as ops

        found["torch.ops.quire.attend"] = (
            lambda: ops.attend(q, k, v, step.starts, step.lens, step.table, output=out, max_query_len=step.max_q, max_seq_len=step.max_k),
            True,
        )
    except ImportError as e:
        print(f"quire.torch: {e}", file=sys.stderr)
    return found


def whole_step(step: Step):
    """A step of LAYERS layers: batch, plan, bind, and a call for each."""
    layers = [step.layers[i % 2] for i in range(LAYERS)]

    def run():
        batch, cache = step.batch(), step.cache()
        call = quire.bind(batch, cache, plan=quire.plan(batch, cache, max_query_len=step.max_q, max_seq_len=step.max_k))
        for q, k, v, out in layers:
            call(q, k, v, out)

    return run


def peers(step: Step) -> dict:
    """Calls of the installed peers, made as their own users make them."""
    q, k, v, out = step.layers[0]
    found = {}
    try:
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention
    except ImportError:
        try:
            from vllm.attention.ops.triton_unified_attention import unified_attention
        except ImportError:
            unified_attention = None
    if unified_attention is not None:
        found["vLLM Triton unified_attention"] = lambda: unified_attention(
            q=q, k=k, v=v, out=out, cu_seqlens_q=step.starts, max_seqlen_q=step.max_q, seqused_k=step.lens, max_seqlen_k=step.max_k,
            softmax_scale=step.scale, causal=True, window_size=(-1, -1), block_table=step.table, softcap=0.0, q_descale=None,
            k_descale=None, v_descale=None,
        )  # fmt: skip
    try:
        from vllm.vllm_flash_attn import flash_attn_varlen_func
    except ImportError:
        flash_attn_varlen_func = None
    if flash_attn_varlen_func is not None:
        found["FA3 flash_attn_varlen_func"] = lambda: flash_attn_varlen_func(
            q, k, v, step.max_q, step.starts, step.max_k, seqused_k=step.lens, softmax_scale=step.scale, causal=True,
            block_table=step.table, out=out, fa_version=3,
        )  # fmt: skip
    try:
        import flashinfer
    except ImportError:
        flashinfer = None
    if flashinfer is not None and step.max_q == 1:
        counts = (step.lens.cpu() + step.page - 1) // step.page
        indptr = torch.cat([torch.zeros(1, dtype=torch.int32), counts.cumsum(0).int()])
        indices = torch.cat([step.table[r, : int(n)] for r, n in enumerate(counts)]).int()
        last = ((step.lens.cpu() - 1) % step.page + 1).int()
        for cores in (False, True):
            wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                torch.empty(256 << 20, dtype=torch.uint8, device="cuda"), "NHD", use_tensor_cores=cores
            )

            def plan(wrapper=wrapper):
                wrapper.plan(indptr, indices, last, q.shape[1], k.shape[2], q.shape[2], step.page, q_data_type=q.dtype, kv_data_type=k.dtype)

            plan()
            kind = "tensor cores" if cores else "CUDA cores"
            found[f"FlashInfer decode run ({kind})"] = lambda wrapper=wrapper: wrapper.run(q, (k, v), out=out)
            found[f"FlashInfer decode plan ({kind})"] = plan
    return found


def timed(call, calls: int, repeats: int) -> dict:
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    found = []
    gc.disable()
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - begin) / calls * 1e6)
        torch.cuda.synchronize()
    gc.enable()
    return {"us": round(statistics.median(found), 2), "least_us": round(min(found), 2)}


def measured(step: Step, name: str, call, writes: bool, calls: int, repeats: int) -> dict:
    """Times, or why there are none."""
    try:
        if writes:
            step.layers[0][3].fill_(torch.nan)
            call()
            if wrong := step.judge():
                return {"wrong": wrong}
        result = timed(call, calls, repeats)
        quire.synchronize()
        return result
    except Exception as e:  # a peer that refuses is a line of the report
        return {"refused": f"{type(e).__name__}: {e}".splitlines()[0]}


def checked_step(step: Step) -> "str | None":
    """Every layer of a bound step is right: both layers' outputs have the bits of attend()."""
    run = whole_step(step)
    quire.attend(step.batch(), step.cache())
    if wrong := step.judge():
        return wrong
    for *_, out in step.layers:
        out.fill_(torch.nan)
    run()
    quire.synchronize()
    batch, cache = step.batch(), step.cache()
    plan = quire.plan(batch, cache, max_query_len=step.max_q, max_seq_len=step.max_k)
    for i, (*_, out) in enumerate(step.layers):
        got = out.clone()
        quire.attend(step.batch(i), step.cache(i), None, plan)
        if not torch.equal(got, out):
            return f"layer {i} of a bound step has other bits than attend() with the same plan"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", help="of the build that is measured; default: what git says")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100000, help="of the inputs; default: the clock's")
    args = parser.parse_args()
    if not torch.cuda.is_available() or not quire.info.gpu_devices():
        print("host_cost.py: no GPU that this build has kernels for", file=sys.stderr)
        return 2
    commit = args.commit or subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    report = {"device": torch.cuda.get_device_name(), "date": datetime.date.today().isoformat(), "commit": commit, "torch": torch.__version__,
              "calls": args.calls, "repeats": args.repeats, "layers": LAYERS, "unit": "us of the host per call", "problems": {}}  # fmt: skip
    failed = False
    for name, line in PROBLEMS.items():
        step = Step(line.format(seed=args.seed))
        rows = {w: measured(step, w, call, writes, args.calls, args.repeats) for w, (call, writes) in ways(step).items()}
        wrong = checked_step(step)
        key = f"{LAYERS} layers: Batch, plan, bind, run"
        rows[key] = {"wrong": wrong} if wrong else timed(whole_step(step), 5, args.repeats)
        for peer, call in peers(step).items():
            rows[peer] = measured(step, peer, call, "plan" not in peer, args.calls, args.repeats)
        report["problems"][name] = {"line": step.line, "us": rows}
        failed |= any("wrong" in row for row in rows.values())
        del step
        torch.cuda.empty_cache()
    text = json.dumps(report, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks the GPU at hand about a V of its own head_dim and V in K's rows (MLA), and times absorbed decode; writes one JSON.

usage: mla.py --quire PATH --out FILE [--commit TEXT] [--without-times]

  hazards   the quick cases of OwnHeadDimOfV and VInRowsOfK by the planned kernel, with power: every planted fault of unequal head_dims must
            be caught
  lines     MLA's sizes, decode and prefill, in several parts and with fp8 rows: judged with the fp64 reference
  append    rows of a latent cache, written as two parts on the device and on the CPU: the same bytes (needs torch)
  times     attend() by events, absorbed decode of 128 heads over one latent tensor, bf16 (needs torch)
"""
import argparse
import datetime
import json
import subprocess
from pathlib import Path

LINES = [
    "q=bf16 heads=128:1 d=576 dv=512 latent=1 page=64 lse=1 reqs=1@1500,1@40,3@20 seed=1",
    "q=f16 heads=16:1 d=576 dv=512 latent=1 page=16 layout=hnd lse=1 reqs=2x1@5000,9@300 seed=2",
    "q=bf16 kv=fp8_e4m3fn kscale=tensor vscale=tensor heads=16:1 d=576 dv=512 latent=1 page=64 lse=1 reqs=1@3000,2@70 seed=3",
    "q=bf16 heads=16:16 d=192 dv=128 page=16 lse=1 reqs=200@300,1@900,70@9/9 seed=4",
    "q=bf16 heads=8:2 d=192 dv=128 page=32 layout=packed window=300 lse=1 reqs=40@900,1@2000 seed=5",
    "q=f32 heads=4:2 d=64 dv=520 page=16 lse=1 reqs=3@700,1@9000 seed=6",
    "q=bf16 heads=8:1 d=520 dv=64 page=16 sinks=1 alibi=1 lse=1 reqs=3@700,1@3000,66@5 seed=7",
    "q=f16 out=fp8_e4m3fn heads=8:2 d=192 dv=128 page=16 reqs=40@30,1@500 seed=8",
    "q=bf16 heads=8:2 d=192 dv=128 page=16 causal=1x0,1x1 lse=1 reqs=40:70,9@500 seed=9",
    "q=bf16 heads=16:1 d=576 dv=512 latent=1 page=64 pad=5:zero lse=1 reqs=1@700,1@90 seed=10",
]
HAZARDS = {"OwnHeadDimOfV", "VInRowsOfK"}


def verify(quire: str, *arguments: str) -> dict:
    done = subprocess.run([quire, "verify", "--backend", "cuda", "--json", *arguments], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"quire verify {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)["verdicts"][0]


def hazards(quire: str) -> dict:
    verdict = verify(quire, "--matrix", "hazards", "--quick")
    cases = [c for c in verdict["cases"] if c["name"] in HAZARDS]
    faults = [m for m in verdict["power"]["mutants"] if m["family"] == "head_dims"]
    return {
        "cases": len(cases), "failed": [c["line"] for c in cases if c["status"] != "pass"], "kernels": sorted({c["kernel"] for c in cases}),
        "faults": len(faults), "missed": [m["id"] for m in faults if m["asked"] and m["can_show"] and not m["killed"]],
        "all_cases": len(verdict["cases"]), "all_failed": [c["line"] for c in verdict["cases"] if c["status"] == "fail"],
    }  # fmt: skip


def lines(quire: str) -> dict:
    arguments = [word for line in LINES for word in ("--line", line)]
    verdict = verify(quire, "--no-power", *arguments)
    return {"cases": len(verdict["cases"]), "failed": [c["line"] for c in verdict["cases"] if c["status"] != "pass"]}


def append() -> dict:
    import torch

    from quire import mla

    torch.manual_seed(1)
    different = []
    for dtype, tokens in ((torch.bfloat16, 3), (torch.bfloat16, 777), (torch.float32, 40), (torch.float16, 200)):
        c_kv, k_rope = torch.randn(tokens, 512, dtype=dtype), torch.randn(tokens, 64, dtype=dtype)
        slots = torch.randperm(20 * 64)[:tokens]
        slots[::5] = -1
        caches = [torch.zeros(20, 64, 576, dtype=dtype, device=device) for device in ("cpu", "cuda")]
        for latent in caches:
            mla.append(latent, *(x.to(latent.device) for x in (c_kv, k_rope, slots)))
        torch.cuda.synchronize()
        if not torch.equal(caches[0].view(torch.uint8), caches[1].cpu().view(torch.uint8)):
            different.append(f"{dtype} {tokens}")
    return {"different": different}


def times() -> list:
    import torch

    import quire
    from quire import mla

    results = []
    for requests, context, heads in ((64, 8192, 128), (64, 8192, 16), (1, 8192, 128), (128, 2048, 128)):
        pages = -(-context // 64)
        latent = torch.randn(requests * pages, 64, 576, dtype=torch.bfloat16, device="cuda")
        table = torch.arange(requests * pages, dtype=torch.int32, device="cuda").view(requests, pages)
        query = torch.randn(requests, heads, 576, dtype=torch.bfloat16, device="cuda")
        lengths = torch.full((requests,), context, dtype=torch.int32, device="cuda")
        starts = torch.arange(requests + 1, dtype=torch.int32, device="cuda")
        batch = quire.Batch(query=query, query_start_loc=starts, seq_lens=lengths, block_table=table, output=query.new_empty(requests, heads, 512))
        cache, options = mla.cache(latent, 512), quire.Options(softmax_scale=mla.softmax_scale(128, 64))
        call = quire.bind(batch, cache, options, plan=quire.plan(batch, cache, options, max_query_len=1, max_seq_len=context))
        call()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(5):
            call()
        end.record()
        torch.cuda.synchronize()
        seconds = begin.elapsed_time(end) / 5e3
        results.append({
            "requests": requests, "context": context, "heads": heads, "kernel": str(call.plan).split()[0], "us": seconds * 1e6,
            "tflops": 2 * (576 + 512) * heads * requests * context / seconds / 1e12,
            "tb_per_s": requests * context * 576 * 2 / seconds / 1e12, "device": torch.cuda.get_device_name(),
        })  # fmt: skip
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--commit", default="")
    parser.add_argument("--without-times", action="store_true", help="no torch here: hazards and lines alone")
    args = parser.parse_args()
    name = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    device = subprocess.run(name, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    report = {"device": device, "date": f"{datetime.date.today()}", "commit": args.commit, "lines": lines(args.quire), "hazards": hazards(args.quire)}
    if not args.without_times:
        report |= {"append": append(), "times": times()}
    Path(args.out).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()

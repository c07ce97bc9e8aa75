#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Judges right outputs of foreign implementations by `quire.diagnose`, with the profile found by itself, and counts alarms.

usage: right_outputs.py [--torch | --no-torch] [--noticed] [--json FILE]

Implementations: NumPy kernels of python/tests/right_kernels.py (tiles, orders, rounded weights, scores, dequantised caches, TF32), and with
torch its scaled_dot_product_attention in three types through every backend of this machine. Exit code 1 if there is an alarm.
--noticed prints instead the smallest error that is noticed, per type: the table of docs/reference/numerics.md.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python" / "tests"))
import quire
from right_kernels import Numerics, cases_of, run, torch_outputs

LINES = {
    "bf16": ["heads=8:2 d=64 page=16 reqs=20@30,1@300,7@113", "heads=4:4 d=128 page=32 reqs=3x1@700,33@0", "heads=6:3 d=80 page=8 window=50 reqs=9@30,1@90,3x1@13",
             "heads=16:2 d=16 page=8 cap=30 reqs=5x1@12,40@3"],
    "f16": ["heads=8:2 d=64 page=16 reqs=20@30,1@300,7@113", "heads=16:2 d=128 page=16 reqs=1@2000,1@900", "heads=6:3 d=80 page=8 window=50 reqs=9@30,1@90,3x1@13",
            "heads=2:1 d=32 page=4 reqs=64@0,1@5"],
    "f32": ["heads=8:2 d=64 page=16 reqs=20@30,1@300,7@113", "heads=4:4 d=128 page=32 reqs=3x1@700,33@0", "heads=6:3 d=24 page=8 cap=20 window=50 reqs=9@30,1@90"],
}  # fmt: skip
FP8 = ["fp8_e4m3fn kscale=head vscale=tensor", "fp8_e5m2 kscale=tensor vscale=head", "fp8_e4m3fnuz kscale=tensor vscale=tensor"]


def lines():
    for kind, list_ in LINES.items():
        yield from (f"q={kind} kv={kind} {line} seed={seed + more}" for more in (0, 10) for seed, line in enumerate(list_, 1))
    for seed, cache in enumerate(FP8):
        for kind in ("bf16", "f16"):
            yield f"q={kind} kv={cache} {LINES[kind][seed % 2]} seed={seed + 20}"


def outputs(with_torch):
    """(problem line, kernel, case, output)."""
    for line in lines():
        case = quire.make_case(line)
        for how in cases_of(case):
            yield line, str(how), case, run(case, how)
        if with_torch and "fp8" not in line and "cap=" not in line:
            for name, out in torch_outputs(case):
                yield line, name, case, out


def judge(with_torch):
    results = []
    for line, kernel, case, out in outputs(with_torch):
        found = diagnosed(case, out)
        results.append({"line": line, "kernel": kernel, "verdict": found.verdict, "profile": found.profile})
        if found.verdict != "right":
            print(f"ALARM {line}: {kernel}: {found.verdict}, {len(found.wrong_tokens)} rows, profile {found.profile}")
    return results


def diagnosed(case, out):
    return quire.diagnose(case.batch, case.cache, case.options, observed=out)


# --- the smallest error that is noticed ---

NOTICED = [
    ("f32", Numerics(), "plain"),
    ("f32", Numerics(tf32=True), "products=tf32"),
    ("f16", Numerics(), "plain"),
    ("f16", Numerics(weights="f16"), "weights=f16"),
    ("bf16", Numerics(), "plain"),
    ("bf16", Numerics(weights="f16"), "weights=f16"),
    ("bf16", Numerics(weights="bf16"), "weights=bf16"),
    ("bf16", Numerics(tile=0, weights="bf16", normalised=True, scores="bf16"), "weights=bf16,scores=bf16"),
]
FACTORS = [2.0**-k for k in np.arange(14, 1, -0.5)]


def noticed(kind, how, profile):
    """The smallest factors, and the most keys of which one may be dropped, that a decode row of 32 heads x 128 shows under `profile`."""
    found = {}
    case = quire.make_case(f"q={kind} kv={kind} heads=32:8 d=128 page=16 reqs=1@1023 seed=3")
    right = run(case, how)
    reference = quire.reference(case.batch, case.cache, case.options, None, profile)
    if not quire.compare(right, None, reference, kind):
        raise SystemExit(f"{kind}, {how}: the right output is not right")
    wide = right.astype(np.float32)
    found["v_scale"] = next((f for f in FACTORS if not quire.compare((wide * np.float32(1 + f)).astype(right.dtype), None, reference, kind)), None)
    scale = case.batch.query.shape[2] ** -0.5
    found["softmax_scale"] = next(
        (f for f in FACTORS if not quire.compare(run(case, how, scale=scale * (1 + f)), None, reference, kind)), None
    )
    found["dropped"] = 0
    for n in (256, 1024, 4096, 16384):
        long = quire.make_case(f"q={kind} kv={kind} heads=32:8 d=128 page=16 reqs=1@{n - 1} seed=4")
        truth = quire.reference(long.batch, long.cache, long.options, None, profile)
        drops = [run(long, how, dropped=k) for k in (n // 3, n // 2, n - 7)]
        if all(not quire.compare(out, None, truth, kind) for out in drops):
            found["dropped"] = n
    return found


def print_noticed():
    print("| output type | profile | v_scale | softmax_scale | one key dropped, of up to |\n|---|---|---|---|---|")
    for kind, how, profile in NOTICED:
        found = noticed(kind, how, profile)
        percent = [f"{100 * found[key]:.2g} %" if found[key] else "more than 25 %" for key in ("v_scale", "softmax_scale")]
        print(f"| {kind} | `{profile}` | {percent[0]} | {percent[1]} | {found['dropped'] or 'fewer than 256'} keys |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--noticed", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.noticed:
        print_noticed()
        return 0
    results = judge(args.torch)
    alarms = sum(r["verdict"] != "right" for r in results)
    profiles = sorted({r["profile"] for r in results})
    print(f"{len(results)} right outputs ({sum('torch' in r['kernel'] for r in results)} of torch), {alarms} alarms")
    for profile in profiles:
        print(f"  {sum(r['profile'] == profile for r in results):4d}  {profile}")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())

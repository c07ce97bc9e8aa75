#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random batches of fuzz/gpu through the compiled AMD kernels in the ISA emulator, beside the fp64 reference.

usage: random_batches.py --library LIBRARY --target TARGET [--count N] [--seed S] [--out FILE]

LIBRARY is libquire_amd_emulator.so of the build; the quire package must be importable, as it writes the captures that the emulator
reads. Needs TINYGRAD as run.py does. Batches of many keys are left out: emulation takes a second for some 10 million wave instructions.
"""
import argparse
import collections
import functools
import json
import os
import sys
from ctypes import c_char_p, c_uint64
from pathlib import Path

from toolchain import ROOT, emulate, parser_of

sys.path.insert(0, str(ROOT / "fuzz" / "gpu"))

MOST_PRODUCTS = 3_000_000  # products of a batch: rows x heads x keys x dims


def products(batch) -> int:
    """Keys of requests beyond the oracle's horizon count as if there were none: no row sees them."""
    import oracle
    seen = [len(view.keys) * rows for view, rows in zip(oracle.seen_by_all(batch), batch.q_lens)]
    return sum(seen) * batch.sides.q_heads * (batch.sides.dim + batch.sides.v_dim)


def small_batches(first: int, count: int):
    import batches
    seed = first
    while count > 0:
        batch = batches.make(seed, frozenset(["views"]))  # captures hold contiguous tensors
        if products(batch) <= MOST_PRODUCTS and max(batch.seq_lens, default=0) < 2**30:
            count -= 1
            yield batch
        seed += 1


def write(batch, path: Path) -> None:
    import calls
    import quire
    import views
    quire.write_capture(str(path), *calls.Call(batch, views.library("cpu")).objects())


def run(args: argparse.Namespace, scratch: Path) -> int:
    from session import LaunchKernel, Session
    session = Session(args.library, Path(os.environ["TINYGRAD"]), args.target, scratch)
    attend = session.library.amd_attend_capture
    attend.restype, attend.argtypes = c_char_p, [c_char_p, c_char_p, LaunchKernel, c_uint64]
    path, right, wrong = scratch / "batch.safetensors", collections.Counter(), []
    for batch in small_batches(args.seed, args.count):
        write(batch, path)
        said = json.loads(attend(str(path).encode(), args.target.encode(), session._launch, batch.seed))
        right.update(kernel for kernel, reason in said["kernels"].items() if not reason)
        bad = [f"{kernel}: {reason}" for kernel, reason in said["kernels"].items() if reason] + ([] if said["ok"] else [said["reason"]])
        if bad:
            wrong.append({"seed": batch.seed, "findings": bad, "fields": batch.fields()})
            print(f"{args.target}: seed {batch.seed}: {bad[0]}\n  {'; '.join(batch.fields())}", flush=True)
    print(f"{args.target}: {args.count} batches, right by kernel {dict(right)}, {len(wrong)} wrong or refused")
    if args.out:
        report = {"target": args.target, "seed": args.seed, "batches": args.count, "right_by_kernel": dict(right), "wrong": wrong}
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if wrong or not right else 0


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    return emulate(args.library, functools.partial(run, args))


if __name__ == "__main__":
    sys.exit(main())

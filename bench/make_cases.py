#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the standing workloads bench/cases/W1.txt .. W5.txt and W1s.txt .. W5s.txt from request-length traces.

usage: make_cases.py --conv azure_conv.csv --code azure_code.csv --mooncake conversation.jsonl [--out bench/cases]

The CSV files have columns ContextTokens and GeneratedTokens, the JSONL objects input_length and output_length
(bench/cases/README.md says where they are from). The same traces give the same files.
"""
import argparse
import csv
import json
import random
from pathlib import Path

MODELS = [
    ("Llama-3.1-8B", "heads=32:8 d=128", ""),
    ("SmolLM2-135M", "heads=9:3 d=64", ""),
    ("Qwen2.5-0.5B", "heads=14:2 d=64", ""),
    ("Mistral-7B, window 4096", "heads=32:8 d=128", " window=4096"),
]
SCALE = 8  # divisor of the small forms, for machines of two cores


def read_csv(path: str) -> "list[tuple[int, int]]":
    with open(path, encoding="utf-8", newline="") as file:
        return [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(file)]


def read_jsonl(path: str) -> "list[tuple[int, int]]":
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [(row["input_length"], row["output_length"]) for row in rows]


def decode_contexts(trace, count: int, rng: random.Random) -> "list[int]":
    """Context lengths of `count` decode rows in a random step: a request is in a step as often as it generates tokens, and has
    generated any number of them by then."""
    picked = rng.choices(trace, weights=[generated for _, generated in trace], k=count)
    return [prompt + rng.randrange(generated) for prompt, generated in picked]


def chunk_context(trace, chunk: int, rng: random.Random) -> int:
    """Context before a full chunk of a prompt: prompts by their number of such chunks, any chunk of them."""
    chunks = [prompt // chunk for prompt, _ in trace]
    prompt, _ = rng.choices(trace, weights=chunks)[0]
    return chunk * rng.randrange(prompt // chunk)


def steady_state(trace, decodes: int, chunk: int, seed: int) -> str:
    rng = random.Random(seed)
    reqs = [f"1@{context}" for context in sorted(decode_contexts(trace, decodes, rng))]
    return ",".join([f"{chunk}@{chunk_context(trace, chunk, rng)}", *reqs])


def decode_only(trace, count: int, seed: int) -> str:
    return ",".join(f"1@{context}" for context in sorted(decode_contexts(trace, count, random.Random(seed))))


def long_decode(trace, tokens: int) -> str:
    """The request of the trace whose prompt is nearest to `tokens`, at its first generated token."""
    prompt, _ = min(trace, key=lambda row: abs(row[0] - tokens))
    return f"1@{prompt}"


def speculative(trace, count: int, seed: int) -> str:
    rng = random.Random(seed)
    return ",".join(f"{rng.randint(4, 8)}@{context}" for context in sorted(decode_contexts(trace, count, rng)))


def write(folder: Path, name: str, text: str, reqs: str) -> None:
    lines = [f"# {name}: {text}", "# Made by bench/make_cases.py; sources and licences: bench/cases/README.md."]
    for model, shape, options in MODELS:
        lines += [f"# {model}", f"q=bf16 kv=bf16 {shape} page=16 layout=hnd{options} reqs={reqs}"]
    (folder / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("conv", "code", "mooncake"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "cases")
    args = parser.parse_args()
    conv, code, mooncake = read_csv(args.conv), read_csv(args.code), read_jsonl(args.mooncake)
    for suffix, scale in (("", 1), ("s", SCALE)):
        note = "" if scale == 1 else f", a batch of 1/{scale}"
        decodes, chunk = round(79 / scale), round(433 / scale)
        write(args.out, f"W1{suffix}", f"a chat service in steady state: {decodes} decode rows and a chunk of {chunk}{note}",
              steady_state(conv, decodes, chunk, seed=1))
        decodes, chunk = round(7 / scale), round(505 / scale)
        write(args.out, f"W2{suffix}", f"code completion in steady state: {decodes} decode row(s) and a chunk of {chunk}{note}",
              steady_state(code, decodes, chunk, seed=2))
        write(args.out, f"W3{suffix}", f"{32 // scale} decode rows of a chat service{note}",
              decode_only(conv, 32 // scale, seed=3))
        write(args.out, f"W4{suffix}", f"one decode row with a context of about {32768 // scale} tokens{note}",
              long_decode(mooncake, 32768 // scale))
        write(args.out, f"W5{suffix}", f"{16 // scale} requests with 4 to 8 speculative rows each{note}",
              speculative(conv, 16 // scale, seed=5))


if __name__ == "__main__":
    main()

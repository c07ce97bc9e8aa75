# SPDX-License-Identifier: Apache-2.0
"""The same text, token for token, however it is computed.

Eight prompts are continued greedily by 64 tokens with an f32 cache: for chunks of 16, 64 and 512 rows, pages of 8, 16 and 32
tokens, prefix sharing on and off, all in one batch with requests joining while others decode, and each alone. All runs must
give the same tokens, and a dense forward pass without a cache must prefer every one of them. Exit status 0 only if so.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import pathlib
import sys
import time

import one_blas_thread  # noqa: F401  (before numpy)
from dense import greedy_margins
from engine import Engine
from gguf_file import GgufFile
from gguf_model import REPOSITORY, Weights, fetch_model, load_weights
from model import Llama
from scheduler import Request
from tokenizer import Tokenizer
from workload import read_prompts

CHUNKS, PAGE_SIZES = (16, 64, 512), (8, 16, 32)
STEPS_BETWEEN_ARRIVALS = 3


@dataclasses.dataclass(frozen=True)
class Setting:
    batch: str  # "full" or "alone"
    chunk: int
    page_size: int
    sharing: bool


@dataclasses.dataclass
class Outcome:
    setting: Setting
    texts: list[list[int]]
    steps: int
    prefix_hits: int
    findings: int
    seconds: float


def settings(quick: bool = False) -> list[Setting]:
    """The full product in one batch, and the two ends of it alone; quick: each value once or twice."""
    alone = [Setting("alone", 16, 8, True), Setting("alone", 512, 32, False)]
    if quick:
        return [Setting("full", 16, 8, True), Setting("full", 64, 16, False), Setting("full", 512, 32, True), alone[1]]
    return [Setting("full", *s) for s in itertools.product(CHUNKS, PAGE_SIZES, (True, False))] + alone


def run(llama: Llama, prompts: list[list[int]], count: int, s: Setting, cache_dtype: str = "f32") -> Outcome:
    start = time.perf_counter()
    room = sum(-(-(len(p) + count) // s.page_size) for p in prompts)
    engine = Engine(
        llama,
        num_pages=room,
        page_size=s.page_size,
        dtype=cache_dtype,
        sharing=s.sharing,
        chunk=s.chunk,
        budget=max(s.chunk, 128),
    )
    requests = [Request(i, p, count) for i, p in enumerate(prompts)]
    if s.batch == "alone":
        for request in requests:
            engine.run([request])
    else:
        for request in requests:
            engine.submit(request)
            for _ in range(STEPS_BETWEEN_ARRIVALS):
                engine.step()
        engine.run([])
    pool, audit = engine.kv.pool.stats, engine.kv.audit
    return Outcome(
        s, [r.generated for r in requests], engine.kv.steps, pool.prefix_hit_tokens, audit.findings, time.perf_counter() - start
    )


def pick_prompts(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """Questions, every other one behind the long system prompt that they share."""
    prompts = read_prompts()
    questions = [p for p in prompts if not p.pad]
    short_system = next(p.system for p in prompts if p.pad)
    return [tokenizer.chat(short_system if i % 2 else p.system, p.user) for i, p in enumerate(questions[:count])]


def smallest_margin(weights: Weights, prompts: list[list[int]], texts: list[list[int]]) -> float:
    """Least lead of a generated token over all other tokens in the dense forward pass; negative: another token leads."""
    return min(float(greedy_margins(weights, p, t).min()) for p, t in zip(prompts, texts, strict=True))


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=pathlib.Path, help="a llama-type GGUF file (default: SmolLM2, downloaded once)")
    p.add_argument("--prompts", type=int, default=8)
    p.add_argument("--tokens", type=int, default=64, help="generated per prompt (default: %(default)s)")
    p.add_argument("--quick", action="store_true", help="four runs instead of twenty")
    p.add_argument("--out", type=pathlib.Path, default=REPOSITORY / "out" / "exactness.json")
    a = p.parse_args(argv)

    file = GgufFile(a.model or fetch_model())
    tokenizer = Tokenizer(file)
    llama = Llama(load_weights(file))
    prompts = pick_prompts(tokenizer, a.prompts)
    lens = [len(p) for p in prompts]
    print(f"{a.prompts} prompts of {min(lens)} to {max(lens)} tokens, {a.tokens} new tokens each, f32 cache")
    print(f"{'batch':<7}{'chunk':>6}{'page':>6}{'sharing':>9}{'steps':>7}{'prefix hits':>13}{'findings':>10}{'seconds':>9}  text")
    outcomes: list[Outcome] = []
    for s in settings(a.quick):
        o = run(llama, prompts, a.tokens, s)
        outcomes.append(o)
        same = "same" if o.texts == outcomes[0].texts else "DIFFERENT"
        sharing = "on" if s.sharing else "off"
        print(
            f"{s.batch:<7}{s.chunk:>6}{s.page_size:>6}{sharing:>9}{o.steps:>7}{o.prefix_hits:>13}{o.findings:>10}"
            f"{o.seconds:>9.1f}  {same}",
            flush=True,
        )
    all_same = all(o.texts == outcomes[0].texts for o in outcomes)
    findings = sum(o.findings for o in outcomes)
    margin = smallest_margin(llama.weights, prompts, outcomes[0].texts)
    agrees = "agrees" if margin > 0 else "DISAGREES"
    print(
        f"dense forward without a cache, f32: {agrees} with all {a.prompts * a.tokens} tokens; "
        f"smallest lead over the next best logit {margin:.4f}"
    )
    passed = all_same and findings == 0 and margin > 0
    a.out.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "passed": passed,
        "smallest_dense_margin": margin,
        "runs": [dataclasses.asdict(o.setting) | {"same": o.texts == outcomes[0].texts, "seconds": o.seconds} for o in outcomes],
        "texts": [tokenizer.decode(t) for t in outcomes[0].texts],
    }
    a.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{'passed' if passed else 'FAILED'}: {len(outcomes)} runs, {findings} findings; {a.out}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

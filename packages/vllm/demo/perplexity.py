# SPDX-License-Identifier: Apache-2.0
"""perplexity.py MODEL: what an fp8 cache costs a model, with vLLM's own CPU attention and with Quire's: docs/guides/conformance.md's table.

Perplexity of a text under a cache of each type, scales 1, prompts in chunks of 256 rows, so that most keys come from the cache. Each of
the runs is an engine in a process of its own.
"""

from __future__ import annotations

import argparse
import math
import os
import pathlib
import subprocess
import sys

_TEXT = pathlib.Path(__file__).resolve().parents[3] / "examples" / "data" / "texts" / "speeches_and_charters.txt"
_MARK = "perplexity="
_CACHES = {"auto": "bf16", "fp8_e4m3": "e4m3", "fp8_e5m2": "e5m2"}


def parse_arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path, help="folder with the files that vLLM loads")
    p.add_argument("--tokens", type=int, default=3230, help="of the text (default: %(default)s)")
    p.add_argument("--one", nargs=2, metavar=("BACKEND", "CACHE"), help="one run, whose result is a line of the output")
    return p.parse_args()


def measure(model: pathlib.Path, backend: str, cache: str, tokens: int) -> float:
    """exp of the mean negative log likelihood of tokens 1 to ``tokens`` - 1, each after those before it."""
    from vllm import LLM, SamplingParams

    engine = LLM(model=str(model), dtype="bfloat16", kv_cache_dtype=cache, attention_backend=backend, max_model_len=tokens + 8,
                 max_num_batched_tokens=256, enable_prefix_caching=False, enforce_eager=True, block_size=32, seed=0)  # fmt: skip
    ids = engine.get_tokenizer().encode(_TEXT.read_text(encoding="utf-8"))[:tokens]
    (answer,) = engine.generate([{"prompt_token_ids": ids}], SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0), use_tqdm=False)
    known = [entry[token].logprob for token, entry in zip(ids, answer.prompt_logprobs) if entry is not None]
    return math.exp(-sum(known) / len(known))


def main() -> int:
    a = parse_arguments()
    if a.one:
        print(f"{_MARK}{measure(a.model, *a.one, a.tokens)}", flush=True)
        return 0
    print(f"perplexity on {a.tokens} tokens by type of the cache (change from bf16)\n")
    print("| attention | " + " | ".join(_CACHES.values()) + " |\n|---|" + "---|" * len(_CACHES))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    for backend, name in (("CPU_ATTN", "vLLM's own"), ("CUSTOM", "Quire")):
        found: list[float] = []
        for cache in _CACHES:
            command = [sys.executable, __file__, str(a.model), "--tokens", str(a.tokens), "--one", backend, cache]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                print(done.stdout[-2000:] + done.stderr[-2000:], file=sys.stderr)
                return 1
            found.append(next(float(line.removeprefix(_MARK)) for line in done.stdout.splitlines() if line.startswith(_MARK)))
        print(f"| {name} | " + " | ".join(f"{x:.2f}" + (f" ({100 * (x / found[0] - 1):+.1f} %)" if i else "") for i, x in enumerate(found)) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

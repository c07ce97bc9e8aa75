# SPDX-License-Identifier: Apache-2.0
"""What a narrow cache costs: perplexity of a fixed real text with pages of f32 to 4 bits, against a dense forward in f32.

Perplexity is exp of the mean negative log-likelihood of each next token. The text goes through the paged cache in chunks, so
every token attends to stored, rounded K and V. Every step is checked, and some are compared with the fp64 reference.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time

import numpy as np
import one_blas_thread  # noqa: F401  (before numpy)
from dense import dense_logits
from engine import Engine
from gguf_file import GgufFile
from gguf_model import REPOSITORY, fetch_model, load_weights
from model import Llama
from paged import fits
from scheduler import Request
from tokenizer import Tokenizer
from workload import read_text

DTYPES = ("f32", "bf16", "fp8_e4m3fn", "fp8_e5m2", "fp8_per_token_head", "int8_per_token_head",
          "nvfp4", "mxfp4", "int8_per_token_head/nvfp4", "int8_per_token_head/mxfp4", "fp8_per_token_head/nvfp4",
          "fp8_per_token_head/mxfp4")


def log_likelihoods(logits: np.ndarray, next_tokens: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    top = x.max(-1)
    return x[np.arange(len(x)), next_tokens] - top - np.log(np.exp(x - top[:, None]).sum(-1))


def prefill(engine: Engine, tokens: list[int]):
    """Yields (first position, logits of the rows) for each chunk of one request's prompt."""
    engine.submit(Request(0, tokens, 1))
    while engine.scheduler.has_work():
        chunks = engine.scheduler.schedule()
        step = engine.kv.begin_step(chunks)
        hidden = engine.llama.forward(step.tokens, step.positions, step.attend)
        yield chunks[0].begin, engine.llama.logits(hidden)
        engine.scheduler.finish_step(chunks, {0: 0})


def measure(llama: Llama, tokens: list[int], dtype: str, best: np.ndarray, chunk: int, verify_every: int) -> dict:
    start = time.perf_counter()
    num_pages = len(tokens) // 16 + 2
    engine = Engine(llama, num_pages=num_pages, page_size=16, dtype=dtype, chunk=chunk, budget=chunk, verify_every=verify_every)
    following = np.array([*tokens[1:], 0])
    likelihoods, same = [], 0
    for begin, logits in prefill(engine, tokens):
        rows = slice(begin, begin + len(logits))
        likelihoods.append(log_likelihoods(logits, following[rows]))
        same += int((logits.argmax(-1) == best[rows])[: len(tokens) - 1 - begin].sum())
    audit = engine.kv.audit
    nll = -np.concatenate(likelihoods)[:-1]
    return {
        "dtype": dtype,
        "perplexity": float(np.exp(nll.mean())),
        "same_top_token": same / len(nll),
        "findings": audit.findings,
        "worst_error_over_tolerance": audit.worst_ratio,
        "clean": audit.clean,
        "seconds": time.perf_counter() - start,
    }


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=pathlib.Path, help="a llama-type GGUF file (default: SmolLM2, downloaded once)")
    p.add_argument("--text", type=pathlib.Path, help="UTF-8 text (default: Pride and Prejudice, chapter 1)")
    p.add_argument("--tokens", type=int, default=1024, help="at most this many tokens of it (default: %(default)s)")
    types = ", ".join(DTYPES)
    p.add_argument("--caches", nargs="+", choices=DTYPES, default=DTYPES, metavar="TYPE", help=f"of {types} (default: all)")
    p.add_argument("--chunk", type=int, default=64, help="tokens of a step (default: %(default)s)")
    p.add_argument("--verify-every", type=int, default=4, help="steps between comparisons; 0: none (default: %(default)s)")
    p.add_argument("--out", type=pathlib.Path, default=REPOSITORY / "out" / "perplexity.json")
    a = p.parse_args(argv)

    file = GgufFile(a.model or fetch_model())
    tokenizer = Tokenizer(file)
    llama = Llama(load_weights(file))
    text = a.text.read_text(encoding="utf-8") if a.text else read_text("netherfield.txt")
    tokens = [tokenizer.control("<|endoftext|>"), *tokenizer.encode(text)][: a.tokens]
    logits = dense_logits(llama.weights, tokens)
    best = logits.argmax(-1)
    dense = float(np.exp(-log_likelihoods(logits[:-1], np.array(tokens[1:])).mean()))
    del logits
    print(f"{len(tokens)} tokens; perplexity of the dense f32 forward {dense:.4f}")
    print(f"{'cache':<28}{'perplexity':>12}{'change':>10}{'same token':>12}{'error/tolerance':>17}{'findings':>10}{'seconds':>9}")
    results = []
    for dtype in (d for d in a.caches if fits(d, llama.config.head_dim)):
        r = measure(llama, tokens, dtype, best, a.chunk, a.verify_every)
        results.append(r)
        change = f"{100 * (r['perplexity'] / dense - 1):+.3f} %"
        print(
            f"{dtype:<28}{r['perplexity']:>12.4f}{change:>10}{100 * r['same_top_token']:>10.1f} %"
            f"{r['worst_error_over_tolerance']:>17.3g}{r['findings']:>10}{r['seconds']:>9.1f}",
            flush=True,
        )
    a.out.parent.mkdir(parents=True, exist_ok=True)
    a.out.write_text(
        json.dumps({"tokens": len(tokens), "dense_f32": dense, "caches": results}, indent=1) + "\n", encoding="utf-8"
    )
    exact = all(abs(r["perplexity"] / dense - 1) < 1e-4 for r in results if r["dtype"] == "f32")
    passed = exact and all(r["clean"] for r in results)
    print(f"{'passed' if passed else 'FAILED: f32 cache and dense forward differ, or a check failed'}; {a.out}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""gpu.py OUT.json [--quick]: vLLM on one GPU with Quire's attention, FLASH_ATTN and TRITON_ATTN, in one run, shuffled.

A model of Llama-3-8B's shape with random weights N(0, 0.02): real speed, no text. Each backend has an engine in a process of its own that
stays up; tasks go to them one at a time in a shuffled order, so that drift of the machine hits all alike. First with a bf16 cache, then
with fp8. Then greedy tokens are compared, and the planted faults of the audit go through FLASH_ATTN.

Needs vLLM (0.26 to 0.33), quire with CUDA and quire-vllm in this Python. Writes results as it goes.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

BACKENDS = ("CUSTOM", "FLASH_ATTN", "TRITON_ATTN")
SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "torch_dtype": "bfloat16", "hidden_act": "silu", "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_KV_GIB = 20  # of each engine; three of them and their weights are 110 GiB
_TOKEN_BYTES = {"auto": 131072, "fp8": 65536}  # K and V of 32 layers, 8 heads of 128
_STEPS = 48  # timed steps of a decode task
_VOCABULARY = 100_000  # prompts are random tokens below this


def tasks_of(cache: str, quick: bool) -> list[dict[str, Any]]:
    """Prefill, decode and mixed steps, as far as their contexts fit in the cache."""
    room = _KV_GIB * 2**30 // _TOKEN_BYTES[cache]
    counts, contexts = ((1, 16), (2048,)) if quick else ((1, 16, 64, 128), (2048, 8192, 32768))
    decode = [{"kind": "decode", "count": n, "context": c} for n in counts for c in contexts if n * (c + 128) <= room]
    mixed = [{"kind": "mixed", "count": n, "context": c} for n in counts[1:3] for c in contexts[:2] if n * (c + 128) + 8192 <= room]
    return [{"kind": "prefill", "count": 4, "context": 2048}, {"kind": "prefill", "count": 1, "context": 8192}, *decode, *mixed]


class Worker:
    """An engine in a process of its own, which answers JSON lines."""

    def __init__(self, backend: str, cache: str, model: str, log: pathlib.Path):
        command = [sys.executable, __file__, "--worker", backend, cache, model]
        environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
        self.backend = backend
        self._log = open(log, "w", encoding="utf-8")
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True)

    def ask(self, task: dict[str, Any]) -> Any:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
            self._log.write(line)
        raise RuntimeError(f"the engine of {self.backend} stopped with status {self._process.wait()}; its log: {self._log.name}")

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()


# In a worker.


def make_engine(backend: str, cache: str, model: str) -> Any:
    import torch
    from vllm import LLM

    engine = LLM(model=model, load_format="dummy", skip_tokenizer_init=True, attention_backend=backend, kv_cache_dtype=cache, dtype="bfloat16",
                 kv_cache_memory_bytes=_KV_GIB << 30, max_num_batched_tokens=8192, max_num_seqs=128, max_model_len=40960,
                 enable_prefix_caching=False, gpu_memory_utilization=0.3, block_size=16, seed=0)  # fmt: skip

    def refill(worker: Any) -> None:
        generator = torch.Generator(device="cuda").manual_seed(0)
        with torch.no_grad():
            for name, weight in worker.model_runner.model.named_parameters():
                if weight.dim() > 1:
                    weight.normal_(0.0, 0.02, generator=generator)
                elif "norm" in name:
                    weight.fill_(1.0)

    engine.collective_rpc(refill)
    return engine


def add(core: Any, names: list[str], context: int, tokens: int, seed: int) -> None:
    from vllm import SamplingParams

    chooser = random.Random(seed)
    for name in names:
        ids = [chooser.randrange(3, _VOCABULARY) for _ in range(context)]
        core.add_request(name, {"prompt_token_ids": ids}, SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False))


def timed_steps(core: Any, count: int) -> list[float]:
    import torch

    found = []
    for _ in range(count):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        core.step()
        torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - begun))
    return found


def prefill(core: Any, task: dict[str, Any]) -> dict[str, Any]:
    found = []
    for repeat in range(3):
        add(core, [f"p{repeat}-{i}" for i in range(task["count"])], task["context"], 1, seed=repeat)
        begun = time.perf_counter()
        while core.has_unfinished_requests():
            core.step()
        found.append(1e3 * (time.perf_counter() - begun))
    return {"ms": found, "median": statistics.median(found)}


def decode(core: Any, task: dict[str, Any], mixed: bool) -> dict[str, Any]:
    """Milliseconds of a step once all requests generate; ``mixed``: beside a prompt of 8192 tokens, one chunk of 2048 a step."""
    names = [f"d{i}" for i in range(task["count"])]
    add(core, names, task["context"], _STEPS + 64, seed=1)
    started: set[str] = set()
    while len(started) < len(names):
        started |= {answer.request_id for answer in core.step() if answer.outputs and answer.outputs[0].token_ids}
    timed_steps(core, 4)
    if mixed:
        add(core, ["prompt"], 16384, 1, seed=2)  # chunks of what 8192 rows leave beside the decode rows
        found = timed_steps(core, 2)
    else:
        found = timed_steps(core, _STEPS)
    core.abort_request([*names, "prompt"])
    while core.has_unfinished_requests():
        core.step()
    return {"ms": found, "median": statistics.median(found)}


def greedy(engine: Any, task: dict[str, Any]) -> dict[str, Any]:
    """Tokens of ragged prompts, and at each of them the lead of the best logprob over the next."""
    from vllm import SamplingParams

    chooser = random.Random(5)
    prompts = [{"prompt_token_ids": [chooser.randrange(3, _VOCABULARY) for _ in range(64 + 97 * i % 1800)]} for i in range(task["count"])]
    settings = SamplingParams(temperature=0.0, max_tokens=task["tokens"], ignore_eos=True, logprobs=2, detokenize=False)
    answers = engine.generate(prompts, settings, use_tqdm=False)
    leads = [[_lead(entry) for entry in answer.outputs[0].logprobs] for answer in answers]
    return {"tokens": [list(answer.outputs[0].token_ids) for answer in answers], "leads": leads}


def _lead(entry: Any) -> float:
    best = sorted((x.logprob for x in entry.values()), reverse=True)
    return best[0] - best[1]


def worker(backend: str, cache: str, model: str) -> None:
    engine = make_engine(backend, cache, model)
    for line in sys.stdin:
        task = json.loads(line)
        core = engine.llm_engine
        kind = task["kind"]
        result = greedy(engine, task) if kind == "greedy" else prefill(core, task) if kind == "prefill" else decode(core, task, kind == "mixed")
        print("@" + json.dumps(result), flush=True)


# In the parent.


def compare_tokens(found: dict[str, dict[str, Any]], tie: float = 0.05) -> dict[str, Any]:
    """Of Quire's requests against each other backend: equal, diverged at a tie (a lead under ``tie`` there), diverged otherwise."""
    ours, result = found["CUSTOM"], {}
    for backend in BACKENDS[1:]:
        counts = {"equal": 0, "tie": 0, "diverged": 0}
        for a, b, leads in zip(ours["tokens"], found[backend]["tokens"], found[backend]["leads"]):
            at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None)
            counts["equal" if at is None else "tie" if leads[at] < tie else "diverged"] += 1
        result[backend] = counts
    return result


def phase(cache: str, model: str, out: pathlib.Path, results: dict[str, Any], quick: bool) -> None:
    """All tasks with one type of cache."""
    workers = [Worker(backend, cache, model, out.with_suffix(f".{backend}.{cache}.log")) for backend in BACKENDS]
    try:
        for each in workers:  # one after another: a start measures free memory
            each.ask({"kind": "prefill", "count": 1, "context": 512})
        rounds = [(task, each) for _ in range(1 if quick else 2) for task in tasks_of(cache, quick) for each in workers]
        random.Random(7).shuffle(rounds)
        for task, each in rounds:
            name = f"{cache} {task['kind']} {task['count']}x{task['context']}"
            results["times"].setdefault(name, {}).setdefault(each.backend, []).append(each.ask(task))
            out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        answers = {each.backend: each.ask({"kind": "greedy", "count": 17 if quick else 65, "tokens": 92}) for each in workers}
        results["tokens"][cache] = compare_tokens(answers)
    finally:
        for each in workers:
            each.close()


def audit(model: str, out: pathlib.Path) -> dict[str, Any]:
    """The planted faults around FLASH_ATTN."""
    session = pathlib.Path(__file__).resolve().parents[1] / "tests" / "engine" / "session.py"
    folder = tempfile.mkdtemp(prefix="quire-audit-")
    options = {"load_format": "dummy", "skip_tokenizer_init": True, "kv_cache_memory_bytes": 4 << 30, "gpu_memory_utilization": 0.5}
    environment = {**os.environ, "QUIRE_VLLM_MODEL": model, "QUIRE_VLLM_OPTIONS": json.dumps(options), "QUIRE_AUDIT": "1",
                   "QUIRE_AUDIT_BUDGET": "full", "QUIRE_AUDIT_DIR": folder}  # fmt: skip
    target = out.with_suffix(".faults.json")
    command = [sys.executable, str(session), "faults", str(target), "dtype=bfloat16", "block_size=16", "attention_backend=FLASH_ATTN", "step=20",
               "after=12", f"folder={folder}"]  # fmt: skip
    with open(out.with_suffix(".faults.log"), "w", encoding="utf-8") as log:
        done = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    return json.loads(target.read_text()) if done.returncode == 0 else {"failed": done.returncode}


def show(results: dict[str, Any]) -> None:
    print("ms: median of the medians; * where Quire is not the fastest")
    for name, by_backend in sorted(results["times"].items()):
        medians = {backend: statistics.median(r["median"] for r in by_backend[backend]) for backend in BACKENDS if backend in by_backend}
        slower = medians["CUSTOM"] > min(medians.values())
        print(f"{name:<28}" + "".join(f"{backend} {value:9.3f}  " for backend, value in medians.items()) + ("*" if slower else ""))
    print(f"tokens: {results['tokens']}")
    for name, found in results.get("faults", {}).items():
        if isinstance(found, dict):
            print(f"{name:<20} planted at step {found['planted']}, first alarm at {found['first']}: {found['kind']}")


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:])
        return
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--quick", action="store_true", help="a few tasks, once")
    p.add_argument("--only", default="auto,fp8,faults", help="parts of the run (default: %(default)s)")
    a = p.parse_args()
    parts = a.only.split(",")
    model = tempfile.mkdtemp(prefix="llama-shape-")
    pathlib.Path(model, "config.json").write_text(json.dumps(SHAPE))
    results: dict[str, Any] = {"times": {}, "tokens": {}}
    for cache in ("auto", "fp8"):
        if cache in parts:
            phase(cache, model, a.out, results, a.quick)
    if "faults" in parts:
        results["faults"] = audit(model, a.out)
    a.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    show(results)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""gpu.py OUT.json [--quick]: vLLM on one GPU with Quire's attention, FLASH_ATTN and TRITON_ATTN, in one run, taking turns.

A model of Llama-3-8B's shape, of some of its layers, with random weights N(0, 0.02): real speed of a layer, no text. Each backend has an
engine in a process of its own that stays up, and all three hold the same requests. Bursts of steps go to them one engine at a time in a
shuffled order, so that drift of the machine hits all alike. First with a bf16 cache, then with fp8. Greedy tokens are compared with each
cache, and the planted faults of the audit go through FLASH_ATTN.

Needs vLLM (0.26 to 0.33), quire with CUDA and quire-vllm in this Python. Writes results as it goes.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "torch_dtype": "bfloat16", "hidden_act": "silu", "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_ROUNDS, _BURST = 3, 10  # bursts of an engine in each task, and timed steps of a burst
_ROOM = 208  # tokens that a request may generate
_SIZES = [1, 2, 4, 8, 16, 32, 64, 96, 128]  # batches that have a graph; others are padded


class Worker:
    """An engine in a process of its own, which answers JSON lines."""

    def __init__(self, backend: str, cache: str, model: str, log: pathlib.Path):
        command = [sys.executable, str(pathlib.Path(__file__).resolve()), "--worker", backend, cache, model]
        environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
        self.backend = backend
        self._log = open(log, "w", encoding="utf-8")
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True)

    def ask(self, **task: Any) -> Any:
        self.send(**task)
        return self.answer()

    def send(self, **task: Any) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
            self._log.write(line)
        raise RuntimeError(f"the engine of {self.backend} stopped with status {self._process.wait()}; its log: {self._log.name}")

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()


# In a worker.


def make_engine(backend: str, cache: str, model: str) -> Any:
    from vllm import LLM

    options = {"dtype": "bfloat16", "max_num_batched_tokens": 8192, "max_num_seqs": 128, "max_model_len": 40960, "gpu_memory_utilization": 0.2, "block_size": 16,
               "compilation_config": {"cudagraph_capture_sizes": _SIZES}} | json.loads(os.environ.get("QUIRE_VLLM_OPTIONS", "{}"))  # fmt: skip
    engine = LLM(model=model, load_format="dummy", skip_tokenizer_init=True, attention_backend=backend, kv_cache_dtype=cache,
                 enable_prefix_caching=False, seed=0, **options)  # fmt: skip
    engine.collective_rpc(refill)
    return engine


def refill(worker: Any) -> None:
    """Weights whose logits depend on attention; vLLM's dummy ones are too small for that."""
    import torch

    with torch.no_grad():
        for i, (name, weight) in enumerate(worker.model_runner.model.named_parameters()):
            generator = torch.Generator(device=weight.device).manual_seed(i)
            if weight.dim() > 1:
                weight.normal_(0.0, 0.02, generator=generator)
            elif "norm" in name:
                weight.fill_(1.0)


class Bench:
    """What one engine does when it is asked."""

    def __init__(self, engine: Any):
        self.engine, self.core = engine, engine.llm_engine
        self.names: list[str] = []

    def add(self, names: list[str], context: int, tokens: int, seed: int) -> None:
        from vllm import SamplingParams

        chooser = random.Random(seed)
        settings = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        for name in names:
            self.core.add_request(name, {"prompt_token_ids": chooser.choices(range(3, 100_000), k=context)}, settings)

    def drain(self) -> None:
        while self.core.has_unfinished_requests():
            self.core.step()

    def prefill(self, count: int, context: int) -> float:
        self.add([f"prefill-{i}" for i in range(count)], context, 1, seed=time.perf_counter_ns())
        begun = time.perf_counter()
        self.drain()
        return 1e3 * (time.perf_counter() - begun)

    def fill(self, count: int, context: int) -> int:
        """Requests that generate: steps until each has a token."""
        self.names = [f"decode-{i}" for i in range(count)]
        self.add(self.names, context, _ROOM, seed=1)
        started: set[str] = set()
        steps = 0
        while len(started) < count:
            started |= {answer.request_id for answer in self.core.step() if answer.outputs and answer.outputs[0].token_ids}
            steps += 1
        return steps

    def keep(self, count: int) -> int:
        self.core.abort_request(self.names[count:])
        self.names = self.names[:count]
        if not count:
            self.drain()
        return count

    def steps(self, count: int) -> float:
        """Milliseconds of a step: a burst's time over its steps. Nothing waits for the GPU inside a burst but vLLM itself."""
        for _ in range(2):
            self.core.step()
        _synchronize()
        begun = time.perf_counter()
        for _ in range(count):
            self.core.step()
        _synchronize()
        assert self.core.has_unfinished_requests(), "the requests ended before the burst did"
        return 1e3 * (time.perf_counter() - begun) / count

    def mixed(self) -> float:
        """Milliseconds for a prompt of 16384 tokens, in chunks of what 8192 rows leave, beside the requests that generate."""
        self.add(["prompt"], 16384, 1, seed=2)
        _synchronize()
        begun, done = time.perf_counter(), False
        while not done:
            done = any(answer.request_id == "prompt" and answer.finished for answer in self.core.step())
        _synchronize()
        return 1e3 * (time.perf_counter() - begun)

    def profile(self, count: int) -> dict[str, float]:
        """Microseconds of each kernel in a step."""
        import torch

        self.steps(2)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            for _ in range(count):
                self.core.step()
            _synchronize()
        total: collections.Counter[str] = collections.Counter()
        for event in found.events():
            if event.device_type == torch.autograd.DeviceType.CUDA:
                total[event.name[:160]] += event.device_time / count
        return dict(total.most_common(24))

    def greedy(self, count: int, tokens: int) -> dict[str, Any]:
        """Tokens of ragged prompts of ragged lengths, and at each of them the lead of the best logprob over the next."""
        from vllm import SamplingParams

        chooser = random.Random(5)
        prompts = [{"prompt_token_ids": [chooser.randrange(3, 100_000) for _ in range(64 + 97 * i % 1800)]} for i in range(count)]
        settings = [SamplingParams(temperature=0.0, max_tokens=tokens - i % 40, ignore_eos=True, logprobs=2, detokenize=False) for i in range(count)]
        answers = self.engine.generate(prompts, settings, use_tqdm=False)
        leads = [[_lead(entry) for entry in answer.outputs[0].logprobs] for answer in answers]
        return {"tokens": [list(answer.outputs[0].token_ids) for answer in answers], "leads": leads}


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _lead(entry: Any) -> float:
    best = sorted((x.logprob for x in entry.values()), reverse=True)
    return best[0] - best[1]


def worker(backend: str, cache: str, model: str) -> None:
    bench = Bench(make_engine(backend, cache, model))
    for line in sys.stdin:
        task = json.loads(line)
        print("@" + json.dumps(getattr(bench, task.pop("do"))(**task)), flush=True)


# In the parent.


class Phase:
    """All tasks with one type of cache."""

    def __init__(self, cache: str, workers: list[Worker], a: argparse.Namespace, results: dict[str, Any], tokens: int):
        self.cache, self.workers, self.out, self.results, self.tokens, self.quick = cache, workers, a.out, results, tokens, a.quick
        self.levels = levels_of("2048:16,1" if a.quick else a.levels)
        self._shuffle = random.Random(7).shuffle

    def run(self, before: Callable[[], None]) -> None:
        for each in self.workers:  # they start beside one another, and the first task compiles what is compiled late
            each.send(do="prefill", count=1, context=300)
        for each in self.workers:
            each.answer()
        self.say("engines are up")
        before()  # nothing else runs from here on
        for count, context in ((4, 2048), (1, 8192)):
            self.turns(f"prefill {count}x{context}", 1 if self.quick else 4, do="prefill", count=count, context=context)
        self.greedy()
        for context, counts in self.levels:
            if fitting := [n for n in counts if n * (context + _ROOM + 16) <= self.tokens]:
                self.level(context, fitting)

    def level(self, context: int, counts: list[int]) -> None:
        for each in self.workers:
            each.ask(do="fill", count=counts[0], context=context)
        self.say(f"{counts[0]} requests of {context} tokens are in")
        for count in counts:
            for each in self.workers:
                each.ask(do="keep", count=count)
            self.turns(f"decode {count}x{context}", _ROUNDS, do="steps", count=_BURST)
            if (count, context) == (64, 2048):
                self.profiles(count, context)
            if (count, context) == (16, 8192):
                self.turns(f"mixed {count}x{context}+1x16384", 2, do="mixed")
        for each in self.workers:
            each.ask(do="keep", count=0)

    def turns(self, name: str, rounds: int, **task: Any) -> None:
        found = self.results["times"].setdefault(f"{self.cache} {name}", {each.backend: [] for each in self.workers})
        for _ in range(rounds):
            order = list(self.workers)
            self._shuffle(order)
            for each in order:
                found[each.backend].append(each.ask(**task))
        self.say(f"{name}: " + ", ".join(f"{backend} {statistics.median(ms):.3f}" for backend, ms in found.items()))

    def profiles(self, count: int, context: int) -> None:
        found = self.results["kernels"].setdefault(f"{self.cache} decode {count}x{context}", {})
        for each in self.workers:
            found[each.backend] = each.ask(do="profile", count=4)

    def greedy(self) -> None:
        answers = {each.backend: each.ask(do="greedy", count=9 if self.quick else 33, tokens=92) for each in self.workers}
        self.results["tokens"][self.cache] = compare_tokens(answers)
        self.say(f"tokens: {self.results['tokens'][self.cache]}")

    def say(self, text: str) -> None:
        self.out.write_text(json.dumps(self.results, indent=1) + "\n", encoding="utf-8")
        print(f"{time.perf_counter() - self.results['begun']:6.1f} s {self.cache} {text}", flush=True)


def levels_of(text: str) -> list[tuple[int, list[int]]]:
    """ "CONTEXT:COUNT,COUNT;..." """
    return [(int(context), [int(n) for n in counts.split(",")]) for context, counts in (level.split(":") for level in text.split(";"))]


def compare_tokens(found: dict[str, dict[str, Any]], tie: float = 0.05) -> dict[str, Any]:
    """Of each pair of backends, requests: equal, parted at a tie (the second one's lead there is under ``tie``), parted otherwise."""
    names, result = list(found), {}
    for a, b in [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]:
        counts = {"equal": 0, "tie": 0, "parted": 0, "tokens before parting": 0, "largest lead": 0.0}
        for x, y, leads in zip(found[a]["tokens"], found[b]["tokens"], found[b]["leads"]):
            at = next((i for i, (s, t) in enumerate(zip(x, y)) if s != t), None)
            counts["equal" if at is None else "tie" if leads[at] < tie else "parted"] += 1
            counts["tokens before parting"] += len(x) if at is None else at
            counts["largest lead"] = max(counts["largest lead"], 0.0 if at is None else round(leads[at], 4))
        result[f"{a}, {b}"] = counts
    return result


class Audit:
    """The planted faults around FLASH_ATTN, shared out to engines that run beside the start of the others."""

    def __init__(self, model: str, out: pathlib.Path, shares: int = 4, limit: float = 600):
        self._until, self._found = time.perf_counter() + limit, []
        self._runs = [self._start(model, out.with_suffix(f".faults{i}.json"), f"{i}/{shares}") for i in range(shares)]

    def _start(self, model: str, target: pathlib.Path, share: str) -> Any:
        session = pathlib.Path(__file__).resolve().parents[1] / "tests" / "engine" / "session.py"
        folder = tempfile.mkdtemp(prefix="quire-audit-")
        options = {"load_format": "dummy", "skip_tokenizer_init": True, "kv_cache_memory_bytes": 1 << 30, "gpu_memory_utilization": 0.02}
        environment = {**os.environ, "QUIRE_VLLM_MODEL": model, "QUIRE_VLLM_OPTIONS": json.dumps(options), "QUIRE_AUDIT": "1",
                       "QUIRE_AUDIT_BUDGET": "full", "QUIRE_AUDIT_DIR": folder}  # fmt: skip
        command = [sys.executable, str(session), "faults", str(target), "dtype=bfloat16", "block_size=16", "attention_backend=FLASH_ATTN",
                   "step=20", "after=12", f"folder={folder}", f"share={share}"]  # fmt: skip
        self._found.append(target)
        return subprocess.Popen(command, env=environment, stdout=open(target.with_suffix(".log"), "w"), stderr=subprocess.STDOUT)

    def result(self) -> dict[str, Any]:
        """Of each fault what session.py found; of those that took too long, nothing."""
        for run in self._runs:
            try:
                run.wait(max(0.1, self._until - time.perf_counter()))
            except subprocess.TimeoutExpired:
                run.kill()
        found: dict[str, Any] = {"statuses": [run.wait() for run in self._runs]}
        for target in self._found:
            found |= json.loads(target.read_text()) if target.exists() else {}
        return found


def show(results: dict[str, Any]) -> None:
    print("ms: medians; * where Quire is not the fastest")
    for name, by_backend in results["times"].items():
        medians = {backend: statistics.median(found) for backend, found in by_backend.items()}
        slower = medians.get("CUSTOM", 0.0) > min(medians.values())
        print(f"{name:<28}" + "".join(f"{backend} {value:9.3f}  " for backend, value in medians.items()) + ("*" if slower else ""))
    print(f"tokens: {results['tokens']}")
    for name, found in results.get("faults", {}).items():
        if isinstance(found, dict):
            print(f"{name:<20} planted at step {found['planted']}, first alarm at {found['first']}: {found['kind']}")


def write_model(layers: int, **other: Any) -> str:
    model = tempfile.mkdtemp(prefix="llama-shape-")
    pathlib.Path(model, "config.json").write_text(json.dumps({**SHAPE, **other, "num_hidden_layers": layers}))
    return model


def phase(cache: str, model: str, a: argparse.Namespace, results: dict[str, Any], before: Callable[[], None]) -> None:
    size = a.layers * 2 * SHAPE["num_key_value_heads"] * SHAPE["head_dim"] * (2 if cache == "auto" else 1)  # bytes of a token
    workers = [Worker(backend, cache, model, a.out.with_suffix(f".{backend}.{cache}.log")) for backend in a.backends.split(",")]
    try:
        Phase(cache, workers, a, results, int(a.kv_gib * 2**30) // size).run(before)
    finally:
        for each in workers:
            each.close()


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:])
        return
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--quick", action="store_true", help="a few tasks")
    p.add_argument("--only", default="auto,fp8,faults", help="parts of the run (default: %(default)s)")
    p.add_argument("--backends", default="CUSTOM,FLASH_ATTN,TRITON_ATTN", help="default: %(default)s")
    p.add_argument("--audit-limit", type=float, default=600, help="seconds for the planted faults (default: %(default)s)")
    p.add_argument("--levels", default="2048:128,64,16,1;32768:4,1;8192:64,16,1;8192:128",
                   help="contexts, and counts of requests that generate, falling; what does not fit is left out (default: %(default)s)")  # fmt: skip
    p.add_argument("--layers", type=int, default=16, help="layers of the model: fewer leave more room for requests (default: %(default)s)")
    p.add_argument("--kv-gib", type=float, default=33, help="cache of each engine: 33 fits thrice beside the weights in 139 GiB (default: %(default)s)")
    a = p.parse_args()
    os.environ.setdefault("QUIRE_VLLM_OPTIONS", json.dumps({"kv_cache_memory_bytes": int(a.kv_gib * 2**30)}))
    results: dict[str, Any] = {"layers": a.layers, "begun": time.perf_counter(), "times": {}, "tokens": {}, "kernels": {}}
    parts, model = a.only.split(","), write_model(a.layers)
    audit = Audit(write_model(4), a.out, limit=a.audit_limit) if "faults" in parts else None

    def end_of_audit() -> None:
        if audit and "faults" not in results:
            results["faults"] = audit.result()

    for cache in ("auto", "fp8"):
        if cache in parts:
            phase(cache, model, a, results, end_of_audit)
    end_of_audit()
    a.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    show(results)


if __name__ == "__main__":
    main()

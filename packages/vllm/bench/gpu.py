# SPDX-License-Identifier: Apache-2.0
"""gpu.py OUT.json [--quick]: vLLM on one GPU with Quire's attention, FLASH_ATTN and TRITON_ATTN, in one run, taking turns.

A model of Llama-3-8B's shape, of some of its layers, with random weights N(0, 0.02): real speed of a layer, no text. Each backend has an
engine in a process of its own that stays up (gpu_engine.py), and all three hold the same requests. Bursts of steps go to them one engine at
a time in a shuffled order, so that drift of the machine hits all alike. Greedy tokens are compared with each type of cache, and the planted
faults of the audit go through FLASH_ATTN.

Needs vLLM (0.26 to 0.33), quire with CUDA and quire-vllm in this Python. Parts do not depend on one another, an engine that fails is left
out of what follows, and results are written as they come.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import queue
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "torch_dtype": "bfloat16", "hidden_act": "silu", "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
_PROFILED = {(1, 2048), (16, 2048), (64, 2048), (1, 8192)}  # requests and tokens of each, of steps whose kernels are listed
_ROLES = {  # what a kernel of a layer does, by parts of its name; the first that fits counts
    "combine": ("FlashAttnFwdCombine", "reduce_segments"),
    "attention": ("attend_", "FlashAttnFwd", "unified_attention"),
    "cache write": ("append", "reshape_and_cache"),
    "fp8 query": ("scaled_fp8_quant",),
    "preparation": ("reset_kernel", "prepare_kernel", "prepare_varlen"),
}
_ROUNDS, _BURST = 3, 10  # bursts of an engine in each task, and timed steps of a burst
_ROOM = 224  # tokens that a request may need beside its prompt: gpu_engine.py's _ROOM and a block
_START_SECONDS, _TASK_SECONDS = 150.0, 60.0  # after which an engine is given up: until its first answer, and until each other


class Worker:
    """An engine in a process of its own, which answers JSON lines."""

    def __init__(self, backend: str, cache: str, model: str, log: pathlib.Path):
        command = [sys.executable, str(pathlib.Path(__file__).with_name("gpu_engine.py")), backend, cache, model]
        environment = {**os.environ, **_ENVIRONMENT}
        self.backend, self._limit = backend, _START_SECONDS
        self._log = open(log, "w", encoding="utf-8")
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True)
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("@"):
                self._answers.put(json.loads(line[1:]))
            else:
                self._log.write(line)
        self._answers.put({"error": f"the engine stopped with status {self._process.wait()}; its log: {self._log.name}"})

    def send(self, **task: Any) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # answer() says why

    def answer(self) -> Any:
        """Raises RuntimeError if the engine failed, or did not answer in time."""
        try:
            found = self._answers.get(timeout=self._limit)
        except queue.Empty:
            raise RuntimeError(f"no answer within {self._limit:.0f} s; its log: {self._log.name}") from None
        self._limit = _TASK_SECONDS
        if "error" in found:
            raise RuntimeError(found["error"])
        return found["answer"]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


class Phase:
    """All tasks with one type of cache."""

    def __init__(self, cache: str, workers: list[Worker], a: argparse.Namespace, results: dict[str, Any], tokens: int, levels: str):
        self.cache, self.workers, self.out, self.results, self.tokens, self.quick = cache, workers, a.out, results, tokens, a.quick
        self.levels, self.end = levels_of(levels), results["begun"] + a.seconds
        self._shuffle = random.Random(7).shuffle

    def run(self, before: Callable[[], None]) -> None:
        self.all(do="prefill", count=1, context=300)  # they start beside one another, and the first task compiles what is compiled late
        self.say("engines are up: " + ", ".join(each.backend for each in self.workers))
        before()  # nothing else runs from here on
        for count, context in ((4, 2048), (1, 8192)):
            self.turns(f"prefill {count}x{context}", 1 if self.quick else 4, do="prefill", count=count, context=context)
        for context, counts in self.levels:
            if fitting := [n for n in counts if n * (context + _ROOM) <= self.tokens]:
                self.level(context, fitting)
        self.greedy()

    def all(self, **task: Any) -> dict[str, Any]:
        """The answers of all engines, which work at the same time."""
        for each in self.workers:
            each.send(**task)
        return {each.backend: found for each in list(self.workers) if (found := self._answer(each)) is not None}

    def ask(self, worker: Worker, **task: Any) -> Any:
        """One engine's answer; None if there is none: the engine takes no further part."""
        worker.send(**task)
        return self._answer(worker)

    def _answer(self, worker: Worker) -> Any:
        try:
            return worker.answer()
        except RuntimeError as error:
            self.results["failed"].append(f"{self.cache} {worker.backend}: {error}")
            self.workers.remove(worker)
            worker.close()
            self.say(self.results["failed"][-1])
            return None

    def level(self, context: int, counts: list[int]) -> None:
        if time.perf_counter() > self.end:
            self.say(f"no time is left for {counts} requests of {context} tokens")
            return
        for each in list(self.workers):
            self.ask(each, do="fill", count=counts[0], context=context)
        self.say(f"{counts[0]} requests of {context} tokens are in")
        for count in counts:
            for each in list(self.workers):
                self.ask(each, do="keep", count=count)
            self.turns(f"decode {count}x{context}", _ROUNDS, do="steps", count=_BURST)
            if (count, context) in _PROFILED:
                self.profiles(count, context)
            if (count, context) == (16, 8192):
                self.turns(f"mixed {count}x{context}+1x16384", 2, do="mixed")
        for each in list(self.workers):
            self.ask(each, do="keep", count=0)

    def turns(self, name: str, rounds: int, **task: Any) -> None:
        found = self.results["times"].setdefault(f"{self.cache} {name}", {each.backend: [] for each in self.workers})
        for _ in range(rounds):
            order = list(self.workers)
            self._shuffle(order)
            for each in order:
                if (took := self.ask(each, **task)) is not None:
                    found[each.backend].append(took)
        self.say(f"{name}: " + ", ".join(f"{backend} {statistics.median(ms):.3f}" for backend, ms in found.items() if ms))

    def profiles(self, count: int, context: int) -> None:
        found = self.results["kernels"].setdefault(f"{self.cache} decode {count}x{context}", {})
        for each in list(self.workers):
            found[each.backend] = self.ask(each, do="profile", count=4)

    def greedy(self) -> None:
        answers = self.all(do="greedy", count=9 if self.quick else 33, tokens=92)
        self.results["tokens"][self.cache] = compare_tokens(answers)
        self.say(f"tokens: {self.results['tokens'][self.cache]}")

    def say(self, text: str) -> None:
        write(self.out, self.results)
        print(f"{time.perf_counter() - self.results['begun']:6.1f} s {self.cache} {text}", flush=True)


def write(out: pathlib.Path, results: dict[str, Any]) -> None:
    out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def levels_of(text: str) -> list[tuple[int, list[int]]]:
    """ "CONTEXT:COUNT,COUNT;..." """
    return [(int(context), [int(n) for n in counts.split(",")]) for context, counts in (level.split(":") for level in text.split(";"))]


def compare_tokens(found: dict[str, dict[str, Any]], tie: float = 0.05) -> dict[str, Any]:
    """Counts requests for each pair of backends: equal, parted at a tie (the second token's lead is under ``tie``), parted otherwise."""
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
    """The planted faults around a backend, shared out to engines that run beside the start of the others."""

    def __init__(self, model: str, out: pathlib.Path, backend: str, shares: int = 6, limit: float = 600):
        self._until, self._found, self._backend = time.perf_counter() + limit, [], backend
        self._runs = [self._start(model, out.with_suffix(f".faults{i}.json"), f"{i}/{shares}") for i in range(shares)]

    def _start(self, model: str, target: pathlib.Path, share: str) -> Any:
        session = pathlib.Path(__file__).resolve().parents[1] / "tests" / "engine" / "session.py"
        folder = tempfile.mkdtemp(prefix="quire-audit-")
        options = {"load_format": "dummy", "skip_tokenizer_init": True, "kv_cache_memory_bytes": 1 << 28, "gpu_memory_utilization": 0.02}
        environment = {**os.environ, **_ENVIRONMENT, "OMP_NUM_THREADS": "2", "QUIRE_VLLM_MODEL": model, "QUIRE_VLLM_OPTIONS": json.dumps(options), "QUIRE_AUDIT": "1",
                       "QUIRE_AUDIT_BUDGET": "full", "QUIRE_AUDIT_DIR": folder}  # fmt: skip
        command = [sys.executable, str(session), "faults", str(target), "dtype=bfloat16", "block_size=16", f"attention_backend={self._backend}",
                   "step=14", "after=12", f"folder={folder}", f"share={share}"]  # fmt: skip
        self._found.append(target)
        return subprocess.Popen(command, env=environment, stdout=open(target.with_suffix(".log"), "w"), stderr=subprocess.STDOUT)

    def result(self) -> dict[str, Any]:
        """Findings of session.py for each fault; nothing for faults that took too long."""
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
        medians = {backend: statistics.median(found) for backend, found in by_backend.items() if found}
        slower = medians and medians.get("CUSTOM", 0.0) > min(medians.values())
        print(f"{name:<28}" + "".join(f"{backend} {value:9.3f}  " for backend, value in medians.items()) + ("*" if slower else ""))
    for name, by_backend in results["kernels"].items():
        for backend, kernels in by_backend.items():
            print(f"{name} {backend}: us a step of {results['layers']} layers: {by_role(kernels) if kernels else None}")
    print(f"tokens: {results['tokens']}")
    for name, found in results.get("faults", {}).items():
        if isinstance(found, dict):
            print(f"{name:<20} planted at step {found.get('planted')}, first alarm at {found.get('first')}: {found.get('kind')} {found.get('error', '')}")


def by_role(kernels: dict[str, dict[str, float]]) -> dict[str, float]:
    """Microseconds that each role adds to a step; "rest" is all else."""
    found: dict[str, float] = {}
    for name, counts in kernels.items():
        role = next((role for role, parts in _ROLES.items() if any(part in name for part in parts)), "rest")
        found[role] = found.get(role, 0.0) + counts["adds"]
    return {role: round(us, 1) for role, us in found.items()}


def write_model(layers: int, **other: Any) -> str:
    model = tempfile.mkdtemp(prefix="llama-shape-")
    pathlib.Path(model, "config.json").write_text(json.dumps({**SHAPE, **other, "num_hidden_layers": layers}))
    return model


def parse_arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--quick", action="store_true", help="a few tasks")
    p.add_argument("--only", default="auto,fp8,faults", help="parts of the run, caches in this order (default: %(default)s)")
    p.add_argument("--backends", default="CUSTOM,FLASH_ATTN,TRITON_ATTN", help="default: %(default)s")
    p.add_argument("--audited", default="FLASH_ATTN", help="the backend of the planted faults (default: %(default)s)")
    p.add_argument("--audit-limit", type=float, default=600, help="seconds for the planted faults (default: %(default)s)")
    p.add_argument("--seconds", type=float, default=3600, help="after which no new level is begun (default: %(default)s)")
    p.add_argument("--levels", default="2048:128,64,16,1;32768:4,1;8192:64,16,1;8192:128",
                   help="contexts, and counts of requests that generate, falling; what does not fit is left out (default: %(default)s)")  # fmt: skip
    p.add_argument("--fp8-levels", default="", help="likewise, of fp8 caches (default: as --levels)")
    p.add_argument("--layers", type=int, default=16, help="layers of the model: fewer leave more room for requests (default: %(default)s)")
    p.add_argument("--shape", type=json.loads, default={}, help="JSON: changes of the model's config.json")
    p.add_argument("--kv-gib", type=float, default=33, help="cache of each engine: 33 fits thrice beside the weights in 139 GiB (default: %(default)s)")
    p.add_argument("--no-compile", action="store_true", help="no torch.compile, and graphs of decode steps alone: engines start four times as fast")
    return p.parse_args()


def set_options(a: argparse.Namespace) -> None:
    """Sets the options of gpu_engine.py that the environment does not set already."""
    chosen: dict[str, Any] = {"kv_cache_memory_bytes": int(a.kv_gib * 2**30)}
    if a.no_compile:
        chosen["compilation_config"] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 16, 64, 128]}
    os.environ.setdefault("QUIRE_VLLM_OPTIONS", json.dumps(chosen))


def main() -> None:
    a = parse_arguments()
    set_options(a)
    results: dict[str, Any] = {"layers": a.layers, "begun": time.perf_counter(), "times": {}, "tokens": {}, "kernels": {}, "failed": []}
    parts, shape = a.only.split(","), {**SHAPE, **a.shape}
    audit = Audit(write_model(4, **{"vocab_size": 32768, **a.shape}), a.out, a.audited, limit=a.audit_limit) if "faults" in parts else None

    def end_of_audit() -> None:
        if audit and "faults" not in results:
            results["faults"] = audit.result()
            write(a.out, results)

    caches = [part for part in parts if part != "faults"]
    model = write_model(a.layers, **a.shape)
    engines = {cache: [Worker(backend, cache, model, a.out.with_suffix(f".{backend}.{cache}.log")) for backend in a.backends.split(",")] for cache in caches}
    for cache in caches:
        token = a.layers * 2 * shape["num_key_value_heads"] * shape["head_dim"] * (2 if cache == "auto" else 1)  # bytes
        levels = "2048:16,1" if a.quick else a.fp8_levels if cache == "fp8" and a.fp8_levels else a.levels
        try:
            Phase(cache, list(engines[cache]), a, results, int(a.kv_gib * 2**30) // token, levels).run(end_of_audit)
        except Exception as error:  # the other parts go on
            results["failed"].append(f"{cache}: {type(error).__name__}: {error}")
            print(results["failed"][-1], flush=True)
        for each in engines[cache]:
            each.close()
    end_of_audit()
    write(a.out, results)
    show(results)


if __name__ == "__main__":
    main()

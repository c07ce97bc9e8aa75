# SPDX-License-Identifier: Apache-2.0
"""gpu_engine.py BACKEND CACHE MODEL: one vLLM engine for gpu.py, which answers tasks: a JSON line in, a line "@" + JSON out.

The engine is made at the first task, so that the process can import vLLM while another phase still has the GPU.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from typing import Any

_ROOM = 208  # tokens that a request may generate
_SIZES = [1, 2, 4, 8, 16, 32, 64, 96, 128]  # batches that have a graph; others are padded


def make_engine(backend: str, cache: str, model: str) -> Any:
    from vllm import LLM

    options = {"dtype": "bfloat16", "max_num_batched_tokens": 8192, "max_num_seqs": 128, "max_model_len": 40960, "gpu_memory_utilization": 0.02, "block_size": 16,
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
    """Commands of one engine."""

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

    def profile(self, count: int) -> dict[str, dict[str, float]]:
        """Counts of each kernel in a step: see timeline()."""
        import torch

        self.steps(2)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            for _ in range(count):
                self.core.step()
            _synchronize()
        on_gpu = [event for event in found.events() if event.device_type == torch.autograd.DeviceType.CUDA]
        return timeline([(event.time_range.start, event.time_range.end, event.name[:160]) for event in on_gpu], count)

    def greedy(self, count: int, tokens: int) -> dict[str, Any]:
        """Tokens of ragged prompts of ragged lengths, and at each of them the lead of the best logprob over the next."""
        from vllm import SamplingParams

        chooser = random.Random(5)
        prompts = [{"prompt_token_ids": [chooser.randrange(3, 100_000) for _ in range(64 + 97 * i % 1800)]} for i in range(count)]
        settings = [SamplingParams(temperature=0.0, max_tokens=tokens - i % 40, ignore_eos=True, logprobs=2, detokenize=False) for i in range(count)]
        answers = self.engine.generate(prompts, settings, use_tqdm=False)
        leads = [[_lead(entry) for entry in answer.outputs[0].logprobs] for answer in answers]
        return {"tokens": [list(answer.outputs[0].token_ids) for answer in answers], "leads": leads}


def timeline(events: list[tuple[float, float, str]], steps: int) -> dict[str, dict[str, float]]:
    """Counts of each name, for one of ``steps``: ``calls``; ``us`` from start to end; ``adds``: microseconds by which the name's events move the
    latest end so far, the pause before them included. A kernel that starts early beside another adds what is left of it. Pauses over 100 us
    are between steps, and are left out. All ``adds`` together are the time of a step."""
    found: dict[str, dict[str, float]] = {}
    latest = min((start for start, _, _ in events), default=0.0)
    for start, end, name in sorted(events):
        total = found.setdefault(name, {"calls": 0.0, "us": 0.0, "adds": 0.0})
        total["calls"] += 1 / steps
        total["us"] += (end - start) / steps
        since = start if start - latest > 100 else latest
        total["adds"] += max(0.0, end - since) / steps
        latest = max(latest, end)
    return dict(sorted(found.items(), key=lambda one: -one[1]["adds"])[:32])


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _lead(entry: Any) -> float:
    best = sorted((x.logprob for x in entry.values()), reverse=True)
    return best[0] - best[1]


def main() -> None:
    backend, cache, model = sys.argv[1:]
    from vllm import LLM  # noqa: F401  # the slow part of a start that needs no GPU

    bench = None
    for line in sys.stdin:
        task = json.loads(line)
        try:
            bench = bench or Bench(make_engine(backend, cache, model))
            answer = {"answer": getattr(bench, task.pop("do"))(**task)}
        except Exception as error:  # gpu.py goes on without this engine
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print("@" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

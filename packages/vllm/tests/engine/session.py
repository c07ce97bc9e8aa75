# SPDX-License-Identifier: Apache-2.0
"""session.py MODE OUT.json [KEY=VALUE...]: one vLLM engine in this process, one workload, its results as JSON. See test_engine.py."""

from __future__ import annotations

import json
import os
import pathlib
import random
import sys
import time
import traceback
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the audit's state is in this process then
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
from gpu_engine import refill  # noqa: E402

_TEXT = pathlib.Path(__file__).resolve().parents[4] / "examples" / "data" / "texts" / "speeches_and_charters.txt"


def make_engine(**options: Any) -> Any:
    from vllm import LLM

    chosen = {"max_model_len": 4096, "enforce_eager": True, "seed": 0, "enable_prefix_caching": False, "disable_log_stats": True, **options}
    chosen |= json.loads(os.environ.get("QUIRE_VLLM_OPTIONS", "{}"))
    engine = LLM(model=os.environ["QUIRE_VLLM_MODEL"], **chosen)
    if chosen.get("load_format") == "dummy":
        engine.collective_rpc(refill)
    return engine


def prompts(count: int, words: int, shared: int = 0) -> list[str]:
    """Passages of about ``words`` words; the first ``shared`` words are the same."""
    text = _TEXT.read_text(encoding="utf-8").split()
    return [" ".join(text[:shared] + text[31 * i + 500 : 31 * i + 500 + words + 13 * (i % 5) - shared]) for i in range(count)]


def run(engine: Any, texts: list[Any], tokens: int | list[int], ignore_eos: bool = True) -> list[list[int]]:
    from vllm import SamplingParams

    counts = tokens if isinstance(tokens, list) else [tokens] * len(texts)
    settings = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=ignore_eos) for n in counts]
    if "skip_tokenizer_init" in os.environ.get("QUIRE_VLLM_OPTIONS", ""):
        texts = [{"prompt_token_ids": [hash(word) % 30_000 + 3 for word in text.split()]} for text in texts]
    return [list(answer.outputs[0].token_ids) for answer in engine.generate(texts, settings, use_tqdm=False)]


def tokens(given: dict[str, str]) -> dict[str, Any]:
    """Greedy tokens of eight prompts; given the audit, what it saw."""
    engine = make_engine(**_options(given))
    found = {"tokens": run(engine, prompts(8, int(given.get("words", 120))), int(given.get("count", 48)))}
    return found | _audit()


def stress(given: dict[str, str]) -> dict[str, Any]:
    """Many requests through a small cache in chunks, with shared prefixes, some aborted: preemption, hits, evictions."""
    engine = make_engine(**{"enable_prefix_caching": True, "max_num_batched_tokens": 128, "max_num_seqs": 16, "max_model_len": 512, **_options(given)})
    texts = prompts(40, 60, shared=40)
    found = {"tokens": run(engine, texts, [16 + 5 * (i % 7) for i in range(40)])}
    found["aborted"] = _abort_some(engine, texts)
    found["again"] = run(engine, texts[:8], 16)
    return found | _audit()


def _abort_some(engine: Any, texts: list[str]) -> int:
    from vllm import SamplingParams

    core = engine.llm_engine
    for i, text in enumerate(texts[:12]):
        core.add_request(f"abort-{i}", text, SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True))
    done, step = 0, 0
    while core.has_unfinished_requests():
        core.step()
        step += 1
        if step % 4 == 0 and done < 6:
            core.abort_request([f"abort-{done * 2}"])
            done += 1
    return done


def clean(given: dict[str, str]) -> dict[str, Any]:
    """``minutes`` of requests without a planted fault, an equal part of them at each of the ``budgets``; what the audit saw in each part."""
    import dataclasses

    from quire_vllm import settings
    from quire_vllm.audit import hooks
    from quire_vllm.audit.watch import Auditor

    sizes = {"max_num_batched_tokens": 128, "max_num_seqs": 8, "max_model_len": 512}
    engine = make_engine(**{"enable_prefix_caching": True, **sizes, **_options(given)})
    budgets, found = given["budgets"].split(","), {}
    for budget in budgets:
        engine.reset_prefix_cache()  # a new ledger does not know who wrote it
        chosen = dataclasses.replace(settings.read({**os.environ, "QUIRE_AUDIT_BUDGET": budget}), folder=f"{given['folder']}/{budget}")
        hooks._state["auditor"], hooks._state["plant"] = Auditor(chosen, boundary=hooks.boundary()), None
        hooks._state.pop("tables", None)
        done = _serve(engine.llm_engine, 60 * float(given["minutes"]) / len(budgets), int(given.get("streams", 4)))
        found[budget] = {**done, **_audit()}
        _write(given["out"], found)
    return found


def _serve(core: Any, seconds: float, streams: int) -> dict[str, Any]:
    """Requests with shared prefixes, ``streams`` at a time, of which one in eight is aborted."""
    from vllm import SamplingParams

    choose, texts, end, number, aborted, left = random.Random(0), prompts(40, 60, shared=40), time.monotonic() + seconds, 0, 0, {}
    while time.monotonic() < end or core.has_unfinished_requests():
        while len(left) < streams and time.monotonic() < end:
            number += 1
            left[f"{number}"] = None
            core.add_request(f"{number}", choose.choice(texts), SamplingParams(temperature=0.0, max_tokens=choose.randint(4, 96), ignore_eos=True))
        for answer in core.step():
            if answer.finished:
                left.pop(answer.request_id, None)
            elif choose.random() < 1 / 400:  # in each of a request's 50 steps: one request in eight
                core.abort_request([answer.request_id])
                left.pop(answer.request_id, None)
                aborted += 1
    return {"requests": number, "aborted": aborted, "seconds": seconds}


def _options(given: dict[str, str]) -> dict[str, Any]:
    """What LLM() takes, of the arguments."""
    names = ("dtype", "block_size", "kv_cache_dtype", "attention_backend", "num_gpu_blocks_override", "enforce_eager", "max_num_batched_tokens",
             "tensor_parallel_size")  # fmt: skip
    read = {name: given[name] for name in names if name in given}
    return {name: (int(text) if text.isdecimal() else text == "True" if text in ("True", "False") else text) for name, text in read.items()}


def _audit() -> dict[str, Any]:
    if os.environ.get("QUIRE_AUDIT") != "1":
        return {}
    from quire_vllm.audit import hooks

    report = hooks.auditor().report
    return {"counts": dict(report.counts), "worst": report.worst, "alarms": [str(a) for a in report.alarms], "share": hooks.auditor().budget.used,
            "facts": report.facts, "errors": dict(report.boundary.errors)}  # fmt: skip


def faults(given: dict[str, str]) -> dict[str, Any]:
    """Each planted fault in a fresh auditor of the same engine: in which step it came to be, and in which the first alarm."""
    from quire_vllm.audit.plant import FAULTS

    engine = make_engine(**{"max_num_seqs": 8, **_options(given)})
    found: dict[str, Any] = {}
    names = given["only"].split(",") if "only" in given else ["", *FAULTS]
    share, shares = (int(n) for n in given.get("share", "0/1").split("/"))
    for name in names[share::shares]:
        begun = time.perf_counter()
        try:
            found[name or "none"] = _fault(engine, name, given)
        except Exception as error:  # the others go on
            traceback.print_exc()
            found[name or "none"] = {"planted": 0, "first": 0, "kind": "", "error": f"{type(error).__name__}: {error}"[:1000]}
        found[name or "none"]["seconds"] = time.perf_counter() - begun
        _write(given["out"], found)  # a run that is cut off leaves what it has
    return found


def _fault(engine: Any, name: str, given: dict[str, str]) -> dict[str, Any]:
    import dataclasses

    from quire_vllm import settings
    from quire_vllm.audit import hooks
    from quire_vllm.audit.plant import Plant
    from quire_vllm.audit.report import KINDS
    from quire_vllm.audit.watch import Auditor

    step, after = int(given["step"]), int(given["after"])
    chosen = dataclasses.replace(settings.read(), captures=1, folder=f"{given['folder']}/{name or 'none'}")
    hooks._state["auditor"] = auditor = Auditor(chosen, boundary=hooks.boundary())
    hooks._state["plant"] = plant = Plant.named(f"{name}@{step}" if name else "")
    hooks._state.pop("tables", None)
    try:
        run(engine, prompts(6, 60), [step - 6, step - 4, *[step + after] * 4])  # two end just before: stale_block needs their pages
    finally:
        if plant:
            plant.heal()
            for cache in hooks._state["runner"].kv_caches:  # a NaN in a freed page reaches outputs of vLLM's CPU attention
                cache.zero_()
    alarms = auditor.report.alarms
    return {
        "planted": plant.done if plant else 0, "first": alarms[0].step if alarms else 0, "kind": alarms[0].kind if alarms else "",
        "text": str(alarms[0]) if alarms else "", "kinds": {k: auditor.report.counts[k] for k in KINDS},
        "share": auditor.budget.used, "counts": dict(auditor.report.counts), "worst": auditor.report.worst,
        "costs": {kind: round(1e6 * cost) for kind, cost in auditor.budget._costs.items()},
    }  # fmt: skip


def main() -> None:
    mode, out, *rest = sys.argv[1:]
    given = {"out": out, **dict(item.split("=", 1) for item in rest)}
    result = {"tokens": tokens, "stress": stress, "faults": faults, "clean": clean}[mode](given)
    _write(out, result)


def _write(out: str, result: dict[str, Any]) -> None:
    pathlib.Path(out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

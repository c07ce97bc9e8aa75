# SPDX-License-Identifier: Apache-2.0
"""Report of a run: out/serve.json for programs, and a few sentences for people."""

from __future__ import annotations

import argparse
import os
import pathlib

import numpy as np
import quire
from scheduler import Request, State
from speed import BATCH, Speed

MODEL_WARNING = (
    "The model is small: what it says about years, numbers and names is often wrong. That is the model. Its attention was "
    "checked, as said above."
)


def attention_per_step(steps: list[dict]) -> dict:
    """Time of quire.attend() per step, all layers together, and its share of the time of all steps."""
    milliseconds = [1e3 * s["attend_seconds"] for s in steps]
    median, p90 = np.percentile(milliseconds, [50, 90])
    return {
        "median_ms": round(float(median), 3),
        "p90_ms": round(float(p90), 3),
        "share": round(sum(milliseconds) / (1e3 * sum(s["seconds"] for s in steps)), 4),
    }


def report_of(server, arguments: argparse.Namespace, seconds: float, speed: Speed | None, planted: str) -> dict:
    """The report of a serve.Server that made at least one step."""
    kv, audit = server.engine.kv, server.engine.kv.audit
    stats = kv.pool.stats
    prompt_tokens = sum(_prompt_tokens_read(t.request) for t in server.tracks)
    new_tokens = sum(len(t.request.generated) for t in server.tracks)
    working = sum(s["seconds"] for s in server.steps)  # without a person's thinking and typing
    rows = sum(s["prefill_rows"] + s["decode_rows"] for s in server.steps)
    parts = {name: audit.seconds[name] for name in ("append", "plan", "attend", "check", "verify")}
    parts["model"] = working - sum(parts.values())
    return {
        "quire": quire.__version__,
        "device": str(quire.info.host_device()),
        "settings": {k: str(v) if isinstance(v, pathlib.Path) else v for k, v in vars(arguments).items()},
        "requests_finished": sum(t.request.state is State.DONE for t in server.tracks),
        "steps": len(server.steps),
        "mixed_steps": sum(s["prefill_rows"] > 0 and s["decode_rows"] > 0 for s in server.steps),
        "seconds": seconds,
        "seconds_by_part": parts,
        "attention_per_step": attention_per_step(server.steps),
        "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens,
        "rows_computed": rows,
        "new_tokens_per_second": new_tokens / working,
        "rows_per_second": rows / working,
        "speed": None if speed is None else vars(speed) | {"batch": BATCH},
        "planted_bug": planted,
        "contract": {
            "checks": audit.checks,
            "checks_with_contents": audit.checks_with_contents,
            "findings": audit.findings,
            "messages": audit.messages,
        },
        "slots_written": kv.slots_written,
        "slots_read": kv.slots_read,
        "verified": {
            "attend_calls": audit.verified,
            "elements": audit.verified_elements,
            "worst_error_over_tolerance": audit.worst_ratio,
            "where": audit.worst_where,
            "mismatches": audit.mismatches,
        },
        "pool": {name: getattr(stats, name) for name in ("num_pages", "prefix_hit_tokens", "preemptions", "evictions")}
        | {
            "most_pages_in_use": max(s["pages_in_use"] for s in server.steps),
            "most_pages_shared": max(s["pages_shared"] for s in server.steps),
        },
        "kernels": dict(audit.kernels),
        "requests": [_request(t) for t in server.tracks],
        "step_log": server.steps,
    }


def _prompt_tokens_read(request: Request) -> int:
    """Prompt tokens that the model had read, or found in the cache, when serving ended: all of them once there is an answer."""
    return len(request.prompt) if request.generated else request.computed


def _request(t) -> dict:
    return {
        "id": t.request.id,
        "question": t.job.question,
        "arrival": round(t.job.arrival, 3),
        "prompt_tokens": len(t.request.prompt),
        "prefix_hit_tokens": t.request.prefix_hits,
        "preemptions": t.request.preemptions,
        "first_token_after": None if t.first_token is None else round(t.first_token - t.job.arrival, 3),
        "finished_after": None if t.finished is None else round(t.finished - t.job.arrival, 3),
        "tokens": t.request.generated,
        "text": t.text,
    }


def _speed_words(r: dict) -> str:
    s = r["speed"]
    share = f"Attention took {100 * r['attention_per_step']['share']:.1f} % of the time of all steps."
    if s is None:
        return f"{r['new_tokens_per_second']:.0f} new tokens per second. {share}"
    return (
        f"{s['alone']:.0f} tokens per second for one request alone, {s['batched']:.0f} for {s['batch']} together. Memory here "
        f"delivers {s['bytes_per_second'] / 1e9:.0f} GB/s, so reading the weights allows {s['allowed_alone']:.0f} alone. {share}"
    )


def _checked_words(r: dict) -> str:
    contract, verified = r["contract"], r["verified"]
    words = (
        f"{contract['checks']:,} attention calls, each before it ran: sizes, page tables, and that all {r['slots_read']:,} cache "
        f"slots read had been written by the request that reads them, or by one that shares its prompt. "
        f"Problems found: {contract['findings']}."
    )
    if not verified["attend_calls"]:
        return words
    return words + (
        f" Computed again in double precision: {verified['attend_calls']} of them, {verified['elements']:,} numbers; the "
        f"largest difference was {100 * verified['worst_error_over_tolerance']:.0f} % of what rounding may cost. "
        f"Wrong: {len(verified['mismatches'])}."
    )


def summary(r: dict, path: pathlib.Path) -> dict[str, str]:
    """Sentences for people, by what they are about."""
    pool = r["pool"]
    entries = {
        "served": f"{r['requests_finished']} of {len(r['requests'])} requests in {r['seconds']:.1f} s: {r['prompt_tokens']:,} "
        f"prompt tokens and {r['new_tokens']:,} new ones in {r['steps']} steps.",
        "speed": _speed_words(r),
        "cache": f"At most {pool['most_pages_in_use']} of {pool['num_pages']} pages in use. {pool['prefix_hit_tokens']:,} prompt "
        f"tokens were found in pages of other requests; {pool['preemptions']} times a request gave its pages back for a while.",
        "checked": _checked_words(r),
        "planted bug": "A page of another request was slipped into a request on purpose. Quire "
        + (f"found it: {r['planted_bug']}" if r["planted_bug"] else "DID NOT FIND IT."),
        "the model": MODEL_WARNING,
        "report": os.path.relpath(path),
    }
    if r["speed"] is None:
        del entries["planted bug"]
    return entries

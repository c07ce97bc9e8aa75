# SPDX-License-Identifier: Apache-2.0
"""Workload of the server: real prompts, brought to the lengths and arrival times of a real chat service (examples/data)."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import json
import pathlib

from tokenizer import Tokenizer

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
TRACE = DATA / "azure_llm_2023_conv_600.csv"


@dataclasses.dataclass(frozen=True)
class Prompt:
    system: str
    user: str
    pad: bool  # may be filled up with a passage


@dataclasses.dataclass(frozen=True)
class Arrival:
    seconds: float  # after the first one
    prompt_tokens: int
    new_tokens: int


@dataclasses.dataclass(frozen=True)
class Job:
    arrival: float
    question: str
    tokens: list[int]
    max_new_tokens: int


def read_prompts() -> list[Prompt]:
    with open(DATA / "prompts.jsonl", encoding="utf-8") as f:
        return [Prompt(**json.loads(line)) for line in f]


def read_text(name: str) -> str:
    return (DATA / "texts" / name).read_text(encoding="utf-8")


def read_trace(start: int, count: int) -> list[Arrival]:
    """`count` consecutive requests of the trace, from row `start` on."""
    with open(TRACE, encoding="utf-8", newline="") as f:
        rows = list(csv.DictReader(f))[start : start + count]
    if len(rows) < count:
        raise ValueError(f"{TRACE.name}: got {len(rows)} requests from row {start} on, expected {count}")
    times = [datetime.datetime.fromisoformat(r["TIMESTAMP"][:26]).timestamp() for r in rows]
    return [Arrival(t - times[0], int(r["ContextTokens"]), int(r["GeneratedTokens"])) for t, r in zip(times, rows, strict=True)]


def fill(tokenizer: Tokenizer, prompt: Prompt, passages: list[str], first: int, target: int) -> list[int]:
    """The chat prompt, with whole sentences of the passages before the question until it has about `target` tokens."""
    tokens = tokenizer.chat(prompt.system, prompt.user)
    if not prompt.pad:
        return tokens
    room = target - len(tokens)
    text: list[str] = []
    for i in range(len(passages)):
        sentence = passages[(first + i) % len(passages)]
        room -= len(tokenizer.encode(" " + sentence))
        if room < 0:
            break
        text.append(sentence)
    return tokenizer.chat(prompt.system, f"{' '.join(text)}\n\n{prompt.user}") if text else tokens


def make_jobs(tokenizer: Tokenizer, count: int, *, start=300, shrink=4, max_new_tokens=64, stretch=1.0) -> list[Job]:
    """`count` requests: prompt lengths of the trace divided by `shrink`, at most `max_new_tokens` new ones, and its arrival
    times multiplied by `stretch`."""
    prompts = read_prompts()
    text = read_text("speeches_and_charters.txt") + read_text("beginnings.txt")
    sentences = [s + "." for s in " ".join(text.split()).removesuffix(".").split(". ")]
    jobs = []
    for i, arrival in enumerate(read_trace(start, count)):
        prompt = prompts[i % len(prompts)]
        tokens = fill(tokenizer, prompt, sentences, first=i * 7 % len(sentences), target=arrival.prompt_tokens // shrink)
        jobs.append(Job(arrival.seconds * stretch, prompt.user, tokens, max(1, min(arrival.new_tokens, max_new_tokens))))
    return jobs

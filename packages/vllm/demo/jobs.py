# SPDX-License-Identifier: Apache-2.0
"""The example's prompts with lengths from its trace of a real chat service: what ./run vllm and ./run audit ask for."""

from __future__ import annotations

import csv
import json
import pathlib

_DATA = pathlib.Path(__file__).resolve().parents[3] / "examples" / "data"
_TOKENS_PER_WORD = 1.4  # of English in this tokenizer, about; only the lengths of prompts depend on it


def make_jobs(count: int, max_tokens: int, shrink: int = 4, start: int = 300) -> list[tuple[list[dict[str, str]], int]]:
    """(messages, max_tokens): prompts are filled up with passages to the trace's length divided by ``shrink``."""
    with open(_DATA / "prompts.jsonl", encoding="utf-8") as file:
        prompts = [json.loads(line) for line in file]
    with open(_DATA / "azure_llm_2023_conv_600.csv", encoding="utf-8", newline="") as file:
        trace = list(csv.DictReader(file))[start : start + count]
    words = (_DATA / "texts" / "speeches_and_charters.txt").read_text(encoding="utf-8").split()
    jobs = []
    for i, entry in enumerate(trace):
        prompt = prompts[i % len(prompts)]
        user = prompt["user"]
        if prompt["pad"]:
            wanted = int(int(entry["ContextTokens"]) / shrink / _TOKENS_PER_WORD)
            begin = i * 97 % max(1, len(words) - wanted)
            user = " ".join(words[begin : begin + wanted]) + "\n\n" + user
        jobs.append(([{"role": "system", "content": prompt["system"]}, {"role": "user", "content": user}], max(4, min(int(entry["GeneratedTokens"]), max_tokens))))
    return jobs

# SPDX-License-Identifier: Apache-2.0
"""Measures this machine's speed: tokens per second alone and batched, beside the limit set by reading the weights."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import statistics
import time

import numpy as np
from engine import Engine
from gguf_model import Weights
from model import THREADS, Llama, shares
from scheduler import Request

BATCH = 16
STEPS = 24
PROMPT = 32


@dataclasses.dataclass(frozen=True)
class Speed:
    alone: float  # generated tokens per second, one request
    batched: float  # of BATCH requests together
    allowed_alone: float  # if reading the weights once per token were all there is to do
    bytes_per_second: float  # that this machine reads


def weight_bytes(weights: Weights) -> int:
    """Bytes of weights that one step reads, for any number of rows."""
    layers = sum(m.nbytes for layer in weights.layers for m in (layer.qkv, layer.attn_output, layer.gate_up, layer.ffn_down))
    return layers + weights.output.nbytes


def read_speed(weights: Weights) -> float:
    """Bytes per second of reading a weight larger than the caches, on the threads that the model uses; best of three."""
    flat = weights.output.ravel(order="K").view(np.int32)
    ranges = shares(len(flat), THREADS)
    best = 0.0
    with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
        for _ in range(3):
            start = time.perf_counter()
            list(threads.map(lambda share: flat[share[0] : share[1]].max(), ranges))
            best = max(best, flat.nbytes / (time.perf_counter() - start))
    return best


def tokens_per_second(llama: Llama, count: int) -> float:
    """`count` requests decode together, every call checked as always; the median step counts."""
    engine = Engine(llama, num_pages=count * (PROMPT + STEPS) // 8, budget=count * PROMPT, chunk=PROMPT, max_running=count)
    for i in range(count):
        engine.submit(Request(i, [(i * 31 + j) % llama.config.vocab for j in range(PROMPT)], STEPS))
    seconds = []
    while engine.scheduler.has_work():
        step = engine.step()
        if step.prefill_rows == 0:
            seconds.append(step.seconds)
    return count / statistics.median(seconds)


def measure(llama: Llama) -> Speed:
    bandwidth = read_speed(llama.weights)
    return Speed(
        alone=tokens_per_second(llama, 1),
        batched=tokens_per_second(llama, BATCH),
        allowed_alone=bandwidth / weight_bytes(llama.weights),
        bytes_per_second=bandwidth,
    )

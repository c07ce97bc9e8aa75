# SPDX-License-Identifier: Apache-2.0
"""A llama-type decoder in f32 NumPy whose attention is somebody else's job.

`Llama.forward` turns rows (token, position) into hidden states and calls `attend(layer, q, k, v) -> out` once per layer for
the whole batch. A row's result has the same bits whatever the other rows are, because BLAS multiplies a weight by one row at
a time. Weights are taken in tiles that stay in the cache from one row to the next. So one row costs what reading the weights
costs, and eleven rows read the weights once.

The threads share the columns of each product. BLAS itself runs on one thread (see one_blas_thread.py), because its spinning
workers lose a factor of four as soon as anybody else uses the machine.
"""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable

import numpy as np
from gguf_model import Weights

Attend = Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
TILE = 1024  # outputs of a weight: tiles of 512 take a third longer for one row, whole weights a tenth for 64 (EPYC 9004, 2026-11-24)
THREADS = min(4, len(os.sched_getaffinity(0)))
WORTH_A_THREAD = 1 << 20  # multiplications; waking a thread for less costs more than it saves


def shares(size: int, parts: int) -> list[tuple[int, int]]:
    """[0, size) in consecutive ranges, as equal as can be."""
    ends = [size * (i + 1) // parts for i in range(parts)]
    return list(zip([0, *ends], ends))


def _fill(out: np.ndarray, rows: np.ndarray, weight: np.ndarray, begin: int, end: int) -> None:
    """Columns [begin, end) of out = rows @ weight.T. The extra axis makes each row a product of its own."""
    for first in range(begin, end, TILE):
        last = min(first + TILE, end)
        np.matmul(rows[:, None], weight[first:last].T, out=out[:, None, first:last])


class Llama:
    def __init__(self, weights: Weights):
        self.weights = weights
        self.config = weights.config
        self._threads = concurrent.futures.ThreadPoolExecutor(THREADS)
        pairs = np.arange(0, self.config.head_dim, 2) / self.config.head_dim
        angles = np.arange(self.config.context)[:, None] * self.config.rope_base**-pairs
        self._cos = np.cos(angles).astype(np.float32)[:, None]  # [context, 1, head_dim / 2]
        self._sin = np.sin(angles).astype(np.float32)[:, None]

    def linear(self, rows: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """rows @ weight.T"""
        out = np.empty((len(rows), len(weight)), np.float32)
        mine, *others = shares(len(weight), THREADS if len(rows) * weight.size >= WORTH_A_THREAD else 1)
        busy = [self._threads.submit(_fill, out, rows, weight, *share) for share in others]
        _fill(out, rows, weight, *mine)
        for future in busy:
            future.result()
        return out

    def norm(self, rows: np.ndarray, weight: np.ndarray) -> np.ndarray:
        squares = np.add.reduce(rows * rows, axis=-1, keepdims=True)
        return rows / np.sqrt(squares / np.float32(rows.shape[-1]) + np.float32(self.config.rms_epsilon)) * weight

    def rope(self, heads: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Rotates the pairs (2j, 2j + 1): GGUF stores the q and k rows of llama models in this order."""
        cos, sin = self._cos[positions], self._sin[positions]
        even, odd = heads[..., 0::2], heads[..., 1::2]
        out = np.empty_like(heads)
        out[..., 0::2] = even * cos - odd * sin
        out[..., 1::2] = even * sin + odd * cos
        return out

    def forward(self, tokens: np.ndarray, positions: np.ndarray, attend: Attend) -> np.ndarray:
        """Hidden states [len(tokens), hidden] before the final norm. `attend` gets q [n, num_q_heads, head_dim] and k, v
        [n, num_kv_heads, head_dim] and returns [n, num_q_heads, head_dim]."""
        c = self.config
        turned = c.num_q_heads + c.num_kv_heads  # heads of q and k lie side by side
        x = self.weights.embedding[tokens]
        for i, layer in enumerate(self.weights.layers):
            heads = self.linear(self.norm(x, layer.attn_norm), layer.qkv).reshape(len(tokens), -1, c.head_dim)
            q, k = np.split(self.rope(heads[:, :turned], positions), [c.num_q_heads], axis=1)
            out = attend(i, q, k, heads[:, turned:])
            x = x + self.linear(out.reshape(len(tokens), -1), layer.attn_output)
            gate_up = self.linear(self.norm(x, layer.ffn_norm), layer.gate_up)
            gate, up = gate_up[:, : c.feed_forward], gate_up[:, c.feed_forward :]
            with np.errstate(over="ignore"):  # exp(-gate) = inf gives the limit, 0
                x = x + self.linear(gate / (1 + np.exp(-gate)) * up, layer.ffn_down)
        return x

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """[rows, vocab] for the rows given."""
        return self.linear(self.norm(hidden, self.weights.output_norm), self.weights.output)

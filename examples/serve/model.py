"""A llama-type decoder in f32 NumPy whose attention is somebody else's job.

`Llama.forward` turns rows (token, position) into hidden states and calls `attend(layer, q, k, v) -> out` once per layer for
the whole batch. A row's result has the same bits whatever the other rows are: matrix products run in blocks of a few sizes,
and a size is used only after it was shown, on this machine, that a row's place in the block does not matter, nor which of the
sizes it is. One row alone then takes a small block: at 16 rows a product costs twice what reading its weights does.
Two threads share the halves of each weight; BLAS itself runs on one (see one_blas_thread.py), because its spinning workers
lose a factor of four as soon as anybody else uses the machine.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable

import numpy as np
from gguf_model import Weights

Attend = Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
BLOCK_SIZES = (16, 8, 4, 2, 1)  # 1 always qualifies: there is no other place in the block
THREADS = 2


def _product(weight: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return (weight @ rows.T).T


def _halves(weight: np.ndarray) -> list[np.ndarray]:
    return np.array_split(weight, THREADS)


def _place_matters(weight: np.ndarray, size: int) -> bool:
    """Whether BLAS gives any row other bits at another place of a block, or beside other rows."""
    rng = np.random.default_rng(size)
    rows = rng.standard_normal((size, weight.shape[1])).astype(np.float32)
    straight = _product(weight, rows)
    for shift in range(1, size):
        if not np.array_equal(_product(weight, np.roll(rows, shift, axis=0)), np.roll(straight, shift, axis=0)):
            return True
    alone = np.zeros_like(rows)
    alone[0] = rows[0]
    return not np.array_equal(_product(weight, alone)[0], straight[0])


def _size_matters(weight: np.ndarray, size: int, largest: int) -> bool:
    """Whether BLAS gives rows other bits in blocks of this size than in the largest ones."""
    rows = np.random.default_rng(size).standard_normal((largest, weight.shape[1])).astype(np.float32)
    return not np.array_equal(_product(weight, rows[:size]), _product(weight, rows)[:size])


def choose_blocks(weight: np.ndarray) -> tuple[int, ...]:
    """Sizes of blocks of rows, the largest first, whose products with this weight are row by row independent, and have the same
    bits in each of the sizes.

    BLAS may cut a product differently at its edges: with OpenBLAS on Zen 4, blocks of 32 rows fail the first check, 16 pass; one
    row alone, and a few rows of a small weight, have kernels of their own and fail the second."""
    parts = _halves(weight)
    alike = [size for size in BLOCK_SIZES if not any(_place_matters(part, size) for part in parts)]
    largest = alike[0]
    return largest, *(size for size in alike[1:] if not any(_size_matters(part, size, largest) for part in parts))


def cuts(rows: int, sizes: tuple[int, ...]) -> list[int]:
    """Sizes of blocks that hold so many rows: whole largest ones, and the smallest that takes what is left."""
    left = rows % sizes[0]
    return [sizes[0]] * (rows // sizes[0]) + ([min(size for size in sizes if size >= left)] if left else [])


class Llama:
    def __init__(self, weights: Weights):
        self.weights = weights
        self.config = weights.config
        layer = weights.layers[0]
        matrices = (layer.qkv, layer.attn_output, layer.gate_up, layer.ffn_down, weights.output)
        self.blocks = {m.shape: choose_blocks(m) for m in matrices}  # a shape's: BLAS does not look at values
        self._threads = concurrent.futures.ThreadPoolExecutor(THREADS)
        pairs = np.arange(0, self.config.head_dim, 2) / self.config.head_dim
        angles = np.arange(self.config.context)[:, None] * self.config.rope_base**-pairs
        self._cos = np.cos(angles).astype(np.float32)[:, None]  # [context, 1, head_dim / 2]
        self._sin = np.sin(angles).astype(np.float32)[:, None]

    def linear(self, rows: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """rows @ weight.T; what the last block lacks is filled with zero rows."""
        sizes = cuts(len(rows), self.blocks[weight.shape])
        padded = np.concatenate([rows, np.zeros((sum(sizes) - len(rows), rows.shape[1]), rows.dtype)])
        out = np.empty((len(padded), len(weight)), np.float32)
        halves = _halves(weight)
        starts = np.cumsum([0] + [len(half) for half in halves])
        ends = np.cumsum(sizes)

        def fill(half: int) -> None:
            part, columns = halves[half], slice(starts[half], starts[half + 1])
            for begin, end in zip([0, *ends], ends):
                out[begin:end, columns] = _product(part, padded[begin:end])

        list(self._threads.map(fill, range(THREADS)))  # list(): raise what a thread raised
        return out[: len(rows)]

    def norm(self, rows: np.ndarray, weight: np.ndarray) -> np.ndarray:
        mean_square = np.mean(rows * rows, axis=-1, keepdims=True)
        return rows / np.sqrt(mean_square + np.float32(self.config.rms_epsilon)) * weight

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
        c, n = self.config, len(tokens)
        q_size, kv_size = c.num_q_heads * c.head_dim, c.num_kv_heads * c.head_dim
        x = self.weights.embedding[tokens]
        for i, layer in enumerate(self.weights.layers):
            qkv = self.linear(self.norm(x, layer.attn_norm), layer.qkv)
            q = self.rope(qkv[:, :q_size].reshape(n, c.num_q_heads, c.head_dim), positions)
            k = self.rope(qkv[:, q_size : q_size + kv_size].reshape(n, c.num_kv_heads, c.head_dim), positions)
            v = np.ascontiguousarray(qkv[:, q_size + kv_size :]).reshape(n, c.num_kv_heads, c.head_dim)
            out = attend(i, q, k, v)
            x = x + self.linear(out.reshape(n, q_size), layer.attn_output)
            gate_up = self.linear(self.norm(x, layer.ffn_norm), layer.gate_up)
            gate, up = gate_up[:, : c.feed_forward], gate_up[:, c.feed_forward :]
            with np.errstate(over="ignore"):  # exp(-gate) = inf gives the limit, 0
                x = x + self.linear(gate / (1 + np.exp(-gate)) * up, layer.ffn_down)
        return x

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """[rows, vocab] for the rows given."""
        return self.linear(self.norm(hidden, self.weights.output_norm), self.weights.output)

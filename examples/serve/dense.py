# SPDX-License-Identifier: Apache-2.0
"""The oracle: the same model without a cache, pages, chunks or blocks. One sequence at a time, all positions at once.

Written apart from model.py on purpose (complex numbers for the rotation, whole-matrix products, a full score matrix with a
mask), so that a mistake there is not repeated here; the two share the weights only.
"""

from __future__ import annotations

import numpy as np
from gguf_model import Weights


def _rms(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    return x * weight / np.sqrt((x**2).sum(-1, keepdims=True) / x.shape[-1] + np.float32(epsilon))


def _rotate(x: np.ndarray, base: float) -> np.ndarray:
    """x [tokens, heads, head_dim]: neighbours are the real and imaginary part of one number that turns with the position."""
    tokens, _, head_dim = x.shape
    turn = np.exp(1j * np.outer(np.arange(tokens), base ** (-np.arange(head_dim // 2) * 2.0 / head_dim)))
    return (x.view(np.complex64) * turn[:, None].astype(np.complex64)).view(np.float32)


def _softmax_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("ihd,jhd->hij", q, k, optimize=True) / np.sqrt(np.float32(q.shape[-1]))
    scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v, optimize=True)


def dense_logits(weights: Weights, tokens: list[int] | np.ndarray) -> np.ndarray:
    """Logits [len(tokens), vocab] of one sequence, f32."""
    c = weights.config
    x = weights.embedding[np.asarray(tokens)]
    split = np.cumsum([c.num_q_heads, c.num_kv_heads])
    for layer in weights.layers:
        heads = (_rms(x, layer.attn_norm, c.rms_epsilon) @ layer.qkv.T).reshape(len(x), -1, c.head_dim)
        q, k, v = (np.ascontiguousarray(part) for part in np.split(heads, split, axis=1))
        out = _softmax_attention(_rotate(q, c.rope_base), _rotate(k, c.rope_base), v)
        x = x + out.reshape(len(x), -1) @ layer.attn_output.T
        gate, up = np.split(_rms(x, layer.ffn_norm, c.rms_epsilon) @ layer.gate_up.T, 2, axis=1)
        x = x + (up * gate / (1 + np.exp(-gate))) @ layer.ffn_down.T
    return _rms(x, weights.output_norm, c.rms_epsilon) @ weights.output.T


def greedy(weights: Weights, prompt: list[int], count: int) -> list[int]:
    """The next `count` tokens, everything recomputed for each of them."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(dense_logits(weights, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def greedy_margins(weights: Weights, prompt: list[int], generated: list[int]) -> np.ndarray:
    """Per generated token: its dense logit minus the best other one, each after exactly the tokens before it (the mask hides
    the rest). All positive iff dense greedy decoding gives this very text."""
    logits = dense_logits(weights, [*prompt, *generated])[len(prompt) - 1 : -1]
    rows = np.arange(len(generated))
    own = logits[rows, generated]
    logits[rows, generated] = -np.inf
    return own - logits.max(-1)

# SPDX-License-Identifier: Apache-2.0
"""A small MLA decoder (DeepSeek-V2's attention, random weights) served from a paged latent cache: the text of a dense forward pass.

usage: python mla.py [--tokens 64] [--requests 3]

Several requests decode together. Each step appends its rows to the latent cache of every layer and attends with the absorbed query, 16
query heads on one row of 64 + 16 elements. `dense_logits` is the same model without a cache: it makes keys and values of every head, and
recomputes everything for each token. Greedy decoding must give the same text.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
import quire
from quire import mla

VOCAB, HIDDEN, LAYERS, HEADS, RANK, ROPE, NOPE, V_DIM, PAGE = 257, 96, 3, 16, 64, 16, 24, 20, 8


@dataclass
class Layer:
    query: np.ndarray  # [HEADS * (NOPE + ROPE), HIDDEN]
    latent: np.ndarray  # [RANK + ROPE, HIDDEN]
    w_uk: np.ndarray  # [HEADS, NOPE, RANK]
    w_uv: np.ndarray  # [HEADS, V_DIM, RANK]
    out: np.ndarray  # [HIDDEN, HEADS * V_DIM]


class Weights:
    """Drawn from N(0, 1) / sqrt(fan in); attention is as loud as the token, or every text would repeat its last one."""

    def __init__(self, seed: int = 0):
        rng = np.random.default_rng(seed)

        def draw(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1]))

        self.embedding = draw(VOCAB, HIDDEN) * np.float32(np.sqrt(HIDDEN))
        self.output = draw(VOCAB, HIDDEN)
        self.layers = [
            Layer(draw(HEADS * (NOPE + ROPE), HIDDEN) * np.float32(3), draw(RANK + ROPE, HIDDEN), draw(HEADS, NOPE, RANK), draw(HEADS, V_DIM, RANK),
                  draw(HIDDEN, HEADS * V_DIM) * np.float32(4))
            for _ in range(LAYERS)
        ]  # fmt: skip


def norm(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(1e-6))


def rotate(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """RoPE of the last axis: neighbours are a complex number that turns with the position."""
    turn = np.exp(1j * np.multiply.outer(positions, 10000.0 ** (-np.arange(ROPE // 2) * 2.0 / ROPE))).astype(np.complex64)
    turn = turn.reshape(len(positions), *[1] * (x.ndim - 2), ROPE // 2)
    return (np.ascontiguousarray(x).view(np.complex64) * turn).view(np.float32)


def projected(layer: Layer, x: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, ...]:
    """q_nope, q_rope, c_kv, k_rope of rows."""
    q = (x @ layer.query.T).reshape(len(x), HEADS, NOPE + ROPE)
    row = x @ layer.latent.T
    return q[:, :, :NOPE], rotate(q[:, :, NOPE:], positions), norm(row[:, :RANK]), rotate(row[:, RANK:], positions)


def dense_logits(weights: Weights, tokens: list[int]) -> np.ndarray:
    """Logits behind the last token: no cache, and keys and values of every head."""
    x, positions = weights.embedding[tokens], np.arange(len(tokens))
    hidden = np.triu(np.ones((len(tokens),) * 2, bool), 1)
    for layer in weights.layers:
        q_nope, q_rope, c_kv, k_rope = projected(layer, norm(x), positions)
        scores = np.einsum("ihn,hnr,jr->hij", q_nope, layer.w_uk, c_kv, optimize=True) + np.einsum("ihr,jr->hij", q_rope, k_rope)
        scores = np.where(hidden, -np.inf, scores * mla.softmax_scale(NOPE, ROPE))
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        values = np.einsum("hvr,jr->jhv", layer.w_uv, c_kv)
        out = np.einsum("hij,jhv->ihv", p / p.sum(axis=-1, keepdims=True), values)
        x = x + out.reshape(len(x), -1) @ layer.out.T
    return norm(x[-1]) @ weights.output.T


class Engine:
    """Steps of all requests together; a latent cache for each layer, and pages from Quire's pool."""

    def __init__(self, weights: Weights, num_pages: int):
        self.weights = weights
        self.pool = quire.PagePool(num_pages=num_pages, page_size=PAGE, prefix_sharing=False)
        self.latents = [np.full((num_pages, PAGE, RANK + ROPE), np.nan, np.float32) for _ in weights.layers]
        self.known: dict[int, list[int]] = {}
        self.cached: dict[int, int] = {}

    def add(self, request: int, prompt: list[int]) -> None:
        self.pool.add(request, prompt)
        self.known[request], self.cached[request] = list(prompt), 0

    def step(self) -> dict[int, int]:
        """Runs every token that is not cached yet; returns the next token of each request."""
        starts, positions, tokens, slots = [0], [], [], []
        for request, known in self.known.items():
            self.pool.reserve(request, len(known))
            first = self.cached[request]
            slots.append(self.pool.slots(request, first, len(known)))
            positions += range(first, len(known))
            tokens += known[first:]
            starts.append(len(tokens))
        tables = [self.pool.block_table(request) for request in self.known]
        table = np.zeros((len(tables), max(map(len, tables))), np.int32)
        for row, pages in zip(table, tables):
            row[: len(pages)] = pages
        lengths = {"query_start_loc": starts, "seq_lens": [len(k) for k in self.known.values()], "block_table": table}
        x = self._hidden(np.array(tokens), np.array(positions), np.concatenate(slots), lengths)
        logits = norm(x[np.array(starts[1:]) - 1]) @ self.weights.output.T
        chosen = dict(zip(self.known, (int(i) for i in logits.argmax(axis=1))))
        for request, token in chosen.items():
            self.pool.commit(request, len(self.known[request]))
            self.cached[request] = len(self.known[request])
            self.pool.push_token(request, token)
            self.known[request].append(token)
        return chosen

    def _hidden(self, tokens: np.ndarray, positions: np.ndarray, slots: np.ndarray, lengths: dict) -> np.ndarray:
        x = self.weights.embedding[tokens]
        options = quire.Options(softmax_scale=mla.softmax_scale(NOPE, ROPE))
        for layer, latent in zip(self.weights.layers, self.latents):
            q_nope, q_rope, c_kv, k_rope = projected(layer, norm(x), positions)
            mla.append(latent, c_kv, k_rope, slots)
            query = mla.absorbed_query(q_nope, q_rope, layer.w_uk, np.empty((len(x), HEADS, RANK + ROPE), np.float32))
            out = quire.attend(quire.Batch(query=query, **lengths), mla.cache(latent, RANK), options)
            x = x + mla.expanded(out, layer.w_uv).reshape(len(x), -1) @ layer.out.T
        return x


def serve(weights: Weights, prompts: list[list[int]], count: int) -> list[list[int]]:
    engine = Engine(weights, num_pages=sum(-(-(len(p) + count) // PAGE) for p in prompts) + 1)
    for request, prompt in enumerate(prompts):
        engine.add(request, prompt)
    for _ in range(count):
        engine.step()
    return [engine.known[r][len(p) :] for r, p in enumerate(prompts)]


def dense_text(weights: Weights, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(dense_logits(weights, tokens).argmax()))
    return tokens[len(prompt) :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--requests", type=int, default=3)
    args = parser.parse_args()
    weights, rng = Weights(), np.random.default_rng(1)
    prompts = [[int(t) for t in rng.integers(VOCAB, size=5 + 13 * r)] for r in range(args.requests)]
    texts = serve(weights, prompts, args.tokens)
    for r, (prompt, text) in enumerate(zip(prompts, texts)):
        same = "equal to" if text == dense_text(weights, prompt, args.tokens) else "NOT"
        print(f"request {r}: {len(prompt)} tokens of prompt, {len(text)} generated, {len(set(text))} different, {same} the dense text")


if __name__ == "__main__":
    main()

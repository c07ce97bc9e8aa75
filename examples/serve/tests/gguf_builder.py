# SPDX-License-Identifier: Apache-2.0
"""Writes small GGUF files byte by byte, right ones and wrong ones: every count and offset can be lied about."""

from __future__ import annotations

import dataclasses
import struct

import numpy as np

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
FMT = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q"}
TYPE_F32, TYPE_Q8_0 = 0, 8


def string(text: str | bytes, length: int | None = None) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def value(kind: int, v) -> bytes:
    if kind == STRING:
        return string(v)
    if kind == ARRAY:
        item, values = v
        return struct.pack("<IQ", item, len(values)) + b"".join(value(item, x) for x in values)
    return struct.pack(FMT[kind], v)


@dataclasses.dataclass
class Tensor:
    name: str
    data: np.ndarray
    dims: list[int] | None = None  # None: the data's own
    type: int = TYPE_F32
    offset: int | None = None  # None: after the tensor before
    n_dims: int | None = None


@dataclasses.dataclass
class Gguf:
    metadata: dict = dataclasses.field(default_factory=dict)  # key -> (type, value) or raw bytes
    tensors: list[Tensor] = dataclasses.field(default_factory=list)
    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    metadata_count: int | None = None
    alignment: int = 32
    extra_metadata: bytes = b""

    def tensor(self, name: str) -> Tensor:
        return next(t for t in self.tensors if t.name == name)

    def build(self) -> bytes:
        out = self.magic + struct.pack("<I", self.version)
        out += struct.pack("<Q", len(self.tensors) if self.tensor_count is None else self.tensor_count)
        out += struct.pack("<Q", len(self.metadata) if self.metadata_count is None else self.metadata_count)
        for key, entry in self.metadata.items():
            out += string(key) + (entry if isinstance(entry, bytes) else struct.pack("<I", entry[0]) + value(*entry))
        out += self.extra_metadata
        blob = b""
        for t in self.tensors:
            blob += bytes(-len(blob) % self.alignment)
            dims = list(reversed(t.data.shape)) if t.dims is None else t.dims
            out += string(t.name) + struct.pack("<I", len(dims) if t.n_dims is None else t.n_dims)
            out += b"".join(struct.pack("<Q", d) for d in dims)
            out += struct.pack("<IQ", t.type, len(blob) if t.offset is None else t.offset)
            blob += t.data.tobytes()
        return out + bytes(-len(out) % self.alignment) + blob


def tiny_vocabulary() -> tuple[list[str], list[int], list[str]]:
    """All bytes, a few merges, two control tokens."""
    from tokenizer import _byte_alphabet

    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *_byte_alphabet().values()]
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o"]
    tokens += [m.replace(" ", "") for m in merges]
    return tokens, [3, 3, 3] + [1] * (len(tokens) - 3), merges


def tiny_llama(hidden=8, q_heads=2, kv_heads=1, feed_forward=12, layers=2, seed=0) -> Gguf:
    """A complete model file of the smallest size."""
    tokens, types, merges = tiny_vocabulary()
    rng = np.random.default_rng(seed)
    vocab, head_dim = len(tokens), hidden // q_heads

    def t(name: str, *shape: int) -> Tensor:
        return Tensor(name, rng.standard_normal(shape).astype(np.float32))

    tensors = [t("token_embd.weight", vocab, hidden), t("output_norm.weight", hidden)]
    for i in range(layers):
        b = f"blk.{i}."
        tensors += [t(b + "attn_norm.weight", hidden), t(b + "ffn_norm.weight", hidden)]
        tensors += [t(b + "attn_q.weight", hidden, hidden), t(b + "attn_output.weight", hidden, hidden)]
        tensors += [t(b + f"attn_{x}.weight", kv_heads * head_dim, hidden) for x in "kv"]
        tensors += [t(b + f"ffn_{x}.weight", feed_forward, hidden) for x in ("gate", "up")]
        tensors += [t(b + "ffn_down.weight", hidden, feed_forward)]
    metadata = {
        "general.architecture": (STRING, "llama"),
        "llama.block_count": (U32, layers),
        "llama.context_length": (U32, 256),
        "llama.embedding_length": (U32, hidden),
        "llama.feed_forward_length": (U32, feed_forward),
        "llama.attention.head_count": (U32, q_heads),
        "llama.attention.head_count_kv": (U32, kv_heads),
        "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
        "llama.rope.freq_base": (F32, 10000.0),
        "llama.rope.dimension_count": (U32, head_dim),
        "llama.vocab_size": (U32, vocab),
        "tokenizer.ggml.model": (STRING, "gpt2"),
        "tokenizer.ggml.pre": (STRING, "smollm"),
        "tokenizer.ggml.tokens": (ARRAY, (STRING, tokens)),
        "tokenizer.ggml.token_type": (ARRAY, (I32, types)),
        "tokenizer.ggml.merges": (ARRAY, (STRING, merges)),
        "tokenizer.ggml.eos_token_id": (U32, 2),
    }
    return Gguf(metadata, tensors)

# SPDX-License-Identifier: Apache-2.0
"""Small GGUF files, written by the `gguf` package: whole ones, and ones that lack or garble what a model needs."""

from __future__ import annotations

import dataclasses
import pathlib

import gguf
import numpy as np
from tokenizers import pre_tokenizers

U32, F32, STRING, ARRAY = (gguf.GGUFValueType[name] for name in ("UINT32", "FLOAT32", "STRING", "ARRAY"))


@dataclasses.dataclass
class Gguf:
    metadata: dict = dataclasses.field(default_factory=dict)  # key -> (type, value)
    tensors: dict = dataclasses.field(default_factory=dict)  # name -> values, or (packed bytes, GGMLQuantizationType)

    def write(self, path: pathlib.Path) -> None:
        writer = gguf.GGUFWriter(path, arch="llama")  # the writer adds general.architecture
        for key, (kind, value) in self.metadata.items():
            writer.add_key_value(key, value, kind)
        for name, values in self.tensors.items():
            packed, kind = values if isinstance(values, tuple) else (values, None)
            writer.add_tensor(name, packed, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def tiny_vocabulary() -> tuple[list[str], list[int], list[str]]:
    """All bytes, a few merges, three control tokens."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o"]
    tokens += [m.replace(" ", "") for m in merges]
    return tokens, [3, 3, 3] + [1] * (len(tokens) - 3), merges


def tiny_llama(hidden=8, q_heads=2, kv_heads=1, feed_forward=12, layers=2, seed=0) -> Gguf:
    """A complete model file of the smallest size."""
    tokens, types, merges = tiny_vocabulary()
    rng = np.random.default_rng(seed)
    vocab, head_dim = len(tokens), hidden // q_heads
    shapes = {"token_embd": (vocab, hidden), "output_norm": (hidden,)}
    for i in range(layers):
        shapes |= {f"blk.{i}.attn_norm": (hidden,), f"blk.{i}.ffn_norm": (hidden,)}
        shapes |= {f"blk.{i}.attn_q": (hidden, hidden), f"blk.{i}.attn_output": (hidden, hidden)}
        shapes |= {f"blk.{i}.attn_{x}": (kv_heads * head_dim, hidden) for x in "kv"}
        shapes |= {f"blk.{i}.ffn_{x}": (feed_forward, hidden) for x in ("gate", "up")}
        shapes |= {f"blk.{i}.ffn_down": (hidden, feed_forward)}
    tensors = {f"{name}.weight": rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    metadata = {
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
        "tokenizer.ggml.tokens": (ARRAY, tokens),
        "tokenizer.ggml.token_type": (ARRAY, types),
        "tokenizer.ggml.merges": (ARRAY, merges),
        "tokenizer.ggml.eos_token_id": (U32, 2),
    }
    return Gguf(metadata, tensors)

# SPDX-License-Identifier: Apache-2.0
"""even_heads.py MODEL OUT: a Llama model with KV heads of zeros added until their number is even, and query heads for them.

Values of zeros, and columns of zeros in the output projection, add nothing: it is the same function, with heads that two ranks share.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def padded(weight: torch.Tensor, dim: int, heads: int, more: int) -> torch.Tensor:
    """``weight`` with ``more`` heads of zeros behind its ``heads`` in dimension ``dim``."""
    shape = list(weight.shape)
    shape[dim] = shape[dim] // heads * more
    return torch.cat([weight, weight.new_zeros(shape)], dim).contiguous()


def main(source: Path, target: Path) -> None:
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    q_heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    more = kv_heads % 2
    more_q = more * q_heads // kv_heads
    changes = {"q_proj": (0, q_heads, more_q), "k_proj": (0, kv_heads, more), "v_proj": (0, kv_heads, more), "o_proj": (1, q_heads, more_q)}
    weights = load_file(source / "model.safetensors")
    for name, weight in weights.items():
        change = changes.get(name.split(".")[-2])
        weights[name] = padded(weight, *change) if change and more else weight
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, target)
    config.update(num_attention_heads=q_heads + more_q, num_key_value_heads=kv_heads + more)
    (target / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

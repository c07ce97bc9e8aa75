# SPDX-License-Identifier: Apache-2.0
"""Arguments of vLLM that mean something Quire does not do."""

from __future__ import annotations

from typing import Any

from quire.errors import UnsupportedError

_REASONS = {
    "blocksparse_vert_stride": "every visible key is attended to, block-sparse attention is not offered",
    "chunk_lookback": "a window slides with the query row, windows in aligned chunks are not offered",
    "interleaved_v": "a value cache of [num_blocks, num_kv_heads, block_size / x, head_dim, x] is read, but not written",
    "interleaved_v_pack_factor": "a value cache of [num_blocks, num_kv_heads, block_size / x, head_dim, x] is read, but not written",
    "is_block_table_ptr": "a block table holds page ids, tables of device pointers are not read",
    "k_scale_cache": "this op does not read scales of tokens yet; quire.attend() takes them as KVCache(k_scale=..., v_scale=...)",
    "qq_bias": "scores take ALiBi slopes, a matrix of biases is not read",
    "use_alibi_sqrt": "ALiBi is linear in the distance, its square root is not offered",
    "v_scale_cache": "this op does not read scales of tokens yet; quire.attend() takes them as KVCache(k_scale=..., v_scale=...)",
}
"""Why an argument is refused."""


def unsupported(**arguments: Any) -> None:
    """Raises for the first argument that is neither None nor False."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise UnsupportedError(f"{name}: not supported by quire_vllm.ops: {_REASONS[name]}")


QUANT_MODES = {0: "NONE", 1: "FP8_PER_TENSOR"}
"""The values of vLLM's KVQuantMode under which a cache has one scale, or one per KV head."""


def known_quant_mode(mode: Any) -> None:
    if mode is not None and mode not in QUANT_MODES:
        raise UnsupportedError(
            f"kv_quant_mode: {getattr(mode, 'name', mode)} is not supported by quire_vllm.ops, which knows "
            f"{', '.join(f'{name} ({value})' for value, name in QUANT_MODES.items())}"
        )

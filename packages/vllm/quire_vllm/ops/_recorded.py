# SPDX-License-Identifier: Apache-2.0
"""What :func:`quire.capture` has to know of vLLM's attention ops, by name."""

from quire._calls import Op

from quire_vllm.ops._attention import chunked_inputs, context_inputs, unified_inputs
from quire_vllm.ops._decode import decode_inputs

KNOWN = {
    name: Op(read, out, caches, table, f"quire_vllm.ops:{name}")
    for name, read, out, caches, table in (
        ("chunked_prefill_paged_decode", chunked_inputs, "output", ("key_cache", "value_cache"), "block_table"),
        ("context_attention_fwd", context_inputs, "o", ("k_cache", "v_cache"), "b_loc"),
        ("unified_attention", unified_inputs, "out", ("k", "v"), "block_table"),
        *((name, decode_inputs, "out", ("key_cache", "value_cache"), "block_tables")
          for name in ("paged_attention_v1", "paged_attention_v2", "paged_attention_rocm")),
    )
}  # fmt: skip

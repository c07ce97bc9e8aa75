# SPDX-License-Identifier: Apache-2.0
"""vLLM's paged-attention ops on Quire: the same names, argument order and meaning, for NumPy, torch CPU and torch CUDA tensors.

Code and tests written for vLLM run by changing an import. What differs, on purpose:

* **Errors instead of silence.** Every call goes through Quire's contract. Index tensors are read as the dtype they have (int32 or
  int64). ``max_query_len``, ``max_input_len`` and the ``max_seq_len`` of the decode ops raise if they are too small; vLLM leaves rows
  unwritten or reads past its buffers. ``max_seq_len`` of :func:`chunked_prefill_paged_decode` and :func:`context_attention_fwd` is
  ignored, as in vLLM's prefill kernel: vLLM's own test passes 1024 there for sequences of up to 1792 tokens.
* **fp8 is a type.** ``kv_cache_dtype`` "fp8" and "fp8_e4m3" mean ``fp8_e4m3fn`` for uint8 tensors, or ``fp8_e4m3fnuz`` if
  ``fp8_flavour`` is "fnuz" (gfx94x); "fp8_e5m2" means ``fp8_e5m2``. A tensor that has an fp8 dtype keeps it, and a string that
  contradicts it is an error. Scales apply to fp8 caches only, as in vLLM.
* **Cache contents by row, as in vLLM.** :func:`chunked_prefill_paged_decode` reads rows of query_len 1 wholly from the cache and the
  new tokens of longer rows from ``key`` and ``value``; :func:`context_attention_fwd` takes every row's new tokens from ``k`` and ``v``;
  all other ops read everything from the cache. Quire expresses this with ``cached_lens``.
* **Padding rows.** vLLM pads batches to the sizes of its graphs: rows of ``query`` from the last start on, and trailing requests that
  repeat it with ``seq_len`` 0. The rows are never read, and left unwritten as in vLLM; :data:`padding` "zero" makes them zero, and None
  refuses them.
* ``sm_scale=None`` is 1 / sqrt(head_dim) (vLLM used the number of heads until #31380).
* ALiBi is relative to the query position, honours windows and sinks, and takes slopes of any sign.
* Per-head scales reach the result, or raise where vLLM would read element 0 only.

**On CUDA tensors** calls use torch's current stream, take lengths and tables where they are, enqueue and return. If lengths or tables
break a rule, or exceed ``max_query_len`` or the ``max_seq_len`` that the op looks at, the device writes no row and leaves a mark: the
next call raises it, or :func:`quire.synchronize`. ``wait=True`` waits in each call and raises there. Such calls can be captured in a
graph with ``wait=False``. The decode ops and ``skip_decode``, which answer some of the rows, read the lengths on the host.

**Two arguments of every op are not vLLM's**, by name: ``wait`` and ``fp8_flavour`` (where a cache is read). None takes what
:func:`settings` says around the call, or else :data:`wait` and :data:`fp8_flavour` of this module.

**Signatures are those of vLLM 0.33**, whose names hold those of 0.11 and 0.20. Where these three disagree about positions
(``unified_attention`` from ``seq_threshold_3D`` on, the prefill ops behind ``is_block_table_ptr``), arguments are taken by name only:
a position that meant something else a version ago is a TypeError, not another argument.

What Quire does not do raises :class:`quire.UnsupportedError` (a NotImplementedError) naming the argument, unless the argument has its
default: block-sparse attention, ``qq_bias``, ``use_alibi_sqrt``, ``chunk_lookback``, scales per token and head (``kv_quant_mode``, ``k_scale_cache``, ``v_scale_cache``), tables of
pointers. ``use_td`` changes no result and is ignored, as are ``mm_prefix_clamp_sliding_window`` without ``mm_prefix_range`` and
``rswa_prefix_lens`` without ``rswa_window``.
"""

from quire._calls import OPS

from quire_vllm.ops._append import reshape_and_cache, reshape_and_cache_flash, triton_reshape_and_cache_flash
from quire_vllm.ops._attention import chunked_prefill_paged_decode, context_attention_fwd, unified_attention
from quire_vllm.ops._decode import paged_attention_rocm, paged_attention_v1, paged_attention_v2
from quire_vllm.ops._merge import merge_attn_states
from quire_vllm.ops._recorded import KNOWN
from quire_vllm.ops._settings import settings

__all__ = [
    "chunked_prefill_paged_decode",
    "context_attention_fwd",
    "fp8_flavour",
    "merge_attn_states",
    "padding",
    "paged_attention_rocm",
    "paged_attention_v1",
    "paged_attention_v2",
    "reshape_and_cache",
    "reshape_and_cache_flash",
    "settings",
    "triton_reshape_and_cache_flash",
    "unified_attention",
    "wait",
]

fp8_flavour: str = "fn"
"""What "fp8" and "fp8_e4m3" mean for uint8 caches: "fn" (NVIDIA, gfx95x, gfx12) or "fnuz" (gfx94x)."""

padding: str | None = "left"
"""What becomes of output rows behind the last start: "left" as they are, made "zero", or None: such a batch is refused (Q-T04)."""

wait: bool = False
"""On CUDA tensors, True: every call waits for the device and raises what it found. False: the next call raises it, or
:func:`quire.synchronize`."""

OPS.update(KNOWN)

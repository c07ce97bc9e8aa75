# SPDX-License-Identifier: Apache-2.0
"""vLLM's attention backend CUSTOM on Quire: one code for CPU, CUDA and ROCm, and for the interfaces of vLLM 0.26 to 0.33.

The cache is vLLM's one tensor a layer, [blocks, kv_heads, block_size, 2 * head_dim], K then V in the last dim, in any physical
order, given by its strides. vLLM's own questions (``supports_...``) refuse features that Quire lacks, before a weight is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)

from quire_vllm import calls, explaining, settings

_SETTINGS = settings.read()


class QuireBackend(AttentionBackend):
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list] = ["auto", "float16", "bfloat16", "float32", *calls.FP8]
    # One call of vLLM's operator a layer writes the cache and attends.
    forward_includes_kv_cache_update: bool = True

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"  # vLLM looks the name up in its registry

    @staticmethod
    def get_impl_cls() -> type[QuireImpl]:
        return QuireImpl

    @staticmethod
    def get_builder_cls() -> type[QuireMetadataBuilder]:
        return QuireMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(*_: Any) -> list[Any]:
        return [MultipleOf(1)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return []  # every one

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_per_head_quant_scales(cls) -> bool:
        return True

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type == AttentionType.DECODER

    # vLLM 0.26 to 0.28 ask for the shape and the physical order of the cache.
    @staticmethod
    def get_kv_cache_shape(num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, *_: Any, **__: Any) -> tuple[int, ...]:
        return (num_blocks, num_kv_heads, block_size, 2 * head_size)

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        if include_num_layers_dimension:
            raise NotImplementedError("Quire takes any order of a layer's cache and prefers none across layers")
        return (0, 1, 2, 3)


@dataclass
class QuireMetadata:
    """One step's tables, as all layers of a KV cache group see them."""

    num_actual_tokens: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    max_query_len: int
    max_seq_len: int
    bound: dict[Any, Any] = field(default_factory=dict)  # what the layers of this step share: one for each kind of layer


class QuireMetadataBuilder(AttentionMetadataBuilder[QuireMetadata]):
    # Graphs of batches whose requests all have the same number of rows; vLLM replays those of mixed batches piece by piece.
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device):
        # The base class of vLLM 0.26 has an abstract __init__.
        self.kv_cache_spec, self.layer_names, self.vllm_config, self.device = kv_cache_spec, layer_names, vllm_config, device
        self.max_model_len = int(vllm_config.model_config.max_model_len)
        if device.type == "cpu":
            calls.use_threads_of_torch()
        if _SETTINGS.explain:
            explaining.log_once(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False) -> QuireMetadata:
        m, n = common_attn_metadata, common_attn_metadata.num_reqs
        if m.causal is not True:
            raise NotImplementedError("Quire serves causal attention; this step asks for rows that see later keys")
        return QuireMetadata(
            num_actual_tokens=m.num_actual_tokens,
            query_start_loc=m.query_start_loc[: n + 1],
            seq_lens=m.seq_lens[:n],
            block_table=m.block_table_tensor[:n],
            slot_mapping=m.slot_mapping,
            max_query_len=m.max_query_len,
            max_seq_len=m.max_seq_len,
        )

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> QuireMetadata:
        """A graph is replayed with every context that the model allows; a bound of the capture would refuse longer ones."""
        metadata = self.build(0, common_attn_metadata)
        metadata.max_seq_len = self.max_model_len
        return metadata

    def use_cascade_attention(self, *_: Any, **__: Any) -> bool:
        return False  # asked by vLLM 0.26 to 0.28


class QuireImpl(AttentionImpl):
    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ):
        if attn_type != AttentionType.DECODER:
            raise NotImplementedError(f"Quire serves decoder layers; this layer is {attn_type}")
        if kv_cache_dtype not in QuireBackend.supported_kv_cache_dtypes:
            raise NotImplementedError(f"Quire has no KV cache of type {kv_cache_dtype}")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks
        slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self.call = calls.LayerCall(self.scale, head_size, sliding_window or None, logits_soft_cap or None, slopes, kv_cache_dtype)

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        if kv_cache.numel():
            self.call.append(layer, key, value, kv_cache, slot_mapping)

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: QuireMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("Quire writes outputs of the query's type; vLLM was asked to fuse their quantisation")
        if attn_metadata is None:  # vLLM measures its memory
            return output.fill_(0)
        if self.kv_sharing_target_layer_name is None and key is not None and self.writes_cache_here():
            self.do_kv_cache_update(layer, key, value, kv_cache, attn_metadata.slot_mapping)
        self.call.attend(layer, query, kv_cache, attn_metadata, output, self.sinks)
        return output

    @staticmethod
    def writes_cache_here() -> bool:
        return QuireBackend.forward_includes_kv_cache_update


# SPDX-License-Identifier: Apache-2.0
"""Calls of each library for peers.py, made as the library's own users make them: plans, metadata and workspaces before the timing.

``ways(torch, data)`` gives, for one case, who can be asked and a function that makes the call. Each library has a function of its own
here, which yields (name, maker) for the cases that the library serves; a maker may raise, and then the row has the reason.

FlashAttention 3, XQA and hpc-ops take an fp8 query with an fp8 cache: their names say so, as other callers keep 16 bits.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any, Callable, Iterator

Call = Callable[[int], Any]
Ways = Iterator[tuple[str, Callable[[], Call]]]

WORKSPACE_BYTES = 256 << 20  # FlashInfer's and cuDNN's documentation ask for 128 MB; less makes their plans fail
ROUNDED = ", fp8 query"


def found(name: str) -> Any:
    """The module, or None where it is not installed or does not load."""
    try:
        return importlib.import_module(name)
    except Exception:  # a broken binary raises OSError or RuntimeError
        return None


def versions() -> dict[str, str]:
    names = {"quire-attention": "quire", "torch": "torch", "triton": "triton", "flashinfer-python": "flashinfer", "vllm": "vllm",
             "flash-attn-3": "flash_attn_interface", "hpc-ops": "hpc", "nvidia-cudnn-frontend": "cudnn"}  # fmt: skip
    result = {}
    for distribution, module in names.items():
        if found(module) is not None:
            try:
                result[distribution] = importlib.metadata.version(distribution)
            except importlib.metadata.PackageNotFoundError:
                result[distribution] = str(getattr(found(module), "__version__", "found, version unknown"))
    return result


def ways(torch: Any, data: Any) -> dict[str, Callable[[], Call]]:
    libraries = (by_quire, by_flash_attention_3, by_flash_attention_2, by_flashinfer, by_xqa, by_cudnn_paged, by_hpc_ops, by_vllm_triton, by_torch)
    return {who: make for library in libraries for who, make in library(torch, data)}


def workspace(torch: Any) -> Any:
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda").zero_()


def rounded_query(torch: Any, data: Any) -> Any:
    return data.query.to(data.cache_dtype) if data.problem.is_fp8 else data.query


def by_quire(torch: Any, data: Any) -> Ways:
    import quire

    p = data.problem

    def make(bounds: dict[str, Any]) -> Call:
        batch = quire.Batch(
            query=data.query, output=data.output, query_start_loc=data.starts, seq_lens=data.lens, block_table=data.table
        )
        cache = quire.KVCache(*data.caches[0])
        options = quire.Options(sliding_window=p.window or None)
        bound = quire.bind(batch, cache, options, plan=quire.plan(batch, cache, options, **bounds))

        def call(copy: int) -> Any:
            bound(data.query, *data.caches[copy], data.output)
            return data.output

        return call

    longest = {"max_query_len": max(p.query_lens), "max_seq_len": max(p.seq_lens)}
    yield "Quire", lambda: make(longest)
    yield "Quire, no bounds", lambda: make({})
    yield "Quire, batch_invariant", lambda: make({**longest, "batch_invariant": True})
    yield "Quire, exact_weights", lambda: make({**longest, "exact_weights": True})
    if not p.is_fp8:  # the kernel that sm80 and sm89 have: beside FlashAttention 2, which is made for those
        yield "Quire cuda_mma", lambda: make({**longest, "kernel": "cuda_mma"})


def by_flash_attention_3(torch: Any, data: Any) -> Ways:
    p = data.problem
    window = (p.window - 1, 0) if p.window else (-1, -1)
    vllm, upstream = found("vllm.vllm_flash_attn"), found("flash_attn_interface")
    if vllm is None and upstream is None:
        return

    def made(page: int, q: Any) -> Any:
        """The schedule that vLLM's engine makes once for a step, and that the calls of all layers use."""
        return vllm.get_scheduler_metadata(
            batch_size=len(p.reqs), max_seqlen_q=max(p.query_lens), max_seqlen_k=max(p.seq_lens), num_heads_q=p.q_heads,
            num_heads_kv=p.kv_heads, headdim=p.dim, cache_seqlens=data.lens, qkv_dtype=q.dtype, cu_seqlens_q=data.starts,
            page_size=page, causal=True, window_size=window,
        )  # fmt: skip

    def make(page: int, with_metadata: bool = True) -> Call:
        q = rounded_query(torch, data)
        metadata = made(page, q) if vllm is not None and with_metadata else None

        def call(copy: int) -> Any:
            k, v, table = (*data.caches[copy], data.table) if page == p.page else data.repaged(page, copy)
            if vllm is not None:
                return vllm.flash_attn_varlen_func(
                    q, k, v, max(p.query_lens), data.starts, max(p.seq_lens), seqused_k=data.lens, softmax_scale=p.dim**-0.5,
                    causal=True, window_size=list(window), block_table=table, scheduler_metadata=metadata, fa_version=3,
                )  # fmt: skip
            return upstream.flash_attn_with_kvcache(
                q, k, v, cache_seqlens=data.lens, page_table=table, cu_seqlens_q=data.starts, max_seqlen_q=max(p.query_lens),
                softmax_scale=p.dim**-0.5, causal=True, window_size=window,
            )  # fmt: skip

        return call

    name = "FlashAttention 3" + (ROUNDED if p.is_fp8 else "")
    yield name, lambda: make(p.page)
    if vllm is not None:
        yield f"{name}, no metadata", lambda: make(p.page, with_metadata=False)
    if p.page != 128:
        yield f"{name}, page 128", lambda: make(128)


def by_flash_attention_2(torch: Any, data: Any) -> Ways:
    p, vllm = data.problem, found("vllm.vllm_flash_attn")
    if vllm is None or p.is_fp8:
        return
    window = [p.window - 1, 0] if p.window else [-1, -1]

    def call(copy: int) -> Any:
        return vllm.flash_attn_varlen_func(
            data.query, *data.caches[copy], max(p.query_lens), data.starts, max(p.seq_lens), seqused_k=data.lens, softmax_scale=p.dim**-0.5,
            causal=True, window_size=window, block_table=data.table, fa_version=2,
        )  # fmt: skip

    yield "FlashAttention 2", lambda: call


def flashinfer_pages(torch: Any, data: Any) -> tuple[Any, Any, Any]:
    """indptr, indices and last_page_len, as FlashInfer spells a block table."""
    counts = torch.tensor(data.columns, dtype=torch.int32)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int32), counts.cumsum(0).int()])
    indices = torch.cat([data.table[r, :n] for r, n in enumerate(data.columns)]).int()
    last = torch.tensor([(n - 1) % data.problem.page + 1 for n in data.problem.seq_lens], dtype=torch.int32)
    return indptr, indices, last


def by_flashinfer(torch: Any, data: Any) -> Ways:
    flashinfer, p = found("flashinfer"), data.problem
    if flashinfer is None:
        return
    common = {"q_data_type": data.dtype, "kv_data_type": data.cache_dtype, "window_left": p.window - 1 if p.window else -1}

    def decode(tensor_cores: bool) -> Call:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace(torch), "NHD", use_tensor_cores=tensor_cores)
        wrapper.plan(*flashinfer_pages(torch, data), p.q_heads, p.kv_heads, p.dim, p.page, **common)
        return lambda copy: wrapper.run(data.query, data.caches[copy])

    def prefill(backend: str) -> Call:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(torch), "NHD", backend=backend)
        wrapper.plan(data.starts.cpu(), *flashinfer_pages(torch, data), p.q_heads, p.kv_heads, p.dim, p.page, causal=True, **common)
        return lambda copy: wrapper.run(data.query, data.caches[copy])

    if p.is_decode:
        yield "FlashInfer decode, CUDA cores", lambda: decode(False)
        yield "FlashInfer decode, tensor cores", lambda: decode(True)
    else:
        yield "FlashInfer fa2", lambda: prefill("fa2")
        yield "FlashInfer fa3", lambda: prefill("fa3")


def by_xqa(torch: Any, data: Any) -> Ways:
    p, decode = data.problem, found("flashinfer.decode")
    if not p.is_decode or not hasattr(decode, "xqa_batch_decode_with_kv_cache"):
        return

    def make() -> Call:
        buffer, lens, out = workspace(torch), data.lens.view(torch.uint32), torch.empty_like(data.query)
        return lambda copy: decode.xqa_batch_decode_with_kv_cache(
            data.query, data.caches[copy], buffer, data.table, lens, max(p.seq_lens), bmm1_scale=p.dim**-0.5, bmm2_scale=1.0,
            window_left=p.window - 1 if p.window else -1, out=out,
        )  # fmt: skip

    yield "XQA (FlashInfer)" + (ROUNDED if p.is_fp8 else ""), make


def by_cudnn_paged(torch: Any, data: Any) -> Ways:
    p, decode = data.problem, found("flashinfer.cudnn")
    if not p.is_decode or p.is_fp8 or p.window or not hasattr(decode, "cudnn_batch_decode_with_kv_cache"):
        return

    def make() -> Call:
        buffer, lens = workspace(torch), data.lens.view(-1, 1, 1, 1)
        return lambda copy: decode.cudnn_batch_decode_with_kv_cache(
            data.query, *(x.transpose(1, 2) for x in data.caches[copy]), p.dim**-0.5, buffer, max_sequence_kv=max(p.seq_lens),
            actual_seq_lens_kv=lens, block_tables=data.table, is_cuda_graph_compatible=True, out=data.output,
        )  # fmt: skip

    yield "cuDNN paged (FlashInfer)", make


def by_hpc_ops(torch: Any, data: Any) -> Ways:
    hpc, p = found("hpc"), data.problem
    if hpc is None or not p.is_decode or p.window:
        return

    def make(page: int) -> Call:
        tasks = hpc.get_attention_decode_task_workspace(len(p.reqs), max(p.seq_lens), p.kv_heads)
        # Its "mtp" is the number of rows of a request there, as its tests call it; True: the lengths count this step's token.
        hpc.assign_attention_decode_task(data.lens, tasks, p.kv_heads, 1, True)
        q, table = rounded_query(torch, data), data.table if page == p.page else data.repaged(page, 0)[2]
        q_scale, kv_scale = torch.ones((len(p.reqs), p.q_heads), device="cuda"), torch.ones(1, device="cuda")

        def call(copy: int) -> Any:
            k, v = data.caches[copy] if page == p.page else data.repaged(page, copy)[:2]
            if p.is_fp8:
                return hpc.attention_decode_fp8(
                    q, k, v, table, data.lens, q_scale, kv_scale, kv_scale, new_kv_included=True, task_map=tasks, output=data.output
                )
            return hpc.attention_decode_bf16(q, k, v, table, data.lens, new_kv_included=True, task_map=tasks, output=data.output)

        return call

    name = "hpc-ops" + (ROUNDED if p.is_fp8 else "")
    for page in (64,) if p.is_fp8 else (p.page, 64):  # hpc-ops' fp8 kernel has pages of 64 only
        yield f"{name}, page {page}", lambda page=page: make(page)


def by_vllm_triton(torch: Any, data: Any) -> Ways:
    module, p = found("vllm.v1.attention.ops.triton_unified_attention") or found("vllm.attention.ops.triton_unified_attention"), data.problem
    if module is None:
        return

    def split_over_keys() -> dict[str, Any]:
        """Scratch with which small batches are split over keys, in the sizes of vLLM's TritonAttentionMetadataBuilder."""
        sequences, segments, padded = 128 // p.kv_heads, 16, 1 << (p.dim - 1).bit_length()
        parts = (sequences, p.q_heads, segments)
        return {
            "seq_threshold_3D": sequences, "num_par_softmax_segments": segments, "softmax_segm_output": torch.empty((*parts, padded), device="cuda"),
            "softmax_segm_max": torch.empty(parts, device="cuda"), "softmax_segm_expsum": torch.empty(parts, device="cuda"),
        }  # fmt: skip

    def make() -> Call:
        one = torch.ones(1, device="cuda") if p.is_fp8 else None
        more = split_over_keys()
        if p.is_fp8:
            more["kv_quant_mode"] = module.KVQuantMode.FP8_PER_TENSOR

        def call(copy: int) -> Any:
            k, v = data.caches[copy]
            module.unified_attention(
                q=data.query, k=k, v=v, out=data.output, cu_seqlens_q=data.starts, max_seqlen_q=max(p.query_lens), seqused_k=data.lens,
                max_seqlen_k=max(p.seq_lens), softmax_scale=p.dim**-0.5, causal=True,
                window_size=(p.window - 1, 0) if p.window else (-1, -1), block_table=data.table, softcap=0.0, q_descale=None,
                k_descale=one, v_descale=one, **more,
            )  # fmt: skip
            return data.output

        return call

    yield "vLLM Triton unified", make


def by_torch(torch: Any, data: Any) -> Ways:
    """Dense keys and values: no page table is read, so a chart of paged attention leaves these rows out."""
    p = data.problem
    if p.is_fp8:
        return
    longest_q, longest_k = max(p.query_lens), max(p.seq_lens)
    ends = torch.cat([torch.zeros(1, device="cuda", dtype=torch.int32), data.lens.cumsum(0).int()])
    window = {"window_size_left": p.window - 1, "window_size_right": 0} if p.window else {}

    def flash() -> Call:
        return lambda copy: torch.ops.aten._flash_attention_forward(
            data.query, *data.dense(copy), data.starts, ends, longest_q, longest_k, 0.0, True, False, **window
        )[0]

    def cudnn() -> Call:
        count, backend = len(p.reqs), torch.nn.attention.SDPBackend.CUDNN_ATTENTION

        def call(copy: int) -> Any:
            q, k, v = (x.view(count, -1, *x.shape[1:]).transpose(1, 2) for x in (data.query, *data.dense(copy)))
            with torch.nn.attention.sdpa_kernel([backend]):
                out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=longest_q > 1, enable_gqa=p.q_heads != p.kv_heads)
            return out.transpose(1, 2).reshape(data.query.shape)

        return call

    yield "torch flash, dense", flash
    # cuDNN aligns a causal mask to the first key: right without a context, or for one row, which needs no mask.
    if p.is_uniform and not p.window and (p.is_decode or not p.reqs[0][1]):
        yield "torch cuDNN, dense", cudnn

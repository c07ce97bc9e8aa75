# SPDX-License-Identifier: Apache-2.0
"""Writes and reads captures (docs/reference/capture.md) with the safetensors package alone."""
import ml_dtypes
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

FP8 = {"float8_e4m3fn": "fp8_e4m3fn", "float8_e5m2": "fp8_e5m2"}


def to_layout(cache, layout, is_key):
    """Orders [pages, page_size, kv_heads, head_dim] as the layout does."""
    if layout == "nhd":
        return cache
    if layout == "hnd":
        return cache.transpose(0, 2, 1, 3)
    pages, page_size, heads, dim = cache.shape
    if not is_key:
        return cache.transpose(0, 2, 3, 1)
    x = 16 // cache.dtype.itemsize
    return cache.reshape(pages, page_size, heads, dim // x, x).transpose(0, 2, 3, 1, 4)


def write_capture(path, batch, observed, observed_lse, notes):
    """Writes one capture; observed has the query's type, lse is f32 or absent."""
    tensors = {"query": batch.q, "query_start_loc": batch.query_start_loc, "seq_lens": batch.seq_lens,
               "block_table": batch.block_table, "k_cache": to_layout(batch.k_cache, batch.layout, True),
               "v_cache": to_layout(batch.v_cache, batch.layout, False), "observed": observed,
               "output": batch.before, "cached_lens": batch.cached_lens, "key": batch.new_k, "value": batch.new_v,
               "k_scale": batch.k_scale, "v_scale": batch.v_scale, "alibi_slopes": batch.slopes, "sinks": batch.sinks}
    if observed_lse is not None:
        tensors["observed_lse"] = observed_lse.astype(np.float32)
        tensors["lse"] = np.full(observed_lse.shape, np.nan, np.float32)
    metadata = {"layout": batch.layout, **notes}
    for key, value in (("softmax_scale", batch.softmax_scale), ("sliding_window", batch.window),
                       ("logits_soft_cap", batch.cap)):
        if value is not None:
            metadata[key] = repr(value)
    out = {}
    for name, x in tensors.items():
        if x is None:
            continue
        x = np.ascontiguousarray(x) if np.ndim(x) else np.asarray(x)
        if x.dtype.name in FP8:
            metadata["dtype." + name] = FP8[x.dtype.name]
            x = x.view(np.uint8)
        out[name] = x
    save_file(out, str(path), metadata=metadata)


def read_cells(path):
    """Reads what conditions need: index tensors, page size, window and heads, as keyword arguments of Cells."""
    with safe_open(str(path), "np") as f:
        metadata = f.metadata()
        shape = f.get_slice("k_cache").get_shape()
        page_size = {"nhd": shape[1], "hnd": shape[2], "packed": shape[3] if len(shape) == 5 else None}[metadata["layout"]]
        kv_heads = {"nhd": shape[2], "hnd": shape[1], "packed": shape[1]}[metadata["layout"]]
        window = metadata.get("sliding_window")
        return {"query_start_loc": f.get_tensor("query_start_loc"), "seq_lens": f.get_tensor("seq_lens"),
                "block_table": f.get_tensor("block_table"), "page_size": page_size,
                "window": None if window is None else int(window),
                "num_heads": f.get_slice("query").get_shape()[1], "num_kv_heads": kv_heads}


assert ml_dtypes    # registers bf16 with NumPy, which safetensors then reads and writes

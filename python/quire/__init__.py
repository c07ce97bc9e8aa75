"""Quire: paged attention for mixed prefill and decode batches, where a wrong answer cannot stay silent.

One call computes softmax attention for a batch of requests over a paged KV cache::

    cache = quire.KVCache(k, v, layout="nhd")                                  # [num_pages, page_size, num_kv_heads, head_dim]
    quire.append(cache, new_k, new_v, slot_mapping)                            # slot = page * page_size + offset
    batch = quire.Batch(query=q, query_start_loc=qsl, seq_lens=lens, block_table=table)
    out = quire.attend(batch, cache)

Arrays are NumPy (bf16 and fp8 through ml_dtypes), torch CPU tensors, or anything with DLPack or the NumPy array interface; nothing
is copied, strides are honoured, and results come from the library of the query. Every assumption is a checked rule: a broken one
raises :class:`ContractError` with the rule, tensor, index, value and expectation, before anything is written.

``quire.vllm`` has functions with vLLM's names, argument order and meaning.
"""

from quire import errors as errors
from quire._quire import (
    Batch,
    Case,
    Comparison,
    Device,
    Explanation,
    Fault,
    Finding,
    Findings,
    Kernel,
    KVCache,
    LedgerEntry,
    Mismatch,
    Options,
    PagePool,
    Plan,
    PoolStats,
    ProblemLine,
    Reference,
    Refusal,
    Rule,
    SlotLedger,
    VllmChoice,
    append,
    attend,
    attend_with_fault,
    check,
    compare,
    devices,
    explain,
    faults,
    get_num_threads,
    host_device,
    kernels,
    make_case,
    merge,
    parse_problem_line,
    plan,
    read_capture,
    reference,
    rules,
    set_num_threads,
    write_capture,
)
from quire._quire import version as __version__
from quire.errors import (
    ArgumentError,
    ContractError,
    Error,
    FileError,
    InternalError,
    OutOfMemoryError,
    OutOfPagesError,
    ParseError,
    UnsupportedError,
)
from quire import vllm as vllm
from quire.hooks import CaptureWarning, Recorder, capture, record

__all__ = [
    "ArgumentError",
    "Batch",
    "CaptureWarning",
    "Case",
    "Comparison",
    "ContractError",
    "Device",
    "Error",
    "Explanation",
    "Fault",
    "FileError",
    "Finding",
    "Findings",
    "InternalError",
    "KVCache",
    "Kernel",
    "LedgerEntry",
    "Mismatch",
    "Options",
    "OutOfMemoryError",
    "OutOfPagesError",
    "PagePool",
    "ParseError",
    "Plan",
    "PoolStats",
    "ProblemLine",
    "Recorder",
    "Reference",
    "Refusal",
    "Rule",
    "SlotLedger",
    "UnsupportedError",
    "VllmChoice",
    "__version__",
    "append",
    "attend",
    "attend_with_fault",
    "capture",
    "check",
    "compare",
    "devices",
    "errors",
    "explain",
    "faults",
    "get_num_threads",
    "host_device",
    "kernels",
    "make_case",
    "merge",
    "parse_problem_line",
    "plan",
    "read_capture",
    "record",
    "reference",
    "rules",
    "set_num_threads",
    "vllm",
    "write_capture",
]

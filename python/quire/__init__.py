# SPDX-License-Identifier: Apache-2.0
"""Quire: paged attention for mixed prefill and decode batches, where a wrong answer cannot stay silent.

One call computes softmax attention for a batch of requests over a paged KV cache::

    cache = quire.KVCache(k, v, layout="nhd")                                  # [num_pages, page_size, num_kv_heads, head_dim]
    quire.append(cache, new_k, new_v, slot_mapping)                            # slot = page * page_size + offset
    batch = quire.Batch(query=q, query_start_loc=qsl, seq_lens=lens, block_table=table)
    out = quire.attend(batch, cache)

Arrays are NumPy (bf16 and fp8 through ml_dtypes), torch or CuPy, in host memory or on a GPU that the build serves, or anything with
DLPack or the NumPy array interface; nothing is copied, strides are honoured, and results come from the library of the query. Every assumption is a checked rule: a broken one
raises :class:`ContractError` with the rule, tensor, index, value and expectation, before anything is written.

The logger "quire" says what :func:`capture` patches and writes, and what :func:`verify`, :func:`soak` and :func:`diagnose` found.
"""

import logging as _logging
from pathlib import Path as _Path

from quire._other_package import warn_if_installed as _warn_if_installed

_warn_if_installed(_Path(__file__).parent.parent)

from quire import _quire
from quire import errors as errors
from quire._attention_only import stand_in as _stand_in

_stand_in(_quire)

from quire._messages import explain_module as _explain_module
from quire._messages import show_constructors as _show_constructors
from quire._notebook import show_in_notebooks as _show_in_notebooks
from quire._quire import (
    Batch,
    Case,
    KVCache,
    Options,
    PagePool,
    Plan,
    SlotLedger,
)
from quire._quire import version as __version__
from quire.errors import (
    ArgumentError,
    ContractError,
    Error,
    UnsupportedError,
)
from quire import cascade as cascade
from quire import results as results
from quire import sparse as sparse
from quire import targets as targets
from quire.judging import diagnose, soak, verify
from quire.hooks import capture, record

# Wrong calls say which argument is wrong; the constructors of Batch and its like do so themselves. quire.info is imported after
# this call, so its functions do so, too.
_explain_module(_quire)
append = _quire.append
attend = _quire.attend
attend_status = _quire.attend_status
attend_with_fault = _quire.attend_with_fault
bind = _quire.bind
check = _quire.check
compare = _quire.compare
compare_caches = _quire.compare_caches
explain = _quire.explain
faults = _quire.faults
get_num_threads = _quire.get_num_threads
make_case = _quire.make_case
merge = _quire.merge
merge_many = _quire.merge_many
parse_problem_line = _quire.parse_problem_line
plan = _quire.plan
poison_case = _quire.poison_case
read_capture = _quire.read_capture
reduce_case = _quire.reduce_case
reference = _quire.reference
render_html = _quire.render_html
rules = _quire.rules
set_num_threads = _quire.set_num_threads
synchronize = _quire.synchronize
write_capture = _quire.write_capture
from quire import info as info

_show_constructors(Batch, KVCache, Options, PagePool, SlotLedger)
_show_in_notebooks(_quire)
_logging.getLogger("quire").addHandler(_logging.NullHandler())

__all__ = [
    "ArgumentError",
    "Batch",
    "Case",
    "ContractError",
    "Error",
    "KVCache",
    "Options",
    "PagePool",
    "Plan",
    "SlotLedger",
    "UnsupportedError",
    "__version__",
    "append",
    "attend",
    "attend_status",
    "attend_with_fault",
    "bind",
    "capture",
    "check",
    "compare",
    "compare_caches",
    "diagnose",
    "errors",
    "explain",
    "faults",
    "get_num_threads",
    "info",
    "make_case",
    "merge",
    "merge_many",
    "parse_problem_line",
    "plan",
    "poison_case",
    "read_capture",
    "record",
    "reduce_case",
    "reference",
    "render_html",
    "results",
    "rules",
    "set_num_threads",
    "targets",
    "soak",
    "synchronize",
    "verify",
    "write_capture",
]

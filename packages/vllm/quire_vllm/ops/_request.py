# SPDX-License-Identifier: Apache-2.0
"""A call of an op as Quire understands it: the arguments of ``_quire.attend_arrays``, and objects made of them.

Each op has one reader, in ``_attention`` or ``_decode``, which returns the arguments as a dict; the op runs the dict, and quire.hooks
makes objects of it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from quire import _quire
from quire._fields import FIELDS
from quire._inputs import Inputs, Lengths, lengths_of, on_device

from quire_vllm.ops._caches import as_bits

Arguments = dict[str, Any]
"""The arguments of one call by name, as ``_quire.attend_arrays`` takes them. What is left out has its default."""

_NOTHING = {"cache_dtype": "", "max_query_len": None, "max_seq_len": None, "wait": None} | {f.argument: f.otherwise for f in FIELDS}


class Request(SimpleNamespace):
    """:data:`Arguments` with their defaults, as attributes."""

    def __init__(self, arguments: Arguments):
        super().__init__(**(_NOTHING | arguments))

    def _of(self, owner: str) -> dict[str, Any]:
        return {f.name: getattr(self, f.argument) for f in FIELDS if f.owner == owner}

    def cache(self) -> _quire.KVCache:
        k, v = as_bits(self.k, self.v, self.cache_dtype)
        return _quire.KVCache(**self._of("KVCache") | {"k": k, "v": v, "dtype": self.cache_dtype})

    def options(self) -> _quire.Options:
        return _quire.Options(**self._of("Options"))

    def batch(self) -> _quire.Batch:
        return _quire.Batch(**self._of("Batch"))

    def check(self) -> None:
        """Raises what its lengths and tables break."""
        _quire.check(self.batch(), self.cache(), self.options(), "tables").raise_if_any()

    def lengths(self) -> Lengths:
        return lengths_of(self.query_start_loc, self.seq_lens)


def of_causal(seen: Any) -> str:
    """The argument for ``seen``: one bool, or one flag a request."""
    return "causal" if isinstance(seen, bool) else "causal_per_request"


@functools.cache
def _on_cuda() -> bool:
    """Devices of this process' torch are NVIDIA's."""
    return sys.modules["torch"].version.hip is None


def cached_lens(query_start_loc: Any, seq_lens: Any, whole_decode: bool) -> Any:
    """Number of cached tokens of each request, in the memory of the lengths; None if lengths on the host are invalid.

    seq_len - query_len; with ``whole_decode`` seq_len where query_len is 1, which one kernel of Quire's finds on CUDA ("decode"). Does
    not wait for a device.
    """
    if on_device(query_start_loc) and on_device(seq_lens):
        if whole_decode and _on_cuda():
            return "decode"
        new = query_start_loc.diff().to(seq_lens.dtype)
        return seq_lens - (new * (new != 1) if whole_decode else new)
    lengths = lengths_of(query_start_loc, seq_lens)
    if not lengths.sound:
        return None
    context = lengths.seq_lens - lengths.query_lens
    return np.where(lengths.query_lens == 1, lengths.seq_lens, context) if whole_decode else context


def inputs_by(
    read: Callable[..., Arguments], answered_by: Callable[[Lengths], np.ndarray | None] | None = None, only_if: str = ""
) -> Callable[..., Inputs]:
    """A function with the signature of ``read`` that returns :class:`Inputs`. ``answered_by``: which requests the op answers, of calls
    whose argument ``only_if`` is set, or of all."""

    @functools.wraps(read)
    def inputs(**arguments: Any) -> Inputs:
        request = Request(read(**arguments))
        lengths = request.lengths()
        asked = answered_by is not None and (not only_if or arguments.get(only_if, False))
        answered = answered_by(lengths) if answered_by is not None and asked else None
        return Inputs(request.batch(), request.cache(), request.options(), lengths, answered)

    return inputs

# SPDX-License-Identifier: Apache-2.0
"""Ranks of a torch.distributed process group. Tensors travel by its backend; records of facts by gloo; the mailbox is its store."""

from __future__ import annotations

import datetime
import math
import os
from typing import Any

import numpy as np

from quire._arrays import is_torch
from quire.errors import ArgumentError, UnsupportedError

#: Seconds an exchange lasts at least, and bytes a second that a rank receives, by backend. For the choice of exchanges alone: wrong
#: numbers cost time, never a bit. nccl: two H100 of one host over NVLink; gloo: processes of one host.
_LINKS = {"nccl": (9e-6, 240e9), "gloo": (100e-6, 1e9)}
_made = 0  # groups of this process; the same on every rank, because every rank makes them in the same order


def _import_torch() -> Any:
    try:
        import torch
        import torch.distributed
    except ImportError as error:
        raise UnsupportedError(f"Group.from_torch: torch is not installed ({error}); pip install torch") from error
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        raise ArgumentError(
            "Group.from_torch: torch.distributed is not initialised; call torch.distributed.init_process_group() first, for "
            "instance under torchrun"
        )
    return torch


def _symmetric() -> Any:
    """torch's symmetric memory, with NVLink multicast off: no copy needs it, and it fails where a host's GPUs are shared out."""
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"  # torch reads it when it maps
    import torch.distributed._symmetric_memory as symmetric

    return symmetric


class _Work:
    def __init__(self, work: Any, keep: Any):
        self._work, self._keep = work, keep

    def wait(self, seconds: float) -> bool:
        try:
            self._work.wait(datetime.timedelta(seconds=seconds))
        except RuntimeError:
            if self._work.is_completed():  # it failed, and this is why
                raise
            return False
        return True


class _Enqueued:
    """Exchange on a GPU: it runs on a stream, and later work that the caller enqueues comes after it."""

    def __init__(self, work: Any):
        self._work = work

    def wait(self, seconds: float) -> bool:
        self._work.wait()
        return True


class TorchTransport:
    def __init__(self, group: Any):
        global _made
        self._torch = _import_torch()
        self._dist = self._torch.distributed
        self._group = self._dist.group.WORLD if group is None else group
        self.rank = self._dist.get_rank(self._group)
        self.world = self._dist.get_world_size(self._group)
        if self.rank < 0:
            raise ArgumentError("Group.from_torch: this process is not a rank of that group")
        self.name = str(self._dist.get_backend(self._group)).lower()
        self.latency, self.bandwidth = _LINKS.get(self.name, _LINKS["gloo"])
        members = self._dist.get_process_group_ranks(self._group)
        self._records = self._group if self.name == "gloo" else self._dist.new_group(
            members, backend="gloo", use_local_synchronization=True
        )
        _made += 1
        self.keeper = members.index(0) if 0 in members else -1  # rank that keeps the TCPStore, as torchrun makes it
        self._prefix = f"quire/{_made}/{'.'.join(map(str, members))}"
        self._store = self._dist.distributed_c10d._get_default_store()

    def _bytes(self, array: Any) -> Any:
        tensor = array if is_torch(array) else self._torch.from_numpy(array.reshape(-1).view(np.uint8))
        if not tensor.is_contiguous():
            raise ArgumentError("an exchange needs contiguous arrays")
        return tensor.detach().reshape(-1).view(self._torch.uint8)

    def _pending(self, work: Any, *keep: Any) -> Any:
        return _Work(work, keep) if keep[0].device.type == "cpu" else _Enqueued(work)

    def all_gather(self, sent: Any, received: Any) -> Any:
        part, whole = self._bytes(sent), self._bytes(received)
        return self._pending(self._dist.all_gather_into_tensor(whole, part, group=self._group, async_op=True), part, whole)

    def all_to_all(self, sent: Any, received: Any) -> Any:
        parts, whole = self._bytes(sent), self._bytes(received)
        return self._pending(self._dist.all_to_all_single(whole, parts, group=self._group, async_op=True), parts, whole)

    def shift(self, sent: Any, received: Any) -> Any:
        """An exchange of all ranks in which one part is not empty: NCCL makes a send and a receive of it, and gloo's own sends cannot be
        waited for in slices of time."""
        part, whole = self._bytes(sent), self._bytes(received)
        to, source = ([part.numel() * (k == (self.rank + step) % self.world) for k in range(self.world)] for step in (1, -1))
        work = self._dist.all_to_all_single(whole, part, source, to, group=self._group, async_op=True)
        return self._pending(work, part, whole)

    def gather_record(self, sent: np.ndarray, received: np.ndarray) -> Any:
        part, whole = self._bytes(sent), self._bytes(received)
        return _Work(self._dist.all_gather_into_tensor(whole, part, group=self._records, async_op=True), (part, whole))

    def no_share(self, like: Any) -> str | None:
        if not is_torch(like) or like.device.type != "cuda":
            return "the tensors are in host memory"
        return None if self.name == "nccl" else f"these exchange by {self.name}"

    def offer(self, like: Any, shape: tuple[int, ...]) -> Any:
        """torch's symmetric memory: an allocation that GPUs of one host map. A whole allocation, so that it begins where they map it."""
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        return _symmetric()._SymmetricMemory.empty_strided_p2p(shape, strides, like.dtype, like.device)

    def offered(self, mine: Any) -> tuple[list[Any], Any]:
        try:
            handle = _symmetric().rendezvous(mine, self._group)
        except RuntimeError as error:
            raise UnsupportedError(f"share: torch's symmetric memory does not connect these GPUs ({str(error).splitlines()[0]})") from error
        return [mine if k == self.rank else handle.get_buffer(k, list(mine.shape), mine.dtype) for k in range(self.world)], handle

    def post(self, key: str, text: str) -> None:
        self._store.set(f"{self._prefix}/{self.rank}/{key}", "." + text)

    def read(self, rank: int, key: str) -> str | None:
        name = f"{self._prefix}/{rank}/{key}"
        return self._store.get(name).decode(errors="replace")[1:] if self._store.check([name]) else None

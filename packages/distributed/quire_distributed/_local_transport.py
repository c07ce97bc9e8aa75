# SPDX-License-Identifier: Apache-2.0
"""Ranks that are threads of one process, for tests."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from quire._arrays import empty_part_like, is_torch
from quire._messages import shown
from quire.errors import ArgumentError


def as_bytes(array: Any) -> np.ndarray:
    """The memory of a contiguous host array as NumPy bytes."""
    if is_torch(array):
        import torch

        if array.device.type != "cpu":
            raise ArgumentError(f"a tensor on {array.device}: this group exchanges arrays in host memory")
        array = array.detach().view(torch.uint8).numpy() if array.dim() else array.detach().reshape(1).view(torch.uint8).numpy()
    if not array.flags.c_contiguous:
        raise ArgumentError("an exchange needs contiguous arrays")
    return array.reshape(-1).view(np.uint8)


class _Table:
    """State that the threads share: deposits by exchange number, and the mailbox."""

    def __init__(self, world: int):
        self.world = world
        self.changed = threading.Condition()
        self.deposits: dict[int, dict[int, tuple[str, np.ndarray]]] = {}
        self.taken: dict[int, int] = {}
        self.mail: dict[tuple[int, str], str] = {}
        self.offers: dict[tuple[int, int], Any] = {}  # (number of the offer, rank)


class _Pending:
    def __init__(self, transport: LocalTransport, number: int, take: Any):
        self._transport, self._number, self._take = transport, number, take

    def wait(self, seconds: float) -> bool:
        table = self._transport.table
        deadline = time.monotonic() + seconds
        with table.changed:
            while len(table.deposits.get(self._number, {})) < table.world:
                left = deadline - time.monotonic()
                if left <= 0 or not table.changed.wait(left):
                    return False
            deposits = table.deposits[self._number]
            calls = {call for call, _ in deposits.values()}
            if len(calls) > 1:
                raise RuntimeError("ranks made different calls: " + ", ".join(f"rank {k} {deposits[k][0]}" for k in sorted(deposits)))
            self._take([deposits[k][1] for k in range(table.world)])
            table.taken[self._number] = table.taken.get(self._number, 0) + 1
            if table.taken[self._number] == table.world:
                del table.deposits[self._number], table.taken[self._number]
        return True


class LocalTransport:
    name = "local"
    keeper = -1
    latency = 20e-6  # waking a thread; a guess, which only the choice of exchanges reads
    bandwidth = 5e9  # memcpy of one core; as above

    def __init__(self, table: _Table, rank: int):
        self.table, self.rank, self.world = table, rank, table.world
        self._number = self._offers = 0

    def _start(self, call: str, sent: np.ndarray, take: Any) -> _Pending:
        self._number += 1
        with self.table.changed:
            self.table.deposits.setdefault(self._number, {})[self.rank] = (f"{call} of {sent.nbytes} bytes", sent.copy())
            self.table.changed.notify_all()
        return _Pending(self, self._number, take)

    def all_gather(self, sent: Any, received: Any) -> _Pending:
        into = as_bytes(received).reshape(self.world, -1)

        def take(parts: list[np.ndarray]) -> None:
            for k, part in enumerate(parts):
                into[k] = part

        return self._start("all_gather", as_bytes(sent), take)

    gather_record = all_gather

    def all_to_all(self, sent: Any, received: Any) -> _Pending:
        into = as_bytes(received).reshape(self.world, -1)

        def take(parts: list[np.ndarray]) -> None:
            for k, part in enumerate(parts):
                into[k] = part.reshape(self.world, -1)[self.rank]

        return self._start("all_to_all", as_bytes(sent), take)

    def shift(self, sent: Any, received: Any) -> _Pending:
        into = as_bytes(received)

        def take(parts: list[np.ndarray]) -> None:
            into[:] = parts[self.rank - 1]

        return self._start("shift", as_bytes(sent), take)

    def no_share(self, like: Any) -> str | None:
        return None  # threads address all memory

    def offer(self, like: Any, shape: tuple[int, ...]) -> Any:
        mine = empty_part_like(like, shape)
        self._offers += 1
        with self.table.changed:
            self.table.offers.pop((self._offers - 1, self.rank), None)  # all ranks have taken it
            self.table.offers[self._offers, self.rank] = mine
        return mine

    def offered(self, mine: Any) -> tuple[list[Any], Any]:
        with self.table.changed:
            return [self.table.offers[self._offers, rank] for rank in range(self.world)], None

    def post(self, key: str, text: str) -> None:
        with self.table.changed:
            self.table.mail[self.rank, key] = text

    def read(self, rank: int, key: str) -> str | None:
        with self.table.changed:
            return self.table.mail.get((rank, key))


def local_transports(world: int) -> list[LocalTransport]:
    if isinstance(world, bool) or not isinstance(world, int) or world < 1:
        raise ArgumentError(f"Group.local: world: {shown(world)}, expected an integer >= 1")
    table = _Table(world)
    return [LocalTransport(table, rank) for rank in range(world)]

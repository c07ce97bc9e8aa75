# SPDX-License-Identifier: Apache-2.0
"""Ranks of an MPI communicator, through mpi4py. The mailbox is messages to every other rank."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from quire.errors import UnsupportedError

from quire_distributed._local_transport import as_bytes

_TAG = 7701  # tag of mailbox messages, on a communicator of their own


def _import_mpi() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: no MPI library was found
        raise UnsupportedError(f"Group.from_mpi: mpi4py is not usable ({error}); pip install mpi4py, and an MPI library") from error
    return MPI


class _Request:
    """Requests of one exchange, and the memory that they use."""

    def __init__(self, requests: list[Any], keep: Any):
        self._requests, self._keep = requests, keep

    def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        pause = 0.0
        while not all([request.Test() for request in self._requests]):
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)  # 0 at first: an exchange of a step takes less than a timer's resolution
            pause = min(pause + 2e-6, 1e-3)
        return True


class MpiTransport:
    name = "mpi"
    keeper = -1
    latency = 10e-6  # seconds of a collective between processes of one host; a guess, used only to choose an exchange
    bandwidth = 2e9  # bytes per second; a guess, too

    def __init__(self, comm: Any):
        mpi = _import_mpi()
        comm = mpi.COMM_WORLD if comm is None else comm
        self._data, self._mail = comm.Dup(), comm.Dup()
        self.rank, self.world = comm.Get_rank(), comm.Get_size()
        self._byte = mpi.BYTE
        self._sent: list[Any] = []
        self._box: dict[tuple[int, str], str] = {}

    def all_gather(self, sent: Any, received: Any) -> _Request:
        part, whole = as_bytes(sent), as_bytes(received)
        return _Request([self._data.Iallgather([part, self._byte], [whole, self._byte])], (part, whole))

    gather_record = all_gather

    def all_to_all(self, sent: Any, received: Any) -> _Request:
        parts, whole = as_bytes(sent), as_bytes(received)
        return _Request([self._data.Ialltoall([parts, self._byte], [whole, self._byte])], (parts, whole))

    def shift(self, sent: Any, received: Any) -> _Request:
        part, whole = as_bytes(sent), as_bytes(received)
        receive = self._data.Irecv([whole, self._byte], source=(self.rank - 1) % self.world, tag=_TAG)
        send = self._data.Isend([part, self._byte], dest=(self.rank + 1) % self.world, tag=_TAG)
        return _Request([receive, send], (part, whole))

    def no_share(self, like: Any) -> str | None:
        return "these exchange host memory by MPI"

    def post(self, key: str, text: str) -> None:
        message = np.frombuffer(f"{key}\n{text}".encode(), np.uint8).copy()
        for rank in range(self.world):
            if rank != self.rank:
                self._sent.append((self._mail.Isend([message, self._byte], dest=rank, tag=_TAG), message))

    def read(self, rank: int, key: str) -> str | None:
        while self._mail.Iprobe(source=rank, tag=_TAG):
            message = bytearray(4096)
            self._mail.Recv([message, self._byte], source=rank, tag=_TAG)
            found, _, text = bytes(message).rstrip(b"\0").decode(errors="replace").partition("\n")
            self._box[rank, found] = text
        return self._box.get((rank, key))

# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks: what is exchanged, and how every rank learns that another one failed.

A transport (torch.distributed, MPI, threads) starts exchanges and keeps a mailbox. A group waits for exchanges in slices of time; in
between it looks into the mailbox. A rank that fails posts why, and the others raise. A rank that waited for the whole time limit
posts that it did; the ranks that post nothing within a moment are those that are missing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from quire import _quire
from quire._messages import shown
from quire.errors import ArgumentError, Error, UnsupportedError

_SLICE = 0.2  # seconds between looks into the mailbox; longer: failures of others are noticed later
_MOMENT = 1.0  # seconds that ranks have to say that they wait, after the time limit; too short: ranks that are alive are named
_LAST_WORDS = 3.0  # seconds that the keeper of the mailbox waits for readers; too short: others name the keeper instead
_TEXT_BYTES = 512  # length of a failure's text in a record of facts; a longer text is cut
DEFAULT_TIMEOUT = 30.0  # seconds; longer than a step, shorter than a user's patience


class RankError(Error):
    """Another rank of a group failed, or did not come within the time limit; the text and ``ranks`` name it."""

    code = "rank_failed"
    ranks: tuple[int, ...] = ()


class Pending(Protocol):
    """An exchange under way."""

    def wait(self, seconds: float) -> bool:
        """True when it has ended within so many seconds. Raises what the transport says if it failed."""


class Transport(Protocol):
    rank: int
    world: int
    name: str
    #: Seconds that one exchange takes at least, and bytes a second that a rank receives; for the choice of exchanges.
    latency: float
    bandwidth: float
    #: The rank whose end is the mailbox's end; -1 = none.
    keeper: int

    def all_gather(self, sent: Any, received: Any) -> Pending: ...
    def all_to_all(self, sent: Any, received: Any) -> Pending: ...
    def shift(self, sent: Any, received: Any) -> Pending:
        """Rank k receives what rank k - 1 sends, rank 0 what the last one sends."""

    def gather_record(self, sent: np.ndarray, received: np.ndarray) -> Pending:
        """all_gather of bytes in host memory, wherever the tensors of this group are."""

    def no_share(self, like: Any) -> str | None:
        """Why ranks cannot address each other's memory where ``like`` is, or None."""

    def offer(self, like: Any, shape: tuple[int, ...]) -> Any:
        """Memory where ``like`` is, of its type, for all ranks to address."""

    def offered(self, mine: Any) -> tuple[list[Any], Any]:
        """(what the ranks offered last, as this rank addresses it, element k rank k's; what keeps it addressed). Every rank has made its
        offer."""

    def post(self, key: str, text: str) -> None: ...
    def read(self, rank: int, key: str) -> str | None:
        """Reads the text that a rank posted under a key, or None. Does not wait."""


class Group:
    """Ranks that work on the same requests. Every rank makes the same calls in the same order.

    Made by :meth:`from_torch`, :meth:`from_mpi` or :meth:`local`. timeout: seconds until a call that waits for another rank raises
    :class:`quire_distributed.RankError` and names it. A group that raised one is broken: later calls raise the same.
    """

    def __init__(self, transport: Transport, timeout: float = DEFAULT_TIMEOUT):
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or _quire.duration_error(timeout, 1e-6):
            raise ArgumentError(f"timeout: {shown(timeout)}, expected finite seconds > 0")
        self._transport = transport
        self.rank = transport.rank
        self.world = transport.world
        self.timeout = float(timeout)
        self._exchanges = 0  # so far; the same on every rank
        self._broken: RankError | None = None

    @staticmethod
    def from_torch(group: Any = None, timeout: float = DEFAULT_TIMEOUT) -> Group:
        """The ranks of a torch.distributed process group (NCCL or gloo; None = the default one). All its ranks call this.

        Raises UnsupportedError if torch is not installed, ArgumentError if torch.distributed is not initialised.
        """
        from quire_distributed._torch_transport import TorchTransport

        return Group(TorchTransport(group), timeout)

    @staticmethod
    def from_mpi(comm: Any = None, timeout: float = DEFAULT_TIMEOUT) -> Group:
        """The ranks of an mpi4py communicator (None = MPI.COMM_WORLD), for arrays in host memory. All its ranks call this.

        Start the program by ``mpiexec -n 2 python -m mpi4py script.py``: then a rank that raises ends the others.
        Raises UnsupportedError if mpi4py is not installed.
        """
        from quire_distributed._mpi_transport import MpiTransport

        return Group(MpiTransport(comm), timeout)

    @staticmethod
    def local(world: int, timeout: float = DEFAULT_TIMEOUT) -> list[Group]:
        """The ranks of this process, for tests: a thread uses element k as rank k. Arrays in host memory."""
        from quire_distributed._local_transport import local_transports

        return [Group(transport, timeout) for transport in local_transports(world)]

    @property
    def name(self) -> str:
        """The transport: "gloo", "nccl", "mpi", "local"."""
        return self._transport.name

    @property
    def latency(self) -> float:
        """Seconds that the choice of exchanges takes one exchange to last at least."""
        return self._transport.latency

    @property
    def bandwidth(self) -> float:
        """Bytes a second that the choice of exchanges takes a rank to receive."""
        return self._transport.bandwidth

    def __repr__(self) -> str:
        return f"<quire_distributed.Group rank {self.rank} of {self.world}, {self.name}>"

    def all_gather(self, sent: Any, received: Any) -> None:
        """received[k] = what rank k sent. received: contiguous [world, *sent.shape], of the dtype of sent."""
        _check_buffers("all_gather", sent, received, (self.world, *sent.shape))
        self._exchange("all_gather", lambda: self._transport.all_gather(sent, received))

    def all_to_all(self, sent: Any, received: Any) -> None:
        """sent[k] goes to rank k, received[k] comes from rank k. Both are contiguous [world, ...] of one shape and dtype."""
        if sent.shape[0] != self.world:
            raise ArgumentError(f"all_to_all: sent: {sent.shape[0]} parts, expected {self.world}")
        _check_buffers("all_to_all", sent, received, tuple(sent.shape))
        self._exchange("all_to_all", lambda: self._transport.all_to_all(sent, received))

    def shift(self, sent: Any, received: Any) -> Callable[[], None]:
        """Starts to send to rank + 1, and to receive from rank - 1 (mod world); the function that it returns waits until both are done.

        received: contiguous, of the shape and dtype of sent. Neither may be written, nor received read, before that.
        """
        _check_buffers("shift", sent, received, tuple(sent.shape))
        with self._transport_errors("shift"):
            pending = self._begin(lambda: self._transport.shift(sent, received))
        return lambda: self._finish("shift", pending)

    def require_share(self, like: Any) -> None:
        """Raises UnsupportedError where ranks cannot address each other's memory. Exchanges nothing."""
        reason = self._transport.no_share(like)
        if reason is not None:
            raise UnsupportedError(f'exchange: "copy" copies between GPUs of one host, whose ranks exchange by NCCL, but {reason}')

    def share(self, like: Any, shape: tuple[int, ...]) -> tuple[list[Any], Any]:
        """Memory of this shape where ``like`` is, of its type, on every rank; element k is that of rank k, and all ranks address it.

        All ranks call it, and keep both results, the memory and what maps it, for as long as one of them uses it. It waits for the device. Contents are not initialised.
        Raises UnsupportedError as :meth:`require_share`, and where a rank reads something else than another one wrote; RankError.
        """
        with self.guard():
            self.require_share(like)
            mine = self._transport.offer(like, shape)
            first = mine.reshape(-1)[:1]
            first[:] = self.rank
            int(first[0])  # on a GPU: it is written
        self._barrier("share")
        with self.guard():
            parts, mapping = self._transport.offered(mine)
            seen = [int(part.reshape(-1)[0]) for part in parts]
            if seen != list(range(self.world)):
                raise UnsupportedError(f"share: the memory of ranks 0 to {self.world - 1} begins with {seen}, expected their numbers")
        self._barrier("share")  # every rank has looked: from here on memory may be written
        return parts, mapping

    def _barrier(self, what: str) -> None:
        """Waits for all ranks, in host memory."""
        self._exchange(what, lambda: self._transport.gather_record(np.zeros(1, np.uint8), np.zeros((self.world, 1), np.uint8)))

    def agree(self, facts: dict[str, int], error: BaseException | None = None) -> None:
        """Every rank says the same about a step, or every rank raises ContractError (Q-D05), which names fact, rank and values.

        One exchange of a record per rank. error: why this rank cannot go on; then the other ranks raise a RankError with its text, and
        this one raises the error itself.
        """
        names = list(facts)
        values = np.array([0 if error is None else 1, len(names), *facts.values()], np.int64)
        text = ("" if error is None else f"{type(error).__name__}: {error}").encode()[:_TEXT_BYTES]
        record = np.zeros(8 * (2 + _MOST_FACTS) + _TEXT_BYTES, np.uint8)
        record[: values.nbytes] = values.view(np.uint8)
        record[len(record) - _TEXT_BYTES :][: len(text)] = np.frombuffer(text, np.uint8)
        received = np.zeros((self.world, len(record)), np.uint8)
        self._exchange("agree", lambda: self._transport.gather_record(record, received))
        failed = [k for k in range(self.world) if received[k, :8].view(np.int64)[0] != 0]
        if error is not None:
            self._broken = RankError(f"rank {self.rank} failed: {error}")
            raise error
        if failed:
            said = bytes(received[failed[0], len(record) - _TEXT_BYTES :]).rstrip(b"\0").decode(errors="replace")
            raise self._break(failed, f"rank {failed[0]} failed: {said}")
        rows = np.ascontiguousarray(received[:, : 8 * (2 + len(names))]).view(np.int64)[:, 1:]
        _quire.check_ranks(["number of facts", *names], rows.ravel().tolist()).raise_if_any()

    def fail(self, error: BaseException | str) -> None:
        """Tells the other ranks that this one cannot go on: what they wait for raises RankError with this text."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        if self._broken is None:
            self._broken = RankError(f"rank {self.rank} failed: {text}")
            with contextlib.suppress(Exception):  # the mailbox may have gone with its rank
                self._transport.post("failed", text)
                self._wait_until_heard([self.rank])

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Guards code between exchanges: tells the other ranks of an exception, for which they would wait until the time limit."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    def _exchange(self, what: str, start: Callable[[], Pending]) -> None:
        with self._transport_errors(what):
            pending = self._begin(start)
        self._finish(what, pending)

    def _begin(self, start: Callable[[], Pending]) -> Pending:
        if self._broken is not None:
            raise self._broken
        self._exchanges += 1
        return start()

    def _finish(self, what: str, pending: Pending) -> None:
        deadline = time.monotonic() + self.timeout
        with self._transport_errors(what):
            while not pending.wait(min(_SLICE, max(deadline - time.monotonic(), 0.001))):
                self._raise_if_one_failed()
                if time.monotonic() >= deadline:
                    raise self._missing(f"{what}: {{}} did not come within {self.timeout:g} s")

    @contextlib.contextmanager
    def _transport_errors(self, what: str) -> Iterator[None]:
        """Errors of the transport name the ranks that are gone."""
        try:
            yield
        except (RankError, ArgumentError):
            raise
        except Exception as error:  # error of the transport, such as a closed connection
            self._raise_if_one_failed()
            raise self._missing(f"{what}: {{}} is gone ({_first_line(error)})") from error

    def _raise_if_one_failed(self) -> None:
        for rank in range(self.world):
            try:
                text = self._transport.read(rank, "failed") if rank != self.rank else None
            except Exception:  # the mailbox is gone, and the exchange that waits will say so
                return
            if text is not None:
                raise self._break([rank], f"rank {rank} failed: {text}")

    def _missing(self, text: str) -> RankError:
        """Names the ranks that do not say that they wait for the same exchange."""
        key = f"waits {self._exchanges}"
        others = {rank for rank in range(self.world) if rank != self.rank}
        try:
            self._transport.post(key, "")
            deadline = time.monotonic() + _MOMENT
            while others and time.monotonic() < deadline:
                self._raise_if_one_failed()
                others = {rank for rank in others if self._transport.read(rank, key) is None}
                time.sleep(0.02)
        except RankError as error:
            return error
        except Exception as error:
            keeper = self._transport.keeper
            return self._break([keeper], text.format(f"rank {keeper}, which keeps the mailbox,") + f"; {_first_line(error)}")
        return self._break(sorted(others), text.format(_words(others)))

    def _break(self, ranks: Sequence[int], text: str) -> RankError:
        error = RankError(text)
        error.ranks = tuple(ranks)
        self._broken = error
        with contextlib.suppress(Exception):
            self._transport.post("heard", "")
            self._wait_until_heard([self.rank, *ranks])
        return error

    def _wait_until_heard(self, but: Sequence[int]) -> None:
        """The rank that keeps the mailbox stays until the others have read it: what it knows would go with it."""
        waiting = set(range(self.world)) - set(but) if self.rank == self._transport.keeper else set()
        deadline = time.monotonic() + _LAST_WORDS
        while waiting and time.monotonic() < deadline:
            waiting = {rank for rank in waiting if self._transport.read(rank, "heard") is None}
            time.sleep(0.02)


_MOST_FACTS = 48


def _words(ranks: Any) -> str:
    return ", ".join(f"rank {rank}" for rank in sorted(ranks)) or "a message"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


def _check_buffers(what: str, sent: Any, received: Any, shape: tuple[int, ...]) -> None:
    if tuple(received.shape) != shape or received.dtype != sent.dtype:
        raise ArgumentError(
            f"{what}: received: {received.dtype} {list(received.shape)}, expected {sent.dtype} {list(shape)}"
        )

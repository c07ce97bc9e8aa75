# SPDX-License-Identifier: Apache-2.0
"""Defaults of arguments: by ``with settings(...)``, or else by the variables of :mod:`quire_vllm.ops`."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import NamedTuple

import quire_vllm.ops as package  # read in each call, as users may set its variables
from quire.errors import ArgumentError


class _Settings(NamedTuple):
    wait: bool | None = None
    fp8_flavour: str | None = None


_settings: contextvars.ContextVar[_Settings] = contextvars.ContextVar("quire_vllm.ops.settings", default=_Settings())


@contextlib.contextmanager
def settings(*, wait: bool | None = None, fp8_flavour: str | None = None) -> Iterator[None]:
    """Sets defaults of arguments for calls inside the ``with``, in this thread or asyncio task alone.

    ``wait``: True waits for the device in each call and raises what it found. ``fp8_flavour``: "fn" or "fnuz". None leaves what is set.
    """
    if wait is not None and not isinstance(wait, bool):
        raise ArgumentError(f"wait: {wait!r}, expected True, False or None")
    _known_flavour(fp8_flavour)
    outer = _settings.get()
    token = _settings.set(
        _Settings(outer.wait if wait is None else wait, outer.fp8_flavour if fp8_flavour is None else fp8_flavour)
    )
    try:
        yield
    finally:
        _settings.reset(token)


def _known_flavour(flavour: str | None) -> None:
    if flavour not in (None, "fn", "fnuz"):
        raise ArgumentError(f'fp8_flavour: "{flavour}" is neither "fn" nor "fnuz"')


def waits(given: bool | None) -> bool:
    """Whether a call waits for its device."""
    if given is None:
        given = _settings.get().wait
    return package.wait if given is None else given


def flavour(given: str | None) -> str:
    """The fp8 type that a call means by "fp8": "fn" or "fnuz"."""
    if given is None:
        given = _settings.get().fp8_flavour
    chosen: str = package.fp8_flavour if given is None else given
    if chosen not in ("fn", "fnuz"):
        _known_flavour(chosen)
    return chosen

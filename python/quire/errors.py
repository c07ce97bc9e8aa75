# SPDX-License-Identifier: Apache-2.0
"""Exceptions of Quire. ``str(error)`` is the text of the C++ ``Status``; ``error.code`` is its stable code.

``error.rule`` is the contract rule that was broken (``"Q-T03"``), or ``""``. All of them derive from :class:`Error`.
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "ContractError",
    "DeviceError",
    "Error",
    "FileError",
    "InternalError",
    "OutOfMemoryError",
    "OutOfPagesError",
    "ParseError",
    "UnsupportedError",
]


class Error(RuntimeError):
    """Base of all Quire errors."""

    code: str = "internal_error"
    rule: str = ""


class ArgumentError(Error, ValueError, TypeError):
    """An argument of the wrong name, type or value that no contract rule covers."""

    code = "invalid_argument"


class ContractError(Error, ValueError):
    """A rule of the contract (contract.md) is broken; ``rule`` names it."""

    code = "contract_violation"


class UnsupportedError(Error, NotImplementedError):
    """Valid, but this build, device or forced kernel refuses it; the text says why."""

    code = "unsupported"


class ParseError(Error, ValueError):
    """Malformed text or file: a problem line, a capture."""

    code = "parse_error"


class FileError(Error, OSError):
    """The operating system refused to open, read or write a file."""

    code = "io_error"


class OutOfPagesError(Error):
    """The page pool cannot serve the request now; preempt a request or wait."""

    code = "out_of_pages"


class OutOfMemoryError(Error, MemoryError):
    """The host's memory is used up; nothing was written."""

    code = "out_of_memory"


class DeviceError(Error):
    """A GPU or its driver reported a failure; the message names the call and the driver's words."""

    code = "device_error"


class InternalError(Error):
    """Quire broke one of its own promises; please report it."""

    code = "internal_error"

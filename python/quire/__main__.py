# SPDX-License-Identifier: Apache-2.0
"""The ``quire`` command of the Python package: ``quire`` and ``python -m quire`` are the same.

Every verb is the C++ program's, compiled into the extension module. ``quire verify`` with ``--target`` or ``--lines`` judges attention that
Python can call, and is answered here. Exit codes: 0 right, 1 a finding, 2 wrong usage or malformed input, 3 a file, 4 not here, 70 a bug.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from typing import Any

import quire
from quire import _quire, targets
from quire._progress import Progress
from quire._supports import from_words

OK, FINDINGS, USAGE, IO, UNSUPPORTED, INTERNAL = 0, 1, 2, 3, 4, 70
_EXIT_CODES = {
    "contract_violation": FINDINGS,
    "invalid_argument": USAGE,
    "parse_error": USAGE,
    "io_error": IO,
    "unsupported": UNSUPPORTED,
    "out_of_memory": UNSUPPORTED,
    "out_of_pages": UNSUPPORTED,
    "device_error": UNSUPPORTED,
}

_PYTHON_OPTIONS = ("--target", "--lines", "--supports")  # options of verify that only this program has, not the C++ one
_HELP = f"""
In Python's command only:
  --target NAME               test what Python can call: {', '.join(targets.names())}, module:function or FILE.py:function
  --lines FILE                a file of problem lines; blank lines and # are skipped
  --supports NAME=VALUE       what the kernel takes; other cases are not asked: "kscale=none vscale=none lse=0 layout=nhd,hnd strides=none"
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="quire", description="Test attention that Python can call")
    commands = parser.add_subparsers(dest="command", required=True)
    verify = commands.add_parser("verify", help="test an implementation with the conformance suite, and the suite with planted bugs")
    which = verify.add_mutually_exclusive_group()
    which.add_argument("--target", metavar="NAME", help=f"{', '.join(targets.names())}, module:function or FILE.py:function")
    which.add_argument("--backend", metavar="NAME", default="cpu", help="a kernel of Quire by name, or cpu (the default)")
    verify.add_argument("--matrix", metavar="NAME", action="append", help="notes, hazards (the default), random or all")
    verify.add_argument("--line", metavar="LINE", action="append", default=[], help="a problem line of your own; may be given again")
    verify.add_argument("--lines", metavar="FILE", action="append", default=[], help="a file of problem lines; blank lines and # are skipped")
    verify.add_argument("--quick", action="store_true", help="a subset of every matrix, in less than a minute")
    verify.add_argument("--no-power", action="store_true", help="plant no bugs: faster, but the report does not say which bugs the cases would catch")
    verify.add_argument("--types", metavar="Q:KV", help="cases in these query:cache types only, as bf16:bf16,f16:fp8_e4m3fn")
    verify.add_argument("--dims", metavar="N", help="cases with these head_dims only, as 64,128")
    verify.add_argument("--layouts", metavar="NAME", help="cases in these cache layouts only, as nhd,hnd")
    verify.add_argument("--supports", metavar="NAME=VALUE", action="append", default=[], help="what the kernel takes, as \"kscale=none lse=0\"; other cases are not asked; may be given again")
    verify.add_argument("--soak", type=float, metavar="MINUTES", help="test new random batches for this many minutes, or until Ctrl-C; resumable")
    verify.add_argument("--soak-folder", default="quire-soak", metavar="DIR", help="state, log and findings of a soak (default: quire-soak)")
    verify.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the random matrix (default: 1)")
    verify.add_argument("--cases", type=int, default=200, metavar="N", help="cases of the random matrix (default: 200)")
    verify.add_argument("--json", action="store_true", help="print one JSON object")
    verify.add_argument("--html", metavar="FILE", help="write one self-contained page with pictures")
    return parser


def _lines_of(path: str) -> list[str]:
    with open(path, encoding="utf-8") as file:
        found = (line.partition("#")[0].strip() for line in file)
        return [line for line in found if line]


def _words(text: str | None) -> list[str]:
    return [word for word in (text or "").split(",") if word]


def _dims(text: str | None) -> list[int]:
    try:
        return [int(word) for word in _words(text)]
    except ValueError as error:
        raise quire.ArgumentError(f"--dims {text}: expected whole numbers, as 64,128") from error


def _soak(args: argparse.Namespace, target: Any) -> tuple[int, str]:
    """Ctrl-C ends it like time does."""
    with Progress(not args.json) as progress:
        result = quire.soak(
            target, args.soak, args.soak_folder, seed=args.seed, types=_words(args.types), dims=_dims(args.dims),
            layouts=_words(args.layouts), supports=from_words(args.supports), progress=progress.stage,
        )  # fmt: skip
    code = OK if result else FINDINGS
    if args.json:
        return code, _quire.soak_json(result, args.soak_folder, code)
    return code, f"{result.text}state, log and findings: {args.soak_folder}"


def _verify(args: argparse.Namespace) -> tuple[int, str]:
    """The exit code and what to print."""
    target = targets.load(args.target) if args.target else args.backend
    if args.soak is not None:
        return _soak(args, target)
    for path in (*args.lines, (args.target or "").rpartition(":")[0]):
        if args.html and os.path.exists(args.html) and os.path.exists(path) and os.path.samefile(args.html, path):
            raise quire.ArgumentError(f"--html {args.html}: would overwrite the input {path}; name another file")
    lines = [*args.line, *(line for path in args.lines for line in _lines_of(path))]
    matrices = args.matrix or ([] if lines else ["hazards"])
    with Progress(not args.json) as progress:
        verdict = quire.verify(
            target, matrices=matrices, lines=lines, quick=args.quick, power=not args.no_power, seed=args.seed,
            random_cases=args.cases, types=_words(args.types), dims=_dims(args.dims), layouts=_words(args.layouts),
            supports=from_words(args.supports), progress=progress.case,
        )  # fmt: skip
    code = OK if verdict else FINDINGS
    if args.html:
        _quire.write_file(args.html, verdict.html)
    if args.json:
        return code, _quire.verify_json(verdict, code)
    return code, verdict.text + (f"wrote {args.html}" if args.html else "")


def _exit_code(error: Exception) -> int:
    if isinstance(error, quire.Error):
        return _EXIT_CODES.get(error.code, INTERNAL)
    return IO if isinstance(error, OSError) else USAGE


def _judge(words: list[str]) -> int:
    """``quire verify`` of what Python can call."""
    args = _parser().parse_args(words)
    if os.getcwd() not in sys.path:  # a module beside the caller, as `python -m` finds it
        sys.path.insert(0, os.getcwd())
    try:
        code, text = _verify(args)
    except (quire.Error, ImportError, AttributeError, OSError) as error:
        print(f"quire: error: {error}", file=sys.stderr)
        return _exit_code(error)
    try:
        print(text.rstrip("\n"), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _run(words: list[str]) -> int:
    """The C++ program's verbs. Ctrl-C ends the process at once, as it ends the program: Python would wait for the call to return."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout.flush()
    return _quire.run_command_line(["quire", *words])


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    verify = words[:1] == ["verify"]
    if verify and any(word.split("=")[0] in _PYTHON_OPTIONS for word in words):
        return _judge(words)
    code = _run(words)
    if verify and ("-h" in words or "--help" in words):
        print(_HELP)
    return code


if __name__ == "__main__":
    sys.exit(main())

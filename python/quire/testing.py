# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: attention outputs judged by the derived tolerance, and a diagnosis in the failure message.

::

    def test_my_kernel(poisoned_cache):                        # runs twice: with NaN, and with finite garbage where nothing may be read
        case = poisoned_cache("q=bf16 heads=8:2 d=64 page=16 reqs=3x1@200,50@7")
        out = my_kernel(case.batch, case.cache)
        assert_attention_close(out, case)

The plugin is found by pytest wherever Quire is installed. ``--quire-captures DIR`` says where the inputs and output of a failing
assertion are saved; without it they go to pytest's temporary folder. :func:`assert_attention_close` also works without pytest's plugin.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from typing import Any

import pytest

from quire import _quire
from quire.errors import ArgumentError, Error
from quire.judging import diagnose

__all__ = ["assert_attention_close", "poisoned_cache", "quire_case"]

POISONS = ("nan", "garbage")
_CAUSE = ("verdict", "profile", "rule", "pattern", "cause", "as good", "next")
_SUSPECTS = 3
_folder: Callable[[], str] | None = None
"""Where captures go; set while pytest runs with the plugin."""


def assert_attention_close(
    out: Any,
    batch: Any,
    cache: Any = None,
    options: Any = None,
    lse: Any = None,
    *,
    weights: str | None = None,
    profile: str | None = None,
    tokens: list[int] | None = None,
) -> None:
    """Asserts that ``out`` is the attention of ``batch`` over ``cache``, within the tolerance that numerics.md derives.

    out: like batch.query, of any array library in host memory. batch: a :class:`quire.Batch`, or a :class:`quire.Case` with its own cache
    and options. lse: checked too if given. weights: "f16" or "bf16" for kernels that round softmax weights to that type, as
    FlashAttention and vLLM's kernels do. profile: all that the kernel may round, in the words of numerics.md, for those that round
    more: "weights=bf16,scores=bf16", "weights=bf16,dequantised", "products=tf32". tokens: compare these rows only, if the fp64 reference of all takes too long.

    The failure message holds what is wrong and where as a rule, the cause or what is likely, or else plain observations and at most three
    suspects, the problem line, and the path of a capture that ``quire diagnose`` reads.
    """
    __tracebackhide__ = True
    if isinstance(batch, _quire.Case):
        if cache is not None or options is not None:
            raise ArgumentError("cache, options: a Case has its own")
        batch, cache, options = batch.batch, batch.cache, batch.options
    if out is None:
        raise ArgumentError("out: is None; pass the output that the kernel returned or wrote")
    if cache is None:
        raise ArgumentError("cache: is None; give batch, cache and options, or a quire.Case")
    if weights is not None:
        if weights not in ("f32", "f16", "bf16"):
            raise ArgumentError(f'weights: "{weights}" is none of f32, f16, bf16')
        profile = f"weights={weights}" + ("" if profile is None else f",{profile}")
    expected = _quire.reference(batch, cache, options, tokens, profile)
    shown, shown_lse = (array if tokens is None or array is None else _rows(array, tokens) for array in (out, lse))
    found = _quire.compare(shown, shown_lse, expected, batch.dtype)
    if not found.ok:
        raise AssertionError(_message(found.text, out, lse, batch, cache, options, profile))


def _rows(array: Any, tokens: list[int]) -> Any:
    return _quire.bits(array, "out", None)[0][tokens] if not hasattr(array, "index_select") else array[tokens]


def _message(text: str, out: Any, lse: Any, batch: Any, cache: Any, options: Any, profile: str | None) -> str:
    lines = [text, ""]
    try:
        lines += _explanation(diagnose(batch, cache, options, observed=out, lse=lse, profile=profile), profile)
    except Error as error:  # the assertion is what matters
        lines.append(f"diagnosis: none ({error})")
    lines.append(_saved(out, lse, batch, cache, options, profile))
    return "\n".join(lines)


def _explanation(diagnosis: _quire.Diagnosis, profile: str | None) -> list[str]:
    """The lines of the report that fit into a failure message; the capture has the rest."""
    unknown = diagnosis.verdict == "unknown cause"
    shown, suspects, label = [], 0, ""
    for line in diagnosis.text.splitlines():
        own, words = line[:9].strip(), line[9:]
        label = own or label
        suspects += label == "suspect"
        if label in _CAUSE or (unknown and (label == "fact" or (label == "suspect" and suspects <= _SUSPECTS))):
            shown.append(f"{own + ':' if own else '':<9}{words}")
    if diagnosis.verdict == "right" and profile is None and diagnosis.profile != "plain":
        shown.append(f'{"":9}if the kernel may do that, say so: profile="{diagnosis.profile}"')
    return [*shown, f"problem: {diagnosis.problem}"]


def _saved(out: Any, lse: Any, batch: Any, cache: Any, options: Any, profile: str | None) -> str:
    """Saves a capture; says where, or why not."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "assertion").rsplit(" ", 1)[0].rsplit("/", 1)[-1]
    stem = re.sub(r"[^A-Za-z0-9_.=-]+", "-", test).strip("-")[:100]
    try:
        folder = _folder() if _folder is not None else tempfile.mkdtemp(prefix="quire-")
        os.makedirs(folder, exist_ok=True)
        path, number = os.path.join(folder, f"{stem}.safetensors"), 1
        while os.path.exists(path):
            number += 1
            path = os.path.join(folder, f"{stem}-{number}.safetensors")
        notes = {"producer": "quire.testing", "test": test}
        _quire.write_capture(path, batch, cache, options, out, lse, notes, batch.dtype)
    except (Error, OSError) as error:
        return f"capture: none ({error})"
    named = f"--profile {profile} " if profile else ""
    return f"capture: {path} (look with: quire diagnose {named}{path})"


# --- fixtures ---


@pytest.fixture
def quire_case() -> Callable[[str], _quire.Case]:
    """A function from a problem line to a case, with NaN in everything that must not be read."""
    return _quire.make_case


@pytest.fixture(params=POISONS)
def poisoned_cache(request: pytest.FixtureRequest) -> Callable[[str], _quire.Case]:
    """A function from a problem line to a case; the test runs once with NaN and once with finite garbage where nothing may be read.

    Both are needed: a kernel that filters NaN passes the first, one that multiplies by a weight of zero passes the second.
    """

    def make(line: str) -> _quire.Case:
        case = _quire.make_case(line)
        _quire.poison_case(case, request.param)
        return case

    return make


# --- hooks ---


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("quire").addoption(
        "--quire-captures", metavar="DIR", help="where failing assert_attention_close() calls save what they saw"
    )


def pytest_configure(config: pytest.Config) -> None:
    global _folder
    chosen = config.getoption("--quire-captures")
    made: list[str] = []

    def folder() -> str:
        if chosen:
            return os.path.abspath(chosen)
        if not made:
            made.append(str(config._tmp_path_factory.mktemp("quire-captures", numbered=False)))  # type: ignore[attr-defined]
        return made[0]

    _folder = folder


def pytest_unconfigure() -> None:
    global _folder
    _folder = None

# SPDX-License-Identifier: Apache-2.0
"""Words for wrong calls: which argument, what it is, what was expected. Costs nothing until a call fails.

nanobind's TypeErrors list every signature and the types of the call, and leave the search to the reader.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import re
import reprlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from quire._fields import NAMES
from quire.errors import ArgumentError

FLOATING_DTYPES = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8_e4m3fn",
    "float8_e4m3fnuz": "fp8_e4m3fnuz",
    "float8_e5m2": "fp8_e5m2",
    "float8_e5m2fnuz": "fp8_e5m2fnuz",
    "float8_e8m0fnu": "fp8_e8m0",
}
DTYPES = {**FLOATING_DTYPES, "int8": "i8", "int32": "i32", "int64": "i64", "fp8_ds_mla": "fp8_ds_mla"}

F = TypeVar("F", bound=Callable[..., Any])


_NO_PART = {
    r"(.*_)?bias|score_mod|mask|(attn|attention|padding|key_padding)_mask": (
        "a bias or a mask as an array of scores is no part of Quire; alibi_slopes, sinks and logits_soft_cap change scores, and causal, "
        "sliding_window, attention_chunk, prefix_len, spans and tree_mask hide keys, as seq_lens hides padding"
    ),
    r".*zero(s|_?points?)?": (
        "zero points are no part of Quire, whose codes are symmetric; int8 codes (uint8 codes - 128, if all zero points are 128) have "
        "scales alone, and quire.append() writes rows with a scale for each token and head"
    ),
}
"""Patterns of arguments that other libraries have and Quire has not, and what to use instead."""


def _no_part(name: str) -> str:
    return next((text for pattern, text in _NO_PART.items() if re.fullmatch(pattern, name)), "")


def wrong_value(name: str, value: Any, expected: str) -> str:
    """'sliding_window: 2.5 (float), expected an integer or None'"""
    may_be_left_out = "None" in expected or "a quire." not in expected
    hint = f"; {_no_part('bias')}" if may_be_left_out and getattr(value, "ndim", 0) >= 2 else ""  # other libraries have one by position
    return f"{name}: {shown(value)}, expected {expected}{hint}"


def unknown_layout(text: str) -> str:
    hint = ""
    if "shuffle" in text.lower():
        hint = ("; AITER's shuffled cache becomes packed by a copy of V: "
                "v.transpose(0, 1, 3, 2, 4).reshape(num_pages, num_kv_heads, head_dim, page_size)")  # fmt: skip
    return f'layout: "{text}" is none of nhd, hnd, packed{hint}'


def unknown_argument(name: str, names: Iterable[str]) -> str:
    """'unknown argument "seq_lenz"; did you mean seq_lens?'"""
    known = list(names)
    if hint := _no_part(name):
        return f'unknown argument "{name}"; {hint}'
    if name == "window_size":
        return f'unknown argument "{name}"; window_size=(left, right) is quire.Options(sliding_window=left + 1, window_right=right)'
    if name == "is_causal" and "options" in known:
        name = "causal"
    if "options" in known and name in NAMES["Options"]:
        return f'unknown argument "{name}"; it belongs in options=quire.Options({name}=...)'
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if name in ("window", "window_left") and "sliding_window" in known:
        near = ["sliding_window"]
    if not near:  # "window" for "sliding_window", "slots" for "slot_mapping"
        near = [k for k in known if difflib.get_close_matches(name, k.split("_"), cutoff=0.8)][:1]
    hint = f"did you mean {near[0]}?" if near else f"expected {', '.join(known)}"
    return f'unknown argument "{name}"; {hint}'


def shown(value: Any) -> str:
    """A value for a message: its text if that is short, and its type."""
    if value is None:
        return "None"
    kind = type(value).__name__
    if isinstance(value, (bool, int, float, complex, str, bytes, tuple, list, dict, np.generic)):
        return f"{reprlib.repr(value)} ({kind})"
    return f"a {kind}"


def dtype_name(dtype: Any, argument: str) -> str:
    """The Quire name of a dtype as NumPy, ml_dtypes or torch spell it, or of their dtype objects."""
    if isinstance(dtype, str):
        name = dtype
    elif isinstance(dtype, (type, np.dtype)):
        try:
            name = np.dtype(dtype).name
        except TypeError:
            name = str(dtype)
    else:
        name = str(dtype)
    name = name.removeprefix("torch.").removeprefix("np.").removeprefix("numpy.").removeprefix("jnp.")
    if name in DTYPES.values():
        return name
    if name not in DTYPES:
        raise ArgumentError(f"{argument}: {dtype!r} is none of {', '.join(DTYPES.values())}")
    return DTYPES[name]


class _Parameter(NamedTuple):
    name: str
    positional: bool
    required: bool
    default: Any
    types: tuple[str, ...]
    """What it may be, as text; empty if anything."""


def _parameters(text: str, defaults: tuple[Any, ...] | None) -> list[_Parameter]:
    """The parameters of one nanobind signature, which is Python but for its numbered defaults."""
    source = re.sub(r"\\(\d+)", r"_\1", text).replace("quire._quire.", "")
    (function,) = ast.parse(source + ": ...").body
    assert isinstance(function, ast.FunctionDef)
    args = function.args
    missing: list[ast.expr | None] = [None] * (len(args.args) - len(args.defaults))
    found = [(a, True, d) for a, d in zip(args.args, [*missing, *args.defaults])]
    found += [(a, False, d) for a, d in zip(args.kwonlyargs, args.kw_defaults)]

    def value(default: ast.expr | None) -> Any:
        if isinstance(default, ast.Name):
            return (defaults or ())[int(default.id[1:])]
        return None if default is None else ast.literal_eval(default)

    return [
        _Parameter(a.arg, positional, default is None, value(default), _types(ast.unparse(a.annotation) if a.annotation else ""))
        for a, positional, default in found
        if a.arg != "self"
    ]


def _types(annotation: str) -> tuple[str, ...]:
    types = tuple(t.strip() for t in annotation.split(" | ")) if "[" not in annotation or " | " in annotation else (annotation,)
    return () if not annotation or {"object", "typing.Any", "Any", "numpy.typing.ArrayLike"} & set(types) else types


def _is(value: Any, wanted: str) -> bool:
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if wanted == "None":
        return value is None
    if wanted == "float":
        return number
    if wanted == "int":
        return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if wanted in ("bool", "str"):
        return isinstance(value, {"bool": bool, "str": str}[wanted])
    if wanted.startswith("typing.Literal"):
        return isinstance(value, str)  # another text is refused by the function itself, in its own words
    if wanted.startswith(("dict", "collections.abc.Mapping")):
        return isinstance(value, dict)
    if wanted.startswith(("list", "collections.abc.Sequence")):
        items = value if isinstance(value, (list, tuple)) else [] if isinstance(value, np.ndarray) else [None]
        return not wanted.endswith("[int]") or all(_is(item, "int") for item in items)
    return any(cls.__name__ == wanted for cls in type(value).__mro__)


_WORDS = {"None": "None", "float": "a number", "int": "an integer", "bool": "True or False", "str": "text", "dict": "a dict"}


def _words(types: Iterable[str]) -> str:
    def one(wanted: str) -> str:
        if wanted.startswith(("list", "collections.abc.Sequence")):
            return "a list of integers" if wanted.endswith("[int]") else "a list"
        if wanted.startswith("collections.abc.Mapping"):
            return "a dict"
        if wanted.startswith("typing.Literal"):
            return "text"
        return _WORDS.get(wanted.partition("[")[0], f"a quire.{wanted}")

    return " or ".join(one(t) for t in types)


def _mistake(parameters: list[_Parameter], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The first thing that is wrong with a call, or "". """
    by_position = [p for p in parameters if p.positional]
    names = [p.name for p in parameters]
    for name in kwargs:
        if name not in names:
            return unknown_argument(name, names)
    if len(args) > len(by_position):
        return f"{len(args)} arguments by position, expected at most {len(by_position)}: {', '.join(p.name for p in by_position)}"
    given = dict(zip((p.name for p in by_position), args))
    for name in kwargs:
        if name in given:
            return f"{name} is given twice, by position and by name"
    given.update(kwargs)
    for p in parameters:
        if p.required and p.name not in given:
            return f"argument {p.name} is missing"
    for p in parameters:
        if p.name in given and p.types and not any(_is(given[p.name], t) for t in p.types):
            return wrong_value(p.name, given[p.name], _words(p.types))
    for bits in (64, 32):  # the types are right, so an integer is too large for the C++ type
        for name, value in given.items():
            if any(not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1) for number in _integers(value)):
                return f"{name}: {shown(value)}, expected {bits} bits at most"
    return "the arguments do not fit: " + ", ".join(f"{name} is {shown(value)}" for name, value in given.items())


def _integers(value: Any) -> list[int]:
    """The integers that an argument holds: the argument itself, or the members of a list."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return [int(v) for v in values if _is(v, "int")]


def _called(function: Any) -> str:
    """What the user called: the outermost of the functions of this package that led here, or `function` itself."""
    name, frame = function.__name__, inspect.currentframe()
    while frame is not None and (module := frame.f_globals.get("__name__", "")).partition(".")[0] == "quire":
        if module != __name__ and not frame.f_code.co_name.startswith(("_", "<")):
            name = frame.f_code.co_name
        frame = frame.f_back
    return name


def explained(function: F, *, method: bool = False) -> F:
    """Wraps a function so that a call that nanobind refuses raises an :class:`ArgumentError` that names the argument, and the
    function of this package that was called."""
    signatures = [_parameters(text, defaults) for text, _, defaults in function.__nb_signature__]  # type: ignore[attr-defined]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if not str(error).startswith(f"{function.__name__}(): incompatible function arguments"):
                raise
            mistake = _mistake(signatures[-1], args[method:], kwargs)
            raise ArgumentError(f"{_called(function)}(): {mistake}") from None

    call.__signature__ = _signature(signatures[-1], method)  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def _signature(parameters: list[_Parameter], method: bool = False) -> inspect.Signature:
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    shown_parameters = [
        inspect.Parameter(p.name, kinds[p.positional], default=inspect.Parameter.empty if p.required else p.default)
        for p in parameters
    ]
    first = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)] if method else []
    return inspect.Signature([*first, *shown_parameters])


def show_constructors(*classes: type) -> None:
    """Gives nanobind classes the signature that call tips and inspect.signature() show."""
    for cls in classes:
        text, defaults = cls.__init__.__nb_signature__[-1][0], cls.__init__.__nb_signature__[-1][2]  # type: ignore[misc]
        cls.__signature__ = _signature(_parameters(text, defaults))  # type: ignore[attr-defined]


def keywords_checked(function: F) -> F:
    """Wraps a Python function so that an unknown keyword raises an :class:`ArgumentError` that names the likely one."""
    names = [p.name for p in inspect.signature(function).parameters.values()]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in names:
                raise ArgumentError(f"{function.__name__}(): {unknown_argument(name, names)}")
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def explain_module(module: Any) -> None:
    """Replaces the functions of a nanobind module, and the methods of its classes, by explained ones.

    Functions for arrays of one layer stay as they are: quire_vllm.ops and quire.torch call them for each layer, with arguments of
    their own making.
    """
    for name, value in list(vars(module).items()):
        if type(value).__name__ == "nb_func" and not name.endswith("_arrays"):
            setattr(module, name, explained(value))
        if isinstance(value, type):
            for method_name, method in list(vars(value).items()):
                if type(method).__name__ == "nb_method" and not method_name.startswith("__"):
                    setattr(value, method_name, explained(method, method=True))

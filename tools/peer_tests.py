#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM's own tests of its attention ops, run unmodified on Quire.

    python tools/peer_tests.py SNAPSHOT [--device cuda|cpu] [--files prefix_prefill,cache] [--every N] [--shard I/N] [--json OUT]
                               [--processes N] [--limit SECONDS]

SNAPSHOT is an unpacked vLLM source tree, such as the source distribution of a release on PyPI. Nothing of it is copied or changed, and
vLLM need not be installed: an importer answers ``import vllm...``. The ops are those of :mod:`quire_vllm.ops`; a few helpers are loaded
from the snapshot or are shims below; every other name is an internal of vLLM that may be imported but not used.

Each test ends in one of five ways, which are counted by file:

    passed      vLLM's asserts hold for Quire's results
    refused     Quire raised UnsupportedError, which names an argument, or the test uses an internal of vLLM
    answered    the test demands an error for a call that Quire can answer
    skipped     the test skips itself
    wrong       anything else

The tests make their data token by token and their references request by request, so a GPU waits for Python: --processes runs them side by
side (tools/peer_workers.py). --limit ends the run; what was not run is counted, and the exit status is 3.

The exit status is 1 if a test is wrong, 2 if tests could not be collected. Needs torch, pytest and quire.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import enum
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import pathlib
import sys
import time
import types
from typing import Any

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "packages/vllm"))

import peer_workers
import quire
import quire_vllm.ops

TESTS = {
    "prefix_prefill": ("test_prefix_prefill.py", "test_"),
    "cache": ("test_cache.py", "test_reshape_and_cache"),
    "merge": ("test_merge_attn_states.py", "test_"),
    "unified": ("test_triton_unified_attention.py", "test_"),
}
"""File under tests/kernels/attention, and the beginning of the names of the tests that are about Quire's ops."""

TOKEN_BY_TOKEN = ("test_prefix_prefill.py",)
"""Files whose tests wait for the GPU some 40000 times each while they make data: TablesOnTheHost serves them."""

FROM_THE_SNAPSHOT = ("vllm.utils.torch_utils", "vllm.utils.math_utils")
"""Helpers that make test data: these modules are executed as they are."""

OPS = {name: getattr(quire_vllm.ops, name) for name in quire_vllm.ops.__all__ if inspect.isfunction(getattr(quire_vllm.ops, name)) and name != "settings"}


# --- names of vLLM --------------------------------------------------------------------------------------------------------------------


class UsesInternal(Exception):
    """A test uses a name of vLLM that is no op of Quire's."""


class State:
    """State of the run: stand-ins may be imported, decorated with and subclassed freely until tests run."""

    running = False
    shared = False
    """Other processes test on the same GPU."""
    touched: set[str] = set()


class Internal:
    """A name of vLLM's that nothing here implements."""

    def __init__(self, name: str):
        self._name = name

    def _use(self) -> Internal:
        if State.running:
            raise UsesInternal(self._name)
        return self

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._use()

    def __getitem__(self, key: Any) -> Any:
        return self._use()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Internal(f"{self._name}.{name}")

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (object,)

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __iter__(self) -> Any:
        return iter(())


class Platform:
    """vLLM's current_platform, as far as its tests ask."""

    def __init__(self, device: str):
        self.device_type, self.device_name = device, device

    def is_cuda(self) -> bool:
        return True

    is_cuda_alike = is_cuda

    def is_rocm(self) -> bool:
        return False

    is_xpu = is_cpu = is_tpu = is_rocm

    def fp8_dtype(self) -> torch.dtype:
        return torch.float8_e4m3fn

    def get_device_capability(self) -> tuple[int, int]:
        return torch.cuda.get_device_capability() if self.device_type == "cuda" else (9, 0)

    def has_device_capability(self, least: int) -> bool:
        major, minor = self.get_device_capability()
        return 10 * major + minor >= least

    def is_device_capability_family(self, family: int) -> bool:
        return self.get_device_capability()[0] == family // 10

    def get_device_name(self) -> str:
        return torch.cuda.get_device_name() if self.device_type == "cuda" else "CPU"

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    seed_everything = manual_seed_all


def convert_fp8(output: torch.Tensor, input: torch.Tensor, scale: float = 1.0, kv_dtype: str = "fp8") -> None:
    """Bytes of e4m3fn to real values, or real values to bytes."""
    if output.dtype == torch.uint8:
        output.copy_((input.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8))
    else:
        output.copy_((input.view(torch.float8_e4m3fn).float() * scale).to(output.dtype))


def scaled_dequantize(codes: torch.Tensor, scale: torch.Tensor, group_shape: Any = None, out_dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """One scale for all."""
    return (codes.float() * scale).to(out_dtype)


def scaled_fp8_quant(input: torch.Tensor, scale: torch.Tensor, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Real values to e4m3fn with one scale."""
    return (input.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


@functools.lru_cache(maxsize=None)
def definitions(path: pathlib.Path) -> dict[str, Any]:
    """Literal constants, and enumerations of integers, at the top of a module of the snapshot."""
    found: dict[str, Any] = {}
    for node in ast.parse(path.read_text()).body if path.is_file() else ():
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            try:
                found.update((t.id, ast.literal_eval(node.value)) for t in targets if isinstance(t, ast.Name))
            except ValueError:
                pass
        elif isinstance(node, ast.ClassDef) and any(isinstance(b, ast.Name) and b.id == "IntEnum" for b in node.bases):
            values = {t.id: n.value.value for n in node.body if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant)
                      for t in n.targets if isinstance(t, ast.Name)}  # fmt: skip
            found[node.name] = enum.IntEnum(node.name, values)
    return found


class StandIn(types.ModuleType):
    """A module of vLLM's: Quire's ops by their names, shims, constants of the snapshot, and internals."""

    def __init__(self, name: str, file: pathlib.Path, shims: dict[str, Any]):
        super().__init__(name)
        self.__path__: list[str] = []
        self._file, self._shims = file, shims

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        for known in (OPS, self._shims, definitions(self._file)):
            if name in known:
                return known[name]
        full = f"{self.__name__}.{name}"
        folder = self._file.with_suffix("")
        if (folder / f"{name}.py").is_file() or (folder / name).is_dir():
            return importlib.import_module(full)
        if State.running:
            State.touched.add(full)
        return Internal(full)

    def __setattr__(self, name: str, value: Any) -> None:
        """monkeypatch puts an internal back after a test: the next test that looks at it is to be seen, too."""
        if isinstance(value, Internal):
            self.__dict__.pop(name, None)
        else:
            super().__setattr__(name, value)


class Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers imports of vllm and of what is below it."""

    def __init__(self, snapshot: pathlib.Path, device: str):
        self.snapshot = snapshot
        self.shims = dict(
            current_platform=Platform(device), convert_fp8=convert_fp8, scaled_dequantize=scaled_dequantize,
            scaled_fp8_quant=scaled_fp8_quant,
        )  # fmt: skip

    def file_of(self, name: str) -> pathlib.Path:
        return (self.snapshot / name.replace(".", "/")).with_suffix(".py")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "vllm" and not name.startswith("vllm."):
            return None
        if name in FROM_THE_SNAPSHOT and self.file_of(name).is_file():
            return importlib.util.spec_from_file_location(name, self.file_of(name))
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        return StandIn(spec.name, self.file_of(spec.name), self.shims)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def define_cache_ops() -> torch.library.Library:
    """torch.ops._C_cache_ops, which test_cache.py gives to torch.library.opcheck."""
    library = torch.library.Library("_C_cache_ops", "DEF")
    for name in ("reshape_and_cache", "reshape_and_cache_flash"):
        library.define(
            f"{name}(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor slot_mapping, str kv_cache_dtype, "
            "Tensor k_scale, Tensor v_scale) -> ()"
        )
        for backend in ("CPU", "CUDA"):
            library.impl(name, OPS[name], backend)
        torch.library.register_fake(f"_C_cache_ops::{name}", lambda *_: None, lib=library)
    return library


# --- elements of tables on the host -------------------------------------------------------------------------------------------------------


class TablesOnTheHost(torch.overrides.TorchFunctionMode):
    """Answers ``table[i]`` of integers, which tests ask while they make data token by token, without waiting for the GPU each time.

    An element is taken from a copy on the host, which is made once for each tensor and dropped when a call changes the tensor. The copy has
    the same number; Quire's ops get the tests' own tensors, and no mode is active inside of them (see ``without_modes``).
    """

    _READ = (torch.Tensor.__getitem__,)

    def __init__(self) -> None:
        super().__init__()
        self.copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # copies by id of a tensor, which is kept alive beside its copy

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in self._READ and self.is_element_of_table(*args):
            table, index = args
            _, copy = self.copies.get(id(table)) or self.copies.setdefault(id(table), (table, table.to("cpu", copy=True)))
            return copy[index]
        name = getattr(function, "__name__", "")
        if self.copies and (name == "__setitem__" or "out" in (kwargs or {}) or name.endswith("_") and not name.endswith("__")):
            self.forget(kwargs["out"] if kwargs and "out" in kwargs else args[0])
        return function(*args, **(kwargs or {}))

    @staticmethod
    def is_element_of_table(table: Any, index: Any) -> bool:
        indices = index if type(index) is tuple else (index,)
        return (
            isinstance(table, torch.Tensor) and table.dtype in (torch.int32, torch.int64) and len(indices) == table.dim()
            and all(type(i) is int for i in indices)
        )  # fmt: skip

    def forget(self, changed: Any) -> None:
        """Drops copies of tensors that share memory with one that is about to change."""
        if isinstance(changed, torch.Tensor) and changed.dtype in (torch.int32, torch.int64):
            at = changed.untyped_storage().data_ptr()
            self.copies = {key: pair for key, pair in self.copies.items() if pair[0].untyped_storage().data_ptr() != at}


def without_modes(op: Any) -> Any:
    """An op as an engine calls it: none of the modes of this file sees what it does."""

    @functools.wraps(op)
    def call(*arguments: Any, **named: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return op(*arguments, **named)

    return call


OPS = {name: without_modes(op) for name, op in OPS.items()}


# --- a GPU's names on a CPU ---------------------------------------------------------------------------------------------------------------


class Event:
    """torch.Event of a CPU."""

    def __init__(self, **_: Any):
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 1e3


class OnTheCpu(torch.overrides.TorchFunctionMode):
    """Makes tensors for cuda on the CPU."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if str(named.get("device", "")).startswith("cuda"):
            named["device"] = "cpu"
        return function(*args, **named)


def pretend_accelerator() -> None:
    """Tests name cuda:0; on a CPU there is one such device, which is the CPU."""
    torch.set_default_device = lambda *_: None
    torch.accelerator.device_count = lambda: 1
    torch.accelerator.synchronize = lambda *_: None
    torch.accelerator.set_device_index = lambda *_: None
    torch.Event = Event


# --- the run ----------------------------------------------------------------------------------------------------------------------------


def causes(error: BaseException | None) -> list[BaseException]:
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def ending_of(error: BaseException) -> tuple[str, str]:
    """Ending of a test that raised, and the reason."""
    for cause in causes(error):
        if State.shared and isinstance(cause, torch.OutOfMemoryError):
            return "no room", ""
        if isinstance(cause, quire.UnsupportedError):
            return "refused", str(cause)
        if isinstance(cause, UsesInternal):
            return "refused", f"uses an internal of vLLM: {cause}"
    text = str(error)
    if "DID NOT RAISE" in text:
        return "answered", first_line(text)
    compares = isinstance(error, AssertionError) and ("not close" in text or "not equal" in text)
    if State.touched and not compares and not any(isinstance(c, quire.Error) for c in causes(error)):
        return "refused", f"uses an internal of vLLM: {', '.join(sorted(State.touched))}"
    return "wrong", f"{type(error).__name__}: {' | '.join(text.split(chr(10))[:4])}"


class Counter:
    """A pytest plugin: chooses tests and counts how they end."""

    def __init__(self, wanted: argparse.Namespace, worker: peer_workers.Worker | None = None):
        self.wanted, self.worker = wanted, worker
        self.ends: dict[str, dict[str, collections.Counter]] = {}
        self.wrong: list[tuple[str, str]] = []
        self.left_out = 0

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        shard, shards = self.wanted.shard
        begins = {file: start for file, start in TESTS.values()}
        seen: collections.Counter = collections.Counter()
        kept = []
        for item in items:
            if not item.originalname.startswith(begins[item.path.name]):
                continue
            seen[item.originalname] += 1
            if (seen[item.originalname] - 1) % self.wanted.every == 0:
                kept.append(item)
        self.left_out = sum(seen.values()) - len(kept)
        kept = kept[shard - 1 :: shards]
        for item in kept if self.wanted.device == "cpu" else ():
            params = getattr(getattr(item, "callspec", None), "params", {})
            if "device" in params:
                params["device"] = "cpu"
        items[:] = kept

    def add(self, item: Any, how: str, why: str) -> None:
        if self.worker is not None:
            self.worker.ends(item, how, why)
        self.count(item.path.name, item.name, how, why)

    def count(self, file: str, name: str, how: str, why: str) -> None:
        self.ends.setdefault(file, {}).setdefault(how, collections.Counter())[why] += 1
        if how == "wrong":
            self.wrong.append((name, why))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
        error = call.excinfo.value if call.excinfo is not None else None
        if isinstance(error, pytest.skip.Exception):
            self.add(item, "skipped", first_line(str(error)) or "no reason given")
        elif error is not None:
            how, why = ending_of(error)
            self.add(item, how, why)
        elif call.when == "call":
            self.add(item, "passed", "")
        return (yield)

    def modes(self, item: Any) -> contextlib.ExitStack:
        stack = contextlib.ExitStack()
        if self.wanted.device == "cpu":
            stack.enter_context(OnTheCpu())
        if item.path.name in TOKEN_BY_TOKEN:
            stack.enter_context(TablesOnTheHost())
        return stack

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Any:
        State.touched.clear()
        State.running = True
        try:
            with self.modes(item):
                return (yield)
        finally:
            State.running = False
            torch.set_default_device(None)


def print_counts(counter: Counter) -> None:
    for file, ends in counter.ends.items():
        total = {how: sum(whys.values()) for how, whys in ends.items()}
        print(f"{file}: " + ", ".join(f"{total.get(how, 0)} {how}" for how in ("passed", "refused", "answered", "skipped", "wrong")))
        for how in ("refused", "answered", "skipped"):
            for why, count in ends.get(how, collections.Counter()).most_common():
                print(f"  {count:5} {how}: {why}")
    for name, why in counter.wrong[:20]:
        print(f"  wrong: {name}\n         {why}")
    if counter.left_out:
        print(f"{counter.left_out} tests left out by --every")


def shard_of(text: str) -> tuple[int, int]:
    index, count = (int(part) for part in text.split("/"))
    if not 1 <= index <= count:
        raise argparse.ArgumentTypeError(f"{text}: expected I/N with 1 <= I <= N")
    return index, count


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs vLLM's tests of its attention ops on Quire.")
    parser.add_argument("snapshot", type=pathlib.Path, help="an unpacked vLLM source tree")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--files", default=",".join(TESTS), help=f"comma list of {', '.join(TESTS)}")
    parser.add_argument("--every", type=int, default=1, help="of each test function, every Nth id, the first included")
    parser.add_argument("--shard", type=shard_of, default=(1, 1), metavar="I/N", help="the Ith of N equal parts of the ids")
    parser.add_argument("--processes", type=int, default=1, help="run so many tests side by side")
    parser.add_argument("--limit", type=float, default=float("inf"), metavar="SECONDS", help="begin no test after that; with --processes")
    parser.add_argument("--worker", metavar="FOLDER:NUMBER", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=pathlib.Path, help="a file for the counts")
    parser.add_argument("-k", default="", help="as in pytest")
    return parser.parse_args()


def write_json(file: pathlib.Path, wanted: argparse.Namespace, counter: Counter, **more: Any) -> None:
    counts = {name: {how: dict(whys) for how, whys in ends.items()} for name, ends in counter.ends.items()}
    device = Platform(wanted.device).get_device_name()
    file.write_text(json.dumps(
        {"snapshot": wanted.snapshot.resolve().name, "device": device, "quire": quire.__version__, "torch": torch.__version__,
         "every": wanted.every, **more, "counts": counts, "wrong": counter.wrong}, indent=1) + "\n")  # fmt: skip


def run_here(wanted: argparse.Namespace, counter: Counter) -> int:
    """pytest in this process."""
    snapshot = wanted.snapshot.resolve()
    folder = snapshot / "tests" / "kernels" / "attention"
    sys.meta_path.insert(0, Importer(snapshot, wanted.device))
    sys.path.insert(0, str(snapshot))
    library = define_cache_ops()  # unloads its operators when it is collected
    quire_vllm.ops.wait = True  # a call that breaks is raised by the test that made it
    if wanted.device == "cpu":
        pretend_accelerator()
    fixtures = importlib.util.spec_from_file_location("peer_fixtures", folder / "conftest.py")
    fixtures_module = importlib.util.module_from_spec(fixtures)
    fixtures.loader.exec_module(fixtures_module)
    files = [str(folder / TESTS[name][0]) for name in wanted.files.split(",")]
    options = ["--noconftest", "--import-mode=importlib", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-p", "no:quire",
               "-p", "no:warnings", "-c", "/dev/null", "--rootdir", str(snapshot), "-r", "N", "--capture=sys"]  # fmt: skip
    plugins = [counter, fixtures_module, *([counter.worker] if counter.worker is not None else [])]
    status = pytest.main([*options, *(["-k", wanted.k] if wanted.k else []), *files], plugins=plugins)
    del library
    return 2 if status in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR) else 0


def run_side_by_side(wanted: argparse.Namespace) -> int:
    begin = time.monotonic()
    outcome = peer_workers.run(wanted.processes, wanted.limit)
    counter = Counter(wanted)
    for line in outcome.ends:
        counter.count(line["file"], line["name"], line["how"], line["why"])
    print_counts(counter)
    took = round(time.monotonic() - begin, 1)
    for function, (count, seconds) in sorted(outcome.seconds().items(), key=lambda one: -one[1][1]):
        print(f"  {function}: {count} tests, {seconds:.0f} s of one process")
    print(f"{outcome.total} ids, {outcome.total - len(outcome.not_run)} run, in {took} s by {wanted.processes} processes")
    for nodeid, why in list(outcome.not_run.items())[:20]:
        print(f"  not run: {nodeid} ({why})")
    for log in outcome.failed:
        print(f"  a process failed:\n{log}", file=sys.stderr)
    if wanted.json:
        by_function = {name: {"tests": count, "seconds": round(s, 1)} for name, (count, s) in outcome.seconds().items()}
        write_json(wanted.json, wanted, counter, processes=wanted.processes, seconds=took, by_function=by_function,
                   not_run=outcome.not_run)  # fmt: skip
    if counter.wrong:
        return 1
    return 2 if outcome.failed or outcome.total == 0 else 3 if outcome.not_run else 0


def main() -> int:
    wanted = arguments()
    folder = wanted.snapshot.resolve() / "tests" / "kernels" / "attention"
    if not folder.is_dir():
        print(f"{folder}: no such folder; SNAPSHOT is a vLLM source tree", file=sys.stderr)
        return 2
    if wanted.worker:
        State.shared = True
        where, number = wanted.worker.rsplit(":", 1)
        return run_here(wanted, Counter(wanted, peer_workers.Worker(pathlib.Path(where), int(number), peer_workers.deadline())))
    if wanted.processes > 1:
        return run_side_by_side(wanted)
    counter = Counter(wanted)
    status = run_here(wanted, counter)
    print_counts(counter)
    if wanted.json:
        write_json(wanted.json, wanted, counter)
    return status or (1 if counter.wrong else 0)


if __name__ == "__main__":
    sys.exit(main())

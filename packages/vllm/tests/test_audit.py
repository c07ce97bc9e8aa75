# SPDX-License-Identifier: Apache-2.0
"""The audit around a stand-in for vLLM: the same hooks, a scheduler, a builder and a backend of a few lines. Needs torch, not vLLM."""

import dataclasses
import enum
import functools
import json
import os
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import quire  # noqa: E402
from quire_vllm import settings  # noqa: E402
from quire_vllm.audit import hooks, report, watch  # noqa: E402
from quire_vllm.audit.plant import FAULTS, Plant  # noqa: E402
from quire_vllm.audit.report import AuditError  # noqa: E402
from quire_vllm.audit.watch import Auditor  # noqa: E402

PAGE, PAGES, LAYERS, HEADS, KV_HEADS, DIM = 8, 200, 3, 4, 2, 16


@dataclasses.dataclass
class Common:
    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    num_reqs: int


class StandInBuilder:
    layer_names = [f"layers.{i}" for i in range(LAYERS)]
    kv_cache_spec = types.SimpleNamespace(block_size=PAGE)

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        return types.SimpleNamespace(common=common_attn_metadata)


class StandInImpl:
    def __init__(self):
        self.num_heads, self.num_kv_heads, self.head_size, self.scale = HEADS, KV_HEADS, DIM, DIM**-0.5
        self.sliding_window = self.logits_soft_cap = self.alibi_slopes = self.sinks = None

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping):
        quire.append(self._cache(kv_cache), key, value, slot_mapping)

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output):
        m = attn_metadata.common
        batch = quire.Batch(query=query, output=output, query_start_loc=m.query_start_loc, seq_lens=m.seq_lens, block_table=m.block_table_tensor)
        quire.attend(batch, self._cache(kv_cache), quire.Options(softmax_scale=self.scale, sliding_window=self.sliding_window))
        return output

    @staticmethod
    def _cache(kv_cache):
        return quire.KVCache(kv_cache[..., :DIM], kv_cache[..., DIM:], "hnd")


class StandIn:
    forward_includes_kv_cache_update = False
    get_impl_cls = staticmethod(lambda: StandInImpl)
    get_builder_cls = staticmethod(lambda: StandInBuilder)


class SecondRunner:
    """vLLM's V2 model runner, as far as the audit asks: it keeps no batch, and its order is not the scheduler's."""

    def __init__(self, first):
        self.kv_cache_config = first.kv_cache_config

    def prepare_inputs(self, output):
        return types.SimpleNamespace(req_ids=sorted(output.num_scheduled_tokens, reverse=True))


class Engine:
    """A worker with one model of random layers, driven by scheduler messages."""

    def __init__(self, messages, backend):
        self.messages, self.kv = messages, [torch.zeros(PAGES, KV_HEADS, PAGE, 2 * DIM) for _ in range(LAYERS)]
        self.model_runner = types.SimpleNamespace(
            input_batch=types.SimpleNamespace(req_ids=[]), model_config=None,
            kv_cache_config=types.SimpleNamespace(num_blocks=PAGES, kv_cache_groups=[types.SimpleNamespace(
                layer_names=StandInBuilder.layer_names, kv_cache_spec=StandInBuilder.kv_cache_spec)]),
        )  # fmt: skip
        self.model_config = types.SimpleNamespace(hf_config=types.SimpleNamespace(eos_token_id=2))
        self.builder = backend.get_builder_cls()()
        self.impls = [backend.get_impl_cls()() for _ in range(LAYERS)]
        self.layers = [types.SimpleNamespace(layer_name=name) for name in StandInBuilder.layer_names]
        self.computed, self.pages = {}, {}
        self.random = np.random.default_rng(0)
        self.outputs = []  # of each step's last layer

    def step(self, **work):
        return hooks._step(Engine.execute, self, self.messages.step(**work))

    def execute(self, output):
        for new in output.scheduled_new_reqs:
            self.pages[new.req_id], self.computed[new.req_id] = list(new.block_ids[0]), new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for i, name in enumerate(cached.req_ids):
            self.pages[name] += (cached.new_block_ids[i] or ([],))[0]
            self.computed[name] = cached.num_computed_tokens[i]
        if isinstance(self.model_runner, SecondRunner):
            names = self.model_runner.prepare_inputs(output).req_ids
        else:
            names = self.model_runner.input_batch.req_ids = list(output.num_scheduled_tokens)
        metadata = self.builder.build(0, self._tables(names, output.num_scheduled_tokens))
        rows = output.total = sum(output.num_scheduled_tokens.values())
        out = None
        for impl, layer, kv in zip(self.impls, self.layers, self.kv):
            q, k, v = (torch.from_numpy(self.random.standard_normal((rows, heads, DIM)).astype(np.float32)) for heads in (HEADS, KV_HEADS, KV_HEADS))
            q = q if out is None else q + 0 * out  # a NaN goes on to the next layer
            out = torch.empty_like(q)
            impl.do_kv_cache_update(layer, k, v, kv, self.slots)
            impl.forward(layer, q, k, v, kv, metadata, out)
        self.outputs.append(out.clone())
        return types.SimpleNamespace(req_id_to_index={n: i for i, n in enumerate(names)}, sampled_token_ids=[[7] for _ in names])

    def _tables(self, names, counts):
        starts = torch.tensor(np.cumsum([0, *(counts[n] for n in names)]), dtype=torch.int32)
        table = torch.zeros(len(names), max(len(self.pages[n]) for n in names), dtype=torch.int32)
        slots = []
        for row, name in enumerate(names):
            table[row, : len(self.pages[name])] = torch.tensor(self.pages[name])
            slots += [self.pages[name][p // PAGE] * PAGE + p % PAGE for p in range(self.computed[name], self.computed[name] + counts[name])]
        self.slots = torch.tensor(slots)
        seq_lens = torch.tensor([self.computed[n] + counts[n] for n in names], dtype=torch.int32)
        return Common(starts, starts, seq_lens, table, self.slots, len(names))


@pytest.fixture
def engine(messages, tmp_path, monkeypatch):
    """engine(budget, plant, action) -> (Engine, Auditor)"""
    backend = types.ModuleType("vllm.v1.attention.backend")
    backend.AttentionCGSupport = enum.Enum("AttentionCGSupport", "NEVER ALWAYS")
    for name in ("vllm", "vllm.v1", "vllm.v1.attention"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.v1.attention.backend", backend)

    def make(budget=1.0, plant="", action="log", **more):
        hooks._state.clear()
        chosen = settings.Settings(audit=True, budget=budget, folder=str(tmp_path), action=action, plant=plant, **more)
        hooks._state["auditor"], hooks._state["plant"] = Auditor(chosen, boundary=hooks.boundary()), Plant.named(plant)
        messages.page_size = PAGE
        return Engine(messages, hooks.audited(StandIn)), hooks._state["auditor"]

    yield make
    hooks._state.clear()


def serve(engine, steps):
    engine.step(new=[("old", 20)])
    engine.step(new=[("a", 30), ("b", 17), ("c", 9)], finished=["old"])
    for _ in range(steps):
        engine.step(go_on=[("a", 1), ("b", 1), ("c", 1)])


@pytest.mark.parametrize("budget", [1.0, 0.5])
def test_a_clean_run_has_no_alarm(engine, budget):
    running, auditor = engine(budget)
    serve(running, 60)
    assert auditor.report.alarms == []
    assert not any(auditor.report.counts[kind] for kind in report.KINDS)  # what /metrics calls alarms
    assert auditor.report.counts["table rows"] > 0
    assert auditor.report.counts["visits"] > 0
    assert auditor.report.counts["rows"] > 0
    assert 0 < auditor.report.worst <= 1


KINDS = dict.fromkeys(("wrong_table_entry", "stale_block", "wrong_seq_len", "double_free"), "tables")
KINDS |= dict.fromkeys(("foreign_write", "swapped_kv_block", "nan_block"), "memory")
KINDS |= dict.fromkeys(("dropped_slot", "late_write"), "write")
KINDS |= dict.fromkeys(("wrong_scale", "head_offset", "wrong_mask"), "kernel")


@pytest.mark.parametrize("fault", FAULTS)
def test_every_planted_fault_is_found_in_its_step_and_told_from_others(engine, fault):
    running, auditor = engine(plant=f"{fault}@12")
    serve(running, 18)
    first = auditor.report.alarms[0]
    assert hooks._state["plant"].done >= 12
    assert first.step == hooks._state["plant"].done
    assert first.kind == KINDS[fault], str(first)
    if KINDS[fault] in ("memory", "write", "kernel"):
        assert first.layer == "layers.1"


def test_the_second_model_runners_rows_are_named_as_it_orders_them(engine):
    running, auditor = engine(plant="wrong_table_entry@12")
    running.model_runner = SecondRunner(running.model_runner)
    serve(running, 14)
    first = auditor.report.alarms[0]
    assert (first.step, first.kind, first.request) == (12, "tables", "c")
    assert "block_table[0][0]" in first.text


def test_a_wrong_mask_is_planted_where_the_window_comes_with_the_metadata(engine, monkeypatch):
    """FlashAttention of vLLM 0.26 has a window in its metadata, and looks at its layer's own only if there is none."""

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        return types.SimpleNamespace(common=common_attn_metadata, sliding_window=(-1, -1))

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output):
        left = attn_metadata.sliding_window[0]
        return own(types.SimpleNamespace(scale=self.scale, sliding_window=left + 1 if left >= 0 else None, _cache=self._cache),
                   layer, query, key, value, kv_cache, attn_metadata, output)  # fmt: skip

    own = StandInImpl.forward
    monkeypatch.setattr(StandInBuilder, "build", build)
    monkeypatch.setattr(StandInImpl, "forward", forward)
    running, auditor = engine(plant="wrong_mask@12")
    serve(running, 14)
    first = auditor.report.alarms[0]
    assert (first.step, first.kind, first.layer) == (12, "kernel", "layers.1")


def test_a_wrong_scale_is_diagnosed_and_saved(engine):
    running, auditor = engine(plant="wrong_scale@12")
    serve(running, 14)
    alarm = auditor.report.alarms[0]
    assert quire.read_capture(alarm.capture).observed is not None
    assert "by another factor" in alarm.diagnosis
    assert "1.25" in alarm.diagnosis


def test_a_quarantined_request_is_ended(engine):
    running, auditor = engine(plant="wrong_seq_len@12", action="quarantine")
    serve(running, 14)
    output = running.step(go_on=[("a", 1), ("b", 1), ("c", 1)])
    assert auditor.report.quarantined == {"a"}
    assert output.sampled_token_ids == [[2], [7], [7]]


def test_stop_stops_the_step(engine):
    running, _ = engine(plant="foreign_write@12", action="stop")
    with pytest.raises(AuditError, match="memory was overwritten: step 12, layers.1"):
        serve(running, 14)


def test_a_nan_is_seen_within_four_steps_at_any_budget_and_traced_to_its_layer_in_the_next(engine):
    running, auditor = engine(0.01)
    serve(running, 12)
    auditor.budget.share = 1e-9  # no visit from here on
    running.step(go_on=[("a", 1), ("b", 1), ("c", 1)])
    assert auditor.report.alarms == []
    step = auditor.statement.step + 1
    page = running.pages["b"][1]
    running.kv[1][page, 1, 3, 5] = float("nan")
    for _ in range(5):
        running.step(go_on=[("a", 1), ("b", 1), ("c", 1)])
    seen, traced = [alarm for alarm in auditor.report.alarms if alarm.kind == "values"]
    assert seen.step in range(step, step + 4)
    assert (seen.layer, seen.request) == ("layers.2", "b")
    assert (traced.step, traced.layer, traced.request) == (seen.step + 1, "layers.1", "b")
    assert f"page {page}, offset 3 (position {PAGE + 3})" in traced.text
    assert all(alarm.kind in ("memory", "values") for alarm in auditor.report.alarms)


@pytest.mark.parametrize("ended", [False, True], ids=["preempted", "ended"])
def test_a_nan_of_a_request_that_the_next_step_does_not_schedule_is_traced_before_its_pages_are_written(engine, ended):
    running, auditor = engine(0.01)
    serve(running, 10)
    auditor.budget.share = 1e-9  # no visit from here on
    while (auditor.statement.step + 1) % 4:
        running.step(go_on=[("a", 1), ("b", 1), ("c", 1)])
    page = running.pages["b"][1]
    running.kv[1][page, 1, 3, 5] = float("nan")
    running.step(go_on=[("a", 1), ("b", 1), ("c", 1)])
    step = auditor.statement.step
    running.messages.free = iter([page, *range(150, 200)])
    running.step(new=[("d", 2 * PAGE)], go_on=[("a", 1), ("c", 1)], finished=["b"] if ended else [])
    for _ in range(5):
        running.step(go_on=[("a", 1), ("c", 1), ("d", 1)])
    seen, traced = auditor.report.alarms
    assert (seen.kind, seen.step, seen.layer, seen.request) == ("values", step, "layers.2", "b")
    assert (traced.kind, traced.step, traced.layer, traced.request) == ("values", step + 1, "layers.1", "b")
    assert f"page {page}, offset 3 (position {PAGE + 3})" in traced.text


def test_two_slots_of_each_page_show_a_page_that_changed(engine):
    running, auditor = engine(0.5)
    while not (auditor.layers and (auditor.layers["layers.1"].memory.version >= 0).any()):
        serve(running, 0) if not auditor.statement.step else running.step(go_on=[("a", 1), ("b", 1), ("c", 1)])
    known = auditor.layers["layers.1"].memory.version.copy()
    for page in running.pages["a"][:3]:
        running.kv[1][page].zero_()
    while np.array_equal(auditor.layers["layers.1"].memory.version, known):  # until the next look at that memory
        running.step(go_on=[("a", 1), ("b", 1), ("c", 1)])
    assert {(alarm.kind, alarm.layer) for alarm in auditor.report.alarms} >= {("memory", "layers.1")}


def test_copies_find_what_digests_find(engine):
    running, auditor = engine(plant="foreign_write@12", shadow=1.0)
    serve(running, 14)
    assert auditor.report.alarms[0].kind == "memory"
    assert auditor.layers["layers.1"].memory.rows is not None


def test_an_audited_backend_is_found_where_it_says_that_it_is(engine, monkeypatch):
    """vLLM's GPU platforms load the class, and pass on the path that it has of itself."""
    import abc
    import importlib

    from quire_vllm.audit import wrapped

    class Abstract(StandIn, metaclass=abc.ABCMeta):  # as vLLM's backends are: their subclasses are born in the module abc
        pass

    imports = types.ModuleType("vllm.utils.import_utils")
    imports.resolve_obj_by_qualname = lambda path: Abstract
    monkeypatch.setitem(sys.modules, "vllm.utils", types.ModuleType("vllm.utils"))
    monkeypatch.setitem(sys.modules, "vllm.utils.import_utils", imports)
    monkeypatch.setitem(hooks._state, "paths", {"FLASH_ATTN": "vllm.v1.attention.backends.flash_attn.FlashAttentionBackend"})
    try:
        found = wrapped.FLASH_ATTN
        assert getattr(importlib.import_module(found.__module__), found.__qualname__) is found
        assert issubclass(found, Abstract)
    finally:
        wrapped.__dict__.pop("FLASH_ATTN", None)


# A failure of the audit itself is counted and logged, and the engine goes on.


class Alone(Engine):
    """The engine without an audit."""

    def __init__(self, messages):
        super().__init__(messages, StandIn)

    def step(self, **work):
        return self.execute(self.messages.step(**work))


@functools.cache
def alone(messages, steps):
    running = Alone(messages(PAGE))
    serve(running, steps)
    return running.outputs


def served_as_alone(running, steps=14):
    serve(running, steps)
    outputs = alone(type(running.messages), steps)
    return len(running.outputs) == len(outputs) and all(map(torch.equal, running.outputs, outputs))


BROKEN = {  # what breaks: where it is heard
    (watch.Statement, "begin_step"): "books",
    (watch.Ledger, "record"): "tables",
    (watch.Auditor, "_take_turns"): "turns",
    (watch.Auditor, "looks"): "tables",
    (watch.Values, "read"): "values",
    (watch.Values, "see"): "values",
    (hooks, "_read"): "tables",
    (hooks, "_names"): "tables",
    (hooks, "_spec"): "layer",
    (watch, "probe"): "layer",
    (watch.Memory, "__init__"): "layer",
    (watch.Ledger, "judge"): "tables",
    (watch.Judge, "written"): "write",
    (watch.Judge, "memory"): "attention",
    (watch.Judge, "rows"): "attention",
    (watch.Budget, "end_step"): "step",
}


@pytest.mark.parametrize("budget", [1.0, 0.5])
@pytest.mark.parametrize(("where", "name"), BROKEN, ids=lambda x: getattr(x, "__name__", x))
def test_whatever_breaks_in_the_audit_the_engine_serves_and_the_failure_is_heard(engine, monkeypatch, where, name, budget):
    def broken(*_, **__):
        raise MemoryError("no memory")

    running, auditor = engine(budget)
    monkeypatch.setattr(where, name, broken)
    assert served_as_alone(running, 14 if budget == 1.0 else 60)
    heard = BROKEN[where, name] if budget == 1.0 else BROKEN[where, name].replace("attention", "judgement")
    assert set(auditor.boundary.errors) == {heard}
    assert auditor.report.alarms == []
    assert not any(auditor.report.counts[kind] for kind in report.KINDS)
    auditor.report.write()
    assert json.loads((pathlib.Path(auditor.report.folder) / f"audit-{os.getpid()}.json").read_text())["errors"] == dict(auditor.boundary.errors)


def test_books_with_a_gap_judge_nothing_any_more_and_say_so_in_every_step(engine, monkeypatch):
    running, auditor = engine()
    serve(running, 4)
    with monkeypatch.context() as patch:
        patch.setattr(watch.Ledger, "record", lambda *_: 1 / 0)
        running.step(go_on=[("a", 1), ("b", 1), ("c", 1)])
    for _ in range(12):  # behind the gap the ledger's slots are not the tables'
        running.step(go_on=[("a", 1), ("b", 1), ("c", 1)])
    assert auditor.report.alarms == []
    assert auditor.boundary.errors == {"books": 13}
    assert "no step is looked at" in auditor.report.facts["lost"]


def test_a_ledger_that_would_begin_too_late_is_not_begun(engine, monkeypatch):
    running, auditor = engine()
    with monkeypatch.context() as patch:
        patch.setattr(hooks, "_read", lambda *_: 1 / 0)
        running.step(new=[("first", 20)])
    for _ in range(6):
        running.step(go_on=[("first", 1)])
    assert auditor.report.alarms == []
    pages = running.messages.requests["first"][0]
    running.step(new=[("second", 4)], finished=["first"], shared={"second": (pages[:2], 16)})  # in pages that the first one wrote
    assert auditor.report.alarms == []
    assert auditor.boundary.errors == {"tables": 8}


def test_a_layer_that_cannot_be_read_is_tried_once_and_the_others_are_looked_at(engine, monkeypatch):
    running, auditor = engine()
    spec = hooks._spec

    def some(impl, layer, *rest):
        if layer.layer_name == "layers.1":
            raise KeyError("float8_e4m3fn")
        return spec(impl, layer, *rest)

    monkeypatch.setattr(hooks, "_spec", some)
    assert served_as_alone(running)
    assert auditor.boundary.errors == {"layer": 1}
    assert auditor.report.counts["visits"] == 2 * 16
    assert "layer layers.1" in auditor.report.facts


class OwnWrites:
    """A backend of vLLM whose attention writes the cache, so that vLLM asks no write of it."""

    __init__, _cache = StandInImpl.__init__, staticmethod(StandInImpl._cache)

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output):
        StandInImpl.do_kv_cache_update(self, layer, key, value, kv_cache, attn_metadata.common.slot_mapping)
        return StandInImpl.forward(self, layer, query, key, value, kv_cache, attn_metadata, output)


def test_layers_that_write_in_their_attention_are_tried_once(engine, monkeypatch):
    monkeypatch.setattr(StandIn, "get_impl_cls", staticmethod(lambda: OwnWrites))
    running, auditor = engine()
    for impl in running.impls:
        impl.do_kv_cache_update = lambda *_: None
    serve(running, 14)
    assert auditor.boundary.errors == {"layer": LAYERS}
    assert auditor.unread == set(StandInBuilder.layer_names)
    assert auditor.report.counts["table rows"] > 0


def test_a_trace_that_breaks_leaves_the_other_requests_alarms(engine, monkeypatch):
    running, auditor = engine()
    serve(running, 4)
    broken = [auditor.statement.requests[name] for name in "ab"]
    monkeypatch.setattr(watch.Values, "read", lambda _: broken)
    monkeypatch.setattr(watch.Judge, "lost", lambda *_: 1 / 0)
    running.step(go_on=[("c", 1)])
    assert [(alarm.kind, alarm.request) for alarm in auditor.report.alarms] == [("values", "a"), ("values", "b")]
    assert auditor.boundary.errors == {"values": 2}


def test_a_fault_on_a_full_disk_is_found_and_written_when_there_is_room(engine, full_disk, caplog):
    running, auditor = engine(plant="foreign_write@12")
    with full_disk():
        serve(running, 14)
    (first, *_) = auditor.report.alarms
    assert (first.kind, first.layer, first.step) == ("memory", "layers.1", 12)
    assert auditor.boundary.errors["report"] > 1
    assert str(first) in caplog.text
    auditor.report.write()
    assert report.read_reports(auditor.report.folder)[0]["alarms"][0]["step"] == 12


def test_an_engines_own_error_is_the_engines(engine, monkeypatch):
    running, auditor = engine()
    serve(running, 4)
    calls = []

    def broken(*_):
        calls.append(1)
        raise RuntimeError("the kernel did not start")

    for name in ("do_kv_cache_update", "forward"):
        with monkeypatch.context() as patch:
            patch.setattr(StandInImpl, name, broken)
            with pytest.raises(RuntimeError, match="the kernel did not start"):
                running.step(go_on=[("a", 1)])
    assert len(calls) == 2
    assert auditor.boundary.errors == {}
    assert not auditor.inside


def test_an_auditor_that_cannot_be_made_is_missed_in_every_step(engine, monkeypatch, caplog):
    running, _ = engine()
    hooks._state.clear()
    monkeypatch.setenv("QUIRE_AUDIT_BUDGET", "much")
    assert served_as_alone(running)
    assert hooks.boundary().errors == {"books": 16}
    assert 'QUIRE_AUDIT_BUDGET: "much"' in caplog.text


def test_a_request_that_cannot_be_ended_is_heard(engine):
    running, auditor = engine(plant="wrong_seq_len@12", action="quarantine")
    running.model_config = None
    serve(running, 14)
    assert running.step(go_on=[("a", 1), ("b", 1), ("c", 1)]).sampled_token_ids == [[7], [7], [7]]
    assert auditor.boundary.errors["quarantine"] == 6  # of steps 12 to 17


def test_a_backend_that_cannot_be_audited_serves_as_it_is(engine, monkeypatch, caplog):
    imports = types.ModuleType("vllm.utils.import_utils")
    imports.resolve_obj_by_qualname = lambda path: StandIn
    monkeypatch.setitem(sys.modules, "vllm.utils", types.ModuleType("vllm.utils"))
    monkeypatch.setitem(sys.modules, "vllm.utils.import_utils", imports)
    monkeypatch.setitem(hooks._state, "paths", {"FLASH_ATTN": "vllm.FlashAttentionBackend"})
    monkeypatch.setattr(StandIn, "get_builder_cls", staticmethod(lambda: 1 / 0))
    assert hooks.wrapped_class("FLASH_ATTN") is StandIn
    assert hooks.boundary().errors == {"backend": 1}
    assert "backend failed" in caplog.text


_CHILD = """
import multiprocessing, signal, sys, time

def serve(ready):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # as vLLM's engine does
    from quire_vllm.audit import hooks
    report = hooks.auditor().report
    for step in range(1, 28):
        report.counts["steps"] = step
        report.write(10.0)
    ready.set()
    time.sleep(60)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=serve, args=(ready,))
    process.start()
    assert ready.wait(120)
    process.terminate()
    process.join()
"""


def test_an_engine_that_is_told_to_stop_writes_its_last_steps(tmp_path):
    """vLLM's engine is a process that multiprocessing starts, and a short run ends before its report is due."""
    (tmp_path / "child.py").write_text(_CHILD)
    folder = tmp_path / "audit"
    paths = os.pathsep.join([str(pathlib.Path(hooks.__file__).parents[2]), *sys.path])
    subprocess.run([sys.executable, str(tmp_path / "child.py")], env={**os.environ, "QUIRE_AUDIT_DIR": str(folder), "PYTHONPATH": paths}, check=True)
    assert [read["counts"]["steps"] for read in report.read_reports(str(folder))] == [27]

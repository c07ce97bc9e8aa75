# SPDX-License-Identifier: Apache-2.0
"""Paths, and stand-ins: scheduler messages as vLLM sends them, and modules named vllm for tests that run without it."""

import contextlib
import importlib.util
import resource
import sys
import threading
import types

import pytest


class Messages:
    """Messages that vLLM's scheduler would send: a tiny scheduler, with pages of a fixed size from a counter."""

    def __init__(self, page_size=4):
        self.page_size = page_size
        self.requests = {}  # name -> [pages, computed]
        self.free = iter(range(1, 1000))

    def _grow(self, name, tokens):
        pages, computed = self.requests[name]
        needed = -(-(computed + tokens) // self.page_size)
        new = [next(self.free) for _ in range(needed - len(pages))]
        pages.extend(new)
        return new

    def step(self, new=(), go_on=(), finished=(), shared=None):
        """new: (name, tokens) pairs; go_on: (name, tokens) pairs; shared: name -> (pages, computed) of a prefix."""
        ns = types.SimpleNamespace
        fresh, cached = [], ns(req_ids=[], resumed_req_ids=set(), new_block_ids=[], num_computed_tokens=[])
        scheduled = {}
        for name, tokens in new:
            pages, computed = (shared or {}).get(name, ([], 0))
            self.requests[name] = [list(pages), computed]
            self._grow(name, tokens)
            fresh.append(ns(req_id=name, block_ids=(list(self.requests[name][0]),), num_computed_tokens=computed))
            scheduled[name] = tokens
        for name, tokens in go_on:
            more = self._grow(name, tokens)
            cached.req_ids.append(name)
            cached.new_block_ids.append((more,) if more else None)
            cached.num_computed_tokens.append(self.requests[name][1])
            scheduled[name] = tokens
        for name, tokens in scheduled.items():
            self.requests[name][1] += tokens
        return ns(finished_req_ids=set(finished), scheduled_new_reqs=fresh, scheduled_cached_reqs=cached, num_scheduled_tokens=scheduled,
                  scheduled_spec_decode_tokens={}, kv_connector_metadata=None)  # fmt: skip


@pytest.fixture
def messages():
    return Messages()


@pytest.fixture
def fake_vllm(monkeypatch):
    """Modules named vllm with a registry and a CPU platform, as far as registration touches them."""
    import enum

    class AttentionBackendEnum(enum.Enum):
        CPU_ATTN = "vllm.cpu"
        CUSTOM = None

        def get_path(self):
            return overrides.get(self, self.value)

    overrides = {}

    class Platform:
        asked = 0

        @classmethod
        def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None):
            Platform.asked += 1
            return AttentionBackendEnum.CPU_ATTN.get_path()

        def is_cpu(self):
            return True

        def is_cuda(self):
            return False

        def is_rocm(self):
            return False

    names = ("vllm", "vllm.platforms", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends", "vllm.v1.attention.backends.registry")
    modules = {name: types.ModuleType(name) for name in names}
    modules["vllm"].__version__ = "0.32.0"
    modules["vllm.platforms"].current_platform = Platform()
    registry = modules["vllm.v1.attention.backends.registry"]
    registry.AttentionBackendEnum = AttentionBackendEnum
    registry.register_backend = lambda member, path: overrides.__setitem__(member, path)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return types.SimpleNamespace(module=modules["vllm"], platform=Platform, enum=AttentionBackendEnum, overrides=overrides)


@pytest.fixture(autouse=True)
def shared_memory(tmp_path_factory, monkeypatch):
    """The folder that stands for /dev/shm."""
    from quire_vllm.audit import report

    folder = tmp_path_factory.mktemp("shm")
    monkeypatch.setattr(report, "_SHARED_MEMORY", str(folder))
    yield folder
    for thread in threading.enumerate():  # of reports that no longer matter
        if isinstance(thread, threading.Timer):
            thread.cancel()


@pytest.fixture
def full_disk():
    """``with full_disk():`` every write to a file fails behind its first byte, for root as well. Pipes and memory are as they were."""
    return _full_disk


@contextlib.contextmanager
def _full_disk():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def metrics():
    """metrics(collector) -> {family: {label: value}}, by prometheus_client or, without it, by a stand-in."""

    class Family:
        def __init__(self, name, text, labels=None, value=None):
            self.name, self.found = name, {} if value is None else {"": value}

        def add_metric(self, labels, value):
            self.found[labels[0]] = value

    def read(collector):
        found = {}
        for family in collector.collect():
            samples = getattr(family, "samples", None)
            found[family.name] = family.found if samples is None else {s.labels.get("kind", ""): s.value for s in samples}
        return found

    if "prometheus_client" not in sys.modules and importlib.util.find_spec("prometheus_client") is None:
        core = types.ModuleType("prometheus_client.core")
        core.CounterMetricFamily = core.GaugeMetricFamily = Family
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "prometheus_client", types.ModuleType("prometheus_client"))
            patch.setitem(sys.modules, "prometheus_client.core", core)
            yield read
    else:
        yield read

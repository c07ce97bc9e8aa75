# SPDX-License-Identifier: Apache-2.0
"""What the plugin does when vLLM loads it: with stand-ins for vLLM."""

import logging

import pytest
import quire_vllm
from quire_vllm import selection, settings


def test_quire_takes_the_slot_custom(fake_vllm, monkeypatch):
    monkeypatch.setattr(selection, "refuse", lambda config: None)
    quire_vllm.register()
    assert fake_vllm.overrides[fake_vllm.enum.CUSTOM] == "quire_vllm.backend.QuireBackend"
    ask = fake_vllm.platform.get_attn_backend_cls
    assert ask(fake_vllm.enum.CUSTOM, None) == "quire_vllm.backend.QuireBackend"
    assert ask(fake_vllm.enum.CPU_ATTN, None, num_heads=3) == "vllm.cpu"
    assert ask(None, None) == "vllm.cpu"


def test_registering_twice_wraps_once(fake_vllm, monkeypatch):
    monkeypatch.setattr(selection, "refuse", lambda config: None)
    quire_vllm.register()
    once = fake_vllm.platform.__dict__["get_attn_backend_cls"]
    quire_vllm.register()
    assert fake_vllm.platform.__dict__["get_attn_backend_cls"] is once


@pytest.mark.parametrize("version", ["0.25.1", "0.34.0", "1.0.0", "0.9.2"])
def test_another_version_keeps_its_own_backends(fake_vllm, version, caplog):
    fake_vllm.module.__version__ = version
    with caplog.at_level(logging.WARNING, "vllm.quire"):
        quire_vllm.register()
    assert not fake_vllm.overrides
    assert f"needs vllm>=0.26,<0.34 and found {version}" in caplog.text


@pytest.mark.parametrize(("device", "option"), [("cuda", "QUIRE_CUDA=ON"), ("rocm", "QUIRE_HIP=ON")])
def test_a_build_without_the_devices_kernels_is_not_offered(fake_vllm, monkeypatch, caplog, device, option):
    monkeypatch.setattr(fake_vllm.platform, f"is_{device}", lambda self: True)
    monkeypatch.setattr(fake_vllm.platform, "is_cpu", lambda self: False)
    monkeypatch.setattr(selection, "_has_backend", lambda backend: False)
    with caplog.at_level(logging.WARNING, "vllm.quire"):
        quire_vllm.register()
    assert not fake_vllm.overrides and option in caplog.text
    monkeypatch.setattr(selection, "_has_backend", lambda backend: True)
    quire_vllm.register()
    assert fake_vllm.overrides


@pytest.mark.parametrize("version", ["0.26.0", "0.33.1.dev3", "0.32.0+cpu", "dev", "0.0.0.dev1"])
def test_these_versions_are_served(version):
    assert quire_vllm.refusal_of(version) is None


def test_settings_read_shares_and_flags():
    read = settings.read({"QUIRE_AUDIT": "1", "QUIRE_AUDIT_BUDGET": "5%", "QUIRE_AUDIT_ACTION": "stop", "QUIRE_AUDIT_SHADOW": "full"})
    assert (read.audit, read.budget, read.action, read.shadow) == (True, 0.05, "stop", 1.0)
    assert settings.read({}) == settings.Settings()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("QUIRE_AUDIT", "maybe", 'QUIRE_AUDIT: "maybe", expected 1 or 0'),
        ("QUIRE_AUDIT_BUDGET", "150%", 'QUIRE_AUDIT_BUDGET: "150%", expected a share'),
        ("QUIRE_AUDIT_BUDGET", "much", 'QUIRE_AUDIT_BUDGET: "much", expected a share'),
        ("QUIRE_AUDIT_ACTION", "panic", 'QUIRE_AUDIT_ACTION: "panic", expected one of log, quarantine, stop'),
        ("QUIRE_AUDIT_CAPTURES", "-1", 'QUIRE_AUDIT_CAPTURES: "-1", expected a count'),
    ],
)
def test_settings_that_cannot_be_read_say_so(name, value, expected):
    with pytest.raises(ValueError) as error:
        settings.read({name: value})
    assert expected in str(error.value)


@pytest.mark.parametrize(("name", "value"), [("QUIRE_AUDIT_BUDGET", "much"), ("QUIRE_AUDIT_PLANT", "no_such_fault@3")])
def test_the_audits_settings_are_read_at_the_start_and_not_in_a_step(fake_vllm, monkeypatch, name, value):
    pytest.importorskip("torch")
    monkeypatch.setattr(selection, "refuse", lambda config: None)
    monkeypatch.setenv("QUIRE_AUDIT", "1")
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f'{name}: "{value}", expected'):
        quire_vllm.register()

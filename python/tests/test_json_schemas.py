# SPDX-License-Identifier: Apache-2.0
"""Every JSON object that a command prints, or that a result has, is what docs/reference/schemas says, key by key."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest

import quire
from quire.__main__ import main

jsonschema = pytest.importorskip("jsonschema")
referencing = pytest.importorskip("referencing")

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference" / "schemas"
LINE = "q=bf16 heads=4:2 d=16 page=4 reqs=3@5,1@9 index=i64 lse=1 seed=1"

if not FOLDER.is_dir():
    pytest.skip("needs the repository's docs/", allow_module_level=True)


def closed(schema):
    """The schema with no other keys than those that it names: later releases may add keys, this one has no others."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    shut = {key: closed(part) for key, part in schema.items()}
    return {"additionalProperties": False, **shut} if "properties" in shut else shut


SCHEMAS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}
CLOSED = {name: closed(schema) for name, schema in SCHEMAS.items()}
REGISTRY = referencing.Registry().with_resources((schema["$id"], referencing.Resource.from_contents(schema)) for schema in CLOSED.values())


def errors(document, name):
    found = jsonschema.Draft202012Validator(CLOSED[name], registry=REGISTRY).iter_errors(document)
    return [f"{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}" for error in found]


def printed(capfd, words, exit_code):
    """What the command prints, and the name of its schema."""
    assert main([*words, "--json"]) == exit_code
    document = json.loads(capfd.readouterr().out)
    return document, document["schema"].removeprefix("quire.").removesuffix("/1")


@pytest.fixture
def captures(tmp_path):
    case = quire.make_case(LINE)
    right = quire.attend(case.batch, case.cache, case.options)
    paths = {}
    for name, output in {"right": right, "wrong": right * 2, "nan": right * np.float32("nan")}.items():
        paths[name] = str(tmp_path / f"{name}.safetensors")
        quire.write_capture(paths[name], case.batch, case.cache, case.options, output.astype(right.dtype))
    case.batch.block_table[0, 0] = 913
    paths["broken"] = str(tmp_path / "broken.safetensors")
    quire.write_capture(paths["broken"], case.batch, case.cache, case.options, right)
    return paths


COMMANDS = {
    "check": (["check", LINE], 0), "check broken": (["check", "broken"], 1), "explain": (["explain", LINE, "--all"], 0),
    "explain h200": (["explain", LINE, "--device", "h200"], 0), "run": (["run", LINE], 0),
    "run a capture": (["run", "wrong"], 1), "run broken": (["run", "broken"], 1), "run, not verified": (["run", LINE, "--no-verify"], 0),
    "diagnose right": (["diagnose", "right"], 0), "diagnose wrong": (["diagnose", "wrong"], 1), "diagnose NaN": (["diagnose", "nan"], 1),
    "diagnose broken": (["diagnose", "broken"], 1), "verify": (["verify", "--line", LINE], 0), "soak": (["verify", "--soak", "0.02"], 0),
    "bench": (["bench", LINE, "--seconds", "0.01", "--threads", "1"], 0), "info": (["info"], 0),
    "rules": (["rules"], 0), "completions": (["completions", "bash"], 0), "error": (["rules", "Q-X1"], 2),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_print_what_the_schemas_say(capfd, captures, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    words, exit_code = COMMANDS[name]
    document, schema = printed(capfd, [captures.get(word, word) for word in words], exit_code)
    assert not errors(document, schema)


def test_capture_and_compare(capfd, tmp_path):
    words = ["capture", LINE, "--fault", "output_zero", "-o", str(tmp_path / "made.safetensors")]
    assert not errors(*printed(capfd, words, 0))
    saved = str(tmp_path / "report.json")
    assert main(["bench", LINE, "--seconds", "0.01", "--threads", "1", "--save", saved]) == 0
    capfd.readouterr()
    assert not errors(*printed(capfd, ["bench", "compare", saved, saved], 0))


def test_compared_caches(capfd, captures):
    for words, code in (([captures["right"], captures["wrong"]], 0), ([captures["right"], LINE.replace("seed=1", "seed=2")], 1)):
        document, schema = printed(capfd, ["compare-caches", *words], code)
        assert schema == "compare_caches" and not errors(document, schema)


def test_results_of_a_wrong_target():
    """A failing verdict has pictures and a smallest line; one of a target that refuses has neither."""

    def doubles(case):
        return quire.attend(case.batch, case.cache, case.options) * 2

    def refuses(case):
        raise NotImplementedError("not today")

    for target, verdict in ((doubles, "fail"), (refuses, "mistrusted")):
        result = quire.verify(target, matrices=(), lines=LINE, power=False, peer_power=False)
        document = json.loads(result.json)
        assert result.verdict == document["verdict"] == verdict
        assert not errors(document, "verdict")
        assert (document["cases"][0]["pictures"] is not None) == (verdict == "fail")


def test_every_schema_is_a_schema_and_is_listed():
    page = (FOLDER.parent / "json.md").read_text(encoding="utf-8")
    for name, schema in SCHEMAS.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["$id"] == f"quire:{name}" and schema["title"]
        assert f"schemas/{name}.json" in page


def test_a_planted_difference_is_found(capfd, captures, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    document, schema = printed(capfd, ["diagnose", captures["wrong"]], 1)
    assert not errors(document, schema)
    changes = {
        "a verdict of another name": lambda d: d.update(verdict="cause_found"),
        "a key that no schema has": lambda d: d["answers"][0].update(surprise=1),
        "a key that is gone": lambda d: d["wrong"]["requests"][0].pop("heads"),
        "another type": lambda d: d["pictures"]["rows"].update(expected="12"),
    }
    for name, change in changes.items():
        wrong = copy.deepcopy(document)
        change(wrong)
        assert errors(wrong, schema), name

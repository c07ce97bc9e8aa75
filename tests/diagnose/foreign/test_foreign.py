# SPDX-License-Identifier: Apache-2.0
"""Tests the generator and the grader: right outputs are right, every variant shows somewhere, a wrong answer is not graded right.

With QUIRE (the path of the program) in the environment, also what diagnose says of a few captures.
"""
import copy
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import batches
from batches import GEOMETRIES, random_batch
from capture_file import read_cells
from conditions import Cells, condition
from draw import Draw
from generate import Planted, Right, cells_ratio, generate, observed, write
from grade import decode, diagnose, grade, grade_one
from mechanisms import FAMILIES, LATER, draw_fault
from names import MECHANISM


@pytest.fixture(autouse=True, scope="module")
def quiet():
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(scope="module")
def small():
    """Keeps batches of these tests small."""
    before, batches.ELEMENTS = batches.ELEMENTS, 300_000
    yield
    batches.ELEMENTS = before


@pytest.fixture(scope="module")
def rights(small):
    """Makes two batches of each geometry."""
    made = []
    for i, geometry in enumerate(GEOMETRIES):
        for seed in range(2):
            batch = random_batch(Draw([i, seed], "held_out"), geometry)
            batch.with_lse = True
            made.append(Right(batch))
    return made


def test_right_outputs_are_within_the_tolerance(rights):
    """An output that f32 arithmetic gives uses a small part of the tolerance; rounding to the output type stays below all of it."""
    for right in rights:
        out, lse = right.ratio(right.base, right.base_lse)
        if right.batch.weight_type is None:
            assert max(out.max(), lse.max()) < 0.1, right.batch.geometry
        assert cells_ratio(right.ratio(observed(right.batch, right.base).astype(np.float64), right.base_lse)).max() < 0.97


@pytest.mark.parametrize("family,variant", [(f, v) for f in sorted(FAMILIES) for v in FAMILIES[f] + LATER.get(f, [])],
                         ids=lambda x: getattr(x, "__name__", x))
def test_every_variant_shows(rights, family, variant):
    """Every variant makes cells wrong on some batch; where it does not apply it says so."""
    for n, right in enumerate(rights):
        fault = variant(Draw([n, 5], "held_out"), right.batch)
        if fault is not None and Planted(right, fault, list(fault.home)).wrong().any():
            return
    pytest.fail(f"{variant.__name__} shows on no batch")


def test_captures_are_the_same_by_seed(small, tmp_path):
    for folder, first, count in (("a", 0, 6), ("b", 5, 1)):
        generate(tmp_path / folder, "development", first, count)
    a, b = (tmp_path / x / "development-00005.safetensors" for x in "ab")
    # The header's metadata come in any order; each tensor must be the same bit by bit.
    first, second = load_file(a), load_file(b)
    assert {k: v.tobytes() for k, v in first.items()} == {k: v.tobytes() for k, v in second.items()}
    assert a.with_suffix("").with_suffix(".truth.json").read_bytes() == b.with_suffix("").with_suffix(".truth.json").read_bytes()


def test_parts_draw_apart():
    """Development never sees a reserved option; the held-out part sees them all."""
    seen = {part: {Draw(i, part).choice(range(9)) for i in range(300)} for part in ("development", "held_out")}
    assert seen == {"development": {0, 2, 3, 5, 6, 8}, "held_out": set(range(9))}
    x = np.array([Draw(i, "development").uniform(0, 3) for i in range(300)])
    assert ((x < 1) | (x > 2)).all() and x.max() > 2.5


def test_later_variants_are_drawn_for_their_part_alone(rights):
    """The other parts draw as if there were none."""
    assert set(LATER) <= set(FAMILIES)
    for family in LATER:
        later = {v.__name__ for v in LATER[family]}
        assert not later & {v.__name__ for variants in FAMILIES.values() for v in variants}
        drawn = {part: [draw_fault(Draw([n, i], part), right.batch, family) for n, right in enumerate(rights) for i in range(4)]
                 for part in ("development", "held_out", "later")}
        names = {part: [f.variant for f in faults if f] for part, faults in drawn.items()}
        assert names["later"] and set(names["later"]) <= later
        assert not later & set(names["development"] + names["held_out"])


def test_conditions_count_as_loops_do(rights):
    """The table of attributes agrees with the batch's masks and tables, row by row."""
    for right in rights[:8]:
        batch, cells = right.batch, right.batch.cells
        token = 0
        for r in range(batch.num_requests):
            view = batch.view(r)
            seen = view.visible(view.q_pos[:, None], view.k_pos[None, :])
            for i, q_pos in enumerate(view.q_pos):
                pages = set(batch.block_table[r, np.flatnonzero(seen[i]) // batch.page_size])
                row = {k: v[token] for k, v in cells.rows.items()}
                assert (row["request"], row["row"], row["q_pos"]) == (r, i, q_pos)
                assert row["num_keys"] == seen[i].sum()
                page = int(next(iter(pages)))
                assert cells.select([condition("page", "reads", page)])[token].all()
                assert not cells.select([condition("page", "reads", 10 ** 6)]).any()
                token += 1


def test_the_map_knows_every_catalogue_id():
    page = (Path(__file__).parents[3] / "docs/reference/faults.md").read_text()
    assert set(re.findall(r"^\| `([a-z0-9_]+)` \|", page, re.M)) == set(MECHANISM)


def truths(folder):
    for path in sorted(folder.glob("*.safetensors")):
        yield path, json.loads(path.with_suffix("").with_suffix(".truth.json").read_text())


def oracle(truth, path):
    """Writes the report of somebody who knows the truth."""
    cells = Cells(**read_cells(path))
    shape = truth["shape"][:2]
    wrong = decode(truth["wrong"], shape)
    pattern = [{"conditions": [condition("token", "is", t), condition("head", "is", *np.flatnonzero(wrong[t]))], "exact": True}
               for t in np.flatnonzero(wrong.any(axis=1))]
    answers = [{"mechanism": f["mechanism"], "scope": f["scope"], "explained": 1.0, "as_good": []} for f in truth["faults"]]
    assert cells.shape == tuple(shape)
    return {"verdict": "cause found" if truth["faults"] else "unknown cause", "pattern": pattern, "answers": answers}


def test_the_grader_tells_right_from_wrong(small, tmp_path):
    generate(tmp_path, "development", 0, 24)
    count = 0
    for path, truth in truths(tmp_path):
        count += 1
        report = oracle(truth, path)
        row = grade_one(report, truth, path)
        assert row["pattern"]["exact"] and row["pattern"]["strict"] and not row["false"]
        assert row["first"] == row["top3"] == bool(truth["faults"])

        lying = copy.deepcopy(report) | {"verdict": "cause found", "answers": [{"mechanism": "other", "scope": [], "explained": 1.0}]}
        row = grade_one(lying, truth, path)
        assert row["false"] and not row["first"] and not row["top3"]

        elsewhere = copy.deepcopy(report)
        for a in elsewhere["answers"]:
            a["scope"] = [condition("token", "from", 10 ** 6)]
        row = grade_one(elsewhere, truth, path)
        assert not row["first"] and row.get("false_scope") == bool(truth["faults"])

        short = report | {"pattern": report["pattern"][1:]}
        wide = report | {"pattern": [{"conditions": []}]}
        everything = not (~decode(truth["wrong"], truth["shape"][:2]) & ~decode(truth["unsure"], truth["shape"][:2])).any()
        assert not grade_one(short, truth, path)["pattern"]["exact"]
        assert grade_one(wide, truth, path)["pattern"]["strict"] == everything
    assert count >= 20


@pytest.mark.skipif("QUIRE" not in os.environ, reason="QUIRE, the path of the program, is not set")
def test_right_outputs_are_called_right(rights, tmp_path):
    for i, right in enumerate(rights):
        if right.batch.weight_type is None:
            write(tmp_path, f"right-{i}", right.batch, right.base, right.base_lse, {})
            report, *_ = diagnose(os.environ["QUIRE"], tmp_path / f"right-{i}.safetensors", 60)
            assert report["verdict"] == "right", right.batch.geometry


@pytest.mark.skipif("QUIRE" not in os.environ, reason="QUIRE, the path of the program, is not set")
def test_no_false_cause_in_thirty_captures(tmp_path):
    """Thirty fixed captures: nothing fails, and no cause is found that is not there."""
    generate(tmp_path, "development", 100_000, 30)
    rows = grade(Path(os.environ["QUIRE"]), tmp_path)
    assert [r["file"] for r in rows if r["verdict"] == "failed"] == []
    assert [(r["file"], r["faults"], r["told"]) for r in rows if r["false"]] == []

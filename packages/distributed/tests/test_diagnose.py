# SPDX-License-Identifier: Apache-2.0
"""diagnose() says whose fault a wrong result is: a rank's own attention, or what became of right parts."""

import numpy as np
import pytest
import quire
from dense import make_job
from quire_distributed import Group, attend, diagnose
from sharded import on_ranks, rank_batch, rank_cache, shard_of, without_errors

LENGTHS = dict(query_lens=[1, 7, 1, 5], context_lens=[40, 30, 61, 2])
SHORT = dict(query_lens=[1, 3, 1, 2], context_lens=[1, 0, 40, 1])  # some ranks see no key
SINKS = np.array([0.5, -1.0, 3.0, 0.0], np.float32)


def captured(folder, *, world=3, lengths=LENGTHS, dtype="f32", contiguous=False, options=None, **how):
    job = make_job(**lengths, dtype=dtype)

    def body(group):
        shard = shard_of(group.rank, world, 20 if contiguous else 2, contiguous)
        cache, table = rank_cache(job, shard)
        return attend(rank_batch(job, table), cache, options, group=group, shard=shard, capture=folder, **how)

    without_errors(on_ranks(Group.local(world), body))


def changed(folder, rank, **arrays):
    """The rank's file with other arrays."""
    path = folder / f"rank{rank}.npz"
    np.savez(path, **{**np.load(path), **arrays})


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("how", [{}, dict(heads="own", world=2), dict(contiguous=True), dict(options=quire.Options(sinks=SINKS, sliding_window=9)),
                                 dict(world=1), dict(partials="query")])  # fmt: skip
def test_right_ranks_are_right(tmp_path, dtype, how):
    captured(tmp_path, dtype=dtype, **how)
    found = diagnose(tmp_path)
    assert found and not any(found.results) and found.cause == "", found


def parts(folder, world=3):
    saved = [np.load(folder / f"rank{k}.npz") for k in range(world)]
    return np.stack([each["out"] for each in saved]).astype(np.float64), np.stack([each["lse"] for each in saved]).astype(np.float64)


def merged(outs, lses):
    top = lses.max(axis=0)
    weights = np.exp(lses - np.where(np.isfinite(top), top, 0))
    total = weights.sum(axis=0)
    return (weights[..., None] * outs).sum(axis=0) / np.where(total > 0, total, 1)[..., None]


MISTAKES = {
    "rank 2's part is missing": lambda o, lse: merged(o[:2], lse[:2]),
    "the result is rank 1's part alone": lambda o, lse: o[1],
    "parts are added without weights": lambda o, lse: o.sum(axis=0),
    "parts are averaged without weights": lambda o, lse: o.mean(axis=0),
    "natural lse are merged as those of base 2": lambda o, lse: merged(o, lse * np.log(2)),
    "lse of base 2 are merged as natural ones": lambda o, lse: merged(o, lse / np.log(2)),
    "a rank without keys has the lse 0": lambda o, lse: merged(o, np.where(np.isneginf(lse), 0.0, lse)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("who", [[0, 1, 2], [1]])
def test_a_mistake_of_the_merge_is_named(tmp_path, mistake, who):
    captured(tmp_path, lengths=SHORT if "without keys" in mistake else LENGTHS)
    result = MISTAKES[mistake](*parts(tmp_path)).astype(np.float32)
    for rank in who:
        changed(tmp_path, rank, result=result)
    found = diagnose(tmp_path)
    assert not found and found.cause == mistake, found
    assert [bool(text) for text in found.results] == [rank in who for rank in range(3)] and all(found.parts)
    assert f"cause    {mistake}" in str(found)


def test_a_result_that_no_mistake_explains_has_no_cause(tmp_path):
    captured(tmp_path)
    result = np.load(tmp_path / "rank1.npz")["result"]
    result[3, 2, 5] += 0.25
    changed(tmp_path, 1, result=result)
    found = diagnose(tmp_path)
    assert not found and found.cause == "" and found.results[1].startswith("wrong in 1 of 1792 elements; row 3 head 2 dim 5: "), found


def test_a_wrong_part_is_the_ranks_own_and_is_diagnosed(tmp_path):
    captured(tmp_path)
    path = tmp_path / "rank1.safetensors"
    case = quire.read_capture(path)
    quire.write_capture(path, case.batch, case.cache, case.options, np.asarray(case.observed) * np.float32(1.25), case.observed_lse)
    found = diagnose(tmp_path)
    assert [bool(part) for part in found.parts] == [True, False, True] and not any(found.results), found
    assert "factor" in str(found.parts[1]) or "1.25" in str(found.parts[1]), found


def test_files_of_every_rank_are_needed(tmp_path):
    captured(tmp_path)
    (tmp_path / "rank2.npz").unlink()
    with pytest.raises(quire.ArgumentError, match=r"folder: .*rank2.npz is missing, expected the files of every rank"):
        diagnose(tmp_path)
    with pytest.raises(quire.ArgumentError, match="rank0.npz is missing"):
        diagnose(tmp_path / "nowhere")

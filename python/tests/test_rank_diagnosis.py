# SPDX-License-Identifier: Apache-2.0
"""quire.distributed.diagnose() names the mistake of ranks whose captures a generator of its own made (rank_mutants.py)."""

import json

import numpy as np
import pytest
from dense import make_job
from rank_mutants import KEYS, MERGES, Ranks, normalised, parts_of, write
from sharded import on_ranks, rank_batch, rank_cache, shard_of, without_errors

import quire
from quire.__main__ import main
from quire.distributed import Group, attend, diagnose

LENGTHS = dict(query_lens=[1, 7, 1, 5], context_lens=[40, 30, 61, 2])
SHORT = dict(query_lens=[1, 3, 1, 2], context_lens=[1, 0, 40, 1])  # some ranks see no key
SLOPES = np.array([0.5, -0.25, 0.125, 0.0625], np.float32)
SINKS = np.array([0.5, -1.0, 3.0, 0.0], np.float32)


def ranks_for(fault, dtype="f32"):
    """A step on which the fault shows."""
    if fault == "zero_lse_is_empty":
        job = make_job([1, 2], [2, 1], dtype=dtype)
        job.q[:] = 0  # every score is 0: a rank that sees one key has the lse 0
        return Ranks(job, 3, 1)
    lengths = SHORT if fault.startswith("empty") else LENGTHS
    job = make_job(**lengths, dtype=dtype)
    if fault == "window_on_rank":
        return Ranks(job, 3, 2, window=9, window_on_rank=True)
    if fault == "sink_on_every_rank":
        return Ranks(job, 3, 2, sinks=SINKS)
    if fault == "alibi_on_rank":
        return Ranks(job, 3, span=20, slopes=SLOPES)
    return Ranks(job, 3, 2)


def mutant(fault, dtype="f32", rank=1):
    ranks = ranks_for(fault, dtype)
    if fault in MERGES:
        parts = parts_of(ranks)
        return ranks, parts, MERGES[fault](*parts, rank)
    how = dict(KEYS[fault])
    if fault == "alibi_on_rank":
        how["bias"] = ranks.place
    parts = parts_of(ranks, **how)
    return ranks, parts, normalised(*parts)


def named(found, fault):
    assert found.verdict == "cause found", found.text
    best = {who: (cause, detail) for who, cause, detail in reversed(found.causes)}
    assert fault in {cause for cause, _ in best.values()}, found.text
    return [detail for _, cause, detail in found.causes if cause == fault]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("world, interleave, span", [(1, 1, 0), (2, 1, 0), (3, 4, 0), (4, 16, 0), (3, 1, 20)])
@pytest.mark.parametrize("record", [True, False])
def test_right_ranks_are_right(tmp_path, dtype, world, interleave, span, record):
    ranks = Ranks(make_job(**LENGTHS, dtype=dtype), world, interleave, span)
    parts = parts_of(ranks)
    found = diagnose(write(tmp_path, ranks, parts, normalised(*parts), record=record))
    assert found and found.verdict == "right" and found.causes == [], found.text


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("fault", [*MERGES, *KEYS])
def test_each_mistake_is_named(tmp_path, fault, record):
    ranks, parts, result = mutant(fault)
    details = named(diagnose(write(tmp_path, ranks, parts, result, record=record), full=True), fault)
    rank = {"rank_part_missing": "rank 1's part is missing", "rank_part_twice": "rank 1's part counts twice",
            "one_rank_lse_base_2": "rank 1 gives its lse in base 2", "rank_part_alone": "the result is rank 1's part",
            "rank_weights_swapped": "ranks 0 and 1 have each other's weights"}  # fmt: skip
    assert rank.get(fault, details[0]) in details


@pytest.mark.parametrize("fault", ["rank_part_missing", "rank_lse_base_2", "rank_parts_averaged", "border_key_twice", "causal_mask_on_rank"])
def test_in_16_bits_too(tmp_path, fault):
    ranks, parts, result = mutant(fault, "bf16")
    named(diagnose(write(tmp_path, ranks, parts, result), full=True), fault)


@pytest.mark.parametrize("missing", range(4))
def test_the_rank_that_is_missing_is_named(tmp_path, missing):
    ranks = Ranks(make_job(**LENGTHS, dtype="f16"), 4, 4)
    parts = parts_of(ranks)
    found = diagnose(write(tmp_path, ranks, parts, MERGES["rank_part_missing"](*parts, missing))[::-1])  # files in reverse order
    assert found.causes == [("result of ranks 0, 1, 2, 3", "rank_part_missing", f"rank {missing}'s part is missing")]
    assert f"cause    rank {missing}'s part is missing: ranks that leave a rank's part out of the merge" in found.text


def test_one_rank_alone_is_wrong(tmp_path):
    ranks = Ranks(make_job(**LENGTHS, dtype="f32"), 3, 2)
    parts = parts_of(ranks)
    right = normalised(*parts)
    found = diagnose(write(tmp_path, ranks, parts, [right, right, MERGES["rank_part_twice"](*parts, 0)]))
    assert found.causes == [("result of rank 2", "rank_part_twice", "rank 0's part counts twice")]


def test_one_rank_with_stale_lengths_is_named(tmp_path):
    ranks = Ranks(make_job(**LENGTHS, dtype="f32"), 3, 2)
    from rank_mutants import stale

    parts = parts_of(ranks, keys=lambda *a: stale(*a, late=2))
    found = diagnose(write(tmp_path, ranks, parts, normalised(*parts)), full=True)
    assert ("part of rank 2", "stale_rank_lengths", "rank 2 has the lengths before the step") in found.causes
    assert {who for who, _, _ in found.causes} == {"part of rank 2"}


def test_a_cause_holds_for_every_wrong_row(tmp_path):
    """Many rows look like stale lengths; the last row of rank 1's part holds other numbers, which no fault of ranks makes."""
    ranks, (outs, lses), _ = mutant("stale_rank_lengths")
    outs[1][-1] += 0.2
    found = diagnose(write(tmp_path, ranks, (outs, lses), normalised(outs, lses)), full=True)
    assert found.verdict == "unknown cause", found.text


def test_a_fault_of_a_ranks_own_attention_goes_to_diagnose(tmp_path):
    """Rank 1 scales its scores twice: no fault of ranks, but one of the catalogue of kernels."""
    ranks = Ranks(make_job(**LENGTHS, dtype="f32"), 2, 4)
    o, lse = parts_of(ranks)
    o[1, :, 2], lse[1, :, 2] = o[1, :, 1], lse[1, :, 1]
    found = diagnose(write(tmp_path, ranks, (o, lse), normalised(o, lse)))
    assert found.verdict != "right" and "rank 1's own attention, as if it were alone:" in found.text
    assert "part     rank 0: right" in found.text and "result   ranks 0, 1: right" in found.text
    assert " reqs=1x1@40,1x7@30,1x1@61,1x5@2 " in found.text, "the problem line is the caller's, like all row numbers"
    short = str(found)
    assert short.count("\n") <= 10 and max(map(len, short.split("\n"))) <= 80, short
    assert "rank 1: wrong in" in short and "stores the right answer of another row or head" in " ".join(short.split()), short


def test_attend_writes_what_diagnose_reads(tmp_path):
    job = make_job(**LENGTHS, dtype="f16")

    def body(group):
        shard = shard_of(group.rank, 3, 4)
        kv, table = rank_cache(job, shard)
        return attend(rank_batch(job, table), kv, quire.Options(sinks=SINKS), group=group, shard=shard, capture=tmp_path / "step")

    without_errors(on_ranks(Group.local(3), body))
    paths = [tmp_path / "step" / f"rank{k}.safetensors" for k in range(3)]
    found = diagnose(paths, full=True)
    assert found.verdict == "right", found.text
    case = quire.read_capture(paths[1])
    assert case.notes["context_shard"] == "rank=1 world=3 interleave=4" and case.batch.output.dtype == np.float32


def test_own_heads_are_judged_alone(tmp_path):
    job = make_job(**LENGTHS, dtype="bf16")

    def body(group):
        shard = shard_of(group.rank, 2, 20, True)
        kv, table = rank_cache(job, shard)
        return attend(rank_batch(job, table), kv, group=group, shard=shard, heads="own", capture=tmp_path)

    without_errors(on_ranks(Group.local(2), body))
    found = diagnose([tmp_path / "rank0.safetensors", tmp_path / "rank1.safetensors"], full=True)
    assert found.verdict == "right", found.text


def in_one_line(capfd):
    return " ".join(capfd.readouterr().out.split())


def test_the_command(tmp_path, capfd):
    ranks, parts, result = mutant("rank_part_missing", rank=2)
    paths = write(tmp_path, ranks, parts, result)
    assert main(["diagnose", *paths]) == 1
    assert "cause rank 2's part is missing: ranks that leave a rank's part out of the merge (rank_part_missing)" in in_one_line(capfd)
    assert main(["diagnose", *paths, "--json"]) == 1
    document = json.loads(capfd.readouterr().out)
    assert document["schema"] == "quire.diagnose_ranks/1" and document["results"][0]["suspicions"][0]["detail"] == "rank 2's part is missing"


def test_the_command_names_rule_and_file(tmp_path, capfd):
    ranks = Ranks(make_job(**LENGTHS, dtype="f32"), 3, 2)
    later = Ranks(make_job(**{**LENGTHS, "context_lens": [41, 30, 61, 2]}, dtype="f32"), 3, 2)
    (tmp_path / "other").mkdir()
    paths, mixed = (
        write(folder, of, parts_of(of), normalised(*parts_of(of))) for folder, of in ((tmp_path, ranks), (tmp_path / "other", later))
    )
    assert main(["diagnose", paths[0], mixed[1], paths[2]]) == 1
    assert f"Q-D05 seq_lens[0]: 42 on rank 1 ({mixed[1]}), expected 41 as on rank 0" in in_one_line(capfd)
    case = quire.read_capture(paths[1])
    case.batch.block_table[0, 0] = 913
    quire.write_capture(paths[1], case)
    assert main(["diagnose", *paths]) == 1
    assert f"rank 1 ({paths[1]}): Q-T" in in_one_line(capfd)


def test_what_is_wrong_with_the_captures(tmp_path):
    ranks = Ranks(make_job(**LENGTHS, dtype="f32"), 3, 2)
    parts = parts_of(ranks)
    paths = write(tmp_path, ranks, parts, normalised(*parts))
    with pytest.raises(quire.ArgumentError, match="rank 1 of 3 has no capture here"):
        diagnose([paths[0], paths[2]])
    with pytest.raises(quire.ArgumentError, match="a rank is given twice"):
        diagnose([*paths, paths[0]])
    other = tmp_path / "other"
    other.mkdir()
    later = Ranks(make_job(**{**LENGTHS, "context_lens": [41, 30, 61, 2]}, dtype="f32"), 3, 2)
    later_parts = parts_of(later)
    mixed = write(other, later, later_parts, normalised(*later_parts))
    found = diagnose([paths[0], mixed[1], paths[2]])
    assert found.verdict == "broken batch" and found.disagreements[0] == "Q-D05 seq_lens[0]: 42 on rank 1, expected 41 as on rank 0"
    case = quire.read_capture(paths[0])
    plain = str(tmp_path / "plain.safetensors")
    quire.write_capture(plain, case.batch, case.cache, case.options, case.observed)
    with pytest.raises(quire.ArgumentError, match='it has no note "context_shard"'):
        diagnose([plain])


def test_a_rank_that_records_lse_of_base_2_is_named(tmp_path):
    ranks = Ranks(make_job(**LENGTHS, dtype="f32"), 3, 2)
    o, lse = parts_of(ranks)
    lse[1] /= np.log(2)
    found = diagnose(write(tmp_path, ranks, (o, lse), normalised(o, lse)), full=True)
    assert found.causes == [("part of rank 1", "one_rank_lse_base_2", "rank 1 gives its lse in base 2")], found.text
    assert "result   ranks 0, 1, 2: right" in found.text  # the merge did what it was given


def test_a_table_that_names_no_page_is_the_answer(tmp_path):
    ranks = Ranks(make_job(**LENGTHS, dtype="f32"), 2, 4)
    parts = parts_of(ranks)
    paths = write(tmp_path, ranks, parts, normalised(*parts))
    case = quire.read_capture(paths[1])
    case.batch.block_table[0, 0] = 913
    quire.write_capture(paths[1], case)
    found = diagnose(paths)
    assert found.verdict == "broken batch" and found.disagreements[0].startswith("rank 1: Q-T"), found.disagreements


def write_with(path, case, **changed):
    """A capture with some arrays of a batch replaced, as a file of another writer may have them."""
    from safetensors.numpy import load_file, save_file

    quire.write_capture(path, case)
    arrays = load_file(path)
    arrays.update(changed)
    save_file(arrays, path, metadata={"layout": "nhd", "context_shard": case.notes["context_shard"]})


@pytest.mark.parametrize(
    "changed, text",
    [
        (dict(block_table=np.zeros((1, 3), np.int32)), "rank 1: block_table: "),
        (dict(block_table=np.zeros(4, np.int32)), "rank 1: block_table: "),
        (dict(seq_lens=np.zeros((4, 1), np.int32)), "rank 1: seq_lens: "),
        (dict(seq_lens=np.full(4, 2**40)), "seq_lens"),
        (dict(seq_lens=np.full(4, -3)), "seq_lens"),
        (dict(query_start_loc=np.array([0, 3, 1, 9, 14])), "query_start_loc"),
        (dict(query=np.zeros((14, 4), np.float32)), "rank 1: query: "),
        (dict(observed=np.zeros((14, 4, 16), np.float32)), "rank 1: observed: "),
        (dict(lse=np.zeros((14, 2), np.float32)), "rank 1: lse: "),
        (dict(output=np.zeros((2, 4, 32), np.float32)), "rank 1: output: "),
        (dict(query=np.zeros((14, 4, 48), np.float32), observed=np.zeros((14, 4, 48), np.float32), output=np.zeros((14, 4, 48), np.float32)), "query"),
        (dict(k_cache=np.zeros((2, 8, 2), np.float32)), "rank 1: k_cache: "),
    ],
)
def test_captures_of_strange_shapes_are_refused_by_name(tmp_path, changed, text):
    ranks = Ranks(make_job(**LENGTHS, dtype="f32"), 2, 4)
    parts = parts_of(ranks)
    paths = write(tmp_path, ranks, parts, normalised(*parts))
    write_with(paths[1], quire.read_capture(paths[1]), **changed)
    try:
        found = diagnose(paths)
    except quire.Error as error:
        assert text in str(error)
    else:
        assert found.verdict == "broken batch" and any(text in line for line in found.disagreements), found.text

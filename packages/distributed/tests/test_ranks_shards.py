# SPDX-License-Identifier: Apache-2.0
"""Who holds what, against positions dealt out one by one; and what a rank's batch sees, position by position."""

import itertools

import numpy as np
import pytest

import quire
from quire import _quire
from quire_distributed import ContextShard, HeadShard, shards
from quire_distributed._local_batch import local_lengths

RUNS = (1, 2, 3, 8, 16, 48)


def every_shard(worlds=range(1, 6), runs=RUNS):
    for world, run, contiguous in itertools.product(worlds, runs, (False, True)):
        yield [ContextShard.contiguous(k, world, run) if contiguous else ContextShard(k, world, run) for k in range(world)]


def dealt(ranks, length):
    """Positions of each rank, dealt like cards."""
    hands, rank, in_hand = [[] for _ in ranks], 0, 0
    for p in range(length):
        if in_hand == ranks[0].run and not (ranks[0].span and rank + 1 == len(ranks)):
            rank, in_hand = (rank + 1) % len(ranks), 0
        hands[rank].append(p)
        in_hand += 1
    return hands


def test_positions_are_dealt_like_cards():
    for ranks in every_shard():
        hands = dealt(ranks, 200)
        for shard, hand in zip(ranks, hands):
            counts = [sum(p < n for p in hand) for n in range(201)]
            assert [shard.local_length(n) for n in range(201)] == counts
            assert shard.local_length(np.arange(201)).tolist() == counts
            where, indices = np.array(hand, np.int64), np.arange(len(hand))
            assert np.array_equal(shard.global_position(indices), where)
            assert np.array_equal(shard.local_index(where), indices)
            assert (shard.owner(where) == shard.rank).all() and shard.holds(where).all()
            assert [shard.owner(p) for p in hand] == [shard.rank] * len(hand)


def test_torch_tensors_are_taken_as_they_are():
    torch = pytest.importorskip("torch")
    for ranks in every_shard(worlds=(1, 3)):
        for shard in ranks:
            p = torch.arange(100, dtype=torch.int32)
            for function in (shard.owner, shard.local_index, shard.local_length, shard.holds, shard.global_position):
                assert np.array_equal(function(p).numpy(), function(p.numpy())), function


@pytest.mark.parametrize("page_size", [1, 3, 8, 16])
def test_every_slot_is_on_one_rank(page_size):
    rng = np.random.default_rng(0)
    positions = np.concatenate([np.arange(n) for n in (117, 0, 40)])
    requests = np.repeat([0, 1, 2], [117, 0, 40])
    for ranks in every_shard():
        owners = np.zeros(len(positions), int)
        for shard in ranks:
            pages = -(-int(shard.local_length(117)) // page_size)
            table = rng.permutation(3 * max(pages, 1)).reshape(3, -1)
            slots = shard.slots(positions, requests, table, page_size)
            owners += slots >= 0
            for r in range(3):
                mine = slots[(requests == r) & (slots >= 0)]
                assert np.array_equal(mine, [table[r, j // page_size] * page_size + j % page_size for j in range(len(mine))])
            assert shard.check_slots(slots, positions).ok
        assert (owners == 1).all()


def test_a_global_table_is_dealt_by_pages():
    table = np.arange(24).reshape(2, 12)
    ranks = [ContextShard(k, 3, interleave=16) for k in range(3)]
    assert [shard.block_table(table, 16)[0].tolist() for shard in ranks] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    assert ContextShard.contiguous(1, 2, 64).block_table(table, 16)[1].tolist() == list(range(16, 24))
    with pytest.raises(quire.ContractError, match=r"Q-D04 interleave: 8, expected a multiple of page_size = 16"):
        ContextShard(0, 2, interleave=8).block_table(table, 16)


def test_a_key_on_the_wrong_rank_is_a_finding():
    shard = ContextShard(0, 2)
    findings = shard.check_slots([70, 71, -1], [0, 1, 2])
    assert [str(f) for f in findings] == [
        "Q-D06 slot_mapping[1]: 71 for position 1, expected -1, because rank 1 holds it",
        "Q-D06 slot_mapping[2]: -1 for position 2, expected a slot, because rank 0 holds it",
    ]


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: ContextShard(2, 2), quire.ContractError, r"Q-D01 rank: 2 outside \[0, 2\)"),
        (lambda: ContextShard(0, 0), quire.ContractError, "Q-D01 world: 0, expected at least 1"),
        (lambda: ContextShard(0, 2, interleave=0), quire.ContractError, "Q-D02 interleave: 0"),
        (lambda: ContextShard.contiguous(0, 2, 0), quire.ArgumentError, "span: 0, expected at least 1"),
        (lambda: ContextShard(0.5, 2), quire.ArgumentError, r"ContextShard: rank: 0.5 \(float\), expected an integer"),
        (lambda: HeadShard(0, 3, 32, 8), quire.ContractError, "Q-D03 world: 3, expected a divisor or a multiple of num_kv_heads = 8"),
        (lambda: ContextShard(3, 4, interleave=2**62), quire.ContractError, "Q-D02 interleave: 4611686018427387904, expected at most 2147483647"),
        (lambda: ContextShard.contiguous(3, 4, 2**31), quire.ContractError, "Q-D02 span: 2147483648, expected at most 2147483647"),
        (lambda: ContextShard(0, 2**40), quire.ArgumentError, "world: 1099511627776, expected at most 2147483647 ranks"),
        (lambda: ContextShard(0, 2, interleave=2**70), quire.ArgumentError, "interleave: 1180591620717411303424 .*expected an integer of 64 bits"),
        (lambda: _quire.check_ranks([], [1, 2, 3]).raise_if_any(), quire.ContractError, "Q-D05 facts: 3 entries, expected 0 of each rank"),
        (lambda: shards(0, 6, 32, 8, contexts=4), quire.ArgumentError, "contexts: 4, expected a divisor of world = 6"),
    ],
)
def test_bad_shards_say_what_is_wrong(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_the_longest_runs_are_taken_in_any_integer_type():
    most = 2**31 - 1
    for shard in (ContextShard(1, 4, most), ContextShard.contiguous(1, 4, most), ContextShard(0, 2**20, most)):
        for lengths in (np.array([5, most], np.int32), np.array([5, most], np.int64)):
            assert shard.local_length(lengths).tolist() == [shard.local_length(5), shard.local_length(most)] == ([5, most] if shard.rank == 0 else [0, 0])
            assert shard.local_length(lengths).dtype == lengths.dtype
            assert shard.local_index(lengths - 1).tolist() == [4, most - 1] and shard.owner(lengths - 1).tolist() == [0, 0]


def test_heads_and_contexts_together():
    seen = {}
    for rank in range(8):
        heads, context = shards(rank, 8, 32, 4, contexts=2, interleave=16)
        seen.setdefault((heads.q_heads.start, heads.q_heads.stop), []).append((heads.kv_heads, context.rank, context.world))
    assert list(seen) == [(0, 8), (8, 16), (16, 24), (24, 32)]
    assert seen[8, 16] == [(slice(1, 2), 0, 2), (slice(1, 2), 1, 2)]
    with_replicas = [HeadShard(k, 8, 32, 4) for k in range(8)]
    assert [s.kv_heads.start for s in with_replicas] == [0, 0, 1, 1, 2, 2, 3, 3]


def visible(lengths, segment, row, window):
    """Local indices of the keys that a row of a segment sees, by the equations of a batch."""
    n = int(lengths.query_start_loc[segment + 1] - lengths.query_start_loc[segment])
    begin = 0 if lengths.key_begin is None else int(lengths.key_begin[segment])
    keys = int(lengths.seq_lens[segment])
    q = (begin + keys - n if lengths.q_begin is None else int(lengths.q_begin[segment])) + row
    return [j for j in range(keys) if (lengths.causal is not None and not lengths.causal[segment] or begin + j <= q) and (window is None or q - begin - j < window)]


@pytest.mark.parametrize("window", [None, 1, 5, 33, 2**40])
def test_ranks_see_every_visible_key_once(window):
    query_lens, contexts = np.array([1, 7, 0, 20, 1, 3]), np.array([0, 30, 5, 0, 61, 2])
    starts = np.concatenate(([0], np.cumsum(query_lens)))
    for ranks in every_shard(worlds=(1, 2, 3, 4)):
        seen = [set() for _ in range(starts[-1])]
        for shard in ranks:
            lengths = local_lengths(shard, starts, query_lens + contexts, window)
            assert lengths.query_start_loc[0] == 0 and lengths.query_start_loc[-1] == starts[-1]
            assert (np.diff(lengths.query_start_loc) > 0).all() or shard.span
            for s in range(len(lengths.seq_lens)):
                first = lengths.query_start_loc[s]
                for i in range(lengths.query_start_loc[s + 1] - first):
                    positions = {int(shard.global_position(j)) for j in visible(lengths, s, i, window)}
                    assert not positions & seen[first + i], "a key counts twice"
                    seen[first + i] |= positions
                    assert starts[lengths.request[s]] <= first + i < starts[lengths.request[s] + 1]
        for r, context in enumerate(contexts):
            for i in range(query_lens[r]):
                low = 0 if window is None else max(context + i + 1 - window, 0)
                assert seen[starts[r] + i] == set(range(low, context + i + 1)), (ranks[0], r, i)


def test_segments_are_few():
    """A chunk of n rows is about 2 n / (interleave * world) requests, not n."""
    lengths = local_lengths(ContextShard(1, 2, 64), [0, 512], [1024])
    assert len(lengths.seq_lens) == 8 and lengths.causal.tolist() == [0, 1] * 4


@pytest.mark.parametrize(
    "change, text",
    [
        (dict(requests=[0, 0, 0, -1]), r"requests\[3\]: -1, expected in \[0, 2\)"),
        (dict(requests=[0, 0, 2, 0]), r"requests\[2\]: 2, expected in \[0, 2\)"),
        (dict(requests=[0]), r"shapes \[\[4\], \[1\], \[2, 2\]\]"),
        (dict(positions=[0, 1, -3, 2]), r"positions\[2\]: -3, expected at least 0"),
        (dict(positions=[0, 1, 2, 16]), r"page of a position in its request\[3\]: 2, expected in \[0, 2\)"),
        (dict(block_table=[[-1, 0], [1, 2]]), r"block_table, pages of these positions\[0\]: -1, expected at least 0"),
        (dict(page_size=0), "page_size: 0"),
        (dict(page_size=True), "page_size: True"),
    ],
)
def test_slots_refuse_what_would_be_another_token(change, text):
    given = dict(positions=[0, 1, 2, 3], requests=[0, 0, 0, 0], block_table=[[3, 0], [1, 2]], page_size=4)
    shard = ContextShard(0, 2, 4)
    assert shard.slots(**given).tolist() == [12, 13, 14, 15]
    with pytest.raises(quire.ArgumentError, match=text):
        shard.slots(**{**given, **change})


def test_interleave_and_span_exclude_each_other():
    with pytest.raises(quire.ArgumentError, match="interleave 4 beside span 5"):
        ContextShard(0, 2, 4, 5)

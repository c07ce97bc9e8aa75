# SPDX-License-Identifier: Apache-2.0
"""On a GPU: calls that are not waited for, captured steps, and compiled functions. Every output is compared with the fp64 reference."""

import numpy as np
import pytest
from dense import make_job, packed
from gpus import needs_gpu, torch

import quire
import quire_vllm.ops

pytestmark = needs_gpu

REQS, COLUMNS, PAGE = 8, 8, 16


def on_gpu(*arrays):
    return [torch.from_numpy(np.ascontiguousarray(a)).cuda() for a in arrays]


class Decode:
    """Eight decode requests of 128 tokens at most, on tables that are full; lengths change in place."""

    def __init__(self):
        job = make_job([1] * REQS, [COLUMNS * PAGE - 1] * REQS, heads=8, kv_heads=2, dim=64, page=PAGE, seed=9)
        self.job = job
        job.block_table = np.ascontiguousarray(job.block_table[:, :COLUMNS])
        self.full = [k.copy() for k in job.dense_k], [v.copy() for v in job.dense_v]
        self.q, self.k, self.v = on_gpu(job.q, job.k, job.v)
        self.starts, self.lens, self.table = on_gpu(job.query_start_loc, job.seq_lens, job.block_table)
        self.out = torch.full_like(self.q, torch.nan)

    def set_lens(self, lens):
        self.lens.copy_(torch.from_numpy(np.asarray(lens, np.int32)))
        self.job.seq_lens = np.asarray(lens, np.int32)
        self.job.dense_k = [k[:n] for k, n in zip(self.full[0], lens)]
        self.job.dense_v = [v[:n] for v, n in zip(self.full[1], lens)]

    def batch(self, **more):
        return quire.Batch(query=self.q, query_start_loc=self.starts, seq_lens=self.lens, block_table=self.table, **more)

    def cache(self):
        return quire.KVCache(self.k, self.v)

    def unified(self, out=None, longest=COLUMNS * PAGE, rows=1, **how):
        quire_vllm.ops.unified_attention(
            self.q, self.k, self.v, self.out if out is None else out, self.starts, rows, self.lens, longest, 64**-0.5, True, (-1, -1),
            self.table, 0.0, None, None, None, **how,
        )  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_is_left_over():
    quire.synchronize()
    yield
    quire.synchronize()


def bound_and_captured(d, inside):
    """A step of three layers that share one preparation, captured with it or without it; and the three outputs."""
    call = quire.bind(d.batch(), d.cache(), plan=quire.plan(d.batch(), d.cache(), max_query_len=1, max_seq_len=COLUMNS * PAGE))
    outs = [torch.full_like(d.q, torch.nan) for _ in range(3)]
    call.prepare()
    for out in outs:
        call(d.q, d.k, d.v, out, prepared=True)
    quire.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        if inside:
            call.prepare()
        for out in outs:
            call(d.q, d.k, d.v, out, prepared=True)
    return call, graph, outs


@pytest.mark.parametrize("inside", [True, False])
def test_a_prepared_step_replays_with_other_lengths(inside):
    d = Decode()
    call, graph, outs = bound_and_captured(d, inside)
    for lens in ([128] * REQS, [1, 9, 16, 17, 64, 100, 127, 128], [128, 1] * 4):
        d.set_lens(lens)
        for out in outs:
            out.fill_(torch.nan)
        if not inside:
            call.prepare()
        graph.replay()
        quire.synchronize()
        for out in outs:
            d.job.judge(out.cpu().numpy())
            assert torch.equal(out, outs[0])


def test_a_broken_table_refuses_every_layer_of_a_prepared_step():
    d = Decode()
    call, graph, outs = bound_and_captured(d, True)
    d.table[3, 2] = -1
    for out in outs:
        out.fill_(7.0)
    graph.replay()
    with pytest.raises(quire.ContractError, match="Q-T03 block_table"):
        quire.synchronize()
    assert all((out == 7.0).all() for out in outs)
    call.workspace.zero_()  # zeros erase the call's record, which the next owner of the memory would hear of


def test_layers_without_their_preparation_are_heard():
    d = Decode()
    call, graph, outs = bound_and_captured(d, False)
    d.set_lens([128] * REQS)
    call.prepare()
    graph.replay()
    quire.synchronize()
    d.set_lens([100] * REQS)  # a new step without prepare()
    graph.replay()
    with pytest.raises(quire.ArgumentError, match="prepare\\(\\) before the layers"):
        quire.synchronize()
    call.workspace.zero_()
    outs[0].fill_(7.0)
    call(d.q, d.k, d.v, outs[0], prepared=True)
    with pytest.raises(quire.ArgumentError, match="prepare\\(\\) before the layers"):
        quire.synchronize()
    assert (outs[0] == 7.0).all()
    call.workspace.zero_()


def test_operators_share_a_preparation():
    ops = pytest.importorskip("quire.torch")
    d = Decode()
    workspace = ops.prepare(d.q, d.k, d.v, d.starts, d.lens, d.table, max_query_len=1)
    for _ in range(3):
        out = ops.attend(d.q, d.k, d.v, d.starts, d.lens, d.table, max_query_len=1, workspace=workspace, prepared=True)
        d.job.judge(out.cpu().numpy())
    other = torch.zeros_like(workspace)
    ops.attend(d.q, d.k, d.v, d.starts, d.lens, d.table, workspace=other, prepared=True, max_query_len=1)
    with pytest.raises(quire.ArgumentError, match="prepare\\(\\) before the layers"):
        quire.synchronize()
    other.zero_()


def test_bound_calls_are_right_layer_by_layer():
    d, other = Decode(), Decode()
    call = quire.bind(d.batch(), d.cache(), plan=quire.plan(d.batch(), d.cache(), max_query_len=1, max_seq_len=COLUMNS * PAGE))
    other.q.mul_(2), other.v.neg_()
    first, second = torch.empty_like(d.q), torch.empty_like(d.q)
    call(d.q, d.k, d.v, first)
    call(other.q, other.k, other.v, second)
    quire.synchronize()
    d.job.judge(first.cpu().numpy())
    assert torch.equal(second, quire.attend(other.batch(), other.cache(), None, call.plan))
    with pytest.raises(quire.ContractError, match="Q-M16 output: shares memory with query"):
        call(d.q, d.k, d.v, d.q)
    with pytest.raises(quire.ArgumentError, match="bound call: output is .* bind again"):
        call(d.q[:4])


@pytest.mark.parametrize("way", ["bound call", "attend", "unified_attention"])
def test_a_captured_step_replays_with_other_lengths_to_the_bits_of_eager(way):
    d = Decode()
    plan = quire.plan(d.batch(), d.cache(), max_query_len=1, max_seq_len=COLUMNS * PAGE)
    bound = quire.bind(d.batch(output=d.out), d.cache(), plan=plan)
    batch, cache = d.batch(output=d.out), d.cache()
    run = {
        "bound call": lambda: bound(),
        "attend": lambda: quire.attend(batch, cache, None, plan, wait=False),
        "unified_attention": lambda: d.unified(),
    }[way]
    run()  # loads the kernels
    quire.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    rng = np.random.default_rng(5)
    for turn in range(100):
        d.set_lens(rng.integers(1, COLUMNS * PAGE, REQS, endpoint=True))
        d.out.fill_(torch.nan)
        graph.replay()
        quire.synchronize()
        replayed = d.out.clone()
        d.out.fill_(torch.nan)
        run()
        quire.synchronize()
        assert torch.equal(replayed, d.out), turn
        if turn % 20 == 0:
            d.job.judge(replayed.cpu().numpy())
    d.lens[3] = COLUMNS * PAGE + 1
    d.out.fill_(7)
    graph.replay()
    with pytest.raises(quire.Error, match="an earlier attend"):
        quire.synchronize()
    assert bool((d.out == 7).all())


def test_what_a_device_finds_is_raised_by_the_next_call_and_once():
    d = Decode()
    page = int(d.table[2, 1])
    d.table[2, 1] = -5
    d.unified()
    torch.cuda.synchronize()  # the mark is there
    with pytest.raises(quire.ContractError, match=r"an earlier attend\(\) .*Q-T03 block_table\[2\]\[1\]: page -5") as caught:
        d.unified()
    assert caught.value.rule == "Q-T03"
    assert torch.isnan(d.out).all()
    d.table[2, 1] = page
    d.unified()
    quire.synchronize()
    d.job.judge(d.out.cpu().numpy())


def test_strict_calls_raise_at_once_by_argument_and_by_context():
    d = Decode()
    d.lens[0] = 0
    for strict in (lambda: d.unified(wait=True), lambda: quire.attend(d.batch(output=d.out), d.cache())):
        with pytest.raises(quire.ContractError, match=r"^Q-T06 seq_lens\[0\]"):
            strict()
    with quire_vllm.ops.settings(wait=True), pytest.raises(quire.ContractError, match=r"^Q-T06"):
        d.unified()
    with quire_vllm.ops.settings(wait=True):
        d.unified(wait=False)
    with pytest.raises(quire.ContractError, match="an earlier attend"):
        quire.synchronize()
    quire.synchronize()
    assert torch.isnan(d.out).all()


def test_values_that_changed_meanwhile_are_said_to_have():
    d = Decode()
    d.lens[0] = 0
    d.unified()
    torch.cuda.synchronize()
    d.lens[0] = 5
    with pytest.raises(quire.ContractError, match="hold other values now"):
        quire.synchronize()


@pytest.mark.parametrize("longest, rows, text", [(127, 1, "seq_len 128, planned for at most 127")])
def test_a_length_beyond_its_bound_is_found(longest, rows, text):
    d = Decode()
    d.unified(longest=longest, rows=rows)
    with pytest.raises(quire.ArgumentError, match=text):
        quire.synchronize()
    assert torch.isnan(d.out).all()
    plan = quire.plan(d.batch(), d.cache(), max_seq_len=longest)
    workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device="cuda")
    batch = d.batch(output=d.out)
    quire.attend(batch, d.cache(), None, plan, workspace)
    with pytest.raises(quire.ArgumentError, match=text):
        quire.attend_status(batch, d.cache(), None, plan, workspace)
    quire.synchronize()  # the error was raised once and is not raised again


def test_a_query_len_beyond_its_bound_is_found_by_the_packed_op():
    job = make_job([1, 5, 1], [20, 30, 40], heads=8, kv_heads=2, dim=64, page=PAGE, seed=4, new_from="mixed")
    q, key, value, *caches = on_gpu(job.q, job.new_k, job.new_v, *packed(job.k, job.v))
    starts, lens, table = on_gpu(job.query_start_loc, job.seq_lens, job.block_table)
    out = torch.full_like(q, torch.nan)

    def call(longest):
        quire_vllm.ops.chunked_prefill_paged_decode(
            q, key, value, out, "auto", *caches, table, starts, lens, 64, longest, None, None, sm_scale=64**-0.5
        )

    for longest in (1, 4):
        call(longest)
        with pytest.raises(quire.ArgumentError, match=f"request 1 has query_len 5, planned for at most {longest}"):
            quire.synchronize()
        assert torch.isnan(out).all()
    call(5)
    quire.synchronize()
    job.judge(out.cpu().numpy())


def test_a_call_that_would_wait_is_refused_by_name_and_the_capture_goes_on():
    d = Decode()
    plan = quire.plan(d.batch(), d.cache())
    d.unified()
    quire.synchronize()
    graph = torch.cuda.CUDAGraph()
    workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device="cuda")
    batch = d.batch(output=d.out)
    with torch.cuda.graph(graph):
        with pytest.raises(quire.ArgumentError, match="^workspace: the call would wait"):
            quire.attend(batch, d.cache(), None, plan)
        with pytest.raises(quire.ArgumentError, match="^wait: the call would wait"):
            d.unified(wait=True)
        with pytest.raises(quire.ArgumentError, match="attend_status: stream is being captured"):
            quire.attend_status(batch, d.cache(), None, plan, workspace)
        d.unified()
    d.out.fill_(torch.nan)
    graph.replay()
    quire.synchronize()
    d.job.judge(d.out.cpu().numpy())


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_function_has_no_break_and_the_bits_of_eager(mode):
    import quire.torch as ops

    d = Decode()

    def layer(q, k, v, starts, lens, table):
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        out = ops.attend(q * 2, k, v, starts, lens, table, lse=lse, max_query_len=1, max_seq_len=COLUMNS * PAGE)
        return ops.merge(out, lse, out, lse)[0] + 1

    arguments = (d.q, d.k, d.v, d.starts, d.lens, d.table)
    expected = layer(*arguments)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, mode=mode)
    for _ in range(4):
        assert torch.equal(compiled(*arguments).clone(), expected)
    quire.synchronize()
    torch.library.opcheck(
        torch.ops.quire.attend.default, (d.q, d.out, d.k, d.v, d.starts, d.lens, d.table), {"max_query_len": 1, "max_seq_len": 128}
    )
    d.job.judge(ops.attend(*arguments).cpu().numpy())


def test_two_streams_do_not_share_a_workspace():
    d = Decode()
    outs = [torch.full_like(d.q, torch.nan) for _ in range(8)]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    for i, out in enumerate(outs):
        with torch.cuda.stream(streams[i % 2]):
            d.unified(out)
    quire.synchronize()
    assert all(torch.equal(out, outs[0]) for out in outs)
    d.job.judge(outs[0].cpu().numpy())

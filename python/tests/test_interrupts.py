# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends every long CPU call at once, and the time limit of a diagnosis holds."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import quire

KEYS, PAGE = 1 << 17, 16
NEW_ROWS = 1 << 22  # rows of one append() to a cache of four bits, which takes 4 s of a core

# A process in which every call takes seconds. It says when it begins, and what time it was when the call ended.
PROGRAM = f"""
import sys, time
import numpy as np
import quire
rng = np.random.default_rng(0)
rows = {{"attend": 8192, "reference": 64, "diagnose": 64, "append": 1, "verify": 1}}[sys.argv[1]]
keys = {KEYS}
shape = (keys // {PAGE}, {PAGE}, 1, 64)
cache = quire.KVCache(rng.standard_normal(shape).astype(np.float32), rng.standard_normal(shape).astype(np.float32))
query = rng.standard_normal((rows, 4, 64)).astype(np.float32)
batch = quire.Batch(query=query, query_start_loc=np.array([0, rows], np.int32), seq_lens=np.array([keys], np.int32),
                    block_table=np.arange(shape[0], dtype=np.int32)[None])
quire.set_num_threads(2)
calls = {{
    "attend": lambda: quire.attend(batch, cache),
    "reference": lambda: quire.reference(batch, cache),
    "diagnose": lambda: quire.diagnose(batch, cache, observed=np.ones_like(query), seconds=1000),
    "verify": lambda: quire.verify("cpu"),
}}
if sys.argv[1] == "append":
    quire.set_num_threads(1)
    new = np.broadcast_to(rng.standard_normal((1, 1, 64)).astype(np.float32), ({NEW_ROWS}, 1, 64))
    k, v = (np.zeros(({NEW_ROWS} // {PAGE}, {PAGE}, 1, 32), np.uint8) for _ in range(2))
    k_block_scale, v_block_scale = (np.zeros(({NEW_ROWS} // {PAGE}, {PAGE}, 1, 4), np.uint8) for _ in range(2))
    four_bits = quire.KVCache(k, v, dtype="nvfp4", k_block_scale=k_block_scale, v_block_scale=v_block_scale)
    slots = np.arange({NEW_ROWS})
    calls["append"] = lambda: quire.append(four_bits, new, new, slots)
print("begin", flush=True)
try:
    calls[sys.argv[1]]()
    print("ended by itself", flush=True)
except KeyboardInterrupt:
    print(time.clock_gettime(time.CLOCK_MONOTONIC), flush=True)
"""


def load_of_a_core():
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.mark.parametrize("call", ["attend", "append", "reference", "diagnose", "verify"])
def test_ctrl_c_is_heard_within_half_a_second(call):
    with subprocess.Popen([sys.executable, "-c", PROGRAM, call], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begin\n"
        time.sleep(0.5)
        begin = time.clock_gettime(time.CLOCK_MONOTONIC)
        process.send_signal(signal.SIGINT)
        ended = process.stdout.readline().strip()
        process.wait(60)
    assert ended != "ended by itself", "the call was too short for this test"
    assert float(ended) - begin < 0.5 * load_of_a_core()


def test_after_an_interrupted_call_the_next_one_is_right():
    """The output of the interrupted call keeps NaN in rows that were not written: the call has ended early."""
    case = quire.make_case("q=f32 heads=4:2 d=16 page=8 reqs=9@20,1@30")
    long = quire.make_case("q=f32 heads=8:2 d=64 page=16 reqs=4096@30000")
    asked = {name: getattr(long.batch, name) for name in ("query", "query_start_loc", "seq_lens", "block_table")}
    output = np.full_like(long.batch.query, np.nan)
    previous = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("heard")))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(TimeoutError, match="heard"):
            quire.attend(quire.Batch(**asked, output=output), long.cache, long.options)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert np.isnan(output).any()
    assert quire.compare(quire.attend(case.batch, case.cache, case.options), None, quire.reference(case.batch, case.cache, case.options))


def test_a_call_inside_of_another_raises_keyboard_interrupt():
    """Of the scopes of verify() and of its target's call, the outer one hears the signal. Both calls end."""
    long = quire.make_case("q=f32 heads=8:2 d=64 page=16 reqs=2048@8000")
    seen = []

    def target(batch, cache, options):
        try:
            quire.reference(long.batch, long.cache, long.options)
        except BaseException as error:
            seen.append(type(error))
            raise

    previous = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("heard")))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(TimeoutError, match="heard"):
            quire.verify(target, matrices=[], lines=["q=f32 heads=4:2 d=16 page=8 reqs=1@9"], power=False, shrink=False)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert seen == [KeyboardInterrupt]


def one_row(keys, **more):
    rng = np.random.default_rng(0)
    pages = -(-keys // PAGE)
    query = rng.standard_normal((1, 8, 64)).astype(np.float32)
    k, v = (rng.standard_normal((pages, PAGE, 2, 64)).astype(np.float32) for _ in range(2))
    batch = quire.Batch(query=query, query_start_loc=np.array([0, 1], np.int32), seq_lens=np.array([keys], np.int32),
                        block_table=np.arange(pages, dtype=np.int32)[None])  # fmt: skip
    cache, options = quire.KVCache(k, v), quire.Options(**more)
    return batch, cache, options, quire.attend(batch, cache, options)


def cpu_seconds(call):
    begin = time.process_time(), time.perf_counter()
    result = call()
    return result, min(time.process_time() - begin[0], time.perf_counter() - begin[1])


def test_a_search_keeps_its_time_and_says_what_it_left_out():
    """A wrong row that sees 131,072 keys. Time is that of the CPU, which a busy machine gives late."""
    batch, cache, options, out = one_row(KEYS)
    out = out.copy()
    out[0, 1] = np.roll(out[0, 1], 1)
    found, seconds = cpu_seconds(lambda: quire.diagnose(batch, cache, options, observed=out, seconds=0.5))
    assert seconds < 2 * 0.5 + 0.2, seconds
    assert found.verdict in ("unknown cause", "mechanism likely")
    assert "stopped  after 0.5 s; not tried: " in found.text


def test_a_diagnosis_takes_time_by_what_is_visible():
    """A legal capture of some kB: a request of 2^31 - 1 keys, of which its row sees 5."""
    rng = np.random.default_rng(0)
    query = rng.standard_normal((3, 2, 16)).astype(np.float32)
    k, v = (rng.standard_normal((8, 4, 1, 16)).astype(np.float32) for _ in range(2))
    batch = quire.Batch(query=query, query_start_loc=np.array([0, 1, 3], np.int32), seq_lens=np.array([2**31 - 1, 6], np.int32),
                        block_table=np.array([[0, 1], [2, 3]], np.int32), q_begin=np.array([3, 4], np.int32))  # fmt: skip
    for options in (quire.Options(sliding_window=5), quire.Options(attention_chunk=4), quire.Options(sliding_window=3, prefix_len=2)):
        out = quire.attend(batch, quire.KVCache(k, v), options).copy()
        out[0, 1] *= 1.5
        found, seconds = cpu_seconds(lambda: quire.diagnose(batch, quire.KVCache(k, v), options, observed=out))  # noqa: B023
        assert seconds < 1 and found.verdict != "right"
        assert "stopped" not in found.text

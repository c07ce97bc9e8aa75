# SPDX-License-Identifier: Apache-2.0
"""Records a wrong call of a function while a program runs, and diagnoses the file."""
import tempfile
import types
import warnings

import quire


def meaning(q, pages, step):
    """Gives quire.record the meaning of the arguments of `decode`; has the same parameters."""
    return quire.Batch(query=q, query_start_loc=step.starts, seq_lens=step.lens, block_table=step.table), quire.KVCache(*pages)


folder = tempfile.mkdtemp()


@quire.record(folder, adapter=meaning)
def decode(q, pages, step):
    batch, cache = meaning(q, pages, step)
    return quire.attend(batch, cache, quire.Options(sliding_window=9))  # the bug: the model has no window


case = quire.make_case("q=f32 heads=4:2 d=32 page=16 reqs=20@30,1@47,5@3")
step = types.SimpleNamespace(starts=case.batch.query_start_loc, lens=case.batch.seq_lens, table=case.batch.block_table)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    decode(case.batch.query, (case.cache.k, case.cache.v), step)
print(caught[0].message)
(path,) = decode.recorder.paths
diagnosis = quire.diagnose(path)
print(diagnosis)
assert diagnosis.verdict == "cause found"

# SPDX-License-Identifier: Apache-2.0
"""verify() of a kernel as ranks use it: Quire's is fit for ranks, and kernels that ranks cannot merge are not."""

import numpy as np
import pytest
import quire
from quire_distributed.over_ranks import OverRanks

LINES = [
    "q=f32 kv=f32 heads=4:2 d=16 page=4 lse=1 reqs=3@20,1@9",
    "q=bf16 kv=bf16 layout=hnd index=i64 heads=4:2 d=32 page=8 sinks=1 lse=1 reqs=5@30,1@60,1",
    "q=f16 kv=fp8_e4m3fn layout=packed kscale=head vscale=tensor heads=4:2 d=16 page=8 window=4 lse=1 reqs=1@60,3@57,20@40",
    "q=f32 kv=f32 heads=8:2 d=16 page=8 cap=2.5 lse=1 reqs=1@3,40@13",
]


def judged(target, lines=LINES):
    return quire.verify(target, lines=lines, matrices=[], power=False, shrink=False)


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_ours_is_fit_for_ranks(world):
    verdict = judged(OverRanks(world=world))
    assert verdict and all(case.status == "pass" for case in verdict.cases), verdict


def test_hazards_are_asked_too():
    verdict = quire.verify("quire_distributed.over_ranks:OverRanks", matrices="hazards", quick=True, power=False, shrink=False)
    assert verdict, verdict
    assert sum(case.status == "pass" for case in verdict.cases) > 100, verdict


def with_lse(change):
    def attend(batch, cache, options):
        quire.attend(batch, cache, options)
        batch.lse[...] = change(batch.lse)

    return attend


@pytest.mark.parametrize("change", [lambda lse: lse * np.float32(np.log2(np.e)), lambda lse: np.where(np.isneginf(lse), np.float32(0), lse)], ids=["base 2", "empty is 0"])
def test_a_kernel_that_ranks_cannot_merge_is_noticed(change):
    assert judged(OverRanks(with_lse(change))).verdict == "fail"


def test_a_target_that_is_no_kernel_of_ranks_is_refused_case_by_case():
    verdict = judged(OverRanks(), ["q=f32 heads=4:2 d=16 page=4 alibi=1 reqs=3@20"])
    assert [case.status for case in verdict.cases] == ["refused"] and "alibi_slopes" in verdict.cases[0].reason

# SPDX-License-Identifier: Apache-2.0
"""The catalogue of faults from Python, and the reference of chosen rows."""

import numpy as np
import pytest

import quire

PROBLEM = "q=f16 heads=4:2 d=16 page=4 index=i64 reqs=3@6,5@2,1@9 seed=3"


def test_catalogue():
    faults = quire.faults()
    assert len({f.id for f in faults}) == len(faults) > 0
    assert all(f.text and f.family and f.next for f in faults)
    assert faults[0].text in repr(faults[0])


def test_attend_with_fault_computes_what_the_faulty_kernel_would():
    case = quire.make_case(PROBLEM)
    b, c, o = case.batch, case.cache, case.options
    expected = quire.reference(b, c, o)
    assert quire.compare(quire.attend(b, c, o), None, expected).ok
    output = quire.attend_with_fault(batch=b, cache=c, fault="query_start_loc_as_int32", options=o)
    assert not quire.compare(output, None, expected).ok


def test_attend_with_fault_refuses():
    case = quire.make_case(PROBLEM.replace("i64", "i32"))
    with pytest.raises(quire.UnsupportedError, match="query_start_loc_as_int32"):
        quire.attend_with_fault(case.batch, case.cache, "query_start_loc_as_int32", case.options)
    with pytest.raises(quire.ArgumentError, match="no fault is called 'nonsense'"):
        quire.attend_with_fault(case.batch, case.cache, "nonsense")


def test_reference_of_chosen_rows():
    case = quire.make_case(PROBLEM)
    whole = quire.reference(case.batch, case.cache, case.options)
    some = quire.reference(case.batch, case.cache, case.options, tokens=[8, 0, 8])
    assert some.num_tokens == 3
    np.testing.assert_array_equal(some.out, whole.out[[8, 0, 8]])
    np.testing.assert_array_equal(some.num_keys, whole.num_keys[[8, 0, 8]])
    with pytest.raises(quire.ArgumentError, match="9"):
        quire.reference(case.batch, case.cache, case.options, [9])


def test_a_batch_knows_its_dtype():
    assert quire.make_case("q=bf16 heads=1 d=8 page=4 reqs=1").batch.dtype == "bf16"

# SPDX-License-Identifier: Apache-2.0
"""Right outputs of kernels with numerics of their own: none is an alarm, and the profile found is no wider than the kernel's.

tools/right_outputs.py asks many more, and torch's backends.
"""

import pytest
import quire
from right_kernels import Numerics, cases_of, run

LINES = [
    "q=bf16 kv=bf16 heads=8:2 d=64 page=16 reqs=20@30,1@300,7@113",
    "q=bf16 kv=fp8_e4m3fn kscale=head vscale=tensor heads=4:2 d=64 page=16 reqs=9@30,1@200",
    "q=f16 kv=f16 heads=6:3 d=80 page=8 window=50 reqs=9@30,1@90,3x1@13",
    "q=f32 kv=f32 heads=4:2 d=64 page=16 cap=20 reqs=9@30,1@200",
]


def diagnosed(tmp_path, case, out, profile=None):
    path = tmp_path / "case.safetensors"
    quire.write_capture(path, case.batch, case.cache, case.options, out)
    return quire.diagnose(path, profile=profile)


@pytest.mark.parametrize("line", LINES)
def test_right_kernels_raise_no_alarm(tmp_path, line):
    case = quire.make_case(line)
    for how in cases_of(case):
        found = diagnosed(tmp_path, case, run(case, how))
        assert found.verdict == "right", f"{how}: {found}"
        if how in (Numerics(), Numerics(tile=0)):
            assert found.profile == "plain", str(how)


@pytest.mark.parametrize("weights", ["f32", "bf16"])
def test_a_fault_stands_out_of_rounding(tmp_path, weights):
    """One decode row reads with a scale of its own, in a kernel that rounds its weights and in one that does not."""
    case = quire.make_case(LINES[0])
    how = Numerics(weights=weights)
    out = run(case, how)
    out[20] = run(case, how, scale=0.1)[20]
    found = diagnosed(tmp_path, case, out)
    assert found.verdict != "right"
    assert list(found.wrong_tokens) == [20]
    assert found.profile == ("plain" if weights == "f32" else "weights=bf16")


def test_a_given_profile_judges(tmp_path):
    case = quire.make_case(LINES[0])
    out = run(case, Numerics(weights="bf16"))
    assert diagnosed(tmp_path, case, out, "plain").verdict != "right"
    assert diagnosed(tmp_path, case, out, "weights=bf16").verdict == "right"
    with pytest.raises(quire.errors.ParseError, match='"weights=bf8"; expected plain'):
        diagnosed(tmp_path, case, out, "weights=bf8")


def test_reference_pays_for_a_profile():
    case = quire.make_case(LINES[1])
    out = run(case, Numerics(weights="bf16", dequantised=True))
    assert not quire.compare(out, None, quire.reference(case.batch, case.cache, case.options))
    paid = quire.reference(case.batch, case.cache, case.options, profile="weights=bf16,dequantised")
    assert paid.profile == "weights=bf16,dequantised"
    assert quire.compare(out, None, paid)


def test_an_output_is_judged_by_the_type_of_the_batch():
    case = quire.make_case(LINES[3])
    out = quire.attend(case.batch, case.cache, case.options)
    reference = quire.reference(case.batch, case.cache, case.options)
    assert quire.compare(out, None, reference)
    judged = quire.compare(out.astype("float16"), None, reference)
    assert not judged
    assert "the output is f16, judged as the batch's f32" in judged.text

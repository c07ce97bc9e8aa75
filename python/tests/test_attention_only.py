# SPDX-License-Identifier: Apache-2.0
"""A build without the tools: it can be imported, and what it lacks says so when it is called."""

import types

import pytest
from quire._attention_only import stand_in
from quire.errors import UnsupportedError


def test_what_a_build_without_tools_lacks_says_so():
    small = types.ModuleType("small")
    stand_in(small)
    with pytest.raises(UnsupportedError, match=r"quire\.faults: this build has attention only .*`pip install \.` builds the rest"):
        small.faults()
    with pytest.raises(AttributeError):
        small.__path__
    assert isinstance(small.Case, type), "classes are looked up for isinstance()"


def test_a_whole_build_keeps_its_attribute_errors():
    whole = types.ModuleType("whole")
    whole.make_case = print
    stand_in(whole)
    assert not hasattr(whole, "faults")

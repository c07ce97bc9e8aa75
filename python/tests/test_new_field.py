# SPDX-License-Identifier: Apache-2.0
"""What Python makes of a further row of the table of fields (tests/new_field compiles one)."""

import inspect
import subprocess
import sys

import pytest

import quire
from quire import _quire
from quire._fields import FIELDS

ROW = ("Batch", "tint", "tint", "numpy.typing.ArrayLike | None = None", "index", False, True)
GROWN = f"""
from quire import _quire
rows = _quire.fields()
_quire.fields = lambda: [*rows, {ROW!r}]
__import__("sys").modules.pop("quire._fields", None)
from quire._fields import MASKS, NAMES
assert "tint" in NAMES["Batch"] and "tint" in MASKS
"""


def says(program):
    return subprocess.run([sys.executable, "-c", GROWN + program], capture_output=True, text=True, check=True).stdout


def test_the_table_is_what_the_classes_take():
    for cls in (quire.Batch, quire.KVCache, quire.Options):
        names = [f.name for f in FIELDS if f.owner == cls.__name__]
        assert set(names) <= set(inspect.signature(cls).parameters) and all(hasattr(cls, name) for name in names)


def test_a_call_of_arrays_takes_every_field():
    case = quire.make_case("q=f32 kv=f32 heads=2:1 d=8 page=4 reqs=3@2")
    parts = {"Batch": case.batch, "KVCache": case.cache, "Options": case.options}
    call = {f.argument: getattr(parts[f.owner], f.name) for f in FIELDS}
    assert (_quire.attend_arrays(call) == quire.attend(case.batch, case.cache, case.options)).all()
    with pytest.raises(quire.ArgumentError, match="tint"):
        _quire.attend_arrays({**call, "tint": 3})


def test_the_schemas_of_torch_have_a_new_row():
    pytest.importorskip("torch", minversion="2.4")
    text = says("import torch, quire.torch\nfor op in (torch.ops.quire.attend, torch.ops.quire.prepare): print(op.default._schema)")
    assert text.count("Tensor? tint=None") == 2

# SPDX-License-Identifier: Apache-2.0
"""tools/peer_tests.py serves elements of vLLM's tables from the host: they are those of the tensor, also after it has changed."""

import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def peer_tests():
    tools = pathlib.Path(__file__).resolve().parents[2] / "tools"
    if not (tools / "peer_tests.py").is_file():
        pytest.skip("tools/ is not here")
    sys.path.insert(0, str(tools))
    try:
        import peer_tests as module
    finally:
        sys.path.remove(str(tools))
    return module


CHANGES = {
    "an element": lambda t: t.__setitem__(3, 77),
    "in place": lambda t: t.fill_(77),
    "through a view": lambda t: t[2:].add_(70),
    "as the result of another call": lambda t: torch.add(t, 70, out=t),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@torch.inference_mode()
def test_a_changed_table_is_read_again(peer_tests, change):
    table = torch.arange(10, dtype=torch.int32)
    with peer_tests.TablesOnTheHost() as mode:
        assert table[3] == 3 and len(mode.copies) == 1
        change(table)
        assert table[3] == table.tolist()[3] and table[3] > 70


@torch.inference_mode()
def test_rows_and_floats_are_left_alone(peer_tests):
    table, floats = torch.arange(12).view(3, 4), torch.ones(4)
    with peer_tests.TablesOnTheHost() as mode:
        assert table[1].tolist() == [4, 5, 6, 7] and floats[2] == 1 and not mode.copies
        assert table[1, 2] == 6 and len(mode.copies) == 1


def test_no_mode_is_active_inside_an_op(peer_tests):
    seen = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Watch():
        peer_tests.without_modes(lambda: torch.ones(3) + 1)()
        assert not seen
        torch.ones(3)
        assert seen

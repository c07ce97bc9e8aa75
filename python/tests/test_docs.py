# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/guides/python_tools.md: run, and compared with what is printed."""

import fnmatch
import re
import textwrap
import types
from pathlib import Path

import pytest

import quire
from quire.testing import assert_attention_close

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "python_tools.md").read_text()


def test_the_adapter_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (source,) = re.findall(r"test_docs.py -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    case = quire.make_case("q=f16 heads=4:2 d=32 page=16 reqs=20@30,1@47,5@3")
    b, c = case.batch, case.cache

    def forgets_the_window(q, pages, step, window):
        batch = quire.Batch(query=q, query_start_loc=step.starts, seq_lens=step.lens, block_table=step.table)
        return quire.attend(batch, quire.KVCache(*pages))

    names = {"quire": quire, "my_kernel": forgets_the_window}
    exec(source, names)
    step = types.SimpleNamespace(starts=b.query_start_loc, lens=b.seq_lens, table=b.block_table)
    with pytest.warns(quire.hooks.CaptureWarning, match="decode: output.*saved captures/decode-"):
        names["decode"](b.query, (c.k, c.v), step, window=9)
    (path,) = names["decode"].recorder.paths
    assert quire.diagnose(path).verdict == "cause found"


def test_the_failure_message_of_the_page():
    case = quire.make_case("q=bf16 heads=8:2 d=64 page=16 reqs=3x1@200,50@7")
    out = quire.attend(case.batch, case.cache, case.options)
    out[:3] = quire.attend(case.batch, case.cache, quire.Options(softmax_scale=0.1))[:3]
    with pytest.raises(AssertionError) as caught:
        assert_attention_close(out, case, weights="bf16")
    shown = textwrap.dedent(PAGE[PAGE.index("    1324 of") :]).strip().splitlines()
    printed = [line for line in str(caught.value).splitlines() if line]
    assert len(shown) == len(printed), str(caught.value)
    for pattern, line in zip(shown, printed):
        pattern = pattern.replace("test_my_kernel.", "*.").replace("...", "*")
        assert fnmatch.fnmatchcase(line, pattern), f"the page: {pattern}\nprinted:  {line}"

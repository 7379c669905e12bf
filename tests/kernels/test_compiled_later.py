"""Functions that are compiled when they pay for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mgspmv as mg
from mgspmv.kernels.compiled import CompiledLater, compile_later


@compile_later(10)
def add(x):
    return x + 1


def test_items_are_left_to_other_code_up_to_the_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(CompiledLater, "pays", False)
    other = compile_later(100)(lambda x: x)
    assert [add.is_worth(n) for n in (4, 6, 1, 0)] == [False, False, True, True]
    assert not other.is_worth(1)
    monkeypatch.setattr(CompiledLater, "pays", True)
    assert other.is_worth(1)
    assert add(1) == 2
    assert add.__name__ == "add"


def test_a_small_text_is_read_without_numba(tmp_path):
    (tmp_path / "edges.txt").write_text("".join(f"{i} {i * i % 97}\n" for i in range(97)))
    program = "import sys; sys.modules['numba'] = None; import mgspmv as mg; mg.ingest(*sys.argv[1:], kind='graph')"
    subprocess.run([sys.executable, "-c", program, tmp_path / "edges.txt", tmp_path / "small.zarr"], check=True)
    assert mg.verify(tmp_path / "small.zarr") == []

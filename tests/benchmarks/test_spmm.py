"""`mgspmv bench spmm` on the host: what it prints and writes, what it catches, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.checks import check_product, make_reference
from benchmarks.machines import Host
from benchmarks.matrices import RECIPES
from mgspmv.kernels.cpu import CpuBlock
from tests.support.commands import invoke

QUICK = ("bench", "spmm", "--backend", "cpu", "--size", "5000", "--rounds", "2")


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("benchmarks.machines._find_cache_bytes", lambda: 1 << 16)


def test_all_programs_are_right_and_timed() -> None:
    options = ("--matrix", "band5", "--vectors", "4", "--dtype", "both", "--values", "--output", "found.json")
    invoke(*QUICK, *options)
    found = json.loads(Path("found.json").read_text(), parse_constant=pytest.fail)
    programs = ("scipy", "ours", "ours, one at a time")
    keys = [(r["matrix"], r["dtype"], r["k"], r["program"]) for r in found["records"]]
    assert keys == [("band5", dtype, 4, program) for dtype in ("float32", "float64") for program in programs]
    assert all(r["times"]["median_s"] > 0 and not r["is_pattern"] and not r["is_wrong"] for r in found["records"])


def test_a_wrong_column_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    multiply = CpuBlock.multiply

    def forget(self: CpuBlock, x: np.ndarray, y: np.ndarray, alpha: float = 1.0, beta: float = 0.0) -> None:
        multiply(self, x, y, alpha, beta)
        if y.ndim == 2:
            y[:, -1] = y[:, 0]

    monkeypatch.setattr(CpuBlock, "multiply", forget)
    stdout, stderr = invoke(*QUICK, "--matrix", "band5", "--vectors", "4", code=1)
    assert "wrong products: ours; see the tables" in stderr
    assert "rows checked are wrong: row 0 is" in stdout


def test_rows_that_were_left_out_are_counted_once() -> None:
    machine = Host()
    block = RECIPES["band5"].make(np, 1000)
    x = np.random.default_rng(0).random((block.n_cols, 3))
    reference, y = make_reference(machine, block, x), np.full((block.n_rows, 3), np.nan)
    CpuBlock(block).multiply(x, y)
    assert check_product(machine, y, reference).problem is None
    y[5:7] = np.nan
    problem = check_product(machine, y, reference).problem
    assert problem == f"2 of {block.n_rows:,} rows are NaN or were left out"


def test_refusals() -> None:
    assert "no matrix is named; pass stores, or --matrix NAME" in invoke(*QUICK, code=2)[1]
    assert "--dtype must be one of" in invoke(*QUICK, "--matrix", "band5", "--dtype", "int8", code=2)[1]

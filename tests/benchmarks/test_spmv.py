"""The benchmark of products checks them before it times them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import contenders, spmm, spmv
from mgspmv.errors import OptionError
from mgspmv.kernels.host import SmallBlock
from mgspmv.kernels.select import bind_kernel
from mgspmv.model import CsrBlock

QUICK = ("--backend", "cpu", "--size", "5000", "--rounds", "2", "--json", "found.json")


def read() -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads(Path("found.json").read_text(), parse_constant=pytest.fail)["records"]
    return records


def test_all_kernels_are_right_and_timed(capsys: pytest.CaptureFixture[str]) -> None:
    kernels = ("--kernel", "csr-rows", "--kernel", "csr-scalar", "--kernel", "dia")
    assert spmv.main([*QUICK, "--matrix", "band5", "--matrix", "rmat22", "--size", "20000", *kernels]) == 0
    records = {(r["matrix"], r["dtype"], r["kernel"]): r for r in read()}
    assert len(records) == 2 * 2 * 4
    own, peer = (records["band5", "float64", kernel] for kernel in ("csr-scalar", "scipy"))
    assert own["minimal_bytes"] == 19_994 * 12 + 4001 * 4 + 8000 * 8
    assert 0 <= own["error"] < 1e-15
    for state in ("warm", "cold"):
        median = own["times"][state]["median_s"]
        assert 0 < own["times"][state]["least_s"] <= median
        assert own["ratio"][state] == pytest.approx(peer["times"][state]["median_s"] / median)
    assert "times" not in records["rmat22", "float32", "dia"]
    assert "| band5 | 4,000 | 19,994 |" in capsys.readouterr().out


class Broken:
    """csr-serial, and something done to its product."""

    def __init__(self, block: CsrBlock, spoil: Any) -> None:
        self._right, self._spoil = bind_kernel(block, "float32", kernel="csr-serial"), spoil
        self.nbytes = 0

    def multiply(self, x: np.ndarray, y: np.ndarray) -> None:
        before = y.copy()
        self._right.multiply(x, y)
        self._spoil(y, before)


def move_one(y: np.ndarray, _: np.ndarray) -> None:
    y[17] += 1e-3


def leave_one(y: np.ndarray, before: np.ndarray) -> None:
    y[17] = before[17]


def move_later(y: np.ndarray, before: np.ndarray) -> None:
    """The first run is right, those after it are not."""
    if not np.isnan(before).any():
        y[17] = np.nextafter(y[17], np.float32(9))


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (move_one, "1 of 1,000 rows checked are wrong: row 17 is "),
        (leave_one, "1 of 1,000 rows are NaN or were left out"),
        (move_later, "its runs do not all give the same bits"),
    ],
)
def test_a_wrong_kernel_is_caught_and_not_timed(spoil: Any, problem: str, monkeypatch: Any, capsys: Any) -> None:
    bind = contenders.bind_kernel

    def bind_broken(block: CsrBlock, precision: Any, *, kernel: str, backend: Any) -> Any:
        return Broken(block, spoil) if kernel == "sell" else bind(block, precision, kernel=kernel, backend=backend)

    monkeypatch.setattr(contenders, "bind_kernel", bind_broken)
    chosen = ("--matrix", "band5", "--dtype", "float32", "--kernel", "sell", "--kernel", "csr-serial")
    assert spmv.main([*QUICK, *chosen]) == 1
    stderr = capsys.readouterr().err
    assert stderr.endswith("error: wrong products: sell; see the tables\n")
    assert f"band5 float32 sell: WRONG: {problem}" in stderr
    assert [(r["kernel"], "times" in r) for r in read()] == [("scipy", True), ("sell", False), ("csr-serial", True)]


def test_products_with_many_vectors_are_right_and_timed(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    command = [*QUICK, "--matrix", "band5", "--vectors", "4", "--values"]
    assert spmm.main(command) == 0
    assert [r["program"] for r in read()] == ["scipy", "ours", "ours, one at a time"]
    assert all(r["times"]["median_s"] > 0 and not r["is_pattern"] for r in read())
    multiply = SmallBlock.multiply

    def forget(self: SmallBlock, x: np.ndarray, y: np.ndarray, alpha: float = 1.0, beta: float = 0.0) -> None:
        multiply(self, x, y, alpha, beta)
        if y.ndim == 2:
            y[:, -1] = y[:, 0]

    monkeypatch.setattr(SmallBlock, "multiply", forget)
    assert spmm.main(command) == 1
    printed = capsys.readouterr()
    assert "wrong products: ours; see the tables" in printed.err
    assert "rows checked are wrong: row 0 is" in printed.out


def test_wrong_options(capsys: pytest.CaptureFixture[str]) -> None:
    for program, options, message in (
        (spmv, ["--json", "no/such/found.json"], "expected a file in an existing folder, got 'no/such/found.json'"),
        (spmv, ["--backend", "rocm"], "invalid choice: 'rocm'"),
        (spmm, [], "no matrix is named; pass stores, or --matrix NAME"),
    ):
        with pytest.raises(SystemExit):
            program.main(options)
        assert message in capsys.readouterr().err
    for options, message in (
        (["--matrix", "band6"], "there is no matrix 'band6'; `python -m benchmarks.spmv --list` names them"),
        (["--kernel", "csr"], "expected a kernel of backend 'cpu', got 'csr'; pass one of csr-rows, csr-serial, "),
        (["--matrix", "rmat27"], "rmat27 has 2,281,701,376 nonzeros, for a device; add --backend cuda, or --size"),
        (["--matrix", "xenon1"], "nothing was timed: every matrix was left out"),
    ):
        with pytest.raises(OptionError, match=message):
            spmv.main(["--backend", "cpu", *options])

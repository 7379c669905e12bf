"""`mgspmv bench spmv` on the host checks products before it times them."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import checks, contenders, spmv
from benchmarks.checks import check_product, make_reference
from benchmarks.machines import Host
from benchmarks.matrices import RECIPES, add_values, make_vector
from mgspmv.errors import OptionError
from mgspmv.kernels.device import has_device
from mgspmv.kernels.select import bind_kernel
from mgspmv.model import CsrBlock
from tests.support.commands import invoke

QUICK = ("bench", "spmv", "--backend", "cpu", "--size", "5000", "--rounds", "2")


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates are not measured and little is flushed, so that tests are quick."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("benchmarks.machines._find_cache_bytes", lambda: 1 << 16)
    rates = type("Rates", (), {"copy_bytes_per_s": 1e10, "gathers_per_s": 1e8})
    monkeypatch.setattr("benchmarks.ceilings.measure_rates", rates)


def run(*options: str, code: int = 0) -> tuple[str, str, dict[str, Any]]:
    """Standard output, standard error and what was written."""
    stdout, stderr = invoke(*QUICK, *options, "--output", "found.json", code=code)
    return stdout, stderr, json.loads(Path("found.json").read_text(), parse_constant=pytest.fail)


def find(found: dict[str, Any], **wanted: str) -> dict[str, Any]:
    [record] = [r for r in found["records"] if all(r[name] == value for name, value in wanted.items())]
    return record


# --- what it finds ---------------------------------------------------------------------------------------------------


def test_all_kernels_are_right_and_timed() -> None:
    kernels = ("--kernel", "csr-rows", "--kernel", "csr-scalar", "--kernel", "dia")
    _, _, found = run("--matrix", "band5", "--matrix", "rmat22", "--size", "20000", *kernels)
    assert len(found["records"]) == 2 * 2 * 4
    peer, own = (find(found, matrix="band5", dtype="float64", kernel=kernel) for kernel in ("scipy", "csr-scalar"))
    assert own["minimal_bytes"] == 19_994 * 12 + 4001 * 4 + 8000 * 8
    assert 0 <= own["error"] < 1e-15
    assert (own["is_pattern"], own["is_wrong"], "problem" in own) == (False, False, False)
    for state in ("warm", "cold"):
        median = own["times"][state]["median_s"]
        assert 0 < own["times"][state]["least_s"] <= median
        assert own["ratio"][state] == pytest.approx(peer["times"][state]["median_s"] / median)
    refused = find(found, matrix="rmat22", dtype="float32", kernel="dia")
    assert "use csr-vector, hyb or sell" in refused["problem"]
    assert "times" not in refused


@pytest.mark.slow
def test_every_kernel_of_the_host_is_checked_on_every_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MGSPMV_TEST_DATA", raising=False)
    _, _, found = run("--warm", "--dtype", "float32", "--rounds", "1", "--size", "1500")
    assert not any(r["is_wrong"] for r in found["records"])
    names = {name for name, recipe in RECIPES.items() if not recipe.by_name_only}
    assert {r["matrix"] for r in found["records"]} == names
    assert len({r["kernel"] for r in found["records"]}) == 16
    refused = {r["kernel"] for r in found["records"] if "problem" in r}
    assert refused <= {"ell", "dia", "bsr"}
    assert set(found["left_out"]) == {*spmv.REAL}


@pytest.mark.slow
def test_the_host_needs_no_cupy() -> None:
    """Any import of CuPy fails here. (Where it is installed Zarr imports it, so it may be among the modules.)"""
    code = (
        "import sys\nsys.modules['cupy'] = sys.modules['cuda'] = None\nfrom mgspmv.cli import app\n"
        f"app({[*QUICK, '--matrix', 'diagonal', '--kernel', 'csr-serial']!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "| diagonal | 5,000 | 5,000 |" in done.stdout


# --- what it catches -------------------------------------------------------------------------------------------------


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


def add_up(y: np.ndarray, before: np.ndarray) -> None:
    """What a kernel does that reads y although beta is 0."""
    y += before


def move_later(y: np.ndarray, before: np.ndarray) -> None:
    """The first run is right, those after it are not."""
    if not np.isnan(before).any():
        y[17] = np.nextafter(y[17], np.float32(9))


def test_a_wrong_kernel_is_caught_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    bind = contenders.bind_kernel

    def bind_broken(spoil: Any, block: CsrBlock, precision: Any, *, kernel: str, backend: Any) -> Any:
        return Broken(block, spoil) if kernel == "sell" else bind(block, precision, kernel=kernel, backend=backend)

    for spoil, problem in (
        (move_one, "1 of 1,000 rows checked are wrong: row 17 is "),
        (leave_one, "1 of 1,000 rows are NaN or were left out"),
        (add_up, "1,000 of 1,000 rows are NaN or were left out"),
        (move_later, "its runs do not all give the same bits"),
    ):
        monkeypatch.setattr(contenders, "bind_kernel", partial(bind_broken, spoil))
        chosen = ("--matrix", "band5", "--dtype", "float32", "--kernel", "sell", "--kernel", "csr-serial")
        _, stderr, found = run(*chosen, code=1)
        assert stderr.endswith("error: wrong products: sell; see the tables\n")
        assert f"band5 float32 sell: WRONG: {problem}" in stderr
        wrong, right = (find(found, kernel=kernel) for kernel in ("sell", "csr-serial"))
        assert wrong["is_wrong"]
        assert "times" not in wrong
        assert "times" in right


def test_rounding_is_permitted_and_little_more() -> None:
    for dtype in ("float32", "float64"):
        host = Host()
        block = add_values(np, RECIPES["alternating"].make(np, 20_000), dtype)
        # The benchmark's own x has so few bits that float64 would not round.
        x = np.random.default_rng(1).random(block.n_cols).astype(dtype)
        assert block.data is not None
        products = block.data * x[block.indices]
        from_the_end = np.add.reduceat(products[::-1], (block.nnz - block.indptr[1:])[::-1])
        y = from_the_end[::-1].copy()  # SciPy adds from the start
        reference = make_reference(host, block, x)
        assert check_product(host, y, reference).problem is None
        assert 0 < check_product(host, y, reference).error < 1e-6
        row = int(reference.permitted.argmax())
        assert reference.permitted[row] < 64 * np.finfo(dtype).eps * np.abs(products).sum() / block.n_rows * 10
        y[row] += 3 * reference.permitted[row]
        problem = check_product(host, y, reference).problem
        assert problem is not None
        assert f"row {row} is" in problem


def test_of_many_rows_a_sample_and_the_ends_and_the_longest_are_checked(monkeypatch) -> None:
    monkeypatch.setattr(checks, "N_SAMPLED", 500)
    monkeypatch.setattr(checks, "N_EXTREME", 3)
    host = Host()
    block = add_values(np, RECIPES["zipf"].make(np, 80_000), "float64")
    x = make_vector(np, block.n_cols, "float64")
    reference = make_reference(host, block, x)
    lengths = np.diff(block.indptr)
    wanted = {0, 1, 2, 4997, 4998, 4999, *np.argsort(lengths)[-3:].tolist()}
    assert block.n_rows == 5000
    assert wanted <= set(reference.rows.tolist())
    assert 400 < len(reference.rows) < 520
    y = np.zeros(block.n_rows)
    bind_kernel(block, "float64", kernel="csr-serial").multiply(x, y)
    assert check_product(host, y, reference).problem is None
    longest = int(lengths.argmax())
    y[longest] += 1
    assert f"row {longest} is" in str(check_product(host, y, reference).problem)


# --- what it refuses -------------------------------------------------------------------------------------------------


def test_wrong_options() -> None:
    for options, message in (
        (["--matrix", "band6"], "there is no matrix 'band6' in the benchmark; `mgspmv bench spmv --list` names them"),
        (["--kernel", "csr"], "there is no kernel 'csr' on backend 'cpu'; there are csr-rows, csr-serial, "),
        (["--dtype", "float16"], "--dtype must be one of 'float32', 'float64', 'both', not 'float16'"),
        (["--output", "no/such/found.json"], "--output no/such/found.json: wanted a file in a folder that is there"),
        (["--output", "."], "--output .: wanted a file in a folder that is there"),
        (["--backend", "rocm"], "--backend must be one of 'auto', 'cpu', 'cuda', not 'rocm'"),
    ):
        stdout, stderr = invoke(*QUICK, *options, code=2)
        assert stderr.startswith(f"error: {message}")
        assert stdout == ""
    _, stderr = invoke("bench", "spmv", "--backend", "cpu", "--matrix", "rmat27", code=2)
    assert "rmat27 has 2,281,701,376 nonzeros, for a device; add --backend cuda, or --size" in stderr
    assert "nowhere.zarr" in invoke(*QUICK, "nowhere.zarr", code=4)[1]
    with pytest.raises(OptionError, match=r"there is no kernel 'cusparse' on backend 'cuda'; there are csr-scalar, "):
        spmv.check_kernels(["cusparse"], "cuda")


@pytest.mark.skipif(has_device(), reason="there is a GPU")
def test_no_device() -> None:
    _, stderr = invoke("bench", "spmv", "--backend", "cuda", code=2)
    assert stderr.startswith("error: --backend cuda needs ")
    assert stderr.count("\n") == 1

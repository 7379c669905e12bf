"""`mgspmv bench spmv` on the host: what it prints and writes, what it catches, what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mgspmv.bench import checks, contenders, spmv
from mgspmv.bench.ceilings import Roofline
from mgspmv.bench.checks import check_product, make_reference
from mgspmv.bench.machines import Host, Rounds, Times
from mgspmv.bench.matrices import RECIPES, add_values, make_vector
from mgspmv.errors import OptionError
from mgspmv.kernels.device import has_device
from mgspmv.kernels.select import bind_kernel
from mgspmv.model import CsrBlock
from tests.support.commands import invoke, invoke_json

QUICK = ("bench", "spmv", "--backend", "cpu", "--size", "5000", "--rounds", "2")


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates are not measured and little is flushed, so that tests are quick."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mgspmv.bench.machines._find_cache_bytes", lambda: 1 << 16)
    rates = type("Rates", (), {"copy_bytes_per_s": 1e10, "gathers_per_s": 1e8})
    monkeypatch.setattr("mgspmv.bench.ceilings.measure_rates", rates)


def run(*options: str, code: int = 0) -> tuple[str, str, dict[str, Any]]:
    """Standard output, standard error and what was written."""
    stdout, stderr = invoke(*QUICK, *options, "--output", "found.json", code=code)
    return stdout, stderr, json.loads(Path("found.json").read_text(), parse_constant=pytest.fail)


def find(found: dict[str, Any], **wanted: str) -> dict[str, Any]:
    [record] = [r for r in found["records"] if all(r[name] == value for name, value in wanted.items())]
    return record


# --- what it finds ---------------------------------------------------------------------------------------------------


def test_tables_and_records_of_a_run() -> None:
    kernels = ("--kernel", "csr-rows", "--kernel", "csr-scalar", "--kernel", "dia")
    stdout, stderr, found = run("--matrix", "band5", "--matrix", "rmat22", "--size", "20000", *kernels)
    lines = stdout.splitlines()
    assert [line.split(":")[0] for line in lines[1:6]] == ["command", "date", "host", "system", "versions"]
    titles = [line for line in lines if line.startswith("### ")]
    assert titles == [
        f"### {dtype}, {state} caches: ms" for dtype in ("float32", "float64") for state in ("warm", "cold")
    ]
    head = (
        "| matrix | rows | nonzeros | csr-rows | csr-scalar | dia | SciPy | SciPy / best | SciPy / auto | auto GB/s |"
    )
    assert sum(line.startswith(head) for line in lines) == 4
    band, rmat = ([line for line in lines if line.startswith(f"| {name} |")] for name in ("band5", "rmat22"))
    assert len(band) == len(rmat) == 4
    assert band[0].startswith("| band5 | 4,000 | 19,994 |")
    assert all(line.replace("***", "*+*").count("**") + line.count("***") == 2 for line in band + rmat)
    assert all(line.split(" | ")[3].strip("*") != line.split(" | ")[3] for line in band + rmat)  # csr-rows is auto
    assert all(line.split(" | ")[5] == "–" for line in rmat)
    assert "\n- dia: rmat22 (1,827,840 places for 12,105 nonzeros)\n" in stdout
    assert "\n- SciPy / best, SciPy / auto: how many times as fast these kernels are, with one thread.\n" in stdout
    assert "geometric mean" not in stdout  # of matrices with a million nonzeros, of which there are none
    assert "over the bandwidth of a copy, 10 GB/s in this run" in stdout
    assert stderr.count("% of roofline") == 2 * 2 * (2 * 4 - 1)

    assert set(found) == {"setting", "ceilings", "records", "left_out"}
    assert found["setting"]["versions"].startswith("mgspmv ")
    assert len(found["records"]) == 2 * 2 * 4
    peer, own = (find(found, matrix="band5", dtype="float64", kernel=kernel) for kernel in ("scipy", "csr-scalar"))
    assert own["nnz"] == 19_994
    assert own["minimal_bytes"] == 19_994 * 12 + 4001 * 4 + 8000 * 8
    assert own["format_bytes"] == 19_994 * 12 + 4001 * 8
    assert own["prepare_s"] > 0
    assert 0 <= own["error"] < 1e-15
    assert (own["is_pattern"], own["is_wrong"], "problem" in own) == (False, False, False)
    for state in ("warm", "cold"):
        median = own["times"][state]["median_s"]
        assert 0 < own["times"][state]["least_s"] <= median
        assert own["times"][state]["n_rounds"] == 2
        assert own["bytes_per_s"][state] == pytest.approx(own["minimal_bytes"] / median)
        assert own["copy_share"][state] == pytest.approx(own["bytes_per_s"][state] / 1e10)
        assert own["roofline_share"][state] == pytest.approx(19_994 / 1e8 / median)
        assert own["ratio"][state] == pytest.approx(peer["times"][state]["median_s"] / median)
    assert "ratio" not in peer
    refused = find(found, matrix="rmat22", dtype="float32", kernel="dia")
    assert "use csr-vector, hyb or sell" in refused["problem"]
    assert "times" not in refused


def test_every_kernel_of_the_host_is_checked_on_every_family() -> None:
    _, stderr, found = run("--warm", "--dtype", "float32", "--rounds", "1", "--size", "1500")
    assert not any(r["is_wrong"] for r in found["records"])
    names = {name for name, recipe in RECIPES.items() if not recipe.by_name_only}
    assert {r["matrix"] for r in found["records"]} == names
    assert len({r["kernel"] for r in found["records"]}) == 16
    refused = {r["kernel"] for r in found["records"] if "problem" in r}
    assert refused <= {"ell", "dia", "bsr"}
    assert set(found["left_out"]) == {*spmv.REAL}
    assert "xenon1: left out, there is no matrices/xenon1.mtx.gz in the folder that MGSPMV_TEST_DATA names" in stderr


def test_a_stored_matrix_keeps_its_values_or_is_a_pattern_or_gets_values() -> None:
    invoke("generate", "banded", "values.zarr", "--n", "50", "--bandwidth", "3")
    invoke("generate", "rmat", "pattern.zarr", "--scale", "6", "--kind", "matrix")
    one = ("--warm", "--dtype", "float32", "--kernel", "csr-serial", "values.zarr", "pattern.zarr/")
    for option, wanted in ((None, [False, True]), ("--pattern", [True, True]), ("--values", [False, False])):
        _, _, found = run(*one, *([option] if option else []))
        own = [r for r in found["records"] if r["kernel"] == "csr-serial"]
        assert [(r["matrix"], r["is_pattern"]) for r in own] == list(
            zip(("values.zarr", "pattern.zarr"), wanted, strict=True)
        )
        value_bytes = [0 if is_pattern else 4 for is_pattern in wanted]
        for record, value in zip(own, value_bytes, strict=True):
            n, nnz = record["n_rows"], record["nnz"]
            assert record["minimal_bytes"] == nnz * (4 + value) + (n + 1) * 4 + (min(n, nnz) + n) * 4


def test_one_state_of_the_caches_and_one_dtype() -> None:
    stdout, _, found = run("--matrix", "arrow", "--kernel", "csr-serial", "--cold", "--dtype", "float64")
    assert [line for line in stdout.splitlines() if line.startswith("### ")] == ["### float64, cold caches: ms"]
    assert {tuple(r["times"]) for r in found["records"]} == {("cold",)}


def test_a_matrix_beyond_memory_is_left_out_and_the_others_are_done(monkeypatch) -> None:
    def refuse(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setitem(RECIPES, "arrow", spmv.Recipe("arrow", "", refuse, 1))
    stdout, _, found = run("--matrix", "arrow", "--matrix", "band5", "--kernel", "csr-serial")
    assert "- arrow: does not fit into memory" in stdout
    assert {r["matrix"] for r in found["records"]} == {"band5"}


def test_the_list_names_all_and_runs_nothing() -> None:
    stdout, stderr = invoke("bench", "spmv", "--list")
    for name in (*RECIPES, *spmv.REAL, "csr-vector", "csr-rows"):
        assert f" {name} " in stdout
    assert "about 2,281,701,376 nonzeros on a device\n" in stdout
    assert stderr == ""
    listed = invoke_json("bench", "spmv", "--list")
    assert listed["matrix"].keys() == {*RECIPES, *spmv.REAL}
    assert listed["kernel"]["csr-rows"]["backends"] == "cpu"
    assert "rmat27" in invoke_json("bench", "pagerank", "--list")["graph"]


def test_json_is_what_is_written() -> None:
    options = ("--matrix", "band5", "--kernel", "csr-rows", "--dtype", "float64", "--warm", "-o", "found.json")
    answer = invoke_json(*QUICK, *options)
    assert {record["kernel"] for record in answer["records"]} == {"csr-rows", "scipy"}
    assert answer == json.loads(Path("found.json").read_text())


def test_the_host_needs_no_cupy() -> None:
    """Any import of CuPy fails here. (Where it is installed Zarr imports it, so it may be among the modules.)"""
    code = (
        "import sys\nsys.modules['cupy'] = sys.modules['cuda'] = None\nfrom mgspmv.cli import app\n"
        f"app({[*QUICK, '--matrix', 'diagonal', '--kernel', 'csr-serial']!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "| diagonal | 5,000 | 5,000 |" in done.stdout


def test_importing_the_package_does_not_import_the_benchmark() -> None:
    code = "import sys, mgspmv, mgspmv.cli; print([name for name in sys.modules if name.startswith('mgspmv.bench')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


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


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (move_one, "1 of 1,000 rows checked are wrong: row 17 is "),
        (leave_one, "1 of 1,000 rows are NaN or were left out"),
        (add_up, "1,000 of 1,000 rows are NaN or were left out"),
        (move_later, "its runs do not all give the same bits"),
    ],
)
def test_a_wrong_kernel_is_caught_and_not_timed(spoil: Any, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bind = contenders.bind_kernel

    def bind_broken(block: CsrBlock, precision: Any, *, kernel: str, backend: Any) -> Any:
        return Broken(block, spoil) if kernel == "sell" else bind(block, precision, kernel=kernel, backend=backend)

    monkeypatch.setattr(contenders, "bind_kernel", bind_broken)
    chosen = ("--matrix", "band5", "--dtype", "float32", "--kernel", "sell", "--kernel", "csr-serial")
    stdout, stderr, found = run(*chosen, code=1)
    assert stderr.endswith("error: wrong products: sell; see the tables\n")
    assert f"band5 float32 sell: WRONG: {problem}" in stderr
    assert f"- sell: band5 (WRONG: {problem}" in stdout
    assert [line.split(" | ")[3] for line in stdout.splitlines() if line.startswith("| band5")] == ["WRONG"] * 2
    wrong, right = (find(found, kernel=kernel) for kernel in ("sell", "csr-serial"))
    assert wrong["is_wrong"]
    assert "times" not in wrong
    assert "times" in right


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounding_is_permitted_and_little_more(dtype: str) -> None:
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


def test_the_sample_is_of_at_least_100_000_rows() -> None:
    block = RECIPES["diagonal"].make(np, checks.N_SAMPLED + 1)
    rows = checks._choose_rows(np, block)
    assert len(rows) > 100_000
    assert checks._choose_rows(np, RECIPES["diagonal"].make(np, checks.N_SAMPLED)) is None


# --- what is computed ------------------------------------------------------------------------------------------------


def test_minimal_bytes_are_of_wide_types_only_where_they_are_needed() -> None:
    ends = np.array([0, 2])
    few = CsrBlock(0, 2**31, ends, np.array([5, 7]), None)
    assert spmv.count_bytes(few, "float32") == 2 * 8 + 2 * 4 + (2 + 1) * 4
    many = CsrBlock(0, 10, np.array([0, 2**31]), np.broadcast_to(np.int32(0), 2**31), None)
    assert spmv.count_bytes(many, "float64") == 2**31 * 4 + 2 * 8 + 11 * 8
    assert spmv.count_bytes(CsrBlock(0, 10, ends, np.array([5, 7]), np.ones(2)), "float64") == 2 * 12 + 8 + 3 * 8


def test_the_roofline_is_the_slower_of_bytes_and_gathers() -> None:
    roofline = Roofline(copy_bytes_per_s=100.0, gathers_per_s=10.0)
    assert roofline.predict(nbytes=1000, nnz=50) == 10.0
    assert roofline.predict(nbytes=1000, nnz=200) == 20.0


def test_slow_runs_are_timed_less_often() -> None:
    rounds = Rounds(20, least=3, most_s=0.5)
    assert not rounds.is_over(2, 9.0)
    assert rounds.is_over(3, 9.0)
    assert not rounds.is_over(19, 0.1)
    assert rounds.is_over(20, 0.1)
    assert Rounds(1).is_over(1, 0.0)


def test_each_cold_run_is_timed_after_other_data_was_read(monkeypatch) -> None:
    host, told = Host(), []
    monkeypatch.setattr(host, "_buffer", type("Buffer", (), {"sum": lambda _: told.append("flush")})())
    times = host.time(lambda: told.append("run"), "cold", Rounds(3))
    assert told == ["flush", "run"] * 3
    assert isinstance(times, Times)
    assert times.least_s <= times.median_s
    told.clear()
    host.time(lambda: told.append("run"), "warm", Rounds(2))
    assert told == ["run", "run"]


# --- what it refuses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--matrix", "band6"], "there is no matrix 'band6' in the benchmark; `mgspmv bench spmv --list` names them"),
        (["--kernel", "csr"], "there is no kernel 'csr' on backend 'cpu'; there are csr-rows, csr-serial, "),
        (["--dtype", "float16"], "--dtype must be one of 'float32', 'float64', 'both', not 'float16'"),
        (["--output", "no/such/found.json"], "--output no/such/found.json: wanted a file in a folder that is there"),
        (["--output", "."], "--output .: wanted a file in a folder that is there"),
        (["--backend", "rocm"], "--backend must be one of 'auto', 'cpu', 'cuda', not 'rocm'"),
    ],
)
def test_wrong_options(options: list[str], message: str) -> None:
    stdout, stderr = invoke(*QUICK, *options, code=2)
    assert stderr.startswith(f"error: {message}")
    assert stdout == ""


def test_the_greatest_matrix_is_for_a_device() -> None:
    _, stderr = invoke("bench", "spmv", "--backend", "cpu", "--matrix", "rmat27", code=2)
    assert "rmat27 has 2,281,701,376 nonzeros, for a device; add --backend cuda, or --size" in stderr
    _, _, found = run("--matrix", "rmat27", "--kernel", "csr-serial", "--dtype", "float32", "--warm")
    assert all(r["is_pattern"] for r in found["records"])


def test_a_store_that_is_not_there() -> None:
    _, stderr = invoke(*QUICK, "nowhere.zarr", code=4)
    assert "nowhere.zarr" in stderr


@pytest.mark.skipif(has_device(), reason="there is a GPU")
def test_no_device() -> None:
    _, stderr = invoke("bench", "spmv", "--backend", "cuda", code=2)
    assert stderr.startswith("error: backend='cuda' needs ")
    assert stderr.count("\n") == 1
    stdout, _ = invoke(*[o if o != "cpu" else "auto" for o in QUICK], "--matrix", "arrow", "--kernel", "csr-serial")
    assert "SciPy" in stdout


def test_cusparse_is_no_kernel_of_ours() -> None:
    """It stands beside them, with both algorithms."""
    assert spmv.check_kernels([], "cuda")[-1] == "row-tiles"
    with pytest.raises(
        OptionError, match=r"there is no kernel 'cusparse' on backend 'cuda'; there are csr-scalar, .* row-tiles$"
    ):
        spmv.check_kernels(["cusparse"], "cuda")
    assert spmv.PEERS["cuda"] == ("cusparse-alg1", "cusparse-alg2")

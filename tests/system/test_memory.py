"""What a plan promises is what is measured, and ingest stays within what its docstring says.

A child's resident memory is the check on what tracemalloc is not told of.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
import scipy.sparse as sp

import mgspmv as mg
import mgspmv.kernels.cpu  # loads Numba before memory is traced
from mgspmv.errors import CapacityError
from mgspmv.ingest.store_writing import _find_order
from mgspmv.ingest.stored import StoredRows
from mgspmv.ingest.streams import CHUNK_BYTES
from mgspmv.order import METHODS, estimate_bytes
from mgspmv.store.digests import CHUNK_ELEMENTS
from mgspmv.store.read import open_store
from tests.support.memory import measure_peak, measure_peaks

BOUND = 1.25
"""How many times a plan may be off, either way."""
SCALES = (16, 18)
WARM_UP = 6
"""Scale of the graph that is run first, so that neither compiling nor importing is counted."""


def assert_as_planned(planned: int, work: Callable[[], Any]) -> None:
    _, middle, most = measure_peaks(work)
    assert middle / BOUND <= planned <= BOUND * most, f"planned {planned}, measured {middle} and {most} at most"


def write_table(path: Path, *columns: np.ndarray, head: str = "") -> Path:
    table = pa.table({str(i): column for i, column in enumerate(columns)})
    with path.open("wb") as file:
        file.write(head.encode())
        pa.csv.write_csv(table, file, pa.csv.WriteOptions(include_header=False, delimiter=" ", quoting_style="none"))
    return path


def rank(store: Path, precision: Any, threads: int) -> None:
    mg.pagerank(mg.open_matrix(store).on(threads=threads), precision=precision, norm="fixed", max_iter=2)


def add_weights(pattern: Path, store: Path) -> Path:
    """The same graph with weights."""
    A = mg.open_matrix(pattern).to_scipy()
    A.data = np.random.default_rng(0).random(A.nnz) + 0.5
    mg.ingest(sp.csr_array(A.T), store, kind="graph")
    return store


@pytest.fixture(scope="module")
def make_graph(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, bool], Path]:
    """`make_graph(scale, weighted)` is the store of an R-MAT graph, which is made once."""
    folder = tmp_path_factory.mktemp("graphs")

    @cache
    def make(scale: int, weighted: bool) -> Path:
        if weighted:
            return add_weights(make(scale, False), folder / f"{scale}-weighted.zarr")
        mg.generate("rmat", folder / f"{scale}.zarr", scale=scale)
        return folder / f"{scale}.zarr"

    return make


@pytest.mark.parametrize(
    ("threads", "weighted", "precision"),
    [
        (1, False, "exact"),
        pytest.param(2, True, "exact", marks=pytest.mark.weekly),
        pytest.param(1, True, "float64", marks=pytest.mark.weekly),
        (2, False, "float64"),
        pytest.param(1, True, "float32", marks=pytest.mark.weekly),
        pytest.param(2, False, "float32", marks=pytest.mark.weekly),
    ],
)
def test_ranking_takes_what_was_planned(
    make_graph: Callable[[int, bool], Path], threads: int, weighted: bool, precision: Any
) -> None:
    rank(make_graph(WARM_UP, weighted), precision, threads)
    for scale in SCALES:
        store = make_graph(scale, weighted)
        plan = mg.open_matrix(store).plan(precision=precision, threads=threads)
        assert_as_planned(plan.memory_bytes, lambda store=store: rank(store, precision, threads))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "k"),
    [
        ("exact", 1 << 16),
        *(pytest.param(own, 10, marks=pytest.mark.weekly) for own in ("exact", "float64", "float32")),
    ],
)
def test_proving_the_highest_takes_what_was_planned(
    make_graph: Callable[[int, bool], Path], precision: Any, k: int
) -> None:
    def prove(store: Path, k: int) -> None:
        options = {"stop": f"topk:{k}", "precision": precision, "max_iter": 30, "throw": False}
        mg.pagerank(mg.open_matrix(store).on(threads=2), **options)

    prove(make_graph(WARM_UP, False), 10)
    store = make_graph(18, False)
    plan = mg.open_matrix(store).plan(precision=precision, threads=2, stop=f"topk:{k}")
    (worker,) = plan.workers
    assert worker.watch_bytes > 0.25 * plan.memory_bytes
    assert_as_planned(plan.memory_bytes, lambda: prove(store, k))


@pytest.mark.parametrize("ids", ["int64", pytest.param("string", marks=pytest.mark.slow)])
def test_ranking_a_graph_with_ids_takes_what_was_planned(tmp_path: Path, ids: str) -> None:
    rng = np.random.default_rng(1)
    arcs = rng.integers(0, 100_000, (2, 500_000)) * 7 + 1_000_003
    names = arcs if ids == "int64" else np.char.add("v", arcs.astype("U7"))
    for store, n in (("tiny", 100), ("large", arcs.shape[1])):
        mg.ingest(write_table(tmp_path / f"{store}.txt", *names[:, :n]), tmp_path / f"{store}.zarr", header=False)
    assert mg.open_matrix(tmp_path / "large.zarr").info.vertex_ids == ids
    rank(tmp_path / "tiny.zarr", "exact", 2)
    plan = mg.open_matrix(tmp_path / "large.zarr").plan(threads=2)
    assert plan.workers[0].id_bytes > 0.05 * plan.memory_bytes
    assert_as_planned(plan.memory_bytes, lambda: rank(tmp_path / "large.zarr", "exact", 2))


def test_ranking_a_graph_of_few_arcs_takes_what_was_planned(tmp_path: Path) -> None:
    for store, n in (("tiny", 64), ("large", 1 << 20)):
        arcs = np.arange(n // 16)
        mg.ingest((arcs, arcs + 1), tmp_path / store, n_vertices=n)
    rank(tmp_path / "tiny", "exact", 1)
    plan = mg.open_matrix(tmp_path / "large").plan(threads=1)
    assert plan.workers[0].vector_bytes > 2 * plan.workers[0].block_bytes
    assert_as_planned(plan.memory_bytes, lambda: rank(tmp_path / "large", "exact", 1))


def test_what_is_loaded_and_no_more_must_fit_into_the_memory_that_is_free(
    make_graph: Callable[[int, bool], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern, weighted = (mg.open_matrix(make_graph(16, kind)) for kind in (False, True))
    free = pattern.plan(threads=1).memory_bytes
    monkeypatch.setattr("mgspmv.api.embedded.free_memory", lambda: free)
    assert mg.pagerank(weighted.on(threads=1), weight=False).iterations > 0
    with pytest.raises(CapacityError, match=r"pagerank of .* needs .* of host memory"):
        mg.pagerank(weighted.on(threads=1))


def test_what_proves_the_highest_must_fit_too(
    make_graph: Callable[[int, bool], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    A, asked = mg.open_matrix(make_graph(16, False)).on(threads=1), {"stop": "topk:10", "max_iter": 500}
    need, without = (A.plan(threads=1, stop=stop).memory_bytes for stop in ("topk:10", "change"))
    message = (
        r"host memory on one of them, .* \(up to \S+ \w?B of it for stop='topk:10', not needed with stop='change'\)"
    )
    monkeypatch.setattr("mgspmv.api.embedded.free_memory", lambda: need - 1)
    with pytest.raises(CapacityError, match=message):
        mg.pagerank(A, **asked)
    assert not A._loaded.blocks
    monkeypatch.setattr("mgspmv.api.embedded.free_memory", lambda: without)
    assert mg.pagerank(A).iterations > 0


def multiply(store: Path, dtype: str, threads: int) -> None:
    A = mg.open_matrix(store)
    mg.spmv(A.on(threads=threads), np.ones(A.shape[1], dtype))


@pytest.mark.parametrize(("dtype", "threads"), [("float64", 1), pytest.param("float32", 2, marks=pytest.mark.weekly)])
@pytest.mark.parametrize(("n", "bandwidth"), [(200_000, 7), pytest.param(1_000_000, 1, marks=pytest.mark.weekly)])
def test_products_take_what_was_planned(tmp_path: Path, n: int, bandwidth: int, threads: int, dtype: Any) -> None:
    for store, size in (("tiny", 100), ("large", n)):
        mg.generate("banded", tmp_path / store, n=size, bandwidth=bandwidth, dtype=dtype)
    multiply(tmp_path / "tiny", dtype, threads)
    plan = mg.open_matrix(tmp_path / "large").plan(precision=dtype, threads=threads)
    assert_as_planned(plan.memory_bytes, lambda: multiply(tmp_path / "large", dtype, threads))


@pytest.mark.parametrize("kind", ["graph", pytest.param("matrix", marks=pytest.mark.weekly)])
def test_a_renumbered_matrix_takes_what_was_planned(tmp_path: Path, kind: Any) -> None:
    """Few entries a row, so that the vectors and the order are most of it."""
    work: Callable[..., None] = rank if kind == "graph" else multiply
    precision = "exact" if kind == "graph" else "float64"
    for store, size in (("tiny", 100), ("large", 500_000)):
        mg.generate("banded", tmp_path / store, n=size, bandwidth=1, kind=kind, dtype="float64")
        mg.reorder(tmp_path / store)
    work(tmp_path / "tiny", precision, 1)
    plan = mg.open_matrix(tmp_path / "large").plan(precision=precision, threads=1)
    assert plan.workers[0].id_bytes > 0.04 * plan.memory_bytes
    assert_as_planned(plan.memory_bytes, lambda: work(tmp_path / "large", precision, 1))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("n", "bandwidth", "was_reordered"),
    [(300_000, 15, False), pytest.param(2_000_000, 1, True, marks=pytest.mark.weekly)],
)
def test_finding_an_order_takes_no_more_than_is_asked_for(
    tmp_path: Path, n: int, bandwidth: int, was_reordered: bool, method: str
) -> None:
    order: Any = "degree" if was_reordered else "none"
    mg.generate("banded", tmp_path / "a", n=n, bandwidth=bandwidth, weights=False, order=order)
    rows = StoredRows(open_store(tmp_path / "a"), 1)

    def find() -> np.ndarray:
        return _find_order(StoredRows(rows._stored, 1), method, lambda *_: None)

    find()
    asked, measured = estimate_bytes(method, n, rows.most_entries), measure_peak(find)
    assert measured <= asked <= 2 * measured, f"asked for {asked}, measured {measured}"


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")

CHILD = """
import sys
from pathlib import Path
import mgspmv as mg
from mgspmv.kernels import compiled, select

compiled.CompiledLater.pays, select.SMALL_NNZ = True, 0  # compiled functions for both, so neither loads Numba alone

def read_kib(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field + ":")).split()[1])

def work(store):
    {work}

work(sys.argv[1])
before = read_kib("VmRSS")
work(sys.argv[2])
print((read_kib("VmHWM") - before) * 1024)
"""


def measure_resident_peak(work: str, tiny: Path, large: Path) -> int:
    """Peak resident bytes of a child that works on `large`, beyond what it has after working on `tiny`."""
    # glibc keeps freed pieces of up to 32 MiB for later, unless told from which size on to give them back at once.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    child = [sys.executable, "-c", CHILD.format(work=work), str(tiny), str(large)]
    return int(subprocess.run(child, check=True, capture_output=True, text=True, env=environment).stdout)


@needs_proc
@pytest.mark.slow
def test_a_process_that_ranks_grows_as_planned(tmp_path: Path) -> None:
    for store, scale in (("tiny", WARM_UP), ("large", 20)):
        mg.generate("rmat", tmp_path / store, scale=scale)
    planned = mg.open_matrix(tmp_path / "large").plan().memory_bytes
    work = "mg.pagerank(mg.open_matrix(store), norm='fixed', max_iter=2)"
    measured = measure_resident_peak(work, tmp_path / "tiny", tmp_path / "large")
    assert 1 / BOUND <= planned / measured <= BOUND, f"planned {planned}, measured {measured}"


N_ZEROS = 300 << 20
"""Bytes that a chunk of few unpacks to."""


def plant_zeros(array: Path) -> None:
    """Make the chunk of an array one of zeros without end, by a codec without a checksum."""
    metadata = json.loads((array / "zarr.json").read_text())
    metadata["codecs"] = [metadata["codecs"][0], {"name": "gzip", "configuration": {"level": 1}}]
    (array / "zarr.json").write_text(json.dumps(metadata))
    packer, piece = zlib.compressobj(1, wbits=31), bytes(1 << 20)
    with (array / "c" / "0").open("wb") as file:
        for _ in range(N_ZEROS >> 20):
            file.write(packer.compress(piece))
        file.write(packer.flush())


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("what", ["store", "ranks"])
def test_a_chunk_that_unpacks_without_end_takes_no_memory(tmp_path: Path, what: str) -> None:
    for name in ("sound", "planted"):
        mg.pagerank(mg.generate("rmat", tmp_path / name, scale=WARM_UP)).save(tmp_path / f"{name}.zarr")
    plant_zeros(next((tmp_path / "planted" / "versions").glob("v*")) / "indices")
    plant_zeros(tmp_path / "planted.zarr" / "values")
    use = "mg.pagerank(mg.open_matrix(store))" if what == "store" else "mg.load_solution(store)"
    work = f"try:\n        {use}\n    except mg.errors.StoreDamagedError as error:\n        assert 'gzip' in str(error)"
    suffix = "" if what == "store" else ".zarr"
    assert measure_resident_peak(work, tmp_path / f"sound{suffix}", tmp_path / f"planted{suffix}") < N_ZEROS / 10


N_VERTICES, N_ENTRIES = 1 << 17, 3_000_000
READER_BYTES = 6 * CHUNK_BYTES
"""Texts of the batches of two threads as they are read, cut at lines and parsed, and columns as int64 or float64."""
ARROW_BYTES = 24 << 20
"""Kept by Arrow's own allocator in a process: the table of a batch, and what it does not give back."""


def bound_ingest(value_bytes: int) -> int:
    """The entries read and, beside the last, their reader; or later, those sorted by column; or what writes them.

    entries * (row + column + value)  +  max(entries * (row + value), reader, writer)  +  4 tables * 8 bytes * vertices

    The tables are column pointers, the next place in each column, and what numbers the vertices. The CSR arrays are
    no more than the entries read, which are gone by then. The writer has two chunks of each array, and both compressed.
    """
    by_columns, writer = N_ENTRIES * (4 + value_bytes), 4 * CHUNK_ELEMENTS * (4 + value_bytes)
    return N_ENTRIES * (4 + 4 + value_bytes) + max(by_columns, READER_BYTES, writer) + 4 * 8 * N_VERTICES


@pytest.fixture(scope="module")
def make_texts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path, int]]:
    """`make_texts(name)` gives a tiny text, a large one, which are made once, and the bytes of a value."""
    rng = np.random.default_rng(2)
    i, j = rng.integers(0, N_VERTICES, (2, N_ENTRIES))
    values = rng.integers(1, 1000, N_ENTRIES) / 8
    folder = tmp_path_factory.mktemp("texts")
    texts = {
        "edges": ("edges.txt", None, i, j),
        "weighted edges": ("weighted.txt", None, i, j, values),
        "edges with ids": ("ids.txt", None, i * 7 + 3, j * 7 + 3),
        "pattern": ("pattern.mtx", "pattern", i + 1, j + 1),
        "real": ("real.mtx", "real", i + 1, j + 1, values),
    }

    @cache
    def make(text: str) -> tuple[Path, Path, int]:
        name, field, *columns = texts[text]
        head = "%%MatrixMarket matrix coordinate {} general\n{} {} {}\n"
        tiny, large = (
            write_table(
                folder / f"{n}-{name}",
                *(c[:n] for c in columns),
                head=head.format(field, N_VERTICES, N_VERTICES, n) if field else "",
            )
            for n in (10, N_ENTRIES)
        )
        return tiny, large, 8 if len(columns) == 3 else 0

    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.weekly) for name in ("edges", "weighted edges", "pattern", "real")),
        "edges with ids",
    ],
)
def test_ingest_holds_the_entries_and_those_sorted_by_column(
    make_texts: Callable[[str], tuple[Path, Path, int]], tmp_path: Path, name: str
) -> None:
    tiny, large, value_bytes = make_texts(name)
    mg.ingest(tiny, tmp_path / "tiny.zarr")
    measured = measure_peak(lambda: mg.ingest(large, tmp_path / "large.zarr", overwrite=True))
    assert N_ENTRIES * (4 + 4 + value_bytes) < measured <= bound_ingest(value_bytes)


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("edges", marks=pytest.mark.weekly), "real"])
def test_a_process_that_ingests_grows_no_more(
    make_texts: Callable[[str], tuple[Path, Path, int]], tmp_path: Path, name: str
) -> None:
    tiny, large, value_bytes = make_texts(name)
    work = f"mg.ingest(store, {str(tmp_path / 'store.zarr')!r}, overwrite=True)"
    assert measure_resident_peak(work, tiny, large) <= bound_ingest(value_bytes) + ARROW_BYTES


COMMENTS_BYTES = 200 << 20
HEADS = {
    "a.mtx.gz": ("%%MatrixMarket matrix coordinate pattern general\n", b"% {}\n", "3 3 1\n1 2\n"),
    "a.txt.gz": ("# Nodes: 3 Edges: 1\n", b"# {}\n", "1 2\n"),
}


def write_comments(path: Path, n_bytes: int, line_bytes: int) -> Path:
    """A compressed text with so many bytes of comments."""
    head, comment, rest = HEADS[path.name.partition("-")[2]]
    line = comment.replace(b"{}", b"x" * line_bytes)
    block = line * max(1, (1 << 20) // len(line))
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(head.encode())
        for _ in range(n_bytes // len(block)):
            file.write(block)
        file.write(rest.encode())
    return path


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("line_bytes", [4000, pytest.param(1_000_000, marks=pytest.mark.weekly)])
@pytest.mark.parametrize("name", HEADS)
def test_comments_of_an_archive_take_no_memory(tmp_path: Path, name: str, line_bytes: int) -> None:
    tiny = write_comments(tmp_path / f"tiny-{name}", 1 << 20, line_bytes)
    large = write_comments(tmp_path / f"large-{name}", COMMENTS_BYTES, line_bytes)
    assert large.stat().st_size < COMMENTS_BYTES / 50
    work = f"mg.ingest(store, {str(tmp_path / 'store.zarr')!r}, overwrite=True)"
    assert measure_resident_peak(work, tiny, large) < READER_BYTES + ARROW_BYTES
    assert mg.open_matrix(tmp_path / "store.zarr").shape == (3, 3)

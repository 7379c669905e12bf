"""Exported matrices, read by the programs whose formats they are, are those that were ingested, to the digest."""

from __future__ import annotations

import hashlib
import shutil
import sys
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import scipy.io
import scipy.sparse as sp
import zarr
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.errors import CapacityError, ChecksumError, OptionError, StoreExistsError
from mgspmv.export import SUFFIXES
from mgspmv.ingest.budget import MemoryBudget
from mgspmv.store.read import open_store, read_recorded
from tests.support.hearing import on_phases
from tests.support.matrices import HARD
from tests.support.memory import measure_peak
from tests.support.pairwise import cover_pairs
from tests.support.stores import find_group

anndata = pytest.importorskip("anndata")
binsparse = pytest.importorskip("binsparse")
to_scipy = pytest.importorskip("binsparse.conversions.scipy").to_scipy

FORMATS = tuple(SUFFIXES)
FILES = {"matrix-market": "x.mtx", "csv": "x.csv", "parquet": "x.parquet", "npz": "x.npz"}
TABLES = ("csv", "parquet")
NUMBERS = pa.csv.ConvertOptions(column_types={"src": pa.int64(), "dst": pa.int64(), "weight": pa.float64()})
GROUPS = ("anndata", "binsparse")


def name_target(format: str) -> str:
    return FILES.get(format, f"{format}.zarr")


MODULES = ("store.digests", "export")


@pytest.fixture(scope="module", autouse=True)
def _small():
    """Chunks and blocks of which a small matrix has many."""
    with pytest.MonkeyPatch.context() as patch:
        set_sizes(patch, chunk=256, pointers=64, names=40)
        patch.setattr(sys.modules["mgspmv.ingest.external_sort"], "BLOCK_ENTRIES", 200)
        yield


def set_sizes(patch, *, chunk, pointers, names):
    for module in MODULES:
        patch.setattr(sys.modules[f"mgspmv.{module}"], "CHUNK_ELEMENTS", chunk)
    patch.setattr(sys.modules["mgspmv.ingest.stored"], "PIECE_ENTRIES", chunk)
    for module in ("ingest.stored", "export"):
        patch.setattr(sys.modules[f"mgspmv.{module}"], "PIECE_ROWS", pointers)
    patch.setattr(sys.modules["mgspmv.export"], "NAMES", names)


@dataclass(frozen=True)
class Case:
    """A matrix to be exported."""

    kind: str
    dtype: str | None = None
    ids: str | None = None
    """`int64` or `string`; None for 0..n-1."""
    duplicates: str | None = None
    order: str | None = None


CASES = {
    "graph": Case("graph"),
    "graph, names": Case("graph", "float64", "string"),
    "graph, large ids": Case("graph", "int64", "int64"),
    "graph, float32": Case("graph", "float32"),
    "matrix": Case("matrix"),
    "matrix, integers": Case("matrix", "int64"),
    "matrix, large ids": Case("matrix", "float64", "int64"),
    "stochastic": Case("stochastic", "float64"),
    "stochastic, names": Case("stochastic", "float32", "string"),
    "multigraph": Case("graph", None, duplicates="keep"),
    "multigraph, names": Case("graph", "float64", "string", duplicates="keep"),
    "matrix, kept": Case("matrix", "int64", duplicates="keep"),
    "renumbered": Case("graph", None, order="degree"),
    "renumbered, names": Case("graph", "float32", "string", order="rcm"),
    "renumbered multigraph": Case("graph", "float64", "int64", duplicates="keep", order="degree"),
    "renumbered matrix": Case("matrix", "int64", order="dealt"),
    "renumbered stochastic": Case("stochastic", "float64", "int64", order="degree"),
}
N = 150


def ingest_case(folder: Path, case: Case) -> sp.coo_array:
    """Make the stores `plain.zarr` and `a.zarr`, which is in the case's order; the entries (i, j) of the source."""
    rng = np.random.default_rng(3)
    src, dst = (rng.random((2, 900)) ** 2 * (N - 5)).astype(np.int64) + 2  # some vertices have no edge
    if case.duplicates is None:
        src, dst = np.unique([src, dst], axis=1)
    weights = rng.integers(1, 1 << 40, len(src)) / (1 if case.dtype == "int64" else 1 << 37)
    if case.kind == "stochastic":
        weights = 1 / np.bincount(dst)[dst]
    names = {
        None: np.arange(N),
        "int64": np.arange(N) ** 5 - 10**9,
        "string": np.array([f"vé{k:04d}" for k in range(N)]),
    }
    ids = names[case.ids]
    columns = {"from": ids[src], "to": ids[dst]}
    if case.dtype is not None:
        columns["w"] = weights.astype(case.dtype)
    pq.write_table(pa.table(columns), folder / "source.parquet")
    (folder / "vertices").write_text("".join(f"{one}\n" for one in ids))
    options = {"kind": case.kind, "duplicates": case.duplicates, "dtype": keep_dtype(case)}
    mg.ingest(folder / "source.parquet", folder / "plain.zarr", vertices=folder / "vertices", **options)
    shutil.copytree(folder / "plain.zarr", folder / "a.zarr")
    if case.order is not None:
        mg.reorder(folder / "a.zarr", method=case.order)
    data = np.ones(len(src), bool) if case.dtype is None else weights.astype(case.dtype)
    return sp.coo_array((data, (src, dst)), shape=(N, N))


def keep_dtype(case: Case) -> str | None:
    return case.dtype if case.dtype in ("float32", "float64") else None


def read(target: Path, format: str):
    """What the format's own program makes of it, as SciPy has it."""
    if format == "matrix-market":
        return scipy.io.mmread(target, spmatrix=False)
    if format == "npz":
        return sp.load_npz(target)
    if format == "anndata":
        return anndata.read_zarr(target).X
    return to_scipy(binsparse.load_binsparse(target))


def describe_entries(store) -> dict:
    """All that a digest is made of, but for the ids."""
    stored = open_store(store)
    digests = {name: digest for name, digest in read_recorded(stored)["array_digests"].items() if name != "vertex_ids"}
    info = stored.info
    return digests | {"claims": (info.kind, info.shape, info.dtype, info.index_dtype, info.nnz, info.min_weight)}


@pytest.fixture(scope="module", params=CASES)
def made(request, tmp_path_factory):
    """A case, the folder of its stores, and its entries."""
    folder = tmp_path_factory.mktemp("case")
    return CASES[request.param], folder, ingest_case(folder, CASES[request.param])


def test_there_and_back(made, tmp_path):
    case, folder, wanted = made
    for format in FORMATS:
        check_there_and_back(case, folder, wanted, tmp_path / format, format)


def check_there_and_back(case: Case, folder: Path, wanted: sp.coo_array, own: Path, format: str) -> None:
    own.mkdir()
    target = own / name_target(format)
    if format == "binsparse" and case.duplicates == "keep":
        with pytest.raises(OptionError, match="made with duplicates='keep', but binsparse allows one entry at each"):
            mg.export(folder / "a.zarr", target, format=format)
        assert not target.exists()
        return
    info = mg.export(folder / "a.zarr", target, format=format, vertices=own / "list")
    assert info == open_store(folder / "a.zarr").info
    assert (own / "list").read_text() == (folder / "vertices").read_text()
    again = MemoryStore()
    options = {"kind": case.kind, "duplicates": case.duplicates, "dtype": keep_dtype(case)}
    if format in TABLES:
        options["dtype"] = case.dtype
        mg.ingest(target, again, vertices=own / "list", **options)
        assert open_store(again).info.digest == open_store(folder / "plain.zarr").info.digest
        return
    found = read(target, format)
    assert found.shape == wanted.shape
    assert found.nnz == wanted.nnz
    assert (found.astype(wanted.dtype).toarray() == wanted.toarray()).all()
    mg.ingest(target if format in FILES else found, again, **options)
    assert describe_entries(again) == describe_entries(folder / "plain.zarr")


@pytest.mark.parametrize("pattern", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_hard_matrices(tmp_path, pattern, format):
    """Of all shapes, also without rows, columns or entries."""
    for k, (name, hard) in enumerate(HARD.items()):
        if "duplicates" in name:
            continue
        values = np.ones(len(hard.entries), bool) if pattern else np.array(hard.values)
        wanted = sp.coo_array((values, (hard.rows, hard.cols)), shape=hard.shape, dtype=values.dtype)
        mg.ingest(wanted, store := MemoryStore())
        target = tmp_path / f"{k}" / name_target(format)
        mg.export(store, target, format=format)
        if format in TABLES:
            table = pq.read_table(target) if format == "parquet" else pa.csv.read_csv(target, convert_options=NUMBERS)
            weights = np.ones(len(table), bool) if pattern else table["weight"].to_numpy()
            found = sp.coo_array((weights, (table["src"].to_numpy(), table["dst"].to_numpy())), shape=hard.shape)
        else:
            found = read(target, format)
        assert found.shape == hard.shape, name
        assert found.nnz == wanted.nnz, name
        assert (found.toarray() == wanted.toarray()).all(), name


def test_a_graph_is_not_transposed_where_columns_can_be_written(tmp_path):
    mg.generate("rmat", tmp_path / "g.zarr", scale=5, weights=True)
    mg.generate("rmat", tmp_path / "m.zarr", scale=5, weights=True, kind="matrix")
    for kind, format in (("g", "csc"), ("m", "csr")):
        for name in ("npz", *GROUPS):
            mg.export(tmp_path / f"{kind}.zarr", tmp_path / name_target(name), format=name, overwrite=True)
            found = read(tmp_path / name_target(name), name)
            assert found.format == format
            assert np.array_equal(found.indices, open_store(tmp_path / f"{kind}.zarr").read_array("indices"))


@pytest.fixture
def store(tmp_path):
    mg.generate("rmat", tmp_path / "a.zarr", scale=7, weights=True)
    return tmp_path / "a.zarr"


@pytest.mark.parametrize("format", FORMATS)
def test_urls(store, tmp_path, format):
    url = f"memory://{uuid.uuid4()}/{name_target(format)}"
    mg.export(store, url, format=format)
    mg.export(store, tmp_path / name_target(format), format=format)
    if format in FILES:
        assert fsspec.open(url).open().read() == (tmp_path / name_target(format)).read_bytes()
    else:
        groups = [zarr.open_group(place, mode="r") for place in (url, str(tmp_path / name_target(format)))]
        names = {name for name, _ in groups[1].members(max_depth=None)}
        assert {name for name, _ in groups[0].members(max_depth=None)} == names
        for name in names:
            here, there = (group[name] for group in groups)
            assert dict(here.attrs) == dict(there.attrs)
            assert isinstance(here, zarr.Group) or (here[:] == there[:]).all()
    with pytest.raises(StoreExistsError, match="exists already"):
        mg.export(store, url, format=format)
    mg.export(store, url, format=format, overwrite=True)


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_there_is_replaced_only_if_asked(store, tmp_path, format):
    mg.generate("rmat", tmp_path / "other.zarr", scale=5, weights=True)
    target = tmp_path / name_target(format)
    mg.export(store, target, format=format)
    before = digest_tree(target)
    with pytest.raises(StoreExistsError, match=r"exists already; pass overwrite=True"):
        mg.export(tmp_path / "other.zarr", target, format=format)
    assert digest_tree(target) == before
    mg.export(tmp_path / "other.zarr", target, format=format, overwrite=True)
    assert digest_tree(target) != before
    mg.export(store, target, format=format, overwrite=True)
    assert digest_tree(target) == before


def digest_tree(path: Path) -> dict[str, str]:
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {str(p.relative_to(path.parent)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.mark.parametrize("format", GROUPS)
def test_groups_of_something_else_are_not_replaced(store, tmp_path, format):
    zarr.open_group(str(tmp_path / "x.zarr"), mode="w", attributes={"encoding-type": "anndata"})
    (tmp_path / "file.zarr").write_text("")
    for target in ("a.zarr", "x.zarr", "file.zarr"):
        before = digest_tree(tmp_path / target)
        with pytest.raises(StoreExistsError, match=rf"{target} was not written by an export and is not overwritten"):
            mg.export(store, tmp_path / target, format=format, overwrite=True)
        assert digest_tree(tmp_path / target) == before


@cover_pairs(format=FORMATS, was_there=[False, True], where=["path", "URL"], failure=["damage", "interrupt"])
def test_after_an_error_nothing_is_left(store, tmp_path, format, was_there, where, failure):
    place = tmp_path / "out" if where == "path" else f"memory://{uuid.uuid4()}"
    target = f"{place}/{name_target(format)}"
    if was_there:
        mg.export(store, target, format=format)
    report = None
    if failure == "damage":
        damaged = max((find_group(store) / "indices/c").iterdir(), key=lambda path: int(path.name))
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x00")
        error = ChecksumError
    else:
        report, error = interrupt_late, KeyboardInterrupt
    with pytest.raises(error):
        mg.export(store, target, format=format, overwrite=True, vertices=f"{place}/list", progress=on_phases(report))
    system, name = fsspec.url_to_fs(str(place))
    left = [path.rpartition("/")[2] for path in system.ls(name, detail=False)] if system.exists(name) else []
    kept = was_there and (format in FILES or where == "path")  # a group at a URL is not replaced as a whole
    assert left == ([name_target(format)] if kept else [])


@pytest.mark.parametrize("format", GROUPS)
def test_a_group_at_a_url_is_not_taken_for_one_before_it_is_whole(store, format):
    url, seen = f"memory://{uuid.uuid4()}/a.zarr", []

    def look(phase, done, total):
        seen.append(dict(zarr.open_group(url, mode="r").attrs))

    mg.export(store, url, format=format, progress=on_phases(look))
    assert len(seen) > 4
    assert all(attributes == {"mgspmv_export": format} for attributes in seen)
    attributes = dict(zarr.open_group(url, mode="r").attrs)
    assert attributes.keys() & {"encoding-type", "binsparse"}


def interrupt_late(phase, done, total):
    if done > total // 2:
        raise KeyboardInterrupt


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_bytes_whatever_the_threads(tmp_path, format):
    for order in ("none", "degree"):
        mg.generate("rmat", store := MemoryStore(), scale=8, weights=True, order=order)
        made = []
        for threads in (1, 3):
            folder = tmp_path / f"{order}-{threads}"
            mg.export(store, folder / name_target(format), format=format, threads=threads)
            made.append(digest_tree(folder / name_target(format)))
        assert made[0] == made[1], order


@pytest.mark.slow
@pytest.mark.parametrize(
    "format",
    [pytest.param(name, marks=() if name in ("matrix-market", "parquet") else pytest.mark.weekly) for name in FORMATS],
)
def test_memory_does_not_grow_with_the_matrix(tmp_path, format, monkeypatch):
    set_sizes(monkeypatch, chunk=1 << 12, pointers=1 << 12, names=1 << 11)
    peaks, sizes = [], (70_000, 210_000)
    for n in sizes:
        mg.generate("banded", tmp_path / f"{n}.zarr", n=n // 5, bandwidth=2)
        given = {"format": format, "threads": 2, "overwrite": True}
        write = partial(mg.export, tmp_path / f"{n}.zarr", tmp_path / name_target(format), **given)
        write()
        peaks.append(measure_peak(write))
    grown_bytes = (sizes[1] - sizes[0]) * (8 + 4)  # how many chunks are under way at once is by chance
    assert peaks[1] - peaks[0] < grown_bytes / 5
    assert peaks[1] < 4_000_000


def test_a_renumbered_matrix_is_sorted_by_way_of_files_where_memory_is_short(tmp_path, monkeypatch):
    mg.generate("rmat", tmp_path / "a.zarr", scale=9, weights=True)
    mg.reorder(tmp_path / "a.zarr", tmp_path / "b.zarr", method="degree")
    mg.export(tmp_path / "a.zarr", tmp_path / "a.npz")
    monkeypatch.setattr(sys.modules["mgspmv.ingest.external_sort"], "GROUPED_ENTRIES", 500)
    monkeypatch.setattr(sys.modules["mgspmv.api.derived"], "find_budget", lambda *_: MemoryBudget(60_000, 2, tmp_path))
    spilled = []
    write_run = sys.modules["mgspmv.ingest.external_sort"]._write_run
    monkeypatch.setattr(
        sys.modules["mgspmv.ingest.external_sort"], "_write_run", lambda *a: spilled.append(a) or write_run(*a)
    )
    mg.export(tmp_path / "b.zarr", tmp_path / "b.npz")
    assert spilled
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


@pytest.mark.parametrize("format", ["npz", *GROUPS])
def test_an_order_for_which_there_is_no_memory(tmp_path, format, monkeypatch):
    mg.generate("rmat", tmp_path / "a.zarr", scale=8, order="degree")
    monkeypatch.setattr(sys.modules["mgspmv.api.derived"], "find_budget", lambda *_: MemoryBudget(1000, 2, None))
    with pytest.raises(CapacityError, match=r"reordering .*a.zarr needs .* raise memory="):
        mg.export(tmp_path / "a.zarr", tmp_path / name_target(format), format=format)
    assert not (tmp_path / name_target(format)).exists()


def test_a_list_of_vertices_that_is_there(store, tmp_path):
    (tmp_path / "list").write_text("mine")
    with pytest.raises(StoreExistsError, match="list exists already; choose another name by vertices="):
        mg.export(store, tmp_path / "a.mtx", vertices=tmp_path / "list")
    mg.export(store, tmp_path / "a.mtx", vertices=tmp_path / "list", overwrite=True)
    assert (tmp_path / "list").read_text().splitlines() == [str(k) for k in range(128)]

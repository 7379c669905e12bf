"""Stores that were made within little memory are those that were made within much."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet
import pytest
from zarr.storage import LocalStore, MemoryStore

import mgspmv as mg
from mgspmv.errors import CapacityError, OptionError, SourceError, StoreNotFoundError
from mgspmv.ingest import store_writing
from mgspmv.ingest.budget import MemoryBudget, find_budget
from mgspmv.ingest.frames import source_from_arrays
from mgspmv.ingest.generate import make_generator
from mgspmv.ingest.open import open_source
from mgspmv.ingest.store_writing import store_source
from mgspmv.model import IngestOptions
from mgspmv.store.read import open_store
from mgspmv.store.versions import check_target
from tests.support.arrays import build_matrix, transpose_arrays, write_store
from tests.support.hearing import on_phases
from tests.support.shrinking import shrink

PLENTY = 1 << 40
GIB = 1 << 30


@pytest.fixture
def small(monkeypatch):
    """Groups, blocks and chunks of which a small source makes many."""
    sorter = {"GROUPED_ENTRIES": 500, "BLOCK_ENTRIES": 200, "WRITE_BYTES": 4096}
    shrink(monkeypatch, ingest__external_sort=sorter, store__digests={"CHUNK_ELEMENTS": 256})


def store(source, place, *, memory=PLENTY, overwrite=False, report=lambda *_: None, **options):
    given = IngestOptions(**options)
    base = check_target(place, overwrite=overwrite)
    store_source(source, place, given, lambda layout: {}, report, MemoryBudget(memory, 2, None), base=base)
    return open_store(place).info


OPTIONS = {
    "plain": {},
    "graph": {"kind": "graph"},
    "graph with its transpose": {"kind": "graph", "transpose": True},
    "kept": {"kind": "graph", "duplicates": "keep", "transpose": True},
    "first": {"kind": "graph", "duplicates": "first"},
    "symmetric": {"kind": "graph", "symmetrize": True, "self_loops": "drop"},
    "pattern": {"kind": "graph", "weights": False, "transpose": True},
    "float32": {"dtype": "float32"},
}


@pytest.mark.parametrize(
    ("name", "memory"), [*((name, 60_000) for name in OPTIONS), ("plain", PLENTY), ("graph with its transpose", PLENTY)]
)
def test_the_store_is_that_of_the_matrix_in_memory(small, name, memory, tmp_path):
    make = lambda: make_generator("rmat", scale=9, edge_factor=8, weights=True)  # noqa: E731
    options = OPTIONS[name]
    info = store(make(), tmp_path / "a.zarr", memory=memory, **options)
    matrix, _ = build_matrix(make(), IngestOptions(**options), lambda *_: None)
    transpose = transpose_arrays(matrix) if options.get("transpose") else None
    wanted = write_store(tmp_path / "b.zarr", matrix, transpose=transpose)
    for field in ("digest", "nnz", "shape", "dtype", "nbytes", "min_weight", "has_transpose", "duplicates", "kind"):
        assert getattr(info, field) == getattr(wanted, field), field
    assert mg.verify(tmp_path / "a.zarr") == []
    assert list_files(tmp_path / "a.zarr/versions" / info.version) == list_files(
        tmp_path / "b.zarr/versions" / wanted.version
    )


def list_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.glob("**/*") if path.is_file()}


@pytest.mark.parametrize(("n_columns", "weights"), [(1, True), (7, False), (7, True), (100, True), (1000, False)])
def test_columns_are_added_up_in_ranges(small, n_columns, weights, tmp_path, monkeypatch):
    make = lambda: make_generator("rmat", scale=7, edge_factor=8, weights=weights)  # noqa: E731
    wanted = store(make(), MemoryStore(), kind="graph")
    heard = []
    monkeypatch.setattr(store_writing, "_find_column_bytes", lambda matrix: PLENTY // (3 * n_columns))
    info = store(make(), tmp_path / "a.zarr", kind="graph", report=lambda phase, *_: heard.append(phase))
    assert info.digest == wanted.digest
    assert heard.count("add up columns") == -(-128 // n_columns) - 1


@pytest.mark.parametrize("memory", [PLENTY, 60_000], ids=["much", "little"])
@pytest.mark.parametrize("ids", ["names", "far apart", "window"])
def test_ids_are_numbered(small, ids, memory, tmp_path):
    rng = np.random.default_rng(1)
    ends = rng.integers(0, 200, (3000, 2)) ** 2
    if ids == "far apart":
        ends = ends * 10**9 - 10**11
    text = "\n".join(f"v{a} v{b}" if ids == "names" else f"{a} {b}" for a, b in ends)
    (tmp_path / "list").write_text(text)
    source = open_source(tmp_path / "list", id_room=MemoryBudget(memory, 2, None).for_ids)
    info = store(source, tmp_path / "a.zarr", memory=memory)
    matrix, _ = build_matrix(open_source(tmp_path / "list"), IngestOptions(), lambda *_: None)
    assert info.digest == write_store(MemoryStore(), matrix).digest
    stored = mg.open_matrix(tmp_path / "a.zarr")
    label = (lambda a: f"v{a}") if ids == "names" else int
    found = stored.to_scipy().tocoo()
    arcs = {(stored.vertex_ids[j], stored.vertex_ids[i]) for i, j in zip(found.row, found.col, strict=True)}
    assert arcs == {(label(a), label(b)) for a, b in ends}


ERRORS = {
    "a duplicate": ({"duplicates": "error", "kind": "matrix"}, [1, 1], [2, 2], [1.0, 1.0], "the entry"),
    "no finite weight": ({"kind": "graph"}, [1, 2], [2, 1], [1.0, np.nan], "a graph needs finite weights, 1 are NaN"),
    "not stochastic": ({"kind": "stochastic"}, [0, 1], [1, 0], [1.0, 0.5], "column 0 sums to 0.5"),
    "a sum beyond int64": ({"kind": "matrix"}, [0, 0], [0, 0], [2**62, 2**62], "does not fit into int64"),
}


@pytest.mark.parametrize("was_there", [False, True], ids=["new", "overwritten"])
@pytest.mark.parametrize("name", ERRORS)
def test_what_is_found_while_writing_leaves_what_was_there(name, was_there, tmp_path):
    options, rows, cols, values, message = ERRORS[name]
    before = store(make_generator("rmat", scale=4), tmp_path / "a.zarr") if was_there else None
    source = source_from_arrays(np.array(rows), np.array(cols), np.array(values), n_vertices=3)
    with pytest.raises(SourceError, match=message):
        store(source, tmp_path / "a.zarr", overwrite=was_there, **options)
    if was_there:
        assert open_store(tmp_path / "a.zarr").info == before
    else:
        assert list(tmp_path.iterdir()) == []


def test_hypersparse_on_a_cluster(tmp_path, in_process):
    text = tmp_path / "a.mtx"
    text.write_text("%%MatrixMarket matrix coordinate pattern general\n1000000000000 1000000000000 1\n1 2\n")
    client = in_process(2)
    with pytest.raises(SourceError, match=r"a.mtx, line 2: .* stated for 1 entry, and would take 8 TB"):
        mg.ingest(text, tmp_path / "a.zarr", client=client)
    with pytest.raises(CapacityError, match="would take 8 TB"):
        mg.ingest(text, tmp_path / "a.zarr", client=client, allow_hypersparse=True)
    edges = tmp_path / "edges.txt"
    edges.write_text("# Nodes: 1000000000000 Edges: 1\n0\t1\n")
    with pytest.raises(SourceError, match=r"edges.txt, line 1: .* stated for 1 entry, and would take 16 TB"):
        mg.ingest(edges, tmp_path / "a.zarr", client=client)
    assert not (tmp_path / "a.zarr").exists()


def test_the_room_is_that_of_the_disk(tmp_path, monkeypatch):
    free = SimpleNamespace(free=8 * 1001)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    text = tmp_path / "a.mtx"
    text.write_text("%%MatrixMarket matrix coordinate real general\n1000 5 1\n1 1 2.5\n")
    assert mg.ingest(text, tmp_path / "a.zarr").info.shape == (1000, 5)
    free.free -= 1
    with pytest.raises(CapacityError, match=r"would take 8.02 kB \(8,020 bytes\) .* 8.01 kB in 1 chunks for its 1,000"):
        mg.ingest(text, tmp_path / "b.zarr")


def test_an_interrupt_leaves_nothing(small, tmp_path):
    def interrupt(phase, done, total):
        if phase == "sort and write" and done > 1000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store(make_generator("rmat", scale=9), tmp_path / "a.zarr", memory=60_000, report=interrupt)
    with pytest.raises(StoreNotFoundError):
        open_store(tmp_path / "a.zarr")
    assert list(tmp_path.iterdir()) == []


# --- how much memory -------------------------------------------------------------------------------------------------


def test_too_little_memory_is_refused(tmp_path):
    (tmp_path / "list").write_text("1 2\n")
    message = r"memory must be at least 1GiB \(1,073,741,824 bytes\), not [0-9,]+ bytes"
    for memory in ("100MB", GIB - 1, 0):
        with pytest.raises(OptionError, match=message):
            mg.ingest(tmp_path / "list", tmp_path / "a.zarr", memory=memory)


def test_files_are_beside_the_store(tmp_path):
    for place in ("a.zarr", "not/there/a.zarr"):
        assert find_budget(tmp_path / place).folder == tmp_path
    assert find_budget(LocalStore(tmp_path / "a.zarr")).folder == tmp_path
    assert find_budget(f"file://{tmp_path}/a.zarr").folder == tmp_path
    assert find_budget("memory://a.zarr").folder is None
    assert find_budget(MemoryStore()).folder is None
    assert find_budget("s3://bucket/a.zarr", scratch=str(tmp_path)).folder == tmp_path


def test_scratch_that_is_no_folder(tmp_path):
    (tmp_path / "list").write_text("1 2\n")
    with pytest.raises(OptionError, match=r"scratch must be an existing folder, not '.*/none'"):
        mg.ingest(tmp_path / "list", tmp_path / "a.zarr", scratch=tmp_path / "none")


@pytest.mark.parametrize("kind", ["edges", "parquet"])
def test_a_list_of_vertices_takes_a_quarter_of_the_memory(kind, tmp_path, monkeypatch):
    ends = pa.table({"source": [0, 7], "target": [7, 14]})
    if kind == "edges":
        pa.csv.write_csv(ends, tmp_path / "a", pa.csv.WriteOptions(include_header=False))
    else:
        pa.parquet.write_table(ends, tmp_path / "a", compression="none")
    (tmp_path / "list").write_text("".join(f"{7 * k}\n" for k in range(1000)))
    options = {"vertices": tmp_path / "list", "format": "edge-list" if kind == "edges" else "parquet"}
    for memory in (4 * 32_000, 4 * 32_000 - 4):
        room = MemoryBudget(memory, 2, tmp_path)
        monkeypatch.setattr(sys.modules["mgspmv.api.stores"], "find_budget", lambda *_, own=room: own)
        if memory == 4 * 32_000:
            assert mg.ingest(tmp_path / "a", tmp_path / "s", **options).info.shape == (1000, 1000)
        else:
            with pytest.raises(
                CapacityError, match=r"the list of vertices takes about 3\.2e-05 GB of memory, but the limit is"
            ):
                mg.ingest(tmp_path / "a", tmp_path / "t", **options)


PEAK = """
    import sys
    from pathlib import Path
    import mgspmv as mg
    given = {"format": sys.argv[4], "order": sys.argv[5], "duplicates": "keep"}
    given |= {"header": False} if sys.argv[4] == "edge-list" else {}
    info = mg.ingest(sys.argv[1], sys.argv[2], memory=sys.argv[3], **given)
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(info.nnz, 1024 * int(peak.split()[1]))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("field", "order", "n_gib"),
    [
        ("pattern", "none", 2),
        pytest.param("pattern", "none", 8, marks=pytest.mark.weekly),
        pytest.param("integer", "none", 2, marks=pytest.mark.weekly),
        pytest.param("pattern", "degree", 2, marks=pytest.mark.weekly),
    ],
)
def test_text_of_many_times_the_memory(tmp_path, field, order, n_gib):
    """Text through a pipe, and by way of files, within 1 GiB."""
    n_vertices, text_bytes = 1 << 22, n_gib * GIB
    free = os.statvfs(tempfile.gettempdir())
    if free.f_bavail * free.f_frsize < 16 * GIB:
        pytest.skip("needs 16 GiB of disk")
    rng = np.random.default_rng(2)
    ends = 1 + (rng.random((1 << 20, 2)) ** 2 * n_vertices).astype(np.int64)
    value = "" if field == "pattern" else " 7"
    body = "".join(f"{i} {j}{value}\n" for i, j in ends.tolist()).encode()
    n_times = -(-text_bytes // len(body))
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-c", textwrap.dedent(PEAK), tmp_path / "pipe", tmp_path / "a.zarr", "1GiB"]
    with subprocess.Popen([*command, "matrix-market", order], stdout=subprocess.PIPE, text=True) as process:
        with open(tmp_path / "pipe", "wb") as pipe:
            sizes = f"{n_vertices} {n_vertices} {n_times * len(ends)}\n"
            pipe.write(f"%%MatrixMarket matrix coordinate {field} general\n{sizes}".encode())
            for _ in range(n_times):
                pipe.write(body)
        said, _ = process.communicate()
    assert process.returncode == 0
    nnz, peak = map(int, said.split())
    assert nnz == n_times * len(ends)
    assert peak <= 1.1 * GIB
    stored = open_store(tmp_path / "a.zarr")
    degrees = np.bincount(ends[:, 0] - 1, minlength=n_vertices) * n_times
    if order == "degree":
        sources = np.argsort(-degrees, kind="stable")
        assert (stored.read_order() == sources).all()
    else:
        sources = np.arange(n_vertices)
    assert (np.diff(stored.read_array("indptr")) == degrees[sources]).all()
    first = np.sort(np.argsort(sources)[ends[ends[:, 0] == sources[0] + 1, 1] - 1])
    assert (stored.read_array("indices", 0, n_times * len(first)) == np.repeat(first, n_times)).all()


@pytest.mark.weekly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("ids", "n_batches"), [("names", 8), ("integers", 16)])
def test_more_ids_than_memory(tmp_path, ids, n_batches):
    """11 million names of 40 letters, or 34 million integers, which are 0.27 GB, are numbered within 1 GiB."""
    n_ids = 1 << 62 if ids == "integers" else 20_000_000
    free = os.statvfs(tempfile.gettempdir())
    if free.f_bavail * free.f_frsize < 12 * GIB:
        pytest.skip("needs 12 GiB of disk")
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-c", textwrap.dedent(PEAK), tmp_path / "pipe", tmp_path / "a.zarr", "1GiB"]
    rng, ends = np.random.default_rng(2), []
    with subprocess.Popen([*command, "edge-list", "none"], stdout=subprocess.PIPE, text=True) as process:
        with open(tmp_path / "pipe", "wb") as pipe:
            for _ in range(n_batches):
                ends.append(rng.integers(0, n_ids, (2, 1 << 20)))
                columns = [pa.array(own) if ids == "integers" else name(own) for own in ends[-1]]
                options = pa.csv.WriteOptions(include_header=False, delimiter=" ", quoting_style="none")
                pa.csv.write_csv(pa.table(columns, ["source", "target"]), pipe, options)
        said, _ = process.communicate()
    assert process.returncode == 0
    nnz, peak = map(int, said.split())
    assert nnz == n_batches << 20
    assert peak <= 1.1 * GIB
    stored, known = open_store(tmp_path / "a.zarr"), np.sort(np.concatenate(ends, axis=1), axis=None)
    known = known[np.append(True, known[1:] > known[:-1])]
    assert stored.info.shape == (len(known), len(known))
    some = slice(len(known) - (3 << 19), len(known))
    wanted = known[some].tolist() if ids == "integers" else name(known[some]).to_pylist()
    assert stored.read_array("vertex_ids", some.start, some.stop).tolist() == wanted
    targets = np.searchsorted(known, np.concatenate([own[1] for own in ends]))
    assert (np.diff(stored.read_array("indptr")) == np.bincount(targets, minlength=len(known))).all()


REORDER_PEAK = """
    import sys
    from pathlib import Path
    import mgspmv as mg
    info = mg.reorder(sys.argv[1], method="dealt", memory="1GiB").info
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(info.digest, 1024 * int(peak.split()[1]))
"""


@pytest.mark.weekly
@pytest.mark.timeout(900)
def test_reordering_a_store_of_more_than_the_memory(tmp_path):
    """0.8 GB of a graph with weights and as much of its transpose, within 1 GiB; `ingest` makes the same."""
    given = {"n_vertices": 1 << 22, "n_edges": 60_000_000, "weights": True}
    mg.generate("uniform", tmp_path / "a.zarr", **given, transpose=True)
    assert open_store(tmp_path / "a.zarr").info.nbytes > 0.7 * GIB
    command = [sys.executable, "-c", textwrap.dedent(REORDER_PEAK), tmp_path / "a.zarr"]
    digest, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert int(peak) <= 1.1 * GIB
    assert mg.generate("uniform", tmp_path / "b.zarr", **given, order="dealt").info.digest == digest


def name(numbers):
    """Names that ascend as the numbers do."""
    return pa.compute.utf8_lpad(pa.array(numbers).cast(pa.string()), 40, "-")


@pytest.mark.parametrize("kind", ["mtx", "txt", "gz", "parquet", "several", "pipe"])
def test_reading_says_how_many_entries_there_will_be(tmp_path, kind):
    n = 300_000
    ends = np.random.default_rng(0).integers(1, n, (n, 2))
    text = "".join(f"{i} {j}\n" for i, j in ends.tolist()).encode()
    path, options = tmp_path / f"a.{kind}", {}
    if kind == "mtx":
        path.write_bytes(f"%%MatrixMarket matrix coordinate pattern general\n{n} {n} {n}\n".encode() + text)
    elif kind == "parquet":
        pa.parquet.write_table(pa.table({"a": ends[:, 0], "b": ends[:, 1]}), path, row_group_size=n // 3)
    elif kind == "several":
        path.mkdir()
        for k in range(3):
            (path / f"{k}.txt").write_bytes(text[: text.index(b"\n", len(text) // 3) + 1])
    elif kind == "pipe":
        os.mkfifo(path)
        threading.Thread(target=lambda: path.write_bytes(text), daemon=True).start()
        options["format"] = "edge-list"
    else:
        path.write_bytes(gzip.compress(text) if kind == "gz" else text)
    said = []
    mg.ingest(path, tmp_path / "b.zarr", **options, progress=on_phases(lambda *each: said.append(each)))
    read = [(done, total) for phase, done, total in said if phase == "read"]
    assert all(total is None for _, total in read) == (kind == "pipe")
    assert read[-1][1] in (None, read[-1][0])
    assert all(total is None or done <= total for done, total in read)

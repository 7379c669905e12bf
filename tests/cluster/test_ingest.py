"""Sources that the workers of a cluster ingest together: the store that one process makes."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st

import mgspmv as mg
from mgspmv.cluster import ingest_steps
from mgspmv.errors import ClusterError, OptionError, SourceError, SourceNotFoundError, StoreNotFoundError
from mgspmv.ingest import shard
from mgspmv.ingest.budget import MemoryBudget
from tests.support.clusters import check_left, find_left, start_cluster
from tests.support.hearing import on_phases
from tests.support.stores import forget_checksums
from tests.support.waiting import HANG_S


def write_lines(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def write_files(folder: Path, lines: list[str], head: tuple[str, ...] = ()) -> str:
    """Write the lines to four files, so that several workers read them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for k in range(4):
        if own := lines[len(lines) * k // 4 : len(lines) * (k + 1) // 4]:
            write_lines(folder / f"{k}.txt", [*head, *own])
    return str(folder)


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> dict[str, Any]:
    """Paths by what is there."""
    folder, rng = tmp_path_factory.mktemp("sources"), np.random.default_rng(7)
    src, dst = (400 * rng.random((2, 1000)) ** 3).astype(int)
    weights = [f"{k % 13 - 4}.{k % 7}" for k in range(len(src))]
    pairs = list(zip(src.tolist(), dst.tolist(), strict=True))
    far = rng.integers(-(2**62), 2**62, 400)
    triples = [(i, j, w) for (i, j), w in zip(pairs, weights, strict=True)]
    found = {
        "near": write_files(folder / "near", [f"{i} {j}" for i, j in pairs]),
        "weighted": write_files(folder / "weighted", [f"{i},{j},{w}" for i, j, w in triples], ("src,dst,weight",)),
        "claimed": write_files(folder / "claimed", [f"{i}\t{j}" for i, j in pairs], ("# Nodes: 450",)),
        "sparse": write_files(folder / "sparse", [f"{3 * i + 2} {3 * j + 2}" for i, j in pairs]),
        "far": write_files(folder / "far", [f"{far[i]} {far[j]} {w}" for i, j, w in triples]),
        "names": write_files(folder / "names", [f"v{i} ä{j} {w}" for i, j, w in triples]),
        "vertices": write_lines(folder / "vertices.v", [str(k) for k in range(600, -1, -1)]),
        "listed": write_lines(folder / "listed.v", [f"{side}{k}" for k in range(450) for side in "äv"]),
        "matrix": write_lines(
            folder / "a.mtx",
            [
                "%%MatrixMarket matrix coordinate real general",
                "500 400 1000",
                *(f"{i + 1} {j + 1} {w}" for i, j, w in triples),
            ],
        ),
        "symmetric": write_lines(
            folder / "b.mtx",
            ["%%MatrixMarket matrix coordinate integer symmetric", "400 400 1000"]
            + [f"{max(i, j) + 1} {min(i, j) + 1} {k}" for k, (i, j) in enumerate(pairs)],
        ),
        "several": str(folder / "several"),
        "halves": str(folder / "halves"),
        "tables": str(folder / "tables"),
    }
    (folder / "several").mkdir()
    (folder / "several" / "a.txt.gz").write_bytes(gzip.compress("\n".join(f"{i} {j}" for i, j in pairs[:300]).encode()))
    write_lines(folder / "several" / "b.txt", [f"{i} {j}" for i, j in pairs[300:]])
    (folder / "halves").mkdir()
    for k, name in enumerate(("a.txt", "b.txt")):
        write_lines(folder / "halves" / name, [f"{i} {(i + 34) % 100}" for i in range(k, 100, 2)])
    (folder / "tables").mkdir()
    for name, part in (("a", slice(0, 333)), ("b", slice(333, 1000))):
        columns = {"src": src[part] - 50, "dst": dst[part] - 50, "weight": np.arange(1000.0)[part]}
        pq.write_table(pa.table(columns), folder / "tables" / f"{name}.parquet", row_group_size=57)
    return found


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "numbers": ("near", {}),
    "numbers, all kept": ("near", {"duplicates": "keep"}),
    "as a matrix": ("near", {"kind": "matrix", "self_loops": "drop", "symmetrize": True}),
    "first weights": ("weighted", {"duplicates": "first"}),
    "all weights, with the transpose": ("weighted", {"duplicates": "keep", "transpose": True}),
    "summed weights": ("weighted", {"dtype": "float32", "transpose": True}),
    "without weights": ("weighted", {"weights": False}),
    "a number of vertices": ("near", {"n_vertices": 1000}),
    "a claim": ("claimed", {}),
    "a list of vertices": ("near", {"vertices": "vertices"}),
    "a list of names": ("names", {"vertices": "listed", "header": False}),
    "ids with gaps": ("sparse", {"transpose": True}),
    "far ids": ("far", {"duplicates": "first"}),
    "far ids and both ways": ("far", {"duplicates": "first", "symmetrize": True, "transpose": True}),
    "names": ("names", {"duplicates": "first"}),
    "a matrix": ("matrix", {"transpose": True}),
    "a symmetric matrix, first": ("symmetric", {"duplicates": "first"}),
    "a symmetric matrix as graph": ("symmetric", {"kind": "graph"}),
    "several files": ("several", {}),
    "numbers, of which each file has every other": ("halves", {}),
    "tables": ("tables", {"duplicates": "first"}),
}


def check_same(made: Path, wanted: Path) -> None:
    """What both stores say of themselves, but for when they were made."""
    infos = [mg.open_matrix(path).info for path in (made, wanted)]
    for field in fields(infos[0]):
        if field.name not in ("url", "version", "created", "provenance"):
            assert getattr(infos[0], field.name) == getattr(infos[1], field.name), field.name
    made_from, wanted_from = (forget_checksums(info.provenance) | {"created": ""} for info in infos)
    assert made_from == wanted_from
    assert mg.verify(made) == []


def prepare(sources: dict[str, Any], name: str) -> tuple[str, dict[str, Any]]:
    source, options = CASES[name]
    return sources[source], options | ({"vertices": sources[options["vertices"]]} if "vertices" in options else {})


@pytest.mark.parametrize(
    "name", ["all weights, with the transpose", "far ids and both ways", "names", "a matrix", "tables"]
)
def test_the_store_is_that_of_one_process(name, sources, client, tmp_path):
    source, options = prepare(sources, name)
    mg.ingest(source, tmp_path / "wanted", **options)
    before = find_left(client)
    mg.ingest(source, tmp_path / "made", **options, client=client)
    check_same(tmp_path / "made", tmp_path / "wanted")
    check_left(client, before)


@pytest.mark.parametrize("name", CASES)
def test_memory_that_is_short_and_pieces_that_are_small(name, sources, in_process, tmp_path, monkeypatch):
    source, options = prepare(sources, name)
    mg.ingest(source, tmp_path / "wanted", **options)
    monkeypatch.setattr(
        ingest_steps, "make_budget", lambda memory, free, threads, folder: MemoryBudget(1 << 17, 2, folder)
    )
    monkeypatch.setattr(shard, "PIECE_ENTRIES", 71)
    monkeypatch.setattr(shard, "GIVEN_IDS", 13)
    monkeypatch.setattr(sys.modules["mgspmv.ingest.vertices"], "_check_room", lambda *_: None)
    monkeypatch.setattr(ingest_steps, "SUM_BYTES", 1 << 8)  # 128 columns at a time
    mg.ingest(source, tmp_path / "made", **options, client=in_process(3))
    check_same(tmp_path / "made", tmp_path / "wanted")


@pytest.mark.fuzz
@settings(max_examples=8)
@given(
    edges=st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1) | st.integers(0, 9)] * 2), min_size=1, max_size=60),
    duplicates=st.sampled_from(["first", "keep"]),
    symmetrize=st.booleans(),
    transpose=st.booleans(),
)
def test_any_edges(edges, duplicates, symmetrize, transpose, in_process, tmp_path):
    source = write_files(tmp_path / "edges", [f"{i} {j}" for i, j in edges])
    options = {"duplicates": duplicates, "symmetrize": symmetrize, "transpose": transpose}
    options |= {"overwrite": True, "header": False}
    mg.ingest(source, tmp_path / "wanted", **options)
    mg.ingest(source, tmp_path / "made", **options, client=in_process(3))
    check_same(tmp_path / "made", tmp_path / "wanted")


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("rmat", {"scale": 11, "weights": True, "duplicates": "sum", "transpose": True}),
        ("rmat", {"scale": 11, "symmetrize": True, "self_loops": "drop"}),
        ("uniform", {"n_vertices": 1, "n_edges": 2}),
        ("rmat", {"scale": 1, "edge_factor": 0}),
        ("stencil3d", {"nx": 9, "ny": 8, "nz": 7, "pattern": True}),
        ("banded", {"n": 500, "bandwidth": 3, "duplicates": "error"}),
    ],
)
def test_generated_matrices(model, options, in_process, tmp_path):
    mg.generate(model, tmp_path / "wanted", **options)
    mg.generate(model, tmp_path / "made", **options, client=in_process(3))
    check_same(tmp_path / "made", tmp_path / "wanted")


def test_a_dask_dataframe_is_read_by_partitions(client, tmp_path):
    frames, pd = pytest.importorskip("dask.dataframe"), pytest.importorskip("pandas")
    table = pd.DataFrame({"a": np.arange(500) % 71, "b": np.arange(500) % 37, "w": np.arange(500.0)})
    frame = frames.from_pandas(table, npartitions=6)
    wanted = mg.ingest(frame, tmp_path / "wanted", duplicates="first").info
    made = mg.ingest(frame, tmp_path / "made", duplicates="first", client=client).info
    assert made.digest == wanted.digest
    assert made.provenance["source"] == wanted.provenance["source"]


SMALL: dict[str, tuple[list[str], dict[str, Any]]] = {
    "loops of vertices that nothing else has": (
        ["1 2", "7 7", "2 1000000000000", *["3 4"] * 30],
        {"self_loops": "drop"},
    ),
    "loops among names": (["a c", "z z", *["c d"] * 30], {"self_loops": "drop", "transpose": True}),
    "loops in a matrix": (["1 2", "7 7", *["3 4"] * 30], {"self_loops": "drop", "kind": "matrix", "n_vertices": 9}),
    "ids at the ends": ([f"{-(2**63)} {2**63 - 1}", *[f"{2**63 - 1} 0"] * 30], {"duplicates": "keep"}),
}


@pytest.mark.parametrize("name", SMALL)
def test_vertices_are_those_that_one_process_finds(name, in_process, tmp_path):
    lines, options = SMALL[name]
    source, options = write_files(tmp_path / "edges", lines), options | {"header": False}
    mg.ingest(source, tmp_path / "wanted", **options)
    mg.ingest(source, tmp_path / "made", **options, client=in_process(3))
    check_same(tmp_path / "made", tmp_path / "wanted")


@pytest.mark.parametrize("type", [pa.int64(), pa.string()])
def test_tables_without_rows_or_row_groups(type, in_process, tmp_path):
    schema = pa.schema([("a", type), ("b", type)])
    pq.write_table(schema.empty_table(), tmp_path / "a.parquet")
    pq.ParquetWriter(tmp_path / "b.parquet", schema).close()
    for source in ("a.parquet", "b.parquet", "*.parquet"):
        mg.ingest(str(tmp_path / source), tmp_path / "wanted", overwrite=True)
        mg.ingest(str(tmp_path / source), tmp_path / "made", client=in_process(3), overwrite=True)
        check_same(tmp_path / "made", tmp_path / "wanted")


def check_nothing_whole(path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        mg.open_matrix(path)
    assert not path.exists()


BROKEN: dict[str, tuple[list[str], dict[str, Any], type[Exception], str]] = {
    "a line": (["1 2"] * 90 + ["1 x"], {}, SourceError, r"edges.txt, line 91: '1 x'"),
    "a self loop": (["1 2"] * 90 + ["-7 -7"], {"self_loops": "error"}, SourceError, "vertex -7 has a self loop"),
    "a column": (
        ["1 2 0.5", *(f"{k} 3 0.5" for k in range(10, 90))],
        {"kind": "stochastic"},
        SourceError,
        "each column of a left-stochastic matrix must sum to 1 or be empty, but column",
    ),
    "no sums": (["1 2"] * 90, {"duplicates": "sum"}, OptionError, "is read without values"),
    "a value": (["1 2 1e300"] * 90, {"dtype": "float32"}, SourceError, "does not fit into float32"),
}


def test_an_entry_of_listed_vertices_is_named_by_any_worker(in_process, tmp_path):
    """Also by one that reads nothing."""
    names = ["alpha", "beta", "gamma", "delta"]
    listed = write_lines(tmp_path / "names.v", names)
    for one, other in zip(names, [*names[1:], names[0]], strict=True):
        source = write_files(tmp_path / "edges", [f"{one} {other}", "beta beta", f"{one} {other}"])
        with pytest.raises(SourceError, match=rf"the entry \({one}, {other}\) occurs more than once"):
            mg.ingest(
                source, tmp_path / "graph", vertices=listed, duplicates="error", header=False, client=in_process(4)
            )


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_said_and_leaves_nothing(name, in_process, tmp_path):
    lines, options, error, message = BROKEN[name]
    source = write_lines(tmp_path / "edges.txt", lines)
    with pytest.raises(error, match=message):
        mg.ingest(source, tmp_path / "graph", client=in_process(3), **options)
    check_nothing_whole(tmp_path / "graph")


def test_what_only_this_process_has(client, tmp_path):
    with pytest.raises(OptionError, match=r"the workers of a cluster cannot read .*; leave out client="):
        mg.ingest(sp.eye_array(5), tmp_path / "graph", client=client)
    table = pa.table({"a": [1], "b": [2]})
    with pytest.raises(OptionError, match=r"in the memory of this process.*write them to Parquet"):
        mg.ingest(table, tmp_path / "graph", client=client)
    check_nothing_whole(tmp_path / "graph")


def test_a_store_that_workers_cannot_reach(sources, client):
    with pytest.raises(OptionError, match="is in the memory of this process, where the workers"):
        mg.ingest(sources["near"], client=client)


def test_a_file_that_is_not_there(client, tmp_path):
    with pytest.raises(SourceNotFoundError, match="there is no such file"):
        mg.ingest(str(tmp_path / "none.txt"), tmp_path / "graph", client=client, format="edge-list")
    check_nothing_whole(tmp_path / "graph")


def check_an_interrupt_leaves_nothing(phase, sources, in_process, tmp_path):
    def on_progress(reached: str, done: int, total: int | None) -> None:
        if reached == phase:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mg.ingest(sources["far"], tmp_path / "graph", client=in_process(3), progress=on_phases(on_progress))
    check_nothing_whole(tmp_path / "graph")


def test_an_interrupt_leaves_nothing(sources, in_process, tmp_path):
    for phase in ["read", "number", "exchange", "sort", "write"]:
        check_an_interrupt_leaves_nothing(phase, sources, in_process, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("phase", [pytest.param("read", marks=pytest.mark.weekly), "exchange"])
def test_a_worker_that_dies_leaves_nothing_that_looks_whole(phase, sources, tmp_path):
    with start_cluster(3) as cluster, Client(cluster) as client:
        pids = client.run(os.getpid)

        def on_progress(reached: str, done: int, total: int | None) -> None:
            if reached == phase and pids:
                os.kill(pids.pop(sorted(pids)[0]), signal.SIGKILL)

        with pytest.raises(ClusterError):
            mg.ingest(sources["far"], tmp_path / "graph", client=client, timeout=8, progress=on_phases(on_progress))
        check_nothing_whole(tmp_path / "graph")
        client.wait_for_workers(3, timeout=HANG_S)
        mg.ingest(sources["far"], tmp_path / "graph", client=client)
    assert mg.verify(tmp_path / "graph") == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_keep_to_the_memory(tmp_path):
    """0.6 GB of text with weights and ids that are far apart, with the transpose, by two workers within 1 GiB each."""
    rng, n_batches = np.random.default_rng(2), 12
    ids = np.sort(rng.integers(-(2**62), 2**62, 1_000_000))
    degrees, weight = np.zeros(len(ids), np.int64), pa.array(rng.random(1 << 20).round(3))
    (tmp_path / "edges").mkdir()
    for k in range(n_batches):
        with (tmp_path / "edges" / f"{k}.txt").open("wb") as file:
            ends = rng.integers(0, len(ids), (2, 1 << 20))
            degrees += np.bincount(ends[0], minlength=len(ids))
            table = pa.table([*map(pa.array, ids[ends]), weight], ["source", "target", "weight"])
            options = pa.csv.WriteOptions(include_header=False, delimiter=" ", quoting_style="none")
            pa.csv.write_csv(table, file, options)
    with start_cluster(2) as cluster, Client(cluster) as client:
        made = mg.ingest(
            str(tmp_path / "edges"),
            tmp_path / "graph",
            client=client,
            memory="1GiB",
            duplicates="keep",
            transpose=True,
        ).info
        peaks = client.run(_find_peak).values()
    assert max(peaks) <= 1.1 * (1 << 30)
    assert made.nnz == n_batches << 20
    stored = mg.open_matrix(tmp_path / "graph").stored
    assert (np.diff(stored.transpose().read_array("indptr")) == degrees).all()
    assert (stored.read_array("vertex_ids", 0, 1000) == ids[:1000]).all()


def _find_peak() -> int:
    """Most bytes that this process had at a time."""
    line = next(own for own in Path("/proc/self/status").read_text().splitlines() if own.startswith("VmHWM"))
    return 1024 * int(line.split()[1])

"""Everyday files of edges: what each holds, or which argument its error names, by Python and at the command line."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.errors import MgspmvError, OptionError, SourceError
from tests.support.commands import ENVIRONMENT, PROGRAM, invoke
from tests.support.definitions import write_definition
from tests.support.reference_data import shared_cases


@dataclass(frozen=True)
class Case:
    """A file, and what it holds."""

    name: str
    content: str | bytes
    arcs: list[tuple[Any, ...]] | None = None
    """Of ids, sources first, with weights where there are some; None where it is refused."""
    options: dict[str, Any] = field(default_factory=dict)
    error: tuple[str, ...] = ()
    """What the message must have; `name=` is an argument."""
    n_vertices: int | None = None
    """Where there are more than the arcs have."""
    says: tuple[str, ...] = ()
    """What the report of the ingest must have."""

    @property
    def data(self) -> bytes:
        return self.content.encode() if isinstance(self.content, str) else self.content

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{name}={value}" for name, value in self.options.items())])


ALICE = [("alice", "bob"), ("bob", "carol"), ("carol", "alice")]
BY_NAME = [(10, 20), (20, 30), (30, 10), (40, 10)]
HASHTAGS = "#ai,#ml\n#ml,#ai\nbob,#ai\n"
TAGS = "#python,#code\n#java,#code\nalice,#python\nalice,C#\n"
CITIES = 'New York,Los Angeles\nLos Angeles,"Washington, DC"\n"Washington, DC",New York\nNew York,New York\n'
SYM = "% sym unweighted\n% 4 4 4\n1 2\n2 3\n3 4\n1 3\n"
BIP = "% bip unweighted\n% 4 3 2\n1 1\n1 2\n2 1\n3 2\n"
ZEROS = "007 8\n7 9\n8 7\n9 007\n"
ZIP = "zip_from,zip_to\n01234,1234\n1234,90210\n"
EU = "1;2;0,5\n2;3;0,25\n3;1;0,25\n"
NO_BANNER = "27 51 5\n1 2 3\n2 3 1\n3 4 2\n27 51 1\n5 5 4\n"
TIMES = "1 2 1254192988\n1 3 1254194656\n1 2 1254202612\n3 2 1254203000\n"


def mirror(arcs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return arcs + [(j, i) for i, j in arcs]


CASES = [
    Case("header-names.csv", "source,target\nalice,bob\nbob,carol\ncarol,alice\n", ALICE, says=("header: 1 line",)),
    Case(
        "header-names-weights.csv",
        "source,target,weight\nalice,bob,2\nbob,carol,1\ncarol,alice,3\n",
        [("alice", "bob", 2.0), ("bob", "carol", 1.0), ("carol", "alice", 3.0)],
        says=("weight: column 3 'weight', 1 .. 3",),
    ),
    Case(
        "namesheadw.csv",
        "source,target,weight\nalice,bob,1.5\nbob,carol,2\n",
        [("alice", "bob", 1.5), ("bob", "carol", 2.0)],
    ),
    Case(
        "index-column.csv",
        ",src,dst\n0,10,20\n1,20,30\n2,30,10\n3,40,10\n",
        BY_NAME,
        says=("source: column 2 'src'", "target: column 3 'dst'", "not read: column 1"),
    ),
    Case(
        "withindex.csv",
        ",src,dst\n0,0,1\n1,1,2\n2,2,0\n3,0,2\n4,3,0\n",
        [(0, 1), (1, 2), (2, 0), (0, 2), (3, 0)],
    ),
    Case("edge-id.csv", "edge_id,src,dst\n0,10,20\n1,20,30\n2,30,10\n3,40,10\n", BY_NAME),
    Case("ist.csv", "id,source,target\n100,0,1\n101,1,2\n", [(0, 1), (1, 2)]),
    Case("target-source.csv", "target,source\n1,2\n3,2\n", [(2, 1), (2, 3)]),
    Case("dstsrc.csv", "dst,src\n1,0\n2,0\n", [(0, 1), (0, 2)]),
    Case("wst.csv", "weight,source,target\n5,0,1\n7,1,2\n", [(0, 1, 5.0), (1, 2, 7.0)]),
    Case("r.csv", '"","from","to"\n"1",0,1\n"2",1,2\n', [(0, 1), (1, 2)]),
    Case("hashtags.csv", HASHTAGS, error=("line 1: '#ai,#ml'", 'comment="none"', "comment='#'")),
    Case(
        "hashtags.csv",
        HASHTAGS,
        [("#ai", "#ml"), ("#ml", "#ai"), ("bob", "#ai")],
        {"comment": "none"},
    ),
    Case("hash.csv", TAGS, error=("line 1: '#python,#code'", 'comment="none"')),
    Case(
        "hash.csv",
        TAGS,
        [("#python", "#code"), ("#java", "#code"), ("alice", "#python"), ("alice", "C#")],
        {"comment": "none"},
    ),
    Case(
        "konect-sym.txt",
        SYM,
        mirror([(1, 2), (2, 3), (3, 4), (1, 3)]),
        says=("note: each edge is read in both directions",),
    ),
    Case("konect-sym.txt", SYM, [(1, 2), (2, 3), (3, 4), (1, 3)], {"comment": "%"}),
    Case("out.bip", BIP, error=("bipartite", 'comment="%"')),
    Case("out.bip", BIP, [(1, 1), (1, 2), (2, 1), (3, 2)], {"comment": "%"}),
    Case(
        "snap-undirected.txt",
        "# Undirected graph: ../data/output/tiny.txt\n# Nodes: 4 Edges: 2\n# FromNodeId\tToNodeId\n0\t1\n1\t2\n",
        mirror([(0, 1), (1, 2)]),
        n_vertices=4,
        says=("note: each edge is read in both directions",),
    ),
    Case(
        "snap-directed.txt",
        "# Directed graph (each unordered pair of nodes is saved once): tiny.txt\n# FromNodeId\tToNodeId\n0\t1\n1\t2\n",
        [(0, 1), (1, 2)],
    ),
    Case("leading-zeros.txt", ZEROS, error=("line 1", 'ids="string"', 'ids="int"')),
    Case("leading-zeros.txt", ZEROS, [("007", "8"), ("7", "9"), ("8", "7"), ("9", "007")], {"ids": "string"}),
    Case("leading-zeros.txt", ZEROS, [(7, 8), (7, 9), (8, 7), (9, 7)], {"ids": "int"}),
    Case("zip.csv", ZIP, error=("line 2", 'ids="string"')),
    Case("zip.csv", ZIP, [("01234", "1234"), ("1234", "90210")], {"ids": "string"}),
    Case(
        "cities.csv",
        CITIES,
        [
            ("New York", "Los Angeles"),
            ("Los Angeles", "Washington, DC"),
            ("Washington, DC", "New York"),
            ("New York", "New York"),
        ],
    ),
    Case("nohead.mtx", NO_BANNER, error=("no banner", "%%MatrixMarket", 'format="edge-list"')),
    Case("nohead.mtx", NO_BANNER, None, {"format": "edge-list"}, ("line 1", "skip_rows=1", "header=False")),
    Case(
        "nohead.mtx",
        NO_BANNER,
        [(1, 2, 3.0), (2, 3, 1.0), (3, 4, 2.0), (27, 51, 1.0), (5, 5, 4.0)],
        {"format": "edge-list", "skip_rows": 1},
    ),
    Case("sizes.txt", NO_BANNER, error=("line 1", "skip_rows=1", "header=False")),
    Case(
        "sizes.txt",
        NO_BANNER,
        [(27, 51, 6.0), (1, 2, 3.0), (2, 3, 1.0), (3, 4, 2.0), (5, 5, 4.0)],
        {"header": False},
    ),
    Case("n-and-m.txt", "3 3\n1 2\n2 3\n3 1\n", error=("line 1", "skip_rows=1", "header=False")),
    Case("drawn.txt", "source target\n------ ------\nalice bob\nbob alice\n", error=("ruled line", 'ids="string"')),
    Case("twice.csv", "source,target\nFrom,To\n1,2\n2,3\n", error=("From, To", "skip_rows=1")),
    Case("stacked.csv", "level_0,level_1,0\na,b,1.5\nb,a,2\n", error=("header=True", "header=False")),
    Case(
        "undirected.txt",
        "# This graph is undirected\n0 1\n1 2\n",
        [(0, 1), (1, 2)],
        says=("note: a comment says `undirected`", "symmetrize=True"),
    ),
    Case("tabcomma.tsv", "Smith, J\tDoe\nBrown, K\tDoe\n", [("Smith, J", "Doe"), ("Brown, K", "Doe")]),
    Case("pipe-semicolon.txt", "a;x|b\nb|a;x\n", [("a;x", "b"), ("b", "a;x")]),
    Case("semicolon-comma.csv", "a,x;b\nb;a,x\n", [("a,x", "b"), ("b", "a,x")]),
    Case("comma-blank.csv", "a x,b\nb,a x\n", [("a x", "b"), ("b", "a x")]),
    Case("eu.csv", EU, error=("line 1", "decimal comma")),
    Case("eu.csv", EU, [(1, 2), (2, 3), (3, 1)], {"weights": False}),
    Case(
        "snb.csv",
        "Person.id|Person.id|creationDate\n933|4139|2010-03-13T07:37:21.718+0000\n"
        "933|6597069777240|2010-09-20T09:42:43.187+0000\n",
        [(933, 4139), (933, 6597069777240)],
        says=("not read: column 3 'creationDate'",),
    ),
    Case("nxedgelist.txt", "a b {}\nb c {}\n", error=("line 1", "weights=False")),
    Case("nxedgelist.txt", "a b {}\nb c {}\n", [("a", "b"), ("b", "c")], {"weights": False}),
    Case(
        "sx.txt",
        TIMES,
        [(1, 2, 2508395600.0), (1, 3, 1254194656.0), (3, 2, 1254203000.0)],
        says=(
            "weight: column 3, 1254192988 .. 1254203000",
            "warning: column 3 looks like times (2009-09-29",
            "weights=False",
        ),
    ),
    Case("sx.txt", TIMES, [(1, 2), (1, 3), (3, 2)], {"weights": False}),
    Case("bom.csv", b"\xef\xbb\xbfSource,Target\r\n1,2\r\n2,3\r\n", [(1, 2), (2, 3)]),
    Case("bom-twice.csv", "\ufeff1,2\n2,3\n\ufeff3,1\n", [(1, 2), (2, 3), (3, 1)]),
    Case("crlf.csv", b"FromNodeId,ToNodeId\r\n1,2\r\n2,3\r\n", [(1, 2), (2, 3)]),
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    return tmp_path


def list_arcs(store: Any) -> list[tuple[Any, ...]]:
    """The arcs of a stored graph in order, by ids, with weights where it has some."""
    with mg.open_matrix(store) as A:
        assert A.info.kind == "graph"
        found = A.to_scipy().tocoo()
        ids = np.arange(A.shape[0]) if A.vertex_ids is None else np.asarray(A.vertex_ids)
        ends = (ids[found.coords[1]].tolist(), ids[found.coords[0]].tolist())
        return sorted(zip(*ends, *([found.data.tolist()] if A.info.dtype else []), strict=True))


def check_store(store: Any, case: Case) -> None:
    assert case.arcs is not None
    assert list_arcs(store) == sorted(case.arcs)
    n_vertices = case.n_vertices or len({end for arc in case.arcs for end in arc[:2]})
    assert mg.open_matrix(store).shape == (n_vertices, n_vertices)


def list_flags(options: dict[str, Any]) -> list[str]:
    """Arguments of Python as options of the command line."""
    flags = []
    for name, value in options.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{option}" if value else f"--no-{option}")
        else:
            flags += [f"--{option}", ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)]
    return flags


def as_option(part: str) -> str:
    """A part of a message at the command line, where arguments are options."""
    argument = re.fullmatch(r"(\w+)=(\S*)", part)
    if argument is None:
        return part
    name, value = argument[1].replace("_", "-"), argument[2].strip("'\"")
    if value in ("True", "False"):
        return f"--{name}" if value == "True" else f"--no-{name}"
    return f"--{name} {shlex.quote(value)}" if value else f"--{name}"


def check_python(case: Case, source: Any) -> None:
    if case.arcs is None:
        with pytest.raises(MgspmvError) as caught:
            mg.ingest(source, **case.options)
        for part in case.error:
            assert part in str(caught.value)
        return
    store = MemoryStore()
    mg.ingest(source, store, **case.options)
    check_store(store, case)
    for part in case.says:
        assert part in str(mg.open_matrix(store).ingest_report)


def check_command(case: Case, *source: str) -> None:
    args = ["ingest", *source, "case.zarr", "--overwrite", *list_flags(case.options)]
    if case.arcs is None:
        _, stderr = invoke(*args, code=3)
        for part in case.error:
            assert as_option(part) in " ".join(stderr.split())
        assert not Path("case.zarr").exists()
        return
    stdout, _ = invoke(*args)
    check_store("case.zarr", case)
    shown, _ = invoke("info", "case.zarr")
    for part in case.says:
        assert as_option(part) in stdout
        assert re.sub("^(note|warning): ", "", part) in shown or "=" in part  # options of another command


@pytest.mark.parametrize("case", CASES, ids=str)
def test_files_hold_these_arcs_or_are_refused(case, folder):
    (folder / case.name).write_bytes(case.data)
    check_python(case, folder / case.name)
    check_command(case, case.name)


VARIED = ("header-names-weights.csv", "index-column.csv", "out.bip", "konect-sym.txt", "cities.csv", "zip.csv")


@pytest.mark.parametrize("name", VARIED)
def test_other_ways_to_give_a_file(name, folder, monkeypatch):
    """Compressed, at an address, and by standard input, plain and compressed."""
    case = next(case for case in CASES if case.name == name)
    (folder / f"{name}.gz").write_bytes(gzip.compress(case.data))
    check_command(case, f"{name}.gz")
    (folder / f"{name}.xz").write_bytes(lzma.compress(case.data))
    check_python(case, folder / f"{name}.xz")
    with fsspec.open(url := f"memory://input-cases/{name}", "wb") as file:
        file.write(bz2.compress(case.data))
    check_python(case, url)
    monkeypatch.setattr("sys.stdin", Stdin(case.data))
    check_python(case, "-")
    monkeypatch.setattr("sys.stdin", Stdin(gzip.compress(case.data)))
    check_command(case, "-")


class Stdin:
    """Standard input that holds bytes."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


@pytest.mark.parametrize(
    "name",
    sorted(
        SHARED := {
            "graph-g35-header-names.csv": "header-names.csv",
            "nameshead.csv": "header-names.csv",
            "graph-g35-header-names-weights.csv": "header-names-weights.csv",
            "namesheadw.csv": "namesheadw.csv",
            "graph-v2-index-column.csv": "index-column.csv",
            "withindex.csv": "withindex.csv",
            "graph-v2-edge-id.csv": "edge-id.csv",
            "ist.csv": "ist.csv",
            "graph-v3-target-source.csv": "target-source.csv",
            "dstsrc.csv": "dstsrc.csv",
            "wst.csv": "wst.csv",
            "graph-g32-hashtags.csv": "hashtags.csv",
            "hash.csv": "hash.csv",
            "graph-g33-konect-sym.txt": "konect-sym.txt",
            "out.bip": "out.bip",
            "graph-v7-leading-zeros.txt": "leading-zeros.txt",
            "zip.csv": "zip.csv",
            "graph-v8-cities.csv": "cities.csv",
            "nohead.mtx": "nohead.mtx",
            "tabcomma.tsv": "tabcomma.tsv",
            "eu.csv": "eu.csv",
            "snb.csv": "snb.csv",
            "nxedgelist.txt": "nxedgelist.txt",
            "sx.txt": "sx.txt",
            "bom.csv": "bom.csv",
            "crlf.csv": "crlf.csv",
        }
    ),
)
def test_the_files_themselves(name):
    path = shared_cases(name)
    same = [case for case in CASES if case.name == SHARED[name]]
    assert same
    for case in same:
        assert path.read_bytes() == case.data
        check_python(case, path)


REST: dict[str, Any] = {
    "bom.mtx": [[1.5, 0], [0, 0]],
    "single.mtx": [[0, 1, 1, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]],
    "skewarr.mtx": [[0, -1, -2], [1, 0, -3], [2, 3, 0]],
    "symboth.mtx": [[0, 8, 0], [8, 0, 0], [0, 0, 1]],
    "ui.mtx": [[1.8446744073709552e19, 0], [3, 0]],
    "isum.mtx": [[0, 9223372036854775808], [1, 0]],
    "short.mtx": "expected 5 entries, the file ends after 2",
    "patvals.mtx": "expected 'row column', found 3 columns",
    "obj.npz": "write it with scipy.sparse.save_npz",
    "hypersparse.mtx": "8 TB",
}
"""Matrices, read as float64, or a part of the error."""


@pytest.mark.parametrize("name", REST)
def test_the_matrices_themselves(name, folder):
    path, wanted = shared_cases(name), REST[name]
    if isinstance(wanted, list):
        assert mg.ingest(path, dtype="float64").to_scipy().toarray().tolist() == wanted
        return
    with pytest.raises(MgspmvError, match=re.escape(wanted)) as caught:
        mg.ingest(path, folder / "s.zarr", dtype="float64")
    _, stderr = invoke("ingest", str(path), "s.zarr", code=caught.value.exit_code)
    assert wanted in " ".join(stderr.split())
    assert not (folder / "s.zarr").exists()


def test_the_cities_themselves():
    mg.ingest(shared_cases("graph-v8-cities.csv"), "cities.zarr")
    invoke("subgraph", "cities.zarr", "s.zarr", "--vertices", str(shared_cases("graph-v9-vertices-blank.txt")))
    assert list_arcs("s.zarr") == [("New York", "Los Angeles"), ("New York", "New York")]


def test_the_uuids_themselves():
    mg.ingest(shared_cases("uuid.parquet"), "uuid.zarr")
    invoke("ingest", str(shared_cases("uuid.parquet")), "again.zarr")
    arcs = list_arcs("uuid.zarr")
    assert len(arcs) == 3
    assert all(re.fullmatch("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", end) for arc in arcs for end in arc)
    assert list_arcs("again.zarr") == arcs


FRAME = pd.DataFrame({"src": [0, 1, 2, 0, 3], "dst": [1, 2, 0, 2, 0]})


def save_parquet(table: Any, name: str) -> str:
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), name)
    return name


def save_dask(name: str) -> str:
    dask = pytest.importorskip("dask.dataframe")
    dask.from_pandas(FRAME, npartitions=2).to_parquet(name)
    return name


def save_pandas(frame: Any, name: str) -> str:
    frame.to_parquet(name)
    return name


ALL_ARCS = list(zip(FRAME["src"].tolist(), FRAME["dst"].tolist(), strict=True))
UINT64 = pa.table({"s": [0, 1], "d": [1, 2], "w": pa.array([2**63 + 2048, 7], pa.uint64())})

TABLES: dict[str, tuple[Any, Case]] = {
    "a folder of Dask": (
        lambda: save_dask("daskout"),
        Case("daskout", "", ALL_ARCS, says=("column 3 '__null_dask_in",)),
    ),
    "rows that pandas filtered": (
        lambda: save_pandas(FRAME[FRAME["dst"] != 2], "filtered.parquet"),
        Case("", "", [(0, 1), (2, 0), (3, 0)], says=("weight: none", "not read: column 3 '__index_level_0__'")),
    ),
    "an index that pandas saved by its name": (
        lambda: save_pandas(FRAME.set_index(pd.Index([5, 6, 7, 8, 9], name="key")), "named.parquet"),
        Case("", "", ALL_ARCS),
    ),
    "ends that pandas saved as an index": (
        lambda: save_pandas(FRAME.assign(weight=[1.5, 2, 3, 4, 5]).set_index(["src", "dst"]), "ends.parquet"),
        Case("", "", [(*arc, w) for arc, w in zip(ALL_ARCS, [1.5, 2.0, 3.0, 4.0, 5.0], strict=True)]),
    ),
    "columns in another order": (
        lambda: save_parquet({"weight": [5.0, 7.0], "target": ["b", "c"], "source": ["a", "b"]}, "order.parquet"),
        Case("", "", [("a", "b", 5.0), ("b", "c", 7.0)]),
    ),
    "no suffix": (lambda: save_parquet({"src": [0, 1], "dst": [1, 2]}, "edges"), Case("", "", [(0, 1), (1, 2)])),
    "weights beyond int64": (lambda: save_parquet(UINT64, "u64w.parquet"), Case("", "", error=('dtype="float64"',))),
    "weights beyond int64 as float64": (
        lambda: save_parquet(UINT64, "u64w.parquet"),
        Case("", "", [(0, 1, 2.0**63 + 2048), (1, 2, 7.0)], {"dtype": "float64"}),
    ),
    "names that may be weights": (
        lambda: save_parquet({"src": [0], "dst": [1], "trips": [5]}, "trips.parquet"),
        Case("", "", error=("trips", "weights=False", "columns=")),
    ),
    "columns by name": (
        lambda: save_parquet({"src": [0], "dst": [1], "trips": [5]}, "trips.parquet"),
        Case("", "", [(0, 1, 5)], {"columns": ("src", "dst", "trips")}),
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_hold_these_arcs_or_are_refused(name):
    make, case = TABLES[name]
    path = make()
    check_python(case, path)
    check_command(case, path)
    if Path(path).is_file():
        check_python(case, pq.read_table(path))


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("daskout", Case("", "", ALL_ARCS)),
        ("filtered.parquet", Case("", "", [(0, 1), (2, 0), (0, 2), (3, 0)])),
        ("parquet_without_suffix", Case("", "", [(0, 1), (1, 2)])),
        ("u64w.parquet", Case("", "", error=('dtype="float64"',))),
    ],
)
def test_the_tables_themselves(name, case):
    path = shared_cases(name)
    check_python(case, path)
    if case.arcs is not None:
        frame = pd.read_parquet(path)
        assert sorted(zip(frame.iloc[:, 0].tolist(), frame.iloc[:, 1].tolist(), strict=True)) == sorted(case.arcs)
        check_python(case, frame)


@pytest.mark.slow
def test_pipes_give_all_arcs(folder):
    n = 100_000
    ring = "".join(f"{k} {(k + 1) % n}\n" for k in range(n)).encode()
    (folder / "ring.txt").write_bytes(ring)
    (folder / "ring.txt.gz").write_bytes(gzip.compress(ring))
    wanted = mg.ingest("ring.txt").info.digest
    (folder / "mgspmv").write_text(f'#!/bin/sh\nexec {shlex.join(PROGRAM)} "$@"\n')
    (folder / "mgspmv").chmod(0o755)
    ways = [
        "cat ring.txt | ./mgspmv ingest - s.zarr",
        "./mgspmv ingest - s.zarr < ring.txt",
        "cat ring.txt | ./mgspmv ingest /dev/stdin s.zarr",
        "./mgspmv ingest <(cat ring.txt) s.zarr",
        "cat ring.txt.gz | ./mgspmv ingest - s.zarr",
        "cat ring.txt | ./mgspmv ingest /dev/stdin s.zarr --format edge-list",
        "mkfifo f; cat ring.txt > f & ./mgspmv ingest f s.zarr",
    ]
    for way in ways:
        ran = subprocess.run(["bash", "-c", way], env=ENVIRONMENT, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, (way, ran.stderr)
        with mg.open_matrix("s.zarr") as A:
            assert (A.info.nnz, A.info.digest) == (n, wanted), way
        shutil.rmtree("s.zarr")


FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("carol,dave\ndave,alice\n", {"header": False}),
    "known names": ("source,target\ncarol,dave\ndave,alice\n", {}),
    "the other way round": ("dst,src\ndave,carol\nalice,dave\n", {}),
    "an index": (",src,dst\n0,carol,dave\n1,dave,alice\n", {}),
    "numbered edges": ("edge_id,src,dst\n7,carol,dave\n8,dave,alice\n", {}),
    "other names": ("who,whom\ncarol,dave\ndave,alice\n", {"header": True}),
    "columns by name": ("x,whom,who\n1,dave,carol\n2,alice,dave\n", {"columns": ("who", "whom")}),
    "columns by number": ("1,dave,carol\n2,alice,dave\n", {"columns": (3, 2)}),
    "lines to skip": ("exported today\nsource,target\ncarol,dave\ndave,alice\n", {"skip_rows": 1}),
    "quotes": ('"from"|"to"\n"carol"|"dave"\n"dave"|"alice"\n', {}),
    "comments of another kind": ("// people\ncarol dave\ndave alice\n", {"comment": "/", "header": False}),
    "a recurring name": ("carol dave\ndave alice\n", {}),
    "an own delimiter": ("carol:dave\ndave:alice\n", {"delimiter": ":"}),
    "times": ("source,target,created\ncarol,dave,2020-01-01\ndave,alice,2020-01-02\n", {}),
}
"""Of the same two arcs."""
ADDED = [("carol", "dave"), ("dave", "alice")]


@pytest.fixture
def people(folder):
    """A store of names, beside which there are arcs to come."""
    (folder / "people.csv").write_text("source,target\nalice,bob\nbob,carol\ncarol,alice\n")
    mg.ingest("people.csv", "people.zarr")
    return "people.zarr"


@pytest.mark.parametrize("name", FORMS)
def test_updates_read_edges_by_the_same_rules(name, folder, people):
    text, options = FORMS[name]
    (folder / "more.csv").write_text(text)
    mg.update(people, insert="more.csv", **options)
    assert list_arcs(people) == sorted(ALICE + ADDED)
    invoke("update", people, "--delete", "more.csv", *list_flags(options))
    assert list_arcs(people) == sorted(ALICE)
    invoke("update", people, "--insert", "more.csv", *list_flags(options))
    assert list_arcs(people) == sorted(ALICE + ADDED)
    mg.update(people, delete="more.csv", **options)
    assert list_arcs(people) == sorted(ALICE)


@pytest.mark.parametrize("name", FORMS)
def test_subgraphs_read_edges_by_the_same_rules(name, folder, people):
    text, options = FORMS[name]
    mg.update(people, insert=pd.DataFrame(ADDED, columns=["src", "dst"]))
    (folder / "some.csv").write_text(text)
    invoke("subgraph", people, "some.zarr", "--edges", "some.csv", *list_flags(options))
    assert list_arcs("some.zarr") == sorted(ADDED)
    invoke("subgraph", people, "rest.zarr", "--without-edges", "some.csv", *list_flags(options))
    assert list_arcs("rest.zarr") == sorted(ALICE)


@pytest.mark.parametrize("name", FORMS)
def test_pipelines_read_edges_by_the_same_rules(name, folder):
    text, options = FORMS[name]
    (folder / "edges.csv").write_text(text)
    keys = "".join(f"{key} = {_to_toml(value)}\n" for key, value in options.items())
    assert mg.run_pipeline(write_definition(f'folder = "out"\n[matrix.web]\nsource = "edges.csv"\n{keys}')).is_success
    assert list_arcs("out/web.zarr") == sorted(ADDED)


def _to_toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(_to_toml, value))}]" if isinstance(value, tuple) else repr(value)


UNDECIDED: dict[str, tuple[str, tuple[str, ...]]] = {
    "a header or an edge": ("who,whom\ncarol,dave\n", ("header=True", "header=False")),
    "known names that are ids": ("source,target\ntarget,source\n", ("header=True", "header=False")),
    "an index without names": (",a,b\n0,carol,dave\n", ("columns=",)),
    "weights or not": ("source,target,trips\ncarol,dave,3\n", ("weights=False", "columns=")),
    "one column": ("carol:dave\ndave:alice\n", ("delimiter=",)),
    "a comment or an edge": ("#carol,dave\ndave,alice\nalice,dave\n", ("comment=",)),
}


@pytest.mark.parametrize("name", UNDECIDED)
def test_what_is_undecided_is_refused_everywhere(name, folder, people):
    text, parts = UNDECIDED[name]
    (folder / "edges.csv").write_text(text)
    before = mg.open_matrix(people).info

    def check(message: str, *, are_options: bool) -> None:
        for part in parts:
            assert (as_option(part) if are_options else part) in " ".join(message.split())

    for call in (
        lambda: mg.ingest("edges.csv"),
        lambda: mg.update(people, insert="edges.csv"),
    ):
        with pytest.raises(SourceError) as caught:
            call()
        check(str(caught.value), are_options=False)
    with pytest.raises(SourceError, match=r"^edges.csv"):
        mg.ingest(["people.csv", "edges.csv"])
    commands = (
        ("ingest", "edges.csv", "s.zarr"),
        ("update", people, "--insert", "edges.csv"),
        ("subgraph", people, "s.zarr", "--edges", "edges.csv"),
    )
    for args in commands if name != "weights or not" else commands[:2]:  # weights of edges that stay do not count
        _, stderr = invoke(*args, code=3)
        check(stderr, are_options=True)
    assert mg.open_matrix(people).info == before
    assert not Path("s.zarr").exists()


NAMES = "".join(f"u{k},v{k}\n" for k in range(12_000))
"""More lines than are looked at before edges are read, in which no name occurs twice."""


@pytest.mark.parametrize(
    ("text", "options", "parts"),
    [
        (f"source,target\n{NAMES}source,target\n{NAMES}", {}, ("line 12002", "repeats the header", "header=False")),
        ("\ufeffsource,target\na,b\nb,a\n\ufeffsource,target\nb,c\n", {}, ("line 1:", "header=True", "header=False")),
        (f"who,whom\n{NAMES}who,whom\n", {"header": True}, ("line 12002", "repeats the header", "header=False")),
        (f"who,whom\n{NAMES}who,whom\n", {}, ("line 1:", "header=True", "header=False")),
        ("a,b\n1,2\na,b\n", {"ids": "string"}, ("line 1:", "header=True", "header=False")),
    ],
)
def test_files_that_were_put_together_with_their_headers(text, options, parts, folder, in_process):
    (folder / "all.csv").write_text(text)
    check_python(case := Case("", "", None, options, parts), "all.csv")
    check_command(case, "all.csv")
    with pytest.raises(SourceError, match="header"):
        mg.ingest("all.csv", "workers.zarr", client=in_process(2), **options)


@pytest.mark.parametrize(
    "text", ["New York\nLos Angeles\n", '"New York"\n"Los Angeles"\n', "name\nNew York\nLos Angeles\n"]
)
def test_names_with_blanks_in_lists_of_vertices(text, folder):
    """Also where a name begins with another vertex's."""
    (folder / "cities.csv").write_text(f"{CITIES}New,York\nYork,New\n")
    (folder / "chosen.txt").write_text(text)
    mg.ingest("cities.csv", "cities.zarr")
    invoke("subgraph", "cities.zarr", "s.zarr", "--vertices", "chosen.txt")
    assert list_arcs("s.zarr") == [("New York", "Los Angeles"), ("New York", "New York")]
    mg.subgraph("cities.zarr", store := MemoryStore(), vertices=["New York", "Los Angeles"])
    assert mg.open_matrix(store).info.digest == mg.open_matrix("s.zarr").info.digest


def write_folder(folder: Path, texts: list[str]) -> str:
    (folder / "edges").mkdir()
    for k, text in enumerate(texts):
        (folder / "edges" / f"{k}.csv").write_text(text)
    return "edges"


@pytest.mark.parametrize(
    ("texts", "options"),
    [
        (["source,target\nalice,bob\n", "source,target\nbob,carol\ncarol,alice\n"], {}),
        (["source,target\n", "source,target\nalice,bob\nbob,carol\ncarol,alice\n"], {}),
        (["target,source\nbob,alice\n", "target,source\ncarol,bob\nalice,carol\n"], {}),
        (["who,whom\nalice,bob\n", "who,whom\nbob,carol\ncarol,alice\n"], {"header": True}),
        (["alice,bob\n", "bob,carol\ncarol,alice\n"], {"header": False}),
        (["alice,bob\nbob,carol\n", "carol,alice\n"], {"header": False}),
        (["0,alice,bob\n", "1,bob,carol\n2,carol,alice\n"], {"columns": (2, 3), "header": False}),
        (["# a\nalice,bob\nbob,carol\n", "# b\n", "carol,alice\n"], {"header": False}),
    ],
)
def test_files_that_agree(texts, options, folder, in_process):
    source = write_folder(folder, texts)
    check_python(case := Case("", "", ALICE, options), source)
    check_command(case, source)
    mg.ingest(source, "workers.zarr", client=in_process(2), **options)
    check_store("workers.zarr", case)


@pytest.mark.parametrize(
    ("texts", "parts"),
    [
        (["source,target\nalice,bob\n", "bob,carol\ncarol,bob\n"], ("1.csv", "header=")),
        (["alice,bob\nbob,alice\n", "source,target\nbob,carol\n"], ("1.csv", "header=")),
        (["source,target\nalice,bob\n", "target,source\nbob,carol\n"], ("1.csv", "columns")),
        (["alice,bob\nbob,alice\n", "bob;carol\ncarol;bob\n"], ("1.csv", "delimiter=")),
        (["source,target\n1,2\n", "source,target,weight\n2,3,5\n"], ("1.csv", "columns")),
        (["1,2\n2,3\n", "2,3,5\n3,4,5\n"], ("1.csv",)),
        (["% sym unweighted\n1 2\n2 3\n", "2 3\n"], ("1.csv", "undirected")),
        (["who,whom\nalice,bob\n", "who,whom\nbob,carol\n"], (".csv", "header=")),
    ],
)
def test_files_that_disagree(texts, parts, folder, in_process):
    source = write_folder(folder, texts)
    check_python(case := Case("", "", None, error=parts[:1]), source)
    with pytest.raises(SourceError) as caught:
        mg.ingest(source)
    for part in parts:
        assert part in str(caught.value)
    check_command(case, source)
    with pytest.raises(SourceError):
        mg.ingest(source, "workers.zarr", client=in_process(2))
    assert not Path("workers.zarr").exists()


@pytest.mark.parametrize("case", [case for case in CASES if case.name in VARIED], ids=str)
def test_workers_read_as_one_process_does(case, folder, in_process):
    (folder / case.name).write_bytes(case.data)
    if case.arcs is None:
        with pytest.raises((SourceError, OptionError)) as caught:
            mg.ingest(case.name, "workers.zarr", client=in_process(2), **case.options)
        for part in case.error:
            assert part in str(caught.value)
        return
    mg.ingest(case.name, "workers.zarr", client=in_process(2), **case.options)
    check_store("workers.zarr", case)

"""Several files as one graph: which files a source names, reading them as one, and errors."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
from itertools import product
from pathlib import Path
from unittest.mock import patch

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
import scipy.sparse as sp

import mgspmv as mg
from mgspmv.errors import OptionError, SourceError, SourceNotFoundError
from mgspmv.ingest import streams
from mgspmv.ingest.edge_list import EdgeListSource
from mgspmv.ingest.files import find_files
from mgspmv.ingest.open import open_source
from mgspmv.ingest.source import settle
from mgspmv.ingest.tables import ParquetSource
from tests.support.arrays import number_codes
from tests.support.shrinking import shrink

COMPRESS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}


@pytest.fixture
def write(tmp_path):
    def write_files(**contents):
        """Files by names in which two underscores are a dot, and one a slash."""
        for name, content in contents.items():
            path = tmp_path / name.replace("__", ".").replace("_", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path

    return write_files


def read(source):
    """All arcs with their weights, as ids, and the layout."""
    batches = list(source.batches())
    layout = source.layout()
    rows, cols = (np.concatenate([getattr(b, side) for b in batches]) for side in ("rows", "cols"))
    rows, cols, layout = number_codes(rows, cols, layout)
    if layout.vertex_ids is not None:
        rows, cols = layout.vertex_ids[rows], layout.vertex_ids[cols]
    values = [] if batches[0].values is None else [np.concatenate([b.values for b in batches]).tolist()]
    return list(zip(rows.tolist(), cols.tolist(), *values, strict=True)), layout


@pytest.fixture
def tree(tmp_path):
    for name in ("b.csv", "a.csv", "a10.csv", "a9.csv", "_SUCCESS", ".b.csv.crc", "c.txt", "x/d.csv", "x/_tmp/e.csv"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("1 2\n")
    return tmp_path


PATTERNS = {
    "*.csv": ["a.csv", "a10.csv", "a9.csv", "b.csv"],
    "*": ["a.csv", "a10.csv", "a9.csv", "b.csv", "c.txt"],
    "a?.csv": ["a9.csv"],
    "[ab].csv": ["a.csv", "b.csv"],
    "**/*.csv": ["a.csv", "a10.csv", "a9.csv", "b.csv", "x/d.csv"],
    "x/*": ["x/d.csv"],
    "*/*": ["x/d.csv"],
    "x/_tmp/*": ["x/_tmp/e.csv"],
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns(tree, pattern):
    names = PATTERNS[pattern]
    assert find_files(tree / pattern) == [f"{tree}/{name}" for name in names]
    for path in tree.glob("**/*"):
        if path.is_file():
            fsspec.filesystem("memory").pipe(str(path), path.read_bytes())
    for prefix in ("", "file://", "memory://"):
        assert find_files(f"{prefix}{tree}/{pattern}") == [f"{prefix}{tree}/{name}" for name in names]


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_folder(tree, prefix):
    for slash in ("", "/"):
        assert find_files(f"{prefix}{tree}/x{slash}") == [f"{prefix}{tree}/x/d.csv"]
    with pytest.raises(
        SourceError, match=rf"this folder contains folders \(x\); name .* by a pattern \('{prefix}.*/\*\*/\*'\)"
    ):
        find_files(f"{prefix}{tree}")


def test_lists_keep_their_order(tree):
    assert find_files([tree / "b.csv", f"{tree}/a*.csv", tree / "x"]) == [
        f"{tree}/{name}" for name in ("b.csv", "a.csv", "a10.csv", "a9.csv", "x/d.csv")
    ]


def test_a_file_is_named_once(tree):
    with pytest.raises(OptionError, match=r"/a9.csv is named more than once; name each file once"):
        find_files([tree / "a9.csv", tree / "a*.csv"])


def test_a_file_is_named_once_whatever_the_path(tree, monkeypatch):
    monkeypatch.chdir(tree)
    with pytest.raises(OptionError, match=r"a9.csv is named more than once; name each file once"):
        find_files(["a9.csv", "b.csv", "./a9.csv"])


@pytest.mark.parametrize("name", ["a*.csv", "[ab].csv", "what?", "**"])
def test_a_file_of_the_name_of_a_pattern(tree, name):
    (tree / name).write_text("7 8\n")
    for prefix in ("", "file://"):
        assert find_files(f"{prefix}{tree}/{name}") == [f"{prefix}{tree}/{name}"]


def test_a_folder_of_the_name_of_a_pattern(tree):
    (tree / "[ab]").mkdir()
    (tree / "[ab]" / "e").write_text("7 8\n")
    assert find_files(tree / "[ab]") == [f"{tree}/[ab]/e"]


@pytest.mark.parametrize("name", ["*.tsv", "nothing/*", "_S*", "x/**/_*"])
def test_a_pattern_that_nothing_matches(tree, name):
    message = r"no file matches this pattern; files that begin with '_' or"
    for prefix in ("", "file://"):
        with pytest.raises(SourceNotFoundError, match=message):
            find_files(f"{prefix}{tree}/{name}")


def test_folders_without_files(tmp_path):
    for name in ("_SUCCESS", ".part.crc"):
        with pytest.raises(SourceNotFoundError, match=r"there are no files in this folder; files that begin"):
            find_files(tmp_path)
        (tmp_path / name).write_text("")
    with pytest.raises(SourceNotFoundError, match="there are no files in this folder"):
        find_files(tmp_path)


def test_a_zarr_group(tmp_path):
    for name in ("zarr.json", ".zgroup", ".zattrs"):
        (tmp_path / name / "indptr").mkdir(parents=True)
        (tmp_path / name / name).write_text("{}")
        with pytest.raises(SourceError, match="this folder is a Zarr group, not a folder of edge lists or"):
            find_files(tmp_path / name)


@pytest.mark.parametrize(("log", "what"), [("_delta_log", "a Delta table"), (".hoodie", "a Hudi table")])
def test_tables_whose_files_are_not_all_current(tmp_path, log, what):
    (tmp_path / log).mkdir()
    (tmp_path / "part.parquet").write_bytes(b"")
    with pytest.raises(SourceError, match=f"this folder is {what}, which may contain outdated files"):
        find_files(tmp_path)


def test_what_is_not_there_is_left_to_the_reader(tmp_path):
    assert find_files(tmp_path / "none.csv") == [f"{tmp_path}/none.csv"]
    with pytest.raises(SourceNotFoundError, match=r"none.csv: there is no such file; check the path"):
        find_files(f"file://{tmp_path}/none.csv")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert find_files(tmp_path) == [f"{tmp_path}/gone"]


def test_edge_lists_follow_each_other(write):
    """Each with its own comments, columns' names, line ends, and compression."""
    folder = write(
        a__csv="# of 2024\nsrc,dst,w\n5,7,1.5\n7,5,2\n",
        b__csv=b"\xef\xbb\xbfsrc,dst,w\r\n7,9,3\r\n",
        c__csv="",
        d__csv=gzip.compress(b"# nothing\n"),
        e__csv=bz2.compress(b"% once more\nsrc,dst,w\n9,5,4"),
        f__csv="src,dst,w\n",
    )
    for threads, batch_bytes in product((1, 3), (1, 16, 2**20)):
        with patch.object(streams, "CHUNK_BYTES", batch_bytes):
            arcs, layout = read(EdgeListSource(find_files(folder), threads=threads))
        assert arcs == [(5, 7, 1.5), (7, 5, 2.0), (7, 9, 3.0), (9, 5, 4.0)]
        assert layout.provenance["header"] == {"columns": ["src", "dst", "w"]}


@pytest.mark.parametrize(("n_files", "ids"), [(2, "integers"), (7, "names"), (60, "integers")])
def test_the_store_is_that_of_one_file(tmp_path, n_files, ids):
    rng = np.random.default_rng(n_files)
    ends = rng.integers(0, 300, (4000, 2)) ** 3
    letter = "" if ids == "integers" else "v"
    lines = [f"{letter}{a}\t{letter}{b}\t{k}\n" for k, (a, b) in enumerate(ends.tolist())]
    (tmp_path / "whole").write_text("".join(lines))
    (tmp_path / "parts").mkdir()
    for k, places in enumerate(np.array_split(np.arange(4000), n_files)):
        suffix = list(COMPRESS)[k % len(COMPRESS)]
        text = "".join(lines[i] for i in places).encode()
        (tmp_path / f"parts/part-{k:03}{suffix}").write_bytes(COMPRESS[suffix](text))
    wanted = mg.ingest(tmp_path / "whole", duplicates="first").info
    for source in (tmp_path / "parts", f"{tmp_path}/parts/part-*", sorted((tmp_path / "parts").iterdir())):
        assert mg.ingest(source, duplicates="first", threads=2).info.digest == wanted.digest


def test_provenance_names_every_file(write):
    contents = {"a": b"1 2\n", "b": gzip.compress(b"2 3\n"), "c": b""}
    folder = write(**contents)
    source = mg.ingest(folder).info.provenance["source"]
    assert source == {
        "format": "edge-list",
        "name": f"{folder}/a and 2 more",
        "bytes": sum(map(len, contents.values())),
        "files": [
            {
                "name": f"{folder}/{name}",
                "bytes": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
                "compression": "gzip" if name == "b" else None,
            }
            for name, content in contents.items()
        ],
        "header": {},
    }


def find_open(folder):
    """Names of the files of a folder that this process holds open. One that another thread opens again meanwhile may be
    listed under two descriptors."""
    links = [file.resolve() for file in Path("/proc/self/fd").iterdir()]
    return sorted({link.name for link in links if link.parent == folder.resolve()})


def test_one_file_is_open_at_a_time(write, monkeypatch):
    monkeypatch.setattr(streams, "CHUNK_BYTES", 10_000)
    folder = write(**{f"e{k}": "1 2\n" * 10**5 for k in range(9)})
    for _ in EdgeListSource(find_files(folder)).batches():
        assert len(find_open(folder)) <= 1
    assert find_open(folder) == []


def write_table(path, *columns, names=("src", "dst", "weight")):
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(list(columns), names=list(names[: len(columns)])), path)


def test_parquet_tables_follow_each_other(tmp_path, monkeypatch):
    rng = np.random.default_rng(3)
    ends, weights = rng.integers(0, 10**6, (2, 100)), rng.random(100)
    for k, places in enumerate((slice(0, 40), slice(40, 40), slice(40, 100))):
        write_table(tmp_path / f"e/{k}.parquet", *ends[:, places], weights[places])
    for batch_rows in (3, 2**20):
        shrink(monkeypatch, ingest__tables={"BATCH_ROWS": batch_rows})
        arcs, layout = read(ParquetSource(find_files(tmp_path / "e")))
        assert arcs == list(zip(*ends.tolist(), weights.tolist(), strict=True))
    source = settle(layout.provenance)
    assert source["header"] == {"columns": ["src", "dst", "weight"], "rows": 100, "row_groups": 3}
    assert [file["name"] for file in source["files"]] == [f"{tmp_path}/e/{k}.parquet" for k in range(3)]
    for file in source["files"]:
        data = Path(file["name"]).read_bytes()
        assert (file["bytes"], file["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert source["bytes"] == sum(file["bytes"] for file in source["files"])


def test_parquet_of_urls(tmp_path):
    for k in range(2):
        write_table(tmp_path / f"e/{k}.parquet", [k], [k + 1])
        with fsspec.open(f"memory://{tmp_path}/e/{k}.parquet", "wb") as file:
            file.write((tmp_path / f"e/{k}.parquet").read_bytes())
    info = mg.ingest(f"memory://{tmp_path}/e/*.parquet").info
    assert info.digest == mg.ingest(tmp_path / "e").info.digest
    assert info.provenance["source"]["files"] == [{"name": f"memory://{tmp_path}/e/{k}.parquet"} for k in range(2)]


def test_matrices_are_read_one_at_a_time(tmp_path):
    for name in ("a", "b"):
        scipy.io.mmwrite(tmp_path / f"{name}.mtx", sp.eye_array(2))
        sp.save_npz(tmp_path / f"{name}.npz", sp.eye_array(2))
    for suffix, format in (("mtx", "matrix-market"), ("npz", "npz")):
        with pytest.raises(SourceError, match=f"2 files of the format {format} cannot be combined"):
            open_source(tmp_path / f"*.{suffix}")
        assert mg.ingest(tmp_path / f"a*.{suffix}").info.nnz == 2

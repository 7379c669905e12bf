"""Broken files of every kind: refused as what they are, and nothing is left; or, where they are none, read for what
they say. Never a crash, a hang, or a store that has something else."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mgspmv as mg
from mgspmv.errors import MgspmvError, SourceError

BANNER = b"%%MatrixMarket matrix coordinate real general\n"
MATRIX = BANNER + b"3 3 3\n1 1 1.5\n2 3 -2\n3 1 4e2\n"
EDGES = b"# Nodes: 4 Edges: 3\n0\t1\n1\t2\n2\t3\n"
LONG = b"1" * (1 << 20) + b" 2\n"

REFUSED = {
    "cut gzip": ("a.mtx.gz", gzip.compress(MATRIX * 1)[:-9], "gzip data are damaged or cut short"),
    "cut bzip2": ("a.mtx.bz2", bz2.compress(MATRIX)[:-5], "bz2 data are damaged or cut short"),
    "cut xz": ("a.mtx.xz", lzma.compress(MATRIX)[:-15], "xz data are damaged or cut short"),
    "gzip of another sum": ("a.mtx.gz", gzip.compress(MATRIX)[:-8] + b"\0" * 8, "gzip data are damaged or cut short"),
    "too few entries": ("a.mtx", MATRIX.replace(b"3 3 3", b"3 3 4"), "expected 4 entries, the file ends after 3"),
    "too many entries": ("a.mtx", MATRIX.replace(b"3 3 3", b"3 3 2"), "expected 2 entries, found more"),
    "a cut line": ("a.mtx", MATRIX[:-5], "expected 'row column value', found 2 columns|to be a number"),
    "row 0": ("a.mtx", MATRIX.replace(b"1 1 1.5", b"0 1 1.5"), "line 3: .*expected row to be an integer from 1 to 3"),
    "a negative column": ("a.mtx", MATRIX.replace(b"2 3", b"2 -3"), "expected column to be an integer from 1 to 3"),
    "a row beyond": ("a.mtx", MATRIX.replace(b"2 3", b"4 3"), "expected row to be an integer from 1 to 3, found '4'"),
    "a row of 20 digits": ("a.mtx", MATRIX.replace(b"2 3", b"12345678901234567890 3"), "expected row to be an integer"),
    "sizes that overflow": ("a.mtx", BANNER + b"99999999999999999999 3 1\n1 1 1\n", "number of rows to be an integer"),
    "negative sizes": ("a.mtx", BANNER + b"-3 3 1\n1 1 1\n", "number of rows to be an integer from 0"),
    "text for a value": ("a.mtx", MATRIX.replace(b"-2", b"two"), "expected value to be a number, found 'two'"),
    "no sizes": ("a.mtx", BANNER, "the file ends before the line of sizes"),
    "half a banner": ("a.mtx", b"%%MatrixMarket matrix coord", "expected a first line of five words"),
    "an id of 20 digits": ("e.txt", EDGES + b"12345678901234567890 1\n", "expected source to be a 64-bit integer"),
    "NaN as weight": ("e.txt", b"1 2 0.5\n2 1 nan\n", "expected weight to be a finite number, found 'nan'"),
    "three columns, then two": ("e.txt", b"1 2 0.5\n2 1\n", "expected 'source target weight', found 2 columns"),
    "a line of a megabyte": ("e.txt", EDGES + LONG * 2, "a line has more than 1048576 bytes|a 64-bit integer"),
    "a megabyte without lines": ("e.txt", b"1 2\n" + b"7" * (3 << 20), "a line has more than 1048576 bytes"),
    "binary junk": ("e.txt", bytes(range(256)) * 40, "this is not a text"),
    "junk after edges": ("e.txt", EDGES + bytes(range(128, 256)) * 40, "not UTF-8|columns|64-bit integer"),
    "a NUL": ("e.txt", EDGES + b"1\x002\n", "this is not a text"),
    "UTF-16": ("e.txt", "1 2\n2 3\n".encode("utf-16"), "this text is in UTF-16; convert it to UTF-8"),
    "a Parquet file by another name": ("e.txt", b"PAR1" + bytes(100), "not a Parquet file"),
    "an empty Parquet file": ("e.parquet", b"", "not a Parquet file"),
    "junk as npz": ("m.npz", b"PK\x03\x04" + bytes(60), "npz"),
    "nothing": ("e.txt", b"", "this file has no edges"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_broken_is_refused_and_leaves_nothing(tmp_path, name):
    file, content, message = REFUSED[name]
    (tmp_path / file).write_bytes(content)
    with pytest.raises(SourceError, match=message):
        mg.ingest(tmp_path / file, tmp_path / "store")
    assert not (tmp_path / "store").exists()


WHOLE = {
    "Windows' line ends": ("a.mtx", MATRIX.replace(b"\n", b"\r\n")),
    "old Macs' line ends": ("a.mtx", MATRIX.replace(b"\n", b"\r")),
    "mixed line ends": ("a.mtx", MATRIX.replace(b"1.5\n", b"1.5\r\n").replace(b"-2\n", b"-2\r")),
    "a byte order mark": ("a.mtx", b"\xef\xbb\xbf" + MATRIX),
    "no last line end": ("a.mtx", MATRIX.rstrip()),
    "blank lines and comments": ("a.mtx", MATRIX.replace(b"2 3", b"\n% here\n\n 2 3")),
    "blanks and signs": ("a.mtx", MATRIX.replace(b"2 3 -2", b"\t+2   03 -2.0 ")),
    "gzip of two members": ("a.mtx.gz", gzip.compress(MATRIX[:50]) + gzip.compress(MATRIX[50:])),
}


def test_what_only_looks_broken_is_read(tmp_path):
    for name, (file, content) in WHOLE.items():
        (tmp_path / file).write_bytes(content)
        found = mg.ingest(tmp_path / file).to_scipy().toarray()
        assert found.tolist() == [[1.5, 0, 0], [0, 0, -2], [400, 0, 0]], name


SEEDS = {"a.mtx": MATRIX, "e.txt": EDGES, "e.csv": b"a,b,0.5\nb,c,1\n", "a.mtx.gz": gzip.compress(MATRIX, mtime=0)}
PIECES = st.sampled_from(
    [
        b"0",
        b"-1",
        b"99999999999999999999",
        b"nan",
        b"1e999",
        b" ",
        b"\n",
        b"\r",
        b"%",
        b"#",
        b",",
        b"\x00",
        b"\xff",
        b'"',
        b"3 3 3",
    ]
)


@st.composite
def broken(draw):
    """A file with some bytes put in, taken out and changed."""
    name = draw(st.sampled_from(sorted(SEEDS)))
    content = bytearray(SEEDS[name])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        n_removed = draw(st.integers(0, 6))
        content[at : at + n_removed] = draw(PIECES | st.binary(max_size=4))
    return name, bytes(content[: draw(st.just(len(content)) | st.integers(0, len(content)))])


@pytest.mark.fuzz
@given(broken())
def test_files_with_changes_are_refused_or_whole(tmp_path, file):
    """Any error is one of ours, and what is stored verifies."""
    name, content = file
    store = tmp_path / "store"
    (tmp_path / name).write_bytes(content)
    try:
        info = mg.ingest(tmp_path / name, store, overwrite=True).info
    except MgspmvError:
        return
    assert mg.verify(store) == []
    assert mg.open_matrix(store).info.digest == info.digest


INGEST = """
    import sys
    import mgspmv as mg
    mg.generate("rmat", sys.argv[1], scale=16, edge_factor=16, seed=int(sys.argv[2]), transpose=True, overwrite=True)
    print("started", flush=True)
    for seed in range(1 << 30):
        mg.generate("rmat", sys.argv[1], scale=16, edge_factor=16, seed=seed % 2, transpose=True, overwrite=True)
"""


@pytest.mark.slow
def test_killed_at_any_moment_a_store_is_the_old_or_the_new(tmp_path):
    """By SIGKILL, ten times, while versions replace each other."""
    moments, digests = random.Random(7), set()
    for seed in (0, 1):
        made = mg.generate("rmat", tmp_path / f"{seed}", scale=16, edge_factor=16, seed=seed, transpose=True).info
        digests.add(made.digest)
    found = []
    for k in range(10):
        command = [sys.executable, "-c", textwrap.dedent(INGEST), tmp_path / "store", str(k % 2)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "started\n"
            time.sleep(moments.uniform(0.05, 1.0))
            process.kill()
        found.append(mg.open_matrix(tmp_path / "store").info.digest)
        assert mg.verify(tmp_path / "store") == []
    assert set(found) <= digests
    mg.generate("rmat", tmp_path / "store", scale=4, overwrite=True)
    assert len([name for name in os.listdir(tmp_path / "store" / "versions") if name.startswith("v")]) == 1
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "store"]


@pytest.mark.slow
def test_killed_before_there_was_a_store(tmp_path):
    """What is left is refused as unfinished, and made whole by the next."""
    code = textwrap.dedent(
        """
        import os, signal, sys
        import mgspmv as mg
        def kill(phase):
            if phase.name == "sort and write" and phase.done:
                os.kill(os.getpid(), signal.SIGKILL)
        mg.generate("uniform", sys.argv[1], n_vertices=100, n_edges=900, progress=kill)
        """
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path / "store"], check=False).returncode == -9
    with pytest.raises(mg.errors.StoreUnfinishedError, match="was begun and never finished; run its `mgspmv ingest`"):
        mg.open_matrix(tmp_path / "store")
    mg.generate("uniform", tmp_path / "store", n_vertices=100, n_edges=900)
    assert mg.verify(tmp_path / "store") == []
    assert np.asarray(mg.open_matrix(tmp_path / "store").to_scipy().sum()) > 0

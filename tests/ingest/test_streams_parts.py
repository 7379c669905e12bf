"""Parts of sources: together they give the entries of the whole, in their order, and the same errors."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mgspmv.errors import OptionError, SourceError
from mgspmv.ingest.budget import ANY_ROOM
from mgspmv.ingest.edge_list import EdgeListSource
from mgspmv.ingest.frames import FrameSource
from mgspmv.ingest.matrix_market import MatrixMarketSource
from mgspmv.ingest.source import Layout
from mgspmv.ingest.tables import ParquetSource
from tests.support.stores import forget_checksums


def collect(source):
    """Rows, columns and values of all batches."""
    batches = list(source.batches())
    values = None if batches[0].values is None else np.concatenate([b.values for b in batches])
    return np.concatenate([b.rows for b in batches]), np.concatenate([b.cols for b in batches]), values


def read_parts(source, n):
    """As `collect`, of all parts, each sent as to another process; and what they make together."""
    read = []
    for part in source.split(n):
        sent = pickle.loads(pickle.dumps(part))
        sent.prepare(2, ANY_ROOM)
        read.append((sent, collect(sent)))
    joined = source.join([pickle.loads(pickle.dumps(part.summarize())) for part, _ in read])
    columns = list(zip(*(own for _, own in read), strict=True))
    values = None if columns[2][0] is None else np.concatenate(columns[2])
    return (np.concatenate(columns[0]), np.concatenate(columns[1]), values), joined, len(read)


def check_parts(make, n, wanted_parts=None):
    """Whatever the number of parts, they give what the whole gives."""
    whole = make()
    wanted = collect(whole)
    got, joined, n_parts = read_parts(make(), n)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    check_provenance(joined.provenance, whole.layout().provenance)
    assert n_parts == (n if wanted_parts is None else wanted_parts)
    return joined


def check_provenance(made, wanted):
    """All is the same but checksums of files that were cut."""
    assert forget_checksums(made) == forget_checksums(wanted)


LINES = [f"{7 * k % 301} {11 * k % 307}" for k in range(400)]


def write_files(folder, lines, end="\n"):
    """Write lines to four files and return their paths."""
    paths = [str(folder / f"{k}.txt") for k in range(4)]
    for k, path in enumerate(paths):
        own = lines[len(lines) * k // 4 : len(lines) * (k + 1) // 4]
        Path(path).write_bytes(end.join(["# Nodes: 500", *own[:30], "", "# a comment", *own[30:]]).encode())
    return paths


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_texts_are_shared_out_whole(end, tmp_path):
    paths = write_files(tmp_path, LINES, end)
    for n in (1, 2, 3, 4, 7):
        joined = check_parts(lambda: EdgeListSource(paths), n, min(n, 4))
        assert joined.claim == 500, n


@pytest.mark.parametrize("n", [2, 5])
def test_several_texts_some_compressed_with_heads_of_their_own(n, tmp_path):
    paths = [str(tmp_path / name) for name in ("a.csv", "b.csv.gz", "c.csv", "d.csv")]
    lines = [line.replace(" ", ",") + f",{k}.5" for k, line in enumerate(LINES)]
    (tmp_path / "a.csv").write_text("\n".join(["src,dst,weight", *lines[:200]]))
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress("\n".join(["src,dst,weight", *lines[200:250]]).encode()))
    (tmp_path / "c.csv").write_text("src,dst,weight\n")
    (tmp_path / "d.csv").write_text("\n".join(["# of its own", "src,dst,weight", *lines[250:]]))
    got, joined, _ = read_parts(EdgeListSource(paths), n)
    wanted = EdgeListSource(paths)
    for one, other in zip(got, collect(wanted), strict=True):
        np.testing.assert_array_equal(one, other)
    check_provenance(joined.provenance, wanted.layout().provenance)
    assert "sha256" in joined.provenance["files"][1]  # which is compressed


def test_a_claim_counts_if_all_files_make_it(tmp_path):
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path, claim in zip(paths, (400, 400), strict=True):
        path.write_text("\n".join([f"# Nodes: {claim}", *LINES]))
    source = lambda: EdgeListSource([str(path) for path in paths])  # noqa: E731
    assert check_parts(source, 4, 2).claim == 400
    paths[1].write_text("\n".join(["# Nodes: 401", *LINES]))
    assert check_parts(source, 4, 2).claim is None


def test_a_claim_holds_if_all_ids_are_among_the_vertices():
    layout = Layout((0, 0), are_ids=True, claim=400, stated=lambda message: SourceError(message))
    assert layout.settle_claim((0, 399)).shape == (400, 400)
    assert layout.settle_claim((0, 399)).stated is not None
    for extent in ((0, 400), (-1, 399), (0, -1)):
        found = layout.settle_claim(extent)
        assert (found.shape, found.are_ids, found.claim, found.stated) == ((0, 0), True, None, None)


def test_errors_name_the_line_of_the_file(tmp_path):
    paths = write_files(tmp_path, LINES)
    Path(paths[2]).write_text("\n".join([*LINES[:50], "1 two", *LINES[50:]]))
    with pytest.raises(SourceError, match=r"2.txt, line 51: '1 two'"):
        read_parts(EdgeListSource(paths), 4)


def test_listed_vertices_are_known_to_all_parts(tmp_path):
    paths = write_files(tmp_path, LINES)
    (tmp_path / "vertices").write_text(
        "\n".join(map(str, range(0, 620, 2))) + "\n" + "\n".join(map(str, range(1, 620, 2)))
    )
    check_parts(lambda: EdgeListSource(paths, vertices=str(tmp_path / "vertices")), 3)


MATRIX = ["%%MatrixMarket matrix coordinate integer symmetric", "% a comment", "400 400 300"]
ENTRIES = [f"{k + 1} {k // 2 + 1} {k}" for k in range(300)]


def test_a_matrix_market_file_is_read_by_one(tmp_path):
    (tmp_path / "a.mtx").write_text("\n".join([*MATRIX, *ENTRIES]))
    check_parts(lambda: MatrixMarketSource(str(tmp_path / "a.mtx")), 3, 1)


@pytest.mark.parametrize("n_entries", [299, 301])
def test_a_wrong_number_of_entries_is_found_over_all_parts(n_entries, tmp_path):
    (tmp_path / "a.mtx").write_text("\n".join([*MATRIX[:2], f"400 400 {n_entries}", *ENTRIES]))
    message = "expected 301 entries, the file ends after 300" if n_entries > 300 else "expected 299 entries, found more"
    with pytest.raises(SourceError, match=rf"a.mtx, line 3.*{message}"):
        read_parts(MatrixMarketSource(str(tmp_path / "a.mtx")), 3)


def write_table(path, n, first=0, weight=float, group=100):
    k = np.arange(first, first + n)
    columns = {"src": 7 * k % 301, "dst": 11 * k % 307, "weight": k.astype(weight)}
    pq.write_table(pa.table(columns), path, row_group_size=group)


def test_parquet_files_are_cut_between_row_groups(tmp_path):
    paths = [str(tmp_path / name) for name in ("a.parquet", "b.parquet", "c.parquet")]
    for k, (path, rows) in enumerate(zip(paths, (530, 0, 700), strict=True)):
        write_table(path, rows, 1000 * k)
    for n in (1, 2, 3, 8):
        check_parts(lambda: ParquetSource(paths), n)


def test_many_parquet_files_are_read_whole(tmp_path):
    paths = [str(tmp_path / f"{k:02}.parquet") for k in range(12)]
    for k, path in enumerate(paths):
        write_table(path, 50, 50 * k, group=10)
    check_parts(lambda: ParquetSource(paths), 3)


def test_parquet_parts_must_be_of_one_type(tmp_path):
    write_table(tmp_path / "a.parquet", 200)
    write_table(tmp_path / "b.parquet", 200, weight=np.float32)
    paths = [str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")]
    with pytest.raises(
        SourceError,
        match=r"b.parquet: weights are float32 from row 0 on, but double|float64 at the beginning of .*a.parquet",
    ):
        read_parts(ParquetSource(paths), 2)
    pq.write_table(pa.table({"src": ["a"], "dst": ["b"], "weight": [1.0]}), paths[1])
    with pytest.raises(
        SourceError, match=r"b.parquet: ids are string from row 0 on, but int64 at the beginning of .*a.parquet"
    ):
        read_parts(ParquetSource(paths), 2)


def test_a_table_in_memory_has_no_parts():
    with pytest.raises(OptionError, match=r"in the memory of this process.*write them to Parquet"):
        FrameSource(pd.DataFrame({"src": [1], "dst": [2]})).split(2)


def test_texts_without_edges_and_parts_without_bytes(tmp_path):
    (tmp_path / "a.txt").write_text("# nothing\n")
    check_parts(lambda: EdgeListSource(str(tmp_path / "a.txt"), n_vertices=3), 4, 1)
    (tmp_path / "b.txt").write_text("1 2\n")
    check_parts(lambda: EdgeListSource(str(tmp_path / "b.txt")), 4, 1)

"""The report of an ingest: what was counted, on every path, and what was taken as what."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.sparse as sp
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.ingest.budget import MemoryBudget
from mgspmv.ingest.frames import source_from_arrays
from mgspmv.ingest.objects import ScipySource
from mgspmv.ingest.store_writing import store_source
from mgspmv.model import IngestOptions
from mgspmv.validation import check_fields
from tests.support.shrinking import shrink

ARCS = [(1, 2, 1.0), (1, 2, 8.0), (2, 3, 2.0), (3, 3, 4.0), (3, 3, 4.0), (4, 1, 4.0), (2, 1, 0.5)]
"""With a parallel arc, a loop twice, and an arc both ways."""
EDGES = "".join(f"{i} {j} {w}\n" for i, j, w in ARCS)


def report_on(source, **options):
    return mg.ingest(source, **options).ingest_report


def make_sources(folder):
    """The same arcs in each form."""
    frame = pd.DataFrame(ARCS, columns=["src", "dst", "weight"])
    (folder / "edges.txt").write_text(EDGES)
    pa.parquet.write_table(pa.Table.from_pandas(frame), folder / "edges.parquet")
    graph = nx.MultiDiGraph()
    graph.add_weighted_edges_from(ARCS)
    i, j, w = zip(*ARCS, strict=True)
    return {
        "text": folder / "edges.txt",
        "Parquet": folder / "edges.parquet",
        "pandas": frame,
        "NetworkX": graph,
        "arrays": (np.array(i), np.array(j), np.array(w)),
        "SciPy": sp.coo_array((w, (i, j)), shape=(5, 5)),
    }


OPTIONS = {
    "plain": ({}, (0, 0, 2, 5, "sum")),
    "first": ({"duplicates": "first"}, (0, 0, 2, 5, "first")),
    "kept": ({"duplicates": "keep"}, (0, 0, 0, 7, "keep")),
    "loops dropped": ({"self_loops": "drop"}, (0, 2, 1, 4, "sum")),
    "symmetric": ({"symmetrize": True}, (5, 0, 5, 7, "sum")),
    "symmetric without loops": ({"symmetrize": True, "self_loops": "drop"}, (5, 2, 4, 6, "sum")),
    "pattern": ({"weights": False}, (0, 0, 2, 5, "first")),
}
"""And (mirrored, loops dropped, merged, stored, rule), counted by hand."""


@pytest.mark.parametrize(("options", "counts"), OPTIONS.values(), ids=list(OPTIONS))
def test_counts_are_those_of_each_form(options, counts, tmp_path):
    for name, source in make_sources(tmp_path).items():
        report = report_on(source, **options | {"kind": "graph"})
        found = report.n_mirrored, report.n_loops_dropped, report.n_merged, report.n_entries, report.duplicates
        assert (name, report.n_rows, found) == (name, 7, counts)
        assert report.weight_range == (None if "weights" in options else (0.5, 8.0)), name
        assert report.warnings == ()


def test_counts_of_what_goes_to_files(tmp_path, monkeypatch):
    sorter = {"GROUPED_ENTRIES": 64, "BLOCK_ENTRIES": 50, "WRITE_BYTES": 4096}
    shrink(monkeypatch, ingest__external_sort=sorter)
    rng = np.random.default_rng(3)
    src, dst, weights = rng.integers(0, 40, 3000), rng.integers(0, 40, 3000), rng.random(3000)
    keys = {(a, b) for a, b in zip(src.tolist(), dst.tolist(), strict=True) if a != b}
    n_loops = int((src == dst).sum())
    for memory in (1 << 13, 1 << 30):
        given = IngestOptions(self_loops="drop")
        room, place = MemoryBudget(memory, 2, None), MemoryStore()
        source = source_from_arrays(src, dst, weights)
        info = store_source(source, place, given, lambda made: {}, lambda *_: None, room, base=None).info
        report = info.ingest_report
        assert (report.n_rows, report.n_loops_dropped, report.n_entries) == (3000, n_loops, len(keys))
        assert report.n_merged == 3000 - n_loops - len(keys)
        off = src != dst
        assert report.weight_range == (weights[off].min(), weights[off].max())


def test_columns_of_tables(tmp_path):
    frame = pd.DataFrame({"time": [5, 6], "to": [1, 2], "from": [2, 3], "cost": [0.5, 2.5]})
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    for source in (frame, pa.Table.from_pandas(frame), tmp_path / "t.parquet"):
        report = report_on(source, columns=("from", "to", "cost"))
        assert (report.source, report.target, report.weight) == ((3, "from"), (2, "to"), (4, "cost"))
        assert report.not_read == ((1, "time"),)
        assert report.weight_range == (0.5, 2.5)
        assert report.header is None
        without = report_on(source, columns=("from", "to"))
        assert (without.weight, without.weight_range, without.not_read) == (None, None, ((1, "time"), (4, "cost")))
        ignored = report_on(source, columns=("from", "to", "cost"), weights=False)
        assert (ignored.weight, ignored.weight_range, ignored.not_read) == (None, None, ((1, "time"), (4, "cost")))


def test_columns_and_lines_of_edge_lists(tmp_path):
    (tmp_path / "e.csv").write_text("# one\n# two\ntime,dst,src,weight\n3,1,2,0.5\n4,2,3,2.5\n4,2,3,2.5\n")
    report = report_on(tmp_path / "e.csv")
    assert (report.source, report.target, report.weight) == ((3, "src"), (2, "dst"), (4, "weight"))
    assert (report.not_read, report.weight_range, report.delimiter) == (((1, "time"),), (0.5, 2.5), ",")
    assert (report.header, report.n_header_lines, report.n_comment_lines) == (True, 1, 2)
    assert (report.n_rows, report.n_merged, report.n_entries) == (3, 1, 2)
    (tmp_path / "k.txt").write_text("% sym unweighted\n1 2\n2 2\n2 3\n")
    report = report_on(tmp_path / "k.txt")
    assert (report.header, report.n_header_lines, report.n_comment_lines) == (False, 0, 1)
    assert (report.n_rows, report.n_mirrored, report.n_entries) == (3, 2, 5)
    assert report.notes


def test_what_a_reader_says_of_lines():
    taken = {"columns": {"source": [1, None], "target": [2, None], "weight": None}, "not_read": [[3, None]]}
    taken |= {"header": True, "header_by": "names", "n_header": 2, "n_comments": 3, "n_rows": 1}
    taken |= {"notes": ["a note"]}

    class Told(ScipySource):
        def layout(self):
            made = super().layout()
            return replace(made, provenance={"name": "e.txt", "format": "edge-list", "taken": taken})

    info = mg.ingest(Told(np.eye(2)[::-1]), kind="graph").info
    assert "taken" not in info.provenance["source"]
    report = info.ingest_report
    assert (report.name, report.format, report.n_files) == ("e.txt", "edge-list", 1)
    assert (report.header, report.header_by) == (True, "names")
    assert (report.n_header_lines, report.n_comment_lines) == (2, 3)
    assert (report.n_rows, report.n_mirrored, report.n_entries) == (1, 1, 2)  # a reader that mirrors
    assert (report.source, report.not_read, report.notes) == ((1, None), ((3, None),), ("a note",))


def test_undirected_and_symmetric_sources(tmp_path):
    graph = nx.Graph([(1, 2), (2, 2), (2, 3)])
    report = report_on(graph)
    assert (report.n_rows, report.n_mirrored, report.n_entries, report.n_merged) == (3, 2, 5, 0)
    text = "%%MatrixMarket matrix coordinate real symmetric\n3 3 3\n2 1 5\n2 2 1\n3 1 -1.5\n"
    (tmp_path / "s.mtx").write_text(text)
    report = report_on(tmp_path / "s.mtx")
    assert (report.n_rows, report.n_mirrored, report.n_entries, report.n_merged) == (3, 2, 5, 0)
    assert (report.format, report.n_files, report.weight_range) == ("matrix-market", 1, (-1.5, 5.0))


TIMES = {
    "seconds": ([1254192988, 1254203000], "2009-09-29 .. 2009-09-29"),
    "seconds as floats": ([1254192988.0, 1700000000.0], "2009-09-29 .. 2023-11-14"),
    "milliseconds": ([1254192988000, 1700000000000], "2009-09-29 .. 2023-11-14"),
    "with fractions": ([1254192988.5, 1254203000.0], None),
    "days": ([20090929, 20231114], "2009-09-29 .. 2023-11-14"),
    "no days": ([20090929, 20231399], None),
    "one is small": ([1254192988, 3], None),
    "one is large": ([1254192988, 5e9], None),
    "seconds and milliseconds": ([1254192988, 1254192988000], None),
    "a single row": ([1254192988], None),
}


@pytest.mark.parametrize(("weights", "shown"), TIMES.values(), ids=list(TIMES))
def test_weights_that_look_like_times(weights, shown):
    n = len(weights)
    frame = pd.DataFrame({"src": range(n), "dst": range(1, n + 1), "w": weights})
    report = report_on(frame)
    assert report.warnings == (
        () if shown is None else (f"column 3 'w' looks like times ({shown}); pass weights=False if it is not a weight",)
    )
    assert report_on(frame, weights=True).warnings == ()
    assert report_on(frame, weights=False).warnings == ()
    assert report_on(frame, weights=False).warnings == ()


def test_attributes_that_look_like_times():
    graph = nx.DiGraph()
    graph.add_weighted_edges_from([(1, 2, 1254192988), (2, 3, 1254203000)])
    (said,) = report_on(graph).warnings
    assert said == ("'weight' looks like times (2009-09-29 .. 2009-09-29); pass weights=False if it is not a weight")


def test_columns_of_times_are_no_weights():
    frame = pd.DataFrame({"src": [0, 1], "dst": [1, 2], "when": pd.to_datetime(["2009-09-29", "2010-01-01"])})
    with pytest.raises(mg.errors.SourceError, match="when may be weights or not; pass weights=False"):
        report_on(frame)


def test_a_store_without_a_report():
    made = mg.ingest((np.array([0]), np.array([1]))).info
    assert replace(made, provenance={}).ingest_report is None


def test_updates(tmp_path):
    mg.ingest((np.array([0, 1, 2]), np.array([1, 2, 0]), np.array([1.0, 1.0, 1.0])), tmp_path / "a.zarr")
    before = mg.open_matrix(tmp_path / "a.zarr").ingest_report
    insert = pd.DataFrame({"src": [0, 0, 3, 3], "dst": [1, 2, 3, 0], "w": [5.0, 5.0, 7.0, 6.0]})
    insert = pd.concat([insert, insert[3:]])
    delete = (np.array([1, 1, 2]), np.array([2, 2, 1]))
    info = mg.update(tmp_path / "a.zarr", insert=insert, delete=delete, self_loops="drop").info
    assert info.ingest_report == before
    made = info.provenance["updates"][-1]
    counts = ("inserted", "deleted", "missing", "merged", "to_delete")
    assert [made[name] for name in counts] == [4, 1, 1, 2, 2]
    assert info.nnz == 3 + 4 - 1 - 2
    inserted, deleted = (check_fields(mg.IngestReport, made["reports"][name]) for name in ("insert", "delete"))
    assert (inserted.n_rows, inserted.n_loops_dropped, inserted.n_merged, inserted.n_entries) == (5, 1, 2, 2)
    assert (inserted.weight, inserted.weight_range, inserted.duplicates) == ((3, "w"), (5.0, 6.0), "sum")
    assert (deleted.n_rows, deleted.n_merged, deleted.n_entries, deleted.weight_range) == (3, 1, 2, None)


MODELS = {
    "rmat": {"scale": 6, "seed": 5},
    "uniform": {"n_vertices": 30, "n_edges": 400, "weights": True},
    "stencil2d": {"nx": 5, "ny": 4},
    "stencil3d": {"nx": 3, "ny": 2, "nz": 4, "points": 27, "pattern": True},
    "banded": {"n": 20, "bandwidth": 3},
}


@pytest.mark.parametrize("model", MODELS)
def test_generated(model):
    from mgspmv.ingest.generate import make_generator

    source = make_generator(model, **MODELS[model])
    batches = list(source.batches())
    pairs = [pair for b in batches for pair in zip(b.rows.tolist(), b.cols.tolist(), strict=True)]
    n_loops = sum(i == j for i, j in pairs)
    both = {pair for i, j in pairs if i != j for pair in ((i, j), (j, i))}
    report = mg.generate(model, self_loops="drop", symmetrize=True, **MODELS[model]).ingest_report
    assert (report.format, report.n_rows, report.n_loops_dropped) == ("generator", len(pairs), n_loops)
    assert (report.n_mirrored, report.n_entries) == (len(pairs) - n_loops, len(both))
    assert report.n_merged == 2 * (len(pairs) - n_loops) - len(both)

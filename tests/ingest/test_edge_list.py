"""Published edge lists, spellings of lines, and every error in an edge list."""

from __future__ import annotations

import gzip
import hashlib
import io
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.errors import OptionError, SourceError
from mgspmv.ingest import edge_list, streams
from mgspmv.ingest.edge_list import EdgeListSource
from mgspmv.ingest.source import settle
from tests.support.arrays import number_codes

BATCH_BYTES = (1, 7, 2**22)
"""A batch of one line, of a few, and of all."""


def read(path, *, batch_bytes=streams.CHUNK_BYTES, **options):
    """Arcs as the file has them, weights, layout and batches; codes are led back to ids."""
    source = EdgeListSource(path, **options)
    with patch.object(streams, "CHUNK_BYTES", batch_bytes):
        batches = list(source.batches())
    layout = source.layout()
    assert layout.shape[0] == layout.shape[1]
    assert len({batch.values is None for batch in batches}) == 1
    codes = [np.concatenate([getattr(b, name) for b in batches]) for name in ("rows", "cols")]
    *ends, layout = number_codes(*codes, layout)
    arcs = np.stack(ends)
    assert not arcs.size or 0 <= arcs.min() <= arcs.max() < layout.shape[0]
    if layout.vertex_ids is not None:
        layout = replace(layout, vertex_ids=layout.vertex_ids[:])
        assert len(layout.vertex_ids) == layout.shape[0]
        assert all(a < b for a, b in pairwise(layout.vertex_ids.tolist()))
        arcs = layout.vertex_ids[arcs]
    weights = None if batches[0].values is None else np.concatenate([b.values for b in batches])
    assert weights is None or weights.dtype == np.float64
    return arcs, weights, layout, batches


@pytest.fixture
def write(tmp_path):
    def write_file(text, name="a.txt"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_file


@pytest.fixture
def read_text(write):
    return lambda text, **options: read(write(text), **options)


@pytest.fixture
def make_error(write):
    def refuse_text(text, **options):
        path = write(text)
        with pytest.raises(SourceError) as caught:
            read(path, **options)
        assert caught.value.source == str(path)
        return caught.value

    return refuse_text


# --- round trip ------------------------------------------------------------------------------------------------------

any_id = st.one_of(st.integers(0, 9), st.integers(-(2**63), 2**63 - 1), st.integers(2**20 - 9, 2**20 + 9))
any_name = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"], exclude_characters='#%,"'), min_size=1)


@pytest.mark.fuzz
@given(st.data())
def test_against_networkx(tmp_path_factory, data):
    """What NetworkX writes, with other separators, comments and blank lines in it."""
    names = data.draw(st.booleans())
    ids = any_name if names else any_id
    weights = st.floats(allow_nan=False, allow_infinity=False)
    graph = nx.MultiDiGraph()
    graph.add_weighted_edges_from(data.draw(st.lists(st.tuples(ids, ids, weights), min_size=1, max_size=12)))
    separator = data.draw(st.sampled_from(["\t", " ", ",", " \t ", ", "]))
    buffer = io.BytesIO()
    nx.write_weighted_edgelist(graph, buffer, delimiter=separator)
    noise = st.sampled_from(["", "# 1 2", " % x (", "#"])
    lines = [part for line in buffer.getvalue().decode().split("\n") for part in (data.draw(noise), line)]
    path = tmp_path_factory.getbasetemp() / "round.txt"
    path.write_bytes(data.draw(st.sampled_from(["\n", "\r\n"])).join(lines).encode())

    size = data.draw(st.sampled_from([1, 7, 2**22]))
    told = {"ids": "string" if names else "int", "delimiter": separator.strip(" ") or " ", "columns": (1, 2, 3)}
    arcs, weights, layout, _ = read(path, **told, header=False, batch_bytes=size)
    expected = list(graph.edges(data="weight"))
    assert list(zip(*arcs.tolist(), weights.tolist(), strict=True)) == expected
    assert layout.shape[0] == graph.number_of_nodes()
    if layout.vertex_ids is None:
        assert sorted(graph) == list(range(len(graph)))
    else:
        assert layout.vertex_ids.tolist() == sorted(graph)


@pytest.mark.parametrize(
    "text",
    [
        "0\t1\n1\t2\n",
        "0 1\n1 2\n",
        "0,1\n1,2\n",
        "0 , 1\n1, 2\n",
        "  0   1 \n\n1 \t 2",
        "# c\n% d\n0 1\n# e\n\n1 2\n# f",
        "0 1\r\n1 2\r\n",
        "\ufeff0 1\n1 2\n",
        "src,dst\n0,1\n1,2\n",
        "# c\n\nsrc dst\n# d\n0 1\n1 2\n",
        '"src","dst"\n"0","1"\n"1","2"\n',
    ],
)
def test_spellings(read_text, text):
    for batch_bytes in BATCH_BYTES:
        arcs, weights, layout, _ = read_text(text, batch_bytes=batch_bytes)
        assert arcs.tolist() == [[0, 1], [1, 2]]
        assert weights is None
        assert (layout.shape, layout.vertex_ids) == ((3, 3), None)


def test_integers_are_read_from_other_spellings_where_ids_say_so(read_text, make_error):
    assert read_text("+0 01\n1 2\n", ids="int")[0].tolist() == [[0, 1], [1, 2]]
    assert 'ids="string" to keep them apart, or ids="int"' in str(make_error("1 2\n3 01\n"))
    assert read_text("7 8\n007 8\n", ids="string")[2].vertex_ids.tolist() == ["007", "7", "8"]


def test_a_name_may_occur_again_far_down(read_text, make_error, monkeypatch):
    others = "".join(f"v{k} w{k}\n" for k in range(5000))
    for last in ("a c\n", "c b\n"):
        arcs = read_text("a b\n" + others + last, batch_bytes=1000)[0]
        assert (arcs[:, 0].tolist(), arcs.shape) == (["a", "b"], (2, 5002))
    error = make_error("a b\n" + others, batch_bytes=1000)
    assert (error.line_number, "header=True" in str(error)) == (1, True)
    monkeypatch.setattr(edge_list, "SEARCHED_BYTES", 10_000)
    assert "none of its ids occurs again" in str(make_error("a b\n" + others + "a c\n", batch_bytes=1000))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("0 1\n2 1\n", None),
        ("1 2\n3 1\n", [1, 2, 3]),
        ("0 5\n", [0, 5]),
        ("-3 0\n", [-3, 0]),
        ("0 4000000000000\n4000000000000 -9\n", [-9, 0, 4000000000000]),
        ("9223372036854775807 -9223372036854775808\n", [-(2**63), 2**63 - 1]),
        ("# Nodes: 5 Edges: 2\n0 1\n2 1\n", 5),
        ("# Nodes: 3 Edges: 2\n0 1\n2 1\n", None),
        ("# Nodes: 2 Edges: 2\n0 1\n2 7\n", [0, 1, 2, 7]),
        ("# Nodes: 3 Edges: 2\n1 2\n3 1\n", [1, 2, 3]),
        ("% vertices = 9\n0 1\n", 9),
        ("# Nodes: 1,005\n0 1\n", None),
        ("# Nodes: 3000000 Edges: 1\n0 2000000\n", 3_000_000),
    ],
)
def test_vertices_that_occur(read_text, text, ids):
    expected = np.loadtxt(io.StringIO(text), dtype=np.int64, comments=["#", "%"], ndmin=2).T
    n = ids if isinstance(ids, int) else len(ids) if ids else expected.max() + 1
    for batch_bytes in BATCH_BYTES:
        arcs, _, layout, _ = read_text(text, batch_bytes=batch_bytes)
        np.testing.assert_array_equal(arcs, expected)
        assert layout.shape == (n, n)
        stored = None if layout.vertex_ids is None else layout.vertex_ids.tolist()
        assert stored == (ids if isinstance(ids, list) else None)


def test_claims_are_kept(read_text):
    text = "# Directed graph\n# Nodes: 4 Edges: 9\n0 1\n"
    assert settle(read_text(text)[2].provenance) == {
        "format": "edge-list",
        "name": read_text(text)[2].provenance["name"],
        "bytes": len(text),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "compression": None,
        "header": {"nodes": 4, "edges": 9},
        "taken": {
            "columns": {"source": [1, None], "target": [2, None], "weight": None},
            "not_read": [],
            "header": False,
            "header_by": None,
            "n_header": 0,
            "n_comments": 2,
            "n_rows": 1,
            "delimiter": " ",
            "notes": [],
        },
    }


def test_the_first_of_a_list_that_is_in_no_edge_is_told(read_text, write):
    note = "'city', the first id of the list of vertices, occurs in no edge; replace it by `id` if it is a header"
    for text, is_told in (("city\na\nb\n", True), ("b\na\ncity\n", False), ("id\ncity\na\nb\n", False)):
        provenance = read_text("a b\nb a\n", vertices=write(text, "a.v"))[2].provenance
        assert provenance["taken"]["notes"] == [note] * is_told, text


MEASURE = """
import resource, sys
from mgspmv.ingest import edge_list
from mgspmv.ingest.edge_list import EdgeListSource

def read(path):
    n_read = sum(len(batch.rows) for batch in EdgeListSource(path).batches())
    return n_read, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

_, before = read(sys.argv[1])  # what the libraries take is not the text's
n_read, after = read(sys.argv[2])
print(n_read, after - before)
"""


@pytest.mark.slow
def test_memory_is_that_of_a_batch_and_not_of_the_text(write):
    """80 MB of text, 320 MB of ids: neither may be in memory as a whole. A batch of these shortest lines has 16 MB."""
    small = write("0 1\n", "small.txt")
    large = write(gzip.compress(b"0 1\n" * 20_000_000, 1), "large.txt.gz")
    command = [sys.executable, "-c", MEASURE, str(small), str(large)]
    n_read, grown_bytes = map(int, subprocess.run(command, check=True, capture_output=True).stdout.split())
    assert n_read == 20_000_000
    assert grown_bytes < 112 * 2**20


@pytest.mark.parametrize(
    ("text", "options", "line_number", "message"),
    [
        ("", {}, None, "this file has no edges; pass n_vertices= or vertices="),
        ("# Nodes: 5 Edges: 0\n", {}, None, "this file has no edges"),
        (
            "# c\n7\n",
            {},
            2,
            "'7': expected columns of sources and targets, found one column; pass delimiter=",
        ),
        (
            "\n1 2 3 4\n",
            {},
            2,
            'found 4 columns; choose them with columns=("SOURCE", "TARGET") or columns=(1, 2)',
        ),
        ("1 2 3 4\n", {"weights": False}, 1, "found 4 columns"),
        (
            "1 2\n",
            {"weights": True},
            1,
            "expected a third column of weights, found 2 columns; pass weights=False",
        ),
        ("1 2\n# c\n\n3 4 5\n", {}, 4, "'3 4 5': expected 'source target', found 3 columns"),
        ("1 2 3\n3 4\n", {}, 2, "'3 4': expected 'source target weight', found 2 columns"),
        ("0 101 2\n2\n3\n", {}, 2, "'2': expected 'source target weight', found 1 column"),
        ("1,2\n3 4\n", {}, 2, "'3 4': expected 'source target', found 1 column"),
        (
            "1 2\n3 4\n5 x7\n",
            {},
            3,
            "'5 x7': expected target to be a 64-bit integer, found 'x7'; pass ids=\"string\" if ids are names",
        ),
        ("1 2\n3 9223372036854775808\n", {}, 2, "found '9223372036854775808'; pass ids=\"string\" if ids are names"),
        ("a b\n", {"ids": "int", "header": False}, 1, "expected source to be a 64-bit integer, found 'a'"),
        (
            "1.5 2.5\n",
            {},
            1,
            'ids must be integers or names, found other numbers; pass ids="string" if they are names',
        ),
        ("1 2 3\n1 2 x\n", {}, 2, "'1 2 x': expected weight to be a finite number, found 'x'"),
        ("1 2 3\n1 2 nan\n", {}, 2, "'1 2 nan': expected weight to be a finite number, found 'nan'"),
        ("1 2 3\n\n1 2 -inf\n", {}, 3, "expected weight to be a finite number, found '-inf'"),
        ("a b 3\na c 1e999\n", {}, 2, "expected weight to be a finite number, found '1e999'"),
        ("a,b\na,\n", {}, 2, "'a,': expected target to be a name, found ''"),
        (
            "0 1\n1 5\n",
            {"n_vertices": 5},
            2,
            "expected target to be an integer from 0 to 4, found '5'; n_vertices=5 sets this range",
        ),
        ("0 1\n-1 2\n", {"n_vertices": 5}, 2, "expected source to be an integer from 0 to 4, found '-1'"),
        ("a b\n", {"n_vertices": 5, "header": False}, 1, "expected source to be an integer from 0 to 4, found 'a'"),
        ("%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 5\n", {}, 1, "this is a Matrix Market file"),
        ("a,b\nb,c\n#c,d\n", {}, 3, 'begins like a comment but has the columns of an edge; pass comment="none"'),
        ("a,b\n#,c,d\n# b,a\n", {"header": False}, 3, "begins like a comment but has the columns of an edge"),
        ("NaN,2\n3,4\n", {}, 1, "column 1 has 'NaN' among ids that are numbers"),
        ("1 -> 2\n2 -> 3\n", {}, 1, "column 2 is '->' in every line; choose columns, such as columns=(1, 3)"),
        ("e 1 2\ne 2 3\n", {}, 1, "column 1 is 'e' in every line, as in DIMACS files"),
        ("1,2\n", {"columns": ("src", "dst")}, 1, "expected one column 'src', found the columns 1, 2"),
        ("src,dst\n", {"columns": ("src", "target")}, 1, "expected one column 'target', found the columns src, dst"),
        ("src,dst,weight\n1,2\n", {}, 1, "the header has 3 columns, src, dst, weight, but the line below it has 2"),
        (b"a b\na \xff\n", {}, 2, "the line is not UTF-8 text"),
        ('a,b\n"c,d\n', {}, 2, "invalid quotes"),
    ],
)
def test_errors(make_error, text, options, line_number, message):
    for batch_bytes in BATCH_BYTES:
        error = make_error(text, batch_bytes=batch_bytes, **options)
        assert error.line_number == line_number
        assert message in str(error)


@pytest.mark.parametrize(
    ("vertices", "edges", "line_number", "unknown"),
    [
        ("0\n1\n", "# c\n0 1\n1 2\n", 3, "'2'"),
        ("5\n9\n", "5 9\n\n4 5\n", 3, "'4'"),
        ("5\n9\n", "5 9\n5 -1\n", 2, "'-1'"),
        (f"5\n{2**50}\n", f"5 {2**50}\n5 6\n", 2, "'6'"),
        ("a\nb\n", "a b\na c\n", None, "'c'"),
    ],
)
def test_edge_to_an_unknown_vertex(make_error, write, vertices, edges, line_number, unknown):
    for batch_bytes in BATCH_BYTES:
        error = make_error(edges, vertices=write(vertices, "a.v"), batch_bytes=batch_bytes)
        assert error.line_number == line_number
        assert f"{unknown} is not in the list of vertices; add it there or remove" in str(error)


def test_line_numbers_far_into_a_compressed_file(make_error):
    lines = ["# c", "", *(f"{i}\t{i}" for i in range(200_000))]
    lines[150_000] = "12\tx"
    error = make_error(gzip.compress("\n".join(lines).encode()), batch_bytes=2**16)
    assert (error.line_number, error.text) == (150_001, "12\tx")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": 1.5}, "weights must be one of 'auto', True, False, not 1.5"),
        ({"ids": "text"}, "ids must be one of 'auto', 'int', 'string', not 'text'"),
        ({"delimiter": ""}, "delimiter must be one character such as ',' or ';', not ''"),
        ({"delimiter": "::"}, "delimiter must be one character"),
        ({"delimiter": "#"}, "delimiter '#' begins comments too; pass comment="),
        ({"columns": "source"}, "columns must be two or three names, or numbers from 1, of sources"),
        ({"columns": "ab"}, "columns must be two or three names, or numbers from 1, of sources"),
        ({"n_vertices": -1}, "n_vertices must be an integer of at least 0, not -1"),
        (
            {"n_vertices": 3, "vertices": "a.v"},
            "n_vertices= and vertices= both define the vertices; pass only one of them",
        ),
        (
            {"n_vertices": 3, "ids": "string"},
            "n_vertices= requires integer ids; for names, pass a list of vertices with vertices=",
        ),
    ],
)
def test_options(options, message):
    with pytest.raises(OptionError) as caught:
        EdgeListSource("a.txt", **options)
    assert message in str(caught.value)

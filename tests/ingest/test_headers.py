"""Rules for headers, comments and ids as tables: what is given, and what it is taken for or which argument is named."""

from __future__ import annotations

import pytest

from mgspmv.ingest.column_names import ColumnChoice
from mgspmv.ingest.headers import (
    Preamble,
    are_names,
    check_lines,
    check_missing,
    check_separators,
    check_sizes,
    has_header,
    has_list_header,
    looks_like_edge,
)
from mgspmv.ingest.streams import TextLine
from mgspmv.ingest.tokens import Undecided


@pytest.mark.parametrize(
    ("lines", "given", "expected"),
    [
        (["source,target", "alice,bob"], None, True),
        (["source,target", "1,2"], None, True),
        (["source,target"], None, True),
        (["a,b", "1,2"], None, True),
        (["alice,bob", "bob,carol"], None, False),
        (["alice,bob", "carol,alice"], None, False),
        (["alice,5", "bob,7"], None, False),
        (["1,2", "2,3"], None, False),
        (["1,2"], None, False),
        (["1.5,2", "2,3"], None, False),
        ([",src,dst", "0,1,2"], None, True),
        (["who,whom,times", "alice,bob,3"], None, True),
        (["alice,bob,3", "carol,dave,5"], None, False),
        (["alice,bob,3"], None, False),
        (["a,b", "x,y"], ["a", "b"], True),
        (["x,1,2", "y,2,3"], [2, 3], False),
        (["x,a,b", "y,2,3"], [2, 3], True),
        (["x,source,target", "y,alice,bob"], [3, 2], True),
        (["7,source,target,8", "9,to,from,7"], [1, 4], False),
        (["zip_from,zip_to", "01234,1234"], None, True),
        (["u,v", "1,2"], None, True),
        (["u,v,weight", "alice,bob,2"], None, True),
        (["u,v", "v,w"], None, False),
    ],
)
def test_headers_are_told_from_edges(lines, given, expected):
    first, *below = [line.split(",") for line in lines]
    assert has_header(first, below, given) is expected


@pytest.mark.parametrize(
    "lines",
    [
        ["alice,bob", "carol,dave"],
        ["alice,bob"],
        ["to,from", "from,to"],
        ["source,target", "target,source"],
        ["0,1", "alice,bob"],
        ["user,item", "alice,5"],
        ["u,v", "w,x"],
        ["From Russia,To Kill a Mockingbird", "Emma,Dune"],
        ["to_user,from_user", "alice,bob"],
    ],
)
def test_a_first_line_that_may_be_either_is_an_error(lines):
    first, *below = [line.split(",") for line in lines]
    with pytest.raises(Undecided, match=r"header=True .* header=False"):
        has_header(first, below)


def test_a_known_vertex_in_a_list_may_be_its_header():
    with pytest.raises(Undecided, match="'node' may be a header or the id of a vertex"):
        has_list_header(["node"], [["edge"]], is_vertex={"node"}.__contains__)
    assert has_list_header(["node"], [["edge"]], is_vertex={"edge"}.__contains__)
    assert has_list_header(["vertex"], [["node"], ["edge"]], is_vertex={"node"}.__contains__)


def test_known_names_that_are_ids_are_an_error_whatever_columns_are_read():
    for given in (None, [1, 2], [2, 1]):
        with pytest.raises(Undecided, match=r"header=True .* header=False"):
            has_header(["source", "target"], [["source", "source"]], given)


def test_known_vertices_are_no_header():
    is_vertex = {"alice", "source"}.__contains__
    assert not has_header(["alice", "bob"], [["carol", "dave"]], None, is_vertex)
    assert not has_header(["alice", "bob"], [], None, is_vertex)
    assert has_header(["from", "to"], [], None, is_vertex)
    assert not has_header(["alice", "to"], [], None, is_vertex)
    with pytest.raises(Undecided, match="header=True"):
        has_header(["source", "target"], [], None, is_vertex)


BOTH = ColumnChoice(0, 1)


@pytest.mark.parametrize(
    ("rows", "is_below_header", "message"),
    [
        (["--- ---", "a b"], True, "ruled line"),
        (["==== ====", "1 2"], False, "ruled line"),
        (["-- --", "a b"], True, None),
        (["--- a", "a b"], True, None),
        (["From To", "1 2"], True, "may be a second header; pass skip_rows=1"),
        (["[id] [id]", "1 2"], True, "may be a second header"),
        (["from to", "alice bob"], True, "may be a second header"),
        (["from to", "alice from"], True, None),
        (["alice bob", "carol dave"], True, None),
        (["alice 1", "bob 2"], True, None),
        (["alice bob"], True, None),
    ],
)
def test_lines_that_are_no_edges(rows, is_below_header, message):
    split = [row.split() for row in rows]
    if message is None:
        check_lines(split, BOTH, is_below_header=is_below_header)
        return
    with pytest.raises(Undecided, match=message):
        check_lines(split, BOTH, is_below_header=is_below_header)


@pytest.mark.parametrize(
    ("rows", "is_whole", "are_sizes"),
    [
        (["27 51 3", "1 2 3", "2 51 1", "27 5 4"], True, True),
        (["27 51 4", "1 2 3", "2 51 1", "27 5 4"], True, False),
        (["27 51 3", "1 2 3", "2 52 1", "27 5 4"], True, False),
        (["27 51 3", "1 2 3", "28 5 1", "27 5 4"], True, False),
        (["27 51 40", "1 2 3", "2 51 1", "27 5 4"], False, True),
        (["27 51 1254192988", "1 2 3", "2 51 1", "27 5 4"], False, False),
        (["27 51 3.0", "1 2 3", "2 51 1", "27 5 4"], True, False),
        (["3 3", "1 2", "2 3", "3 1"], True, True),
        (["3 3", "1 2", "2 3", "3 4"], True, False),
        (["3 40", "1 2", "2 3", "3 1"], False, False),
        (["2 2", "1 2", "a b"], True, False),
        (["2 1", "1 2"], True, False),
        (["2 2", "1 2", "2 1"], True, False),
        (["3 3 2", "1 2 5", "2 3 1"], True, True),
        (["2 2 2 2", "1 2 3 4", "1 2 3 4"], True, False),
        (["0 101 2", "2", "3"], True, False),
    ],
)
def test_sizes_above_edges(rows, is_whole, are_sizes):
    split = [row.split() for row in rows]
    if not are_sizes:
        check_sizes(split, is_whole=is_whole)
        return
    with pytest.raises(Undecided, match="skip_rows=1 if it states these numbers, or header=False"):
        check_sizes(split, is_whole=is_whole)


@pytest.mark.parametrize(
    ("lines", "mentions"),
    [
        (["# This graph is undirected"], True),
        (["% type: Undirected"], True),
        (["# directed"], False),
        (["# Undirected graph: a.txt"], False),
    ],
)
def test_comments_that_say_undirected_in_other_words(lines, mentions):
    assert preamble(*lines).mentions_undirected is mentions


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["id", "alice"], True),
        (["vertex", "1"], True),
        (["ids", "1", "2"], True),
        (["city", "1"], True),
        (["alice", "bob"], False),
        (["1", "2"], False),
        (["name", "bob", "name"], False),
        (["country,id", "NO,Oslo"], True),
        (["NO", "SE"], False),
        (["NO,Oslo", "SE,Lund"], False),
        (["nodeId", "alice"], True),
    ],
)
def test_headers_of_lists(lines, expected):
    first, *below = [line.split(",") for line in lines]
    assert has_list_header(first, below) is expected


def test_a_word_above_names_that_look_like_numbers_is_an_error():
    assert has_list_header(["id"], [["1"], ["2"]], are_names=True)
    assert not has_list_header(["1"], [["alice"], ["2"]], are_names=True)
    with pytest.raises(Undecided, match="'alice' above numbers may be a header or an id; add a line `id`"):
        has_list_header(["alice"], [["1"], ["2"]], are_names=True)


def preamble(*lines):
    made = Preamble()
    for number, line in enumerate(lines, 1):
        made.take(TextLine("a.txt", number, line.encode()))
    return made


@pytest.mark.parametrize(
    ("lines", "is_undirected", "is_bipartite"),
    [
        (["% sym unweighted", "% 4 4 4"], True, False),
        (["% asym posweighted"], False, False),
        (["% bip unweighted", "% 4 3 2"], False, True),
        (["# Undirected graph: ../data/output/amazon.txt"], True, False),
        (["# Directed graph (each unordered pair of nodes is saved once): CA-GrQc.txt"], False, False),
        (["# about", "% sym unweighted"], False, False),
        (["# an undirected friendship"], False, False),
    ],
)
def test_headers_of_known_collections_are_read(lines, is_undirected, is_bipartite):
    made = preamble(*lines)
    assert (made.is_undirected, made.is_bipartite, made.n_lines) == (is_undirected, is_bipartite, len(lines))


def test_claims_and_names_in_comments_are_read():
    made = preamble("# Nodes: 4 Edges: 5", "# FromNodeId\tToNodeId")
    assert made.claims == {"nodes": 4, "edges": 5}
    assert made.names == ["FromNodeId", "ToNodeId"]


@pytest.mark.parametrize(
    ("line", "delimiter", "n_columns", "expected"),
    [
        ("#ai,#ml", ",", 2, True),
        ("#ai #ml", " ", 2, True),
        ("#1 2", " ", 2, True),
        ("%a\tb\t1", "\t", 3, True),
        ("# my graph", " ", 3, False),
        ("# of mine", " ", 2, False),
        ("#ai,#ml", ",", 3, False),
        ("# FromNodeId\tToNodeId", "\t", 2, False),
        ("# src,dst", ",", 2, False),
        ("# Nodes: 4 Edges: 5", " ", 5, False),
        ("#remark", " ", 2, False),
    ],
)
def test_comments_that_look_like_edges_are_told(line, delimiter, n_columns, expected):
    assert looks_like_edge(line, delimiter, n_columns) is expected


@pytest.mark.parametrize(("tokens", "expected"), [(["1", "2"], False), (["a", "2"], True), (["007", "8"], False)])
def test_ids_are_integers_or_names(tokens, expected):
    assert are_names(tokens) is expected


@pytest.mark.parametrize("token", ["1.5", "1.0", "1e5", "1e+05", ".5"])
def test_ids_that_are_other_numbers_are_an_error(token):
    with pytest.raises(Undecided, match='ids="string"'):
        are_names([token, "2"])


@pytest.mark.parametrize("token", ["", "NaN", "NA", "null", "None"])
def test_a_missing_value_is_no_id(token):
    with pytest.raises(Undecided, match=r"column 1 has .* among ids that are numbers; .* ids=\"string\""):
        check_missing([[token, "1"], ["2", "3"]], ColumnChoice(0, 1))
    check_missing([[token, "1"], ["alice", "3"]], ColumnChoice(0, 1))
    check_missing([["1", "2", token]], ColumnChoice(0, 1))


def test_signs_between_ends_are_no_ids():
    with pytest.raises(Undecided, match=r"column 2 is '->' in every line; .* columns=\(1, 3\)"):
        check_separators([["1", "->", "2"], ["2", "->", "3"]], ColumnChoice(0, 1, 2))
    check_separators([["1", "->", "2"], ["2", "->", "3"]], ColumnChoice(0, 2))
    check_separators([["a", "->"], ["a", "b"]], ColumnChoice(0, 1))


def test_letters_of_dimacs_are_no_ids():
    with pytest.raises(Undecided, match=r"column 1 is 'e' in every line, .* columns=\(2, 3\)"):
        check_separators([["e", "1", "2"], ["e", "2", "3"]], ColumnChoice(0, 1, 2))
    check_separators([["e", "b", "2"], ["e", "c", "3"]], ColumnChoice(0, 1, 2))
    check_separators([["e", "1"], ["e", "2"]], ColumnChoice(0, 1))

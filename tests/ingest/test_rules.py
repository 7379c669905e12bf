"""The rules about input as tables: what is given, and what it is taken for or which argument the error names."""

from __future__ import annotations

import pytest

from mgspmv.ingest.rules import (
    Columns,
    Foreign,
    Preamble,
    Undecided,
    are_names,
    check_lines,
    check_missing,
    check_separators,
    check_sizes,
    choose_columns,
    choose_delimiter,
    choose_list_columns,
    choose_list_delimiter,
    find_format_by_bytes,
    find_format_by_name,
    find_role,
    find_stated_delimiter,
    find_times,
    has_decimal_comma,
    has_header,
    has_list_header,
    is_integer,
    is_number,
    is_plain_integer,
    looks_like_edge,
    resolve_columns,
    split_fields,
)


@pytest.mark.parametrize(
    ("token", "integer", "plain", "number"),
    [
        ("7", True, True, True),
        ("-7", True, True, True),
        ("0", True, True, True),
        ("007", True, False, True),
        ("+7", True, False, True),
        ("-0", True, True, True),
        ("1.5", False, False, True),
        (".5", False, False, True),
        ("1e3", False, False, True),
        ("1.5D+05", False, False, True),
        ("nan", False, False, True),
        ("alice", False, False, False),
        ("", False, False, False),
        ("1,5", False, False, False),
    ],
)
def test_numbers_are_told_by_their_spelling(token, integer, plain, number):
    assert (is_integer(token), is_plain_integer(token), is_number(token)) == (integer, plain, number)


def test_a_decimal_comma_is_told():
    assert has_decimal_comma("0,5")
    assert not has_decimal_comma("0.5")


@pytest.mark.parametrize(
    ("line", "delimiter", "fields"),
    [
        ("1 2", " ", ["1", "2"]),
        ("  1 \t 2  ", " ", ["1", "2"]),
        ('"New York" "Los Angeles"', " ", ["New York", "Los Angeles"]),
        ('5"disk a', " ", ['5"disk', "a"]),
        ('"say ""hi""" b', " ", ['say "hi"', "b"]),
        ("a, b ,c", ",", ["a", "b", "c"]),
        ('"Washington, DC",New York', ",", ["Washington, DC", "New York"]),
        ('"a" , "b"', ",", ["a", "b"]),
        ('" a","b "', ",", [" a", "b "]),
        ('"a",', ",", ["a", ""]),
        (',"a"', ",", ["", "a"]),
        ('"",b', ",", ["", "b"]),
        ('5"disk,"say ""hi"""', ",", ['5"disk', 'say "hi"']),
        ('"a|b"|c', "|", ["a|b", "c"]),
        ('\t"a"\tb', "\t", ["", "a", "b"]),
        ('"a"', ",", ["a"]),
        ("Smith, J\tDoe", "\t", ["Smith, J", "Doe"]),
        ("a;;b", ";", ["a", "", "b"]),
    ],
)
def test_lines_are_split_at_a_delimiter(line, delimiter, fields):
    assert split_fields(line, delimiter) == fields


@pytest.mark.parametrize(("line", "delimiter"), [('"a b', " "), ('"a,b', ","), ('"a"b,c', ","), ('"a" "b",c', ",")])
def test_an_open_quotation_is_an_error(line, delimiter):
    with pytest.raises(Undecided, match="quoted"):
        split_fields(line, delimiter)


@pytest.mark.parametrize(
    ("lines", "delimiter"),
    [
        (["1 2", "2 3"], " "),
        (["1\t2", "2\t3"], " "),
        (["1\t2 5", "2\t3 5"], "\t"),
        (["1\t2 \t5", " 2\t3\t5"], " "),
        (["1\t\t2", "2\t\t3"], "\t"),
        (["a\tb", "b\tc"], "\t"),
        (["Smith, J\tDoe", "Brown, K\tDoe"], "\t"),
        (["New York\tParis", "Paris\tRome"], "\t"),
        (["source\ttarget", "1\t2"], " "),
        (["1|2", "2|3"], "|"),
        (["a,x|b", "b,y|c"], "|"),
        (["1;2;0,5", "2;3;0,25"], ";"),
        (["1,2", "2,3"], ","),
        (["1, 2", "2, 3"], ","),
        (['"a;b",c', "d,e"], ","),
        (["Smith,J Doe", "Brown Doe"], " "),
        (["a b", "c,d e"], " "),
        (["1,2", "2,3", "3,4,5"], ","),
        (['1 "0\t1', "1\t2"], "\t"),
        (['"1"\t"2"', '"2"\t"3"'], "\t"),
        ([], " "),
        (["alone"], " "),
    ],
)
def test_the_delimiter_is_the_first_that_all_lines_share(lines, delimiter):
    assert choose_delimiter(lines) == delimiter


@pytest.mark.parametrize(
    ("lines", "are_integers", "delimiter"),
    [
        (["New York", "Los Angeles"], False, None),
        (["alice", "bob"], False, None),
        (["1", "2"], True, None),
        (["1 5", "2 6"], True, " "),
        (["1,x", "2,y"], True, ","),
        (["a\tx", "b\ty"], False, "\t"),
        (["Smith, J", "alice"], False, None),
    ],
)
def test_the_delimiter_of_a_list_of_vertices(lines, are_integers, delimiter):
    assert choose_list_delimiter(lines, are_integers=are_integers) == delimiter


@pytest.mark.parametrize(
    ("name", "role", "is_exact"),
    [
        ("source", "source", True),
        ("Source", "source", True),
        ("src", "source", True),
        ("from", "source", True),
        ("FromNodeId", "source", True),
        ("fromnodeid", "source", True),
        (":START_ID", "source", True),
        ("source_id", "source", True),
        ("u", "source", True),
        ("zip_from", "source", False),
        ("Source airport", "source", False),
        ("target", "target", True),
        ("dst", "target", True),
        ("to", "target", True),
        ("ToNodeId", "target", True),
        (":END_ID", "target", True),
        ("destination", "target", True),
        ("v", "target", True),
        ("to_user", "target", False),
        ("weight", "weight", True),
        ("weight:float", "weight", True),
        ("edge_attr", "weight", True),
        ("w", "weight", True),
        ("", "index", True),
        ("Unnamed: 0", "index", True),
        ("__index_level_0__", "index", True),
        ("__null_dask_index__", "index", True),
        ("edge_id", "index", True),
        ("id", "index", True),
        ("timestamp", "other", False),
        ("start_time", "other", False),
        ("creationDate", "other", False),
        ("type", "other", False),
        ("alice", None, False),
        ("trips", None, False),
    ],
)
def test_names_of_columns_say_what_they_hold(name, role, is_exact):
    assert find_role(name) == (role, is_exact)


@pytest.mark.parametrize(
    ("names", "options", "columns"),
    [
        (["src", "dst"], {}, (0, 1, None)),
        (["dst", "src"], {}, (1, 0, None)),
        (["target", "source"], {}, (1, 0, None)),
        (["weight", "source", "target"], {}, (1, 2, 0)),
        (["weight", "source", "target"], {"weights": False}, (1, 2, None)),
        (["", "src", "dst"], {}, (1, 2, None)),
        (["Unnamed: 0", "src", "dst", "weight"], {}, (1, 2, 3)),
        (["edge_id", "src", "dst"], {}, (1, 2, None)),
        (["id", "source", "target"], {}, (1, 2, None)),
        (["src", "dst", "__index_level_0__"], {}, (0, 1, None)),
        (["a", "b", "__null_dask_index__"], {}, (0, 1, None)),
        (["source", "target", "timestamp"], {}, (0, 1, None)),
        (["source", "target", "timestamp"], {"weights": True}, (0, 1, 2)),
        (["source", "target", "weight", "trips"], {}, (0, 1, 2)),
        (["source", "target", "trips"], {"weights": True}, (0, 1, 2)),
        (["source", "target", "trips"], {"weights": False}, (0, 1, None)),
        (["Source", "Target", "Type", "Id", "Label", "Weight"], {}, (0, 1, 5)),
        (["zip_from", "zip_to"], {}, (0, 1, None)),
        (["to_user", "from_user"], {}, (1, 0, None)),
        (["source", "b"], {}, (0, 1, None)),
        (["source", "b", "weight"], {}, (0, 1, 2)),
        (["a", "b"], {}, (0, 1, None)),
        (["a", "b", "c"], {}, (0, 1, 2)),
        (["a", "b", "c"], {"weights": False}, (0, 1, None)),
        (["a", "b", "year"], {}, (0, 1, None)),
        (["0", "1"], {}, (0, 1, None)),
        (["node1", "node2"], {}, (0, 1, None)),
        (["caller", "callee"], {}, (0, 1, None)),
        (["user", "item"], {}, (0, 1, None)),
        (["s", "o"], {}, (0, 1, None)),
        (["Person.id", "Person.id", "creationDate"], {}, (0, 1, None)),
        (["a", "b", "c", "d"], {"extra_columns": "ignore"}, (0, 1, 2)),
        (None, {"n_columns": 2}, (0, 1, None)),
        (None, {"n_columns": 3}, (0, 1, 2)),
        (None, {"n_columns": 4, "extra_columns": "ignore"}, (0, 1, 2)),
    ],
)
def test_columns_are_chosen_by_name_or_by_place(names, options, columns):
    n_columns = options.pop("n_columns", len(names or ()))
    assert choose_columns(names, n_columns, **options) == Columns(*columns)


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["alone"], {}, "delimiter="),
        (["b", "source"], {}, "columns="),
        (["source", "b", "c"], {}, "columns="),
        (["source", "target", "trips"], {}, "weights=False"),
        (["source", "target", "trips", "price"], {}, "weights=False"),
        (["source", "target", "weight", "value"], {}, "weights=False"),
        (["source", "source", "target"], {}, "columns="),
        (["Source airport", "Source city", "Destination airport"], {}, "columns="),
        (["", "a", "b"], {}, "columns="),
        (["", "a"], {}, "columns="),
        (["id", "a", "b"], {}, "columns="),
        (["weight", "a", "b"], {}, "columns="),
        (["a", "b", "c", "d"], {}, "columns="),
        (["b", "a"], {}, "another order"),
        (["y", "x", "weight"], {}, "another order"),
        (["node2", "node1"], {}, "another order"),
        (["ID_B", "ID_A"], {}, "another order"),
        (["1", "0"], {}, "another order"),
        (["callee", "caller"], {}, "another order"),
        (["Ziel", "Quelle", "Anzahl"], {}, "another order"),
        (["arrival_city", "departure_city"], {}, "another order"),
        (["a", "b"], {"weights": True}, "weights=False"),
        (["source", "target", "x", "y"], {"weights": True}, "columns="),
        (None, {"n_columns": 4}, "columns="),
        (None, {"n_columns": 1}, "delimiter="),
        (None, {"n_columns": 2, "weights": True}, "weights=False"),
    ],
)
def test_columns_that_cannot_be_told_are_an_error(names, options, message):
    n_columns = options.pop("n_columns", len(names or ()))
    with pytest.raises(Undecided, match=message):
        choose_columns(names, n_columns, **options)


def test_columns_are_resolved_by_name_and_by_number_from_1():
    names = ["a", "b", "c"]
    assert resolve_columns(["c", "a"], names, 3) == Columns(2, 0)
    assert resolve_columns([3, 1, 2], None, 3) == Columns(2, 0, 1)
    assert resolve_columns(["c", "a", "b"], names, 3, weights=False) == Columns(2, 0)


@pytest.mark.parametrize(
    ("given", "names", "message"),
    [
        (["a", "sourc"], ["a", "source"], "did you mean 'source'"),
        ([0, 1], None, "columns 1 to 2"),
        ([1, 3], None, "columns 1 to 2"),
        ([1, 1], None, "twice"),
        (["a", "b"], ["a", "a"], "counted from 1"),
    ],
)
def test_columns_that_are_not_there_are_an_error(given, names, message):
    with pytest.raises(Undecided, match=message):
        resolve_columns(given, names, 2)


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
    with pytest.raises(Undecided, match="'node' may name the column or be the vertex of this id"):
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


BOTH = Columns(0, 1)


@pytest.mark.parametrize(
    ("rows", "is_below_header", "message"),
    [
        (["--- ---", "a b"], True, "drawn line"),
        (["==== ====", "1 2"], False, "drawn line"),
        (["-- --", "a b"], True, None),
        (["--- a", "a b"], True, None),
        (["From To", "1 2"], True, "names? the columns as well; pass skip_rows=1"),
        (["[id] [id]", "1 2"], True, "name the columns as well"),
        (["from to", "alice bob"], True, "name the columns as well"),
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
    ],
)
def test_sizes_above_edges(rows, is_whole, are_sizes):
    split = [row.split() for row in rows]
    if not are_sizes:
        check_sizes(split, is_whole=is_whole)
        return
    with pytest.raises(Undecided, match="skip_rows=1 if it says that, or header=False"):
        check_sizes(split, is_whole=is_whole)


@pytest.mark.parametrize(
    ("line", "delimiter"),
    [
        ("sep=;", ";"),
        ("SEP=,", ","),
        ('"sep=|"', "|"),
        ("sep=\t", "\t"),
        ("sep=;\r", ";"),
        ("sep=", None),
        ("a;b", None),
    ],
)
def test_delimiters_that_a_line_states(line, delimiter):
    assert find_stated_delimiter(line) == delimiter


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
    ("lines", "has_numbers", "expected"),
    [
        (["id", "alice"], False, True),
        (["vertex", "1"], False, True),
        (["ids", "1", "2"], False, True),
        (["city", "1"], False, True),
        (["alice", "bob"], False, False),
        (["1", "2"], False, False),
        (["name", "bob", "name"], False, False),
        (["country,id", "NO,Oslo"], False, True),
        (["NO", "SE"], False, False),
        (["NO,Oslo", "SE,Lund"], False, False),
        (["nodeId", "alice"], False, True),
        (["id,weight", "alice,1"], True, True),
        (["a,b", "alice,1"], True, True),
        (["alice,1", "bob,2"], True, False),
        (["1,alice", "2,bob"], True, False),
    ],
)
def test_headers_of_lists(lines, has_numbers, expected):
    first, *below = [line.split(",") for line in lines]
    assert has_list_header(first, below, has_numbers=has_numbers) is expected


def test_a_word_above_names_that_look_like_numbers_is_an_error():
    assert has_list_header(["id"], [["1"], ["2"]], are_names=True)
    assert not has_list_header(["1"], [["alice"], ["2"]], are_names=True)
    with pytest.raises(Undecided, match="'alice' above numbers may name the column or be an id; write a line `id`"):
        has_list_header(["alice"], [["1"], ["2"]], are_names=True)


@pytest.mark.parametrize(
    ("names", "has_numbers", "places"),
    [
        (["id", "weight"], True, (0, 1)),
        (["rank", "vertex"], True, (1, 0)),
        (["vertex", "rank"], True, (0, 1)),
        (["x", "y"], True, (0, 1)),
        (["name"], False, (0, None)),
        (["country", "id"], False, (1, None)),
        (["id", "label"], False, (0, None)),
        (["label", "id", "rank"], True, (1, 2)),
        (["whoever"], False, (0, None)),
        (["id", "rank", "__index_level_0__"], True, (0, 1)),
    ],
)
def test_columns_of_lists(names, has_numbers, places):
    assert choose_list_columns(names, has_numbers=has_numbers) == places


@pytest.mark.parametrize(
    ("names", "has_numbers"), [(["name", "label"], False), (["a", "b", "c"], True), (["", "x"], True)]
)
def test_columns_of_lists_that_cannot_be_told_are_an_error(names, has_numbers):
    with pytest.raises(Undecided, match="id"):
        choose_list_columns(names, has_numbers=has_numbers)


def preamble(*lines):
    made = Preamble()
    for number, line in enumerate(lines, 1):
        made.take(line, number)
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
    assert (preamble(line).find_suspect(delimiter, n_columns) is not None) is expected


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
        check_missing([[token, "1"], ["2", "3"]], Columns(0, 1))
    check_missing([[token, "1"], ["alice", "3"]], Columns(0, 1))
    check_missing([["1", "2", token]], Columns(0, 1))


def test_signs_between_ends_are_no_ids():
    with pytest.raises(Undecided, match=r"column 2 is '->' in every line; .* columns=\(1, 3\)"):
        check_separators([["1", "->", "2"], ["2", "->", "3"]], Columns(0, 1, 2))
    check_separators([["1", "->", "2"], ["2", "->", "3"]], Columns(0, 2))
    check_separators([["a", "->"], ["a", "b"]], Columns(0, 1))


def test_letters_of_dimacs_are_no_ids():
    with pytest.raises(Undecided, match=r"column 1 is 'e' in every line, .* columns=\(2, 3\)"):
        check_separators([["e", "1", "2"], ["e", "2", "3"]], Columns(0, 1, 2))
    check_separators([["e", "b", "2"], ["e", "c", "3"]], Columns(0, 1, 2))
    check_separators([["e", "1"], ["e", "2"]], Columns(0, 1))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1254192988, 1254203000, ("2009-09-29", "2009-09-29")),
        (1254192988000, 1700000000000, ("2009-09-29", "2023-11-14")),
        (20090929, 20101231, ("2009-09-29", "2010-12-31")),
        (20090929, 20101332, None),
        (1, 5, None),
        (5, 1254203000, None),
    ],
)
def test_numbers_that_look_like_times(low, high, expected):
    assert find_times(low, high) == expected


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a.parquet", "parquet"),
        ("a.PARQUET", "parquet"),
        ("a.parq", "parquet"),
        ("a.npz", "npz"),
        ("a.csv", None),
        ("a.csv.gz", None),
        ("part-00000", None),
        ("a.mtx", None),
        ("a.graph", "METIS"),
        ("a.graphml.gz", "GraphML"),
        ("a.tar.gz", "tar"),
        ("a.zip", "zip"),
        ("a.h5ad", "AnnData"),
        ("a.npy", "NumPy"),
    ],
)
def test_formats_by_name(name, found):
    made = find_format_by_name(name)
    assert made == found if not isinstance(made, Foreign) else found in made.what


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (b"PAR1\x15\x04", "parquet"),
        (b"%%MatrixMarket matrix coordinate real general\n", "matrix-market"),
        (b"\xef\xbb\xbf%%MatrixMarket matrix", "matrix-market"),
        (b"1 2\n2 3\n", None),
        (b"graph bob\n", None),
        (b"", None),
        (b"PK\x03\x04abc", "zip"),
        (b"a.txt" + bytes(252) + b"ustar\x0000", "tar"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (b"\x93NUMPY\x01\x00", "NumPy"),
        (b'<?xml version="1.0"?>\n<graphml xmlns="x">', "GraphML"),
        (b"<?xml version='1.0'?><gexf>", "GEXF"),
        (b"graph [\n  node [", "GML"),
        (b'Creator "me"\ngraph [\n', "GML"),
        (b"*Vertices 3\n", "Pajek"),
        (b"c comment\np sp 4 5\na 1 2 3\n", "DIMACS"),
        (b"p edge 4 5\n", "DIMACS"),
        (b"digraph g {\n a -> b;", "DOT"),
        (b'{"nodes": [', "JSON"),
        (b"[[1, 2], [2, 3]]", "JSON"),
        (b"<html>", "XML"),
        (b"\x80\x04\x95", "pickle"),
        (b"MATLAB 5.0 MAT-file", "MATLAB"),
        (b"ARROW1\x00\x00", "Feather"),
        (b"SQLite format 3\x00", None),
    ],
)
def test_formats_by_first_bytes(head, found):
    made = find_format_by_bytes(head)
    assert made == found if not isinstance(made, Foreign) else found in made.what

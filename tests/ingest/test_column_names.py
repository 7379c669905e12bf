"""Rules for names of columns as tables: what is given, and what it is taken for or which argument the error names."""

from __future__ import annotations

import pytest

from mgspmv.ingest.column_names import ColumnChoice, choose_columns, choose_list_columns, find_role, resolve_columns
from mgspmv.ingest.tokens import Undecided


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
        (["source", "trips", "price", "target"], {"weights": "price"}, (0, 3, 2)),
        (["x", "a", "b"], {"weights": "x"}, (1, 2, 0)),
        (["Source", "Target", "Type", "Id", "Label", "Weight"], {}, (0, 1, 5)),
        (["zip_from", "zip_to"], {}, (0, 1, None)),
        (["to_user", "from_user"], {}, (1, 0, None)),
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
        (None, {"n_columns": 2}, (0, 1, None)),
        (None, {"n_columns": 3}, (0, 1, 2)),
    ],
)
def test_columns_are_chosen_by_name_or_by_place(names, options, columns):
    n_columns = options.pop("n_columns", len(names or ()))
    assert choose_columns(names, n_columns, **options) == ColumnChoice(*columns)


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["alone"], {}, "delimiter="),
        (["b", "source"], {}, "columns="),
        (["source", "b"], {}, "no name identifies the target"),
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
        (["b", "a"], {}, "suggest that the target is first"),
        (["y", "x", "weight"], {}, "suggest that the target is first"),
        (["node2", "node1"], {}, "suggest that the target is first"),
        (["ID_B", "ID_A"], {}, "suggest that the target is first"),
        (["1", "0"], {}, "suggest that the target is first"),
        (["callee", "caller"], {}, "suggest that the target is first"),
        (["Ziel", "Quelle", "Anzahl"], {}, "suggest that the target is first"),
        (["arrival_city", "departure_city"], {}, "suggest that the target is first"),
        (["a", "b"], {"weights": True}, "weights=False"),
        (["source", "target", "x", "y"], {"weights": True}, "columns="),
        (["source", "target", "price"], {"weights": "prise"}, "did you mean 'price'"),
        (["source", "target"], {"weights": "source"}, "found one column 'target'"),
        (None, {"n_columns": 4}, "columns="),
        (None, {"n_columns": 3, "weights": "price"}, "weights='price' is a name, but there is no header"),
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
    assert resolve_columns(["c", "a"], names, 3) == ColumnChoice(2, 0)
    assert resolve_columns([3, 1, 2], None, 3) == ColumnChoice(2, 0, 1)
    assert resolve_columns(["c", "a", "b"], names, 3, weights=False) == ColumnChoice(2, 0)


@pytest.mark.parametrize(
    ("given", "names", "message"),
    [
        (["a", "sourc"], ["a", "source"], "did you mean 'source'"),
        ([0, 1], None, "columns are numbered from 1 to 2"),
        ([1, 3], None, "columns are numbered from 1 to 2"),
        ([1, 1], None, "twice"),
        (["a", "b"], ["a", "a"], "counted from 1"),
    ],
)
def test_columns_that_are_not_there_are_an_error(given, names, message):
    with pytest.raises(Undecided, match=message):
        resolve_columns(given, names, 2)


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

"""Vectors over vertices at the command line: ids, files, and what this program wrote."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mgspmv as mg
from mgspmv.cli.ranking import parse_ids, read_vectors
from mgspmv.errors import OptionError, SourceError, SourceNotFoundError
from tests.support.commands import invoke, invoke_json

NAMES = ["#ai", "007", "7", "=", "New York", "Smith, J", "a=1", "alice", "bob", "http://example.org/", 'say "hi"']
CYCLE = nx.DiGraph([(name, NAMES[k - 1]) for k, name in enumerate(NAMES)] + [("alice", "bob"), ("7", "Smith, J")])

BOB = pa.table({"id": ["bob"]})
"""A file with the line `bob`."""


@pytest.fixture
def names(folder):
    with mg.ingest(CYCLE, "names.zarr", transpose=True) as A:
        assert A.vertex_ids.tolist() == NAMES
        yield A


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("alice", ["alice"]),
        ("alice,bob", ["alice", "bob"]),
        (" alice , New York", ["alice", "New York"]),
        ("alice=2,bob=1", {"alice": 2.0, "bob": 1.0}),
        ("alice = 2.5e-1", {"alice": 0.25}),
        ('"Smith, J"=2,alice=1', {"Smith, J": 2.0, "alice": 1.0}),
        ('"Smith, J","say ""hi"""', ["Smith, J", 'say "hi"']),
        ('say "hi"', ['say "hi"']),
        ("a=b", ["a=b"]),
        ("a=b=3", {"a=b": 3.0}),
        ('"a=1"', ["a=1"]),
        ('"a=1"=2', {"a=1": 2.0}),
        ("007,7", ["007", "7"]),
    ],
)
def test_ids_on_the_command_line(text, wanted):
    assert parse_ids("nstart", text, string_ids=True) == wanted


@pytest.mark.parametrize(("text", "wanted"), [("5,7", [5, 7]), ("5=2,-7=1", {5: 2.0, -7: 1.0}), (' "5" ', [5])])
def test_integer_ids_on_the_command_line(text, wanted):
    assert parse_ids("nstart", text, string_ids=False) == wanted


@pytest.mark.parametrize(
    ("text", "string_ids", "message"),
    [
        ("", True, "nstart has an empty id"),
        ("a,,b", True, "nstart has an empty id"),
        ("a,", True, "nstart has an empty id"),
        ("a,b,a", True, "nstart has the id 'a' more than once"),
        ("a=1,b,c=2", True, "nstart has numbers for some ids and none for 'b'"),
        ('"a"=x', True, "nstart has 'x' for the id 'a'; give it a number"),
        ("alice", False, "nstart has the id 'alice', which no vertex has; ids of this store are integers"),
        ("007", False, "nstart has the id '007', which no vertex has"),
    ],
)
def test_ids_that_are_not_well_written(text, string_ids, message):
    with pytest.raises(OptionError, match=message):
        parse_ids("nstart", text, string_ids=string_ids)


def test_a_file_comes_before_ids(names):
    Path("alice").write_text("bob\n")
    for text, wanted in {
        "alice": BOB,
        "file:alice": BOB,
        "id:alice": ["alice"],
        "bob": ["bob"],
        "http://example.org/": ["http://example.org/"],
        f"file://{Path('alice').resolve()}": BOB,
    }.items():
        assert read_vectors(names, personalization=text) == {"personalization": wanted}, text


def test_words_of_dangling_and_numbers_of_beta_come_first(names):
    Path("drop").write_text("bob\n")
    Path("7").write_text("bob\n")
    given = {"drop": "drop", "file:drop": BOB, "alice": ["alice"]}
    assert {text: read_vectors(names, dangling=text)["dangling"] for text in given} == given
    given = {"7": 7.0, "file:7": BOB, "id:7": ["7"], "alice=2": {"alice": 2.0}, "1e-3": 1e-3}
    assert {text: read_vectors(names, beta=text)["beta"] for text in given} == given
    assert read_vectors(names, nstart=None) == {}


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        ("personalization", "alic", SourceNotFoundError, "; near: 'alice'; and no file 'alic' exists$"),
        ("personalization", "alice,bbo", SourceNotFoundError, "the id 'bbo', which no vertex has; near: 'bob'"),
        ("personalization", "alice=1,bob", SourceNotFoundError, "none for 'bob'; .* and no file 'alice=1,bob' exists"),
        ("dangling", "unifrom", SourceNotFoundError, "no file 'unifrom' exists; expected uniform, drop, error, a "),
        ("nstart", "id:alic", OptionError, "^nstart has the id 'alic', which no vertex has; near: 'alice'$"),
        ("nstart", "file:alice", SourceError, "alice: there is no such file"),
    ],
)
def test_what_is_neither_a_file_nor_ids(names, name, text, error, message):
    with pytest.raises(error, match=message) as caught:
        read_vectors(names, **{name: text})
    assert isinstance(caught.value, error)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".zarr"])
def test_ranks_are_where_jumps_lead(names, suffix):
    invoke("pagerank", "names.zarr", "-o", f"r{suffix}")
    ranks = mg.pagerank(names)
    wanted = mg.pagerank(names, personalization=dict(ranks.top(len(NAMES)))).digest()
    assert invoke_json("pagerank", "names.zarr", "--personalization", f"r{suffix}")["digest"] == wanted
    wanted = mg.pagerank(names, dangling=ranks).digest()
    assert invoke_json("pagerank", "names.zarr", "--dangling", f"r{suffix}")["digest"] == wanted
    invoke("pagerank-batch", "names.zarr", "--dangling", f"r{suffix}", "-o", "b.zarr")
    assert mg.load_batch("b.zarr")[0].digest() == wanted


@pytest.mark.parametrize(
    ("text", "p"),
    [
        ("alice", {"alice": 1}),
        ('"Smith, J"=3,#ai=1', {"Smith, J": 3, "#ai": 1}),
        ("names.txt", {"New York": 1, "Smith, J": 1}),
        ("weights.tsv", {"New York": 3, "#ai": 1}),
        ("table.parquet", {"New York": 3, "#ai": 1}),
    ],
)
def test_jumps_lead_to_what_is_named(names, text, p):
    Path("names.txt").write_text("New York\nSmith, J\n")
    Path("weights.tsv").write_text("weight\tnode\n3\tNew York\n1\t#ai\n")
    pq.write_table(pa.table({"weight": [3, 1], "node": ["New York", "#ai"]}), "table.parquet")
    wanted = mg.pagerank(names, personalization=p).digest()
    assert invoke_json("pagerank", "names.zarr", "--personalization", text)["digest"] == wanted
    assert mg.katz(names, beta=p).digest() == invoke_json("katz", "names.zarr", "--beta", text)["digest"]


def test_seeds_keep_names_that_look_like_numbers(names):
    Path("seeds.csv").write_text('vector,vertex,weight\n01,007,1\n1,7,1\n1,"Smith, J",3\n')
    invoke("pagerank-batch", "names.zarr", "--personalization", "seeds.csv", "-o", "b.zarr")
    batch = mg.load_batch("b.zarr")
    assert list(batch.labels) == ["01", "1"]
    for label, p in {"01": {"007": 1}, "1": {"7": 1, "Smith, J": 3}}.items():
        assert batch[label].digest() == mg.pagerank(names, personalization=p).digest()

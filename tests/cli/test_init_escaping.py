"""Names of others on the way to a terminal or a pager: control characters are written out, files keep them."""

from __future__ import annotations

import csv
import io
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mgspmv.errors import escape_controls
from mgspmv.results import load_solution
from tests.support.commands import invoke, invoke_json

HOSTILE = "\x1b]0;pwned\x07\x1b[31mred\x9b2J\x7f\u202egpj.exe\u2028next\r\nlast\tone"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
SHOWN = r"\x1b]0;pwned\x07\x1b[31mred\x9b2J\x7f\u202egpj.exe\u2028next\r\nlast\tone"


def store_hostile(path: str = "h.zarr") -> None:
    edges = pa.table({"src": [HOSTILE, "b", "c"], "dst": ["b", HOSTILE, HOSTILE]})
    pq.write_table(edges, "h.parquet")
    invoke("ingest", "h.parquet", path)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ascii, café, 中文, 🙂\tand\nlines", "plain ascii, café, 中文, 🙂\tand\nlines"),
        ("\0\x1b\x7f\x80\x9f\xa0", "\\x00\\x1b\\x7f\\x80\\x9f\xa0"),
        ("a\rb\x0b\x0c\x85", r"a\rb\x0b\x0c\x85"),
        ("\u202a\u202e\u2066\u2069\u200e\u200f\u061c", r"\u202a\u202e\u2066\u2069\u200e\u200f\u061c"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("bytes of a path \udcff", r"bytes of a path \udcff"),
    ],
)
def test_control_characters_are_written_as_python_writes_them(text, shown):
    assert escape_controls(text) == shown


def test_tables_of_ranks_show_ids_and_files_keep_them():
    store_hostile()
    for command in (["pagerank", "h.zarr", "-o", "r.csv", "-o", "r.parquet"], ["top", "r.parquet"]):
        stdout, stderr = invoke(*command)
        assert SHOWN in stdout, command
        assert RAW.findall(stdout + stderr) == [], command
    with open("r.csv", newline="") as read:
        assert HOSTILE in [row[0] for row in csv.reader(read)]
    assert HOSTILE in list(load_solution("r.parquet").ids)
    assert HOSTILE in [
        row[0] for row in csv.reader(io.StringIO(invoke("pagerank", "h.zarr", "-o", "-")[0], newline=""))
    ]
    answer = invoke_json("top", "r.parquet")
    assert answer["top"][0]["id"] == HOSTILE
    assert RAW.findall(json.dumps(answer)) == []

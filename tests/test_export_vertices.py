"""Lists of vertices, as they are ingested."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from zarr.storage import MemoryStore

from mgspmv.errors import OptionError
from mgspmv.export import read_ids, write_vertices
from mgspmv.ingest.columns import TextColumn
from mgspmv.ingest.vertices import read_vertices
from mgspmv.store.read import open_store
from tests.support.arrays import write_store
from tests.support.stores import make_arrays


def make_store(ids, n=None):
    place = MemoryStore()
    n = len(ids) if n is None else n
    write_store(place, make_arrays(sp.csr_array((n, n)), "graph", ids=ids))
    return open_store(place)


def write(stored):
    file = io.BytesIO()
    write_vertices(stored, file)
    return file.getvalue().decode()


@pytest.mark.parametrize("chunk", [3, 1 << 20])
def test_ids_in_pieces(monkeypatch, chunk):
    for module in ("store.digests", "export"):
        monkeypatch.setattr(sys.modules[f"mgspmv.{module}"], "CHUNK_ELEMENTS", chunk)
    names = np.array(["-7", "2", "a", "b", "d'e", "x" * 100, "çé"], object)
    for ids in (names, np.arange(7) ** 3 - 5):
        stored = make_store(ids)
        pieces = [piece.to_pylist() for piece in read_ids(stored, 7)]
        assert [len(piece) for piece in pieces] == ([3, 3, 1] if chunk == 3 else [7])
        assert [one for piece in pieces for one in piece] == ids.tolist()
        assert write(stored) == "".join(f"{one}\n" for one in ids)
    assert write(make_store(None, 7)) == "0\n1\n2\n3\n4\n5\n6\n"


NAMES = [
    "#a",
    "%a",
    "a b",
    "a\tb",
    "a,b",
    '"a"',
    " ",
    " a",
    "a ",
    'say "hi"',
    "a;b",
    "a|b",
    "007",
    "1",
    "id",
    "label",
    "é",
]


@pytest.mark.parametrize(
    "names",
    [
        *([name] for name in NAMES),
        ["a", "z", *NAMES],
        ["Smith, J", "Doe, K"],
        ["label", "zeta"],
        ["1", "2", "alice"],
        ["alice", "1x"],
        ["!first", "1", "2"],
        ["New\tYork", "San\tJuan"],
    ],
)
def test_lists_are_read_back(tmp_path, names):
    ids = sorted(set(names))
    (tmp_path / "a.v").write_text(write(make_store(np.array(ids, object))))
    listed, _ = read_vertices(tmp_path / "a.v", TextColumn("vertex", "string"))
    assert listed.finish().vertex_ids[:].tolist() == ids


@pytest.mark.parametrize("name", ["", "a\nb", "a\rb", "a\vb", "a\x1fb"])
def test_ids_that_are_no_lines(name):
    with pytest.raises(OptionError, match=r"cannot be written on a line, .*; leave out vertices=") as raised:
        write(make_store(np.array(sorted(["a", name, "z"]), object)))
    assert f"the id {name!r} " in str(raised.value)

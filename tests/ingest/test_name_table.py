"""Names are coded as a dictionary would."""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgspmv.ingest.name_table import NameTable

batches_of_names = st.lists(st.lists(st.text(max_size=4), max_size=12), max_size=6)


@settings(deadline=None)
@given(batches_of_names, st.sampled_from([pa.string(), pa.large_string()]), st.integers(0, 5))
def test_codes_are_those_of_first_appearance(batches, dtype, first):
    table, known = NameTable(first), {}
    for names in batches:
        codes = table.encode(pa.array(names, dtype))
        assert codes.tolist() == [known.setdefault(name, first + len(known)) for name in names]
    assert table.names.to_pylist() == list(known)
    assert len(table) == len(known)
    strangers = ["no such name", *known, ""]
    assert table.find(pa.array(strangers, dtype)).tolist() == [known.get(name, -1) for name in strangers]


@pytest.mark.parametrize("piece", [7, 1 << 16])
def test_many_names(piece, monkeypatch):
    monkeypatch.setattr(sys.modules["mgspmv.ingest.name_table"], "PIECE_NAMES", piece)
    rng = np.random.default_rng(0)
    names = [f"vertex {k} {'é' * (k % 50)}" for k in rng.integers(0, 9000, 30_000).tolist()]
    table, known = NameTable(), {}
    for k in range(0, 30_000, 4000):
        codes = table.encode(pa.array(names[k : k + 4000]))
        assert codes.tolist() == [known.setdefault(name, len(known)) for name in names[k : k + 4000]]
    assert table.names.to_pylist() == list(known)
    assert table.nbytes < 3 * sum(len(name.encode()) for name in known) + 200 * len(known)


def test_slices_and_chunks():
    table, names = NameTable(), pa.array(["a", "b", "c", "b", "d"])
    assert table.encode(names.slice(1, 3)).tolist() == [0, 1, 0]
    assert table.encode(pa.chunked_array([names.slice(3), names.slice(0, 1)])).tolist() == [0, 2, 3]
    assert table.encode(pa.chunked_array([], pa.string())).tolist() == []
    assert table.names.to_pylist() == ["b", "c", "d", "a"]

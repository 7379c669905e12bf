"""Each name has one code, whatever the batches and the threads."""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.ingest.name_table import NameTable

batches_of_names = st.lists(st.lists(st.text(max_size=4), max_size=12), max_size=6)


def check(table, batches, codes, first=0):
    """All names have their code in the table, and codes are first, first + 1, ..."""
    names, own = table.take_all()
    known = dict(zip(names.to_pylist(), own.tolist(), strict=True))
    assert len(known) == len(table) == len(names)
    assert sorted(known.values()) == list(range(first, first + len(known)))
    assert [own.tolist() for own in codes] == [[known[name] for name in batch] for batch in batches]
    assert set(known) == {name for batch in batches for name in batch}
    return known


@given(batches_of_names, st.sampled_from([pa.string(), pa.large_string()]), st.integers(0, 5))
def test_each_name_has_one_code(batches, dtype, first):
    table = NameTable(first)
    codes = [table.encode(pa.array(names, dtype)) for names in batches]
    known = check(table, batches, codes, first)
    strangers = ["no such name", *known, ""]
    assert table.find(pa.array(strangers, dtype)).tolist() == [known.get(name, -1) for name in strangers]


def test_names_that_differ_in_one_byte():
    """Wherever that is, in the text and in the name; and names that zeros only tell apart."""
    for length in (0, 1, 7, 8, 9, 15, 16, 17, 40):
        base = "x" * length
        names = [base, base + "\0", base + "\0\0", *(base[:k] + "y" + base[k + 1 :] for k in range(length))]
        table = NameTable()
        codes = [table.encode(pa.array(["?" * k, *names]))[1:] for k in range(9)]
        assert all(own.tolist() == codes[0].tolist() for own in codes), length
        assert len(set(codes[0].tolist())) == len(names), length
        assert set(table.take_all()[0].to_pylist()) >= set(names), length


def test_hashes_that_are_the_same(monkeypatch):
    """Names are told apart by their bytes."""
    module = sys.modules["mgspmv.ingest.name_table"]
    table, names = NameTable(), [f"name {k}" for k in range(300)] * 2
    dealt = module._Dealt(pa.array(names))
    monkeypatch.setattr(dealt, "_keys", dealt._keys >> np.uint64(32) << np.uint64(32))
    codes = np.empty(len(names), np.int64)
    for k, shard in enumerate(table._shards):
        shard.encode(dealt.find_own(k), table._count, codes)
    check(table, [names], [codes])

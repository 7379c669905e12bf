"""Each name has one code, whatever the batches: how many names came before it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.ingest.name_table import NameTable, _hash

batches_of_names = st.lists(st.lists(st.text(max_size=4), max_size=12), max_size=6)


@given(batches_of_names, st.sampled_from([pa.string(), pa.large_string()]))
def test_each_name_has_one_code(batches, dtype):
    table = NameTable()
    codes = [table.encode(pa.array(["?", *names], dtype)[1:]).tolist() for names in batches]
    names = list(dict.fromkeys(name for batch in batches for name in batch))
    assert table.names.to_pylist() == names
    assert len(table) == len(names)
    assert codes == [[names.index(name) for name in batch] for batch in batches]


def test_names_that_differ_in_one_byte():
    """Wherever that is; and names that zeros only tell apart."""
    for length in (0, 1, 3, 4, 5, 7, 8, 9, 40):
        base = "x" * length
        names = [base, base + "\0", base + "\0\0", *(base[:k] + "y" + base[k + 1 :] for k in range(length))]
        table = NameTable()
        assert table.encode(pa.array(names)).tolist() == list(range(len(names))), length
        assert table.encode(pa.array(names)).tolist() == list(range(len(names))), length


def test_hashes_that_are_the_same():
    """Names are told apart by their bytes."""
    names = [f"{k:06}" for k in range(300_000)]
    text = np.frombuffer("".join(names).encode(), np.uint8)
    hashes = [int(_hash(text, at, at + 6)) % (1 << 32) for at in range(0, len(text), 6)]
    assert len(set(hashes)) < len(names)
    table = NameTable()
    for _ in range(2):
        assert np.array_equal(table.encode(pa.array(names)), np.arange(len(names)))

"""Ids in files are found, merged and numbered as by NumPy in memory."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.errors import StoreError
from mgspmv.ingest.ids import IdWriter, UnionWriter, find_ids
from mgspmv.ingest.scratch import ScratchFile

ids_module = sys.modules["mgspmv.ingest.ids"]
LEAST, GREATEST = -(1 << 63), (1 << 63) - 1
any_ids = st.lists(st.one_of(st.integers(-5, 40), st.integers(LEAST, GREATEST), st.sampled_from([LEAST, GREATEST])))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Pages and pieces of which a few ids make many."""
    monkeypatch.setattr(ids_module, "PAGE_IDS", 4)
    monkeypatch.setattr(ids_module, "PIECE_IDS", 3)


def write(ids, cuts=()):
    """Sorted ids in a file, written in parts."""
    writer = IdWriter(None)
    for part in np.split(np.array(ids, np.int64), cuts):
        writer.append(part)
    return writer.finish()


@given(any_ids, st.data())
def test_what_is_read(ids, data):
    ids = sorted(set(ids))
    stored = write(ids, sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=3))))
    assert len(stored) == len(ids)
    assert stored[:].tolist() == ids
    assert stored[2:5].tolist() == ids[2:5]
    assert [stored[k] for k in range(len(ids))] == ids
    low, high = sorted(data.draw(st.tuples(*[st.one_of(st.integers(LEAST, GREATEST), st.sampled_from([*ids, 3]))] * 2)))
    assert stored.find(low) == sum(i < low for i in ids)
    start, own = stored.read_range(low, high)
    assert (start, own.tolist()) == (sum(i < low for i in ids), [i for i in ids if low <= i <= high])
    assert (stored.find(LEAST - 1), stored.find(GREATEST + 1)) == (0, len(ids))
    stored.close()


def test_an_id_that_ends_a_part_and_begins_the_next_is_there_once():
    assert write([3, 5, 5, 5, 9], [2, 3])[:].tolist() == [3, 5, 9]


@given(any_ids, any_ids, st.data())
def test_union(known, others, data):
    known, others = sorted(set(known)), sorted(set(others))
    wanted = sorted({*known, *others})
    stored = write(known)
    union = UnionWriter(stored, None)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(others)), max_size=3)))
    parts = np.split(np.array(others, np.int64), cuts)
    overlapping = [np.concatenate([a[-1:], b]) for a, b in zip([parts[0][:0], *parts], parts, strict=False)]
    for part in overlapping:
        assert union.add(part).tolist() == [wanted.index(i) for i in part.tolist()]
    merged = union.finish()
    assert merged[:].tolist() == wanted
    stored.close()
    merged.close()


@given(any_ids.filter(bool), st.data())
def test_ids_are_found_among_others(known, data):
    known = sorted(set(known))
    ids = data.draw(st.lists(st.sampled_from(known)))
    assert find_ids(np.array(ids, np.int64), np.array(known)).tolist() == [known.index(i) for i in ids]


def test_many_ids_that_are_close_and_far():
    rng = np.random.default_rng(0)
    known = np.unique(np.concatenate([rng.integers(LEAST, GREATEST, 500), np.arange(3000), [LEAST, GREATEST]]))
    ids = rng.choice(known, 10_000)
    assert (known[find_ids(ids, known)] == ids).all()
    assert find_ids(ids[:0], known).tolist() == []


def test_a_file_that_is_cut_short_is_an_error():
    file = ScratchFile(None)
    file.append(np.arange(10))
    with pytest.raises(StoreError, match="was cut short meanwhile"):
        file.read(40, 6, np.dtype(np.int64))
    file.close()
    assert file.closed

"""Rows that a worker takes from its memory, beside those that it reads."""

from __future__ import annotations

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.distribute.part import Part, PartSpec

N = 60


@pytest.fixture(scope="module", params=["graph", "matrix"])
def stored(request, tmp_path_factory):
    rng = np.random.default_rng(3)
    rows, cols = rng.integers(0, N, (2, 200))
    store = tmp_path_factory.mktemp("held") / "store.zarr"
    mg.ingest((rows, cols, rng.random(200)), store, kind=request.param, n_vertices=N, duplicates="sum")
    with mg.open_matrix(store) as A:
        yield A.stored


def make_part(stored, bounds, rank, before=None, dtype="float64"):
    nnz = int(np.diff(stored.read_array("indptr")[list(bounds[rank : rank + 2])])[0])
    return Part(PartSpec(stored.address(), rank, bounds, nnz, dtype, 1, "cpu"), before)


def check_same(made, wanted):
    x = np.random.default_rng(4).random(N)
    assert made.multiply(x, None, 1.0, 0.0, dtype="float64").tobytes() == (
        wanted.multiply(x, None, 1.0, 0.0, dtype="float64").tobytes()
    )
    assert made.nbytes == wanted.nbytes
    if wanted.halo is not None:
        assert made.halo.starts == wanted.halo.starts


def check_parts_are_what_they_would_be(before, after, stored):
    held, wanted = make_part(stored, *before), make_part(stored, *after)
    reads, read_block = [], type(stored).read_block

    def read(self, start, stop, *args):
        reads.append((start, stop))
        return read_block(self, start, stop, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(stored), "read_block", read)
        made = make_part(stored, *after, held)
    check_same(made, wanted)
    there, needed = range(held.start, held.stop), range(wanted.start, wanted.stop)
    assert [row for start, stop in reads for row in range(start, stop)] == [r for r in needed if r not in there]


def test_parts_are_what_they_would_be(stored):
    for before, after in [
        (((0, 20, 40, N), 0), ((0, 30, N), 0)),
        (((0, 20, 40, N), 1), ((0, 30, N), 0)),
        (((0, 20, 40, N), 1), ((0, 30, N), 1)),
        (((0, 30, N), 1), ((0, 20, 40, N), 1)),
        (((0, 30, N), 0), ((0, 20, 40, N), 2)),
        (((0, N), 0), ((0, 20, 40, N), 1)),
        (((0, 20, N), 1), ((0, N), 0)),
        (((0, 20, N), 0), ((0, 0, N), 0)),
    ]:
        check_parts_are_what_they_would_be(before, after, stored)


def test_values_of_another_dtype_are_read(stored):
    held, wanted = make_part(stored, (0, 30, N), 0, dtype="float32"), make_part(stored, (0, 40, N), 0)
    check_same(make_part(stored, (0, 40, N), 0, held), wanted)


def test_what_was_held_can_go(stored):
    held = make_part(stored, (0, 40, N), 0)
    made = make_part(stored, (0, 20, N), 0, held)
    for one, other in zip(made.held_rows.values.values(), held.held_rows.values.values(), strict=True):
        assert not np.shares_memory(one, other)
    assert not np.shares_memory(made.held_rows.pattern.indices, held.held_rows.pattern.indices)

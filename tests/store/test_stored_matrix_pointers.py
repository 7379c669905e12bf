"""Row pointers that are read as they are needed."""

from __future__ import annotations

import numpy as np

from mgspmv.store import digests, stored_matrix
from mgspmv.store.stored_matrix import StoredPointers


class Recorded:
    """Matrix that notes the ranges that are read."""

    def __init__(self, indptr):
        self.indptr, self.read, self.info = indptr, [], self
        self.shape = (len(indptr) - 1, 1)
        self.ends = {0: 0, len(indptr) - 1: int(indptr[-1])}

    def read_array(self, name, start, stop):
        assert name == "indptr"
        self.read.append((start, stop))
        return self.indptr[start:stop]


def test_only_chunks_with_needed_elements_are_read_once(monkeypatch):
    monkeypatch.setattr(stored_matrix, "CHUNK_ELEMENTS", 4)
    stored = Recorded(np.arange(0, 100, 10))
    found = StoredPointers(stored)
    assert len(found) == 10
    assert [found[row] for row in (8, np.int64(5), 4)] == [80, 50, 40]
    assert stored.read == [(8, 10), (4, 8)]
    assert [found[row] for row in (0, np.int64(9))] == [0, 90], "without reading"
    assert stored.read == [(8, 10), (4, 8)]
    assert stored_matrix.CHUNK_ELEMENTS != digests.CHUNK_ELEMENTS

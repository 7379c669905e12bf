"""Row pointers of a stored matrix for plans, which look at few of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgspmv.store.digests import CHUNK_ELEMENTS
from mgspmv.store.stored_matrix import StoredMatrix


class StoredPointers:
    """(n_rows + 1,) row pointers, of which a chunk is read when one of its elements is first needed, and kept; `ends`
    are not read.

    Raises
    ------
    StoreError : as for `StoredMatrix.read_array`, from each element
    """

    def __init__(self, stored: StoredMatrix) -> None:
        self._stored, self._held = stored, dict[int, np.ndarray]()

    def __len__(self) -> int:
        return self._stored.info.shape[0] + 1

    def __getitem__(self, row: Any) -> int:
        if (known := self._stored.ends.get(int(row))) is not None:
            return known
        number, place = divmod(int(row), CHUNK_ELEMENTS)
        if number not in self._held:
            first = number * CHUNK_ELEMENTS
            self._held[number] = self._stored.read_array("indptr", first, min(first + CHUNK_ELEMENTS, len(self)))
        return int(self._held[number][place])

"""The hard matrices that every product and every rank is tested on, as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Hard:
    """Entries in the order that a source would give them."""

    shape: tuple[int, int]
    """Rows and columns."""
    entries: tuple[tuple[int, int, float], ...]
    """(row, column, value); the same place may come again."""

    @property
    def rows(self) -> list[int]:
        return [row for row, _, _ in self.entries]

    @property
    def cols(self) -> list[int]:
        return [col for _, col, _ in self.entries]

    @property
    def values(self) -> list[float]:
        return [value for _, _, value in self.entries]

    @property
    def is_graph(self) -> bool:
        """Whether PageRank takes it: square, with vertices, weights not negative."""
        return self.shape[0] == self.shape[1] > 0 and min(self.values, default=0) >= 0


HARD = {
    "1 x 1": Hard((1, 1), ((0, 0, 0.7),)),
    "1 x 1 empty": Hard((1, 1), ()),
    "0 nonzeros": Hard((4, 4), ()),
    "0 nonzeros, wide": Hard((2, 5), ()),
    "no rows": Hard((0, 3), ()),
    "no columns": Hard((3, 0), ()),
    "0 x 0": Hard((0, 0), ()),
    "one row": Hard((1, 6), ((0, 1, 0.1), (0, 2, 2.5), (0, 5, 1 / 3))),
    "one column": Hard((6, 1), ((1, 0, 0.1), (2, 0, 2.5), (5, 0, 1 / 3))),
    "wide": Hard((3, 7), ((0, 6, 1.5), (1, 0, 0.2), (1, 3, 0.3), (2, 2, 4.0), (2, 6, 1e-3))),
    "tall": Hard((7, 3), ((0, 2, 1.5), (2, 0, 0.2), (2, 1, 0.3), (5, 2, 4.0), (6, 0, 1e-3))),
    "empty rows": Hard(
        (6, 6), ((1, 0, 0.3), (1, 2, 1.1), (1, 5, 0.7), (3, 3, 2.0), (3, 4, 0.1), (4, 0, 5.0), (4, 1, 0.9))
    ),
    "empty columns": Hard(
        (6, 6), ((0, 1, 0.3), (2, 1, 1.1), (5, 1, 0.7), (3, 3, 2.0), (4, 3, 0.1), (0, 4, 5.0), (1, 4, 0.9))
    ),
    "one dense row": Hard(
        (40, 40), (*((0, j, 1 / (j + 1)) for j in range(40)), *((i, i - 1, 0.5) for i in range(1, 40, 3)))
    ),
    "one dense column": Hard(
        (40, 40), (*((i, 0, 1 / (i + 1)) for i in range(40)), *((i - 1, i, 0.5) for i in range(1, 40, 3)))
    ),
    "dense": Hard((5, 5), tuple((i, j, (1 + i + 5 * j) / 7) for i in range(5) for j in range(5))),
    "duplicates": Hard(
        (4, 4), ((0, 1, 0.1), (0, 1, 0.2), (0, 1, 0.3), (1, 2, 1.0), (2, 0, 0.7), (2, 0, 0.7), (2, 3, 0.4), (3, 0, 1.0))
    ),
    "duplicates apart": Hard(
        (4, 4), ((2, 3, 0.3), (0, 1, 0.1), (3, 0, 2.0), (0, 1, 0.2), (1, 2, 1.0), (2, 3, 0.6), (0, 1, 0.4))
    ),
    "unsorted": Hard(
        (5, 5), ((4, 4, 0.4), (0, 3, 0.3), (4, 0, 1.4), (0, 1, 0.1), (2, 4, 2.4), (2, 2, 2.2), (2, 0, 0.2), (1, 0, 1.0))
    ),
    "self loops": Hard(
        (5, 5), ((0, 0, 0.5), (0, 1, 0.5), (1, 1, 3.0), (2, 2, 1.0), (2, 3, 0.1), (3, 0, 1.0), (4, 2, 0.2), (4, 4, 0.8))
    ),
    "only self loops": Hard((3, 3), ((0, 0, 0.5), (1, 1, 1.5), (2, 2, 2.5))),
    "star": Hard((9, 9), (*((i, 0, 1.0) for i in range(1, 9)), *((0, i, 0.1 * i) for i in range(1, 9)))),
    "ring": Hard((7, 7), tuple((i, (i + 1) % 7, 0.3) for i in range(7))),
    "weights of 0": Hard((4, 4), ((0, 1, 0.0), (0, 2, 0.0), (1, 2, 0.5), (1, 3, 0.0), (2, 0, 1.0), (3, 0, 0.0))),
    "mixed signs": Hard((3, 4), ((0, 0, 1e8), (0, 1, -1e8), (0, 3, 1.0), (1, 1, -0.3), (2, 0, 0.1), (2, 2, -1e-12))),
}
"""By what is hard about them."""

GRAPHS = {name: hard for name, hard in HARD.items() if hard.is_graph}
"""Those that have ranks; entry (i, j) is the arc i -> j."""


@contextmanager
def naming(*case: object) -> Iterator[None]:
    """Tell of which matrix of a loop, or of which other case, a failure is."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {', '.join(map(str, case))}")
        raise

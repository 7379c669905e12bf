"""Whether a product is right: beside SciPy on the host, in float64, with a bound for rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.machines import Machine
from benchmarks.matrices import take_rows
from mgspmv.ingest.generate import derive_keys, random_words, scale_words
from mgspmv.model import CsrBlock

N_SAMPLED = 1 << 18
"""Random rows that are checked of a matrix with more; those that are drawn twice count once."""
N_EXTREME = 64
"""How many of the first, the last and the longest rows are checked besides."""


@dataclass(frozen=True)
class Verdict:
    """What a check says of a product."""

    problem: str | None
    """None when it is right."""
    error: float
    """Largest |y - A x| / (|A| |x|) of a row that was checked; may be NaN where y is wrong."""


@dataclass(frozen=True)
class Reference:
    """What some rows of y = A x must be; of k vectors, each array but `rows` has k columns."""

    rows: Any
    """Their numbers, where y is; None for all."""
    sums: np.ndarray
    """A x of these rows, by SciPy in float64."""
    magnitudes: np.ndarray
    """|A| |x| of these rows, likewise."""
    permitted: np.ndarray
    """How far y may be from the sums, for each row.

    A sum of k products in a dtype of unit roundoff u is off by at most k u / (1 - k u) of the sum of their magnitudes,
    in whatever order it is made (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1); k eps = 2 k u is
    more for k u < 1/2, and for float64 covers the reference's own error too.
    """


def make_reference(machine: Machine, block: CsrBlock, x: Any) -> Reference:
    """Compute rows of A x on the host: all, or a sample where there are many."""
    import scipy.sparse

    rows = _choose_rows(machine.xp, block)
    part = block if rows is None else take_rows(machine.xp, block, rows)
    indptr, indices = machine.get(part.indptr), machine.get(part.indices)
    data = np.ones(part.nnz) if part.data is None else machine.get(part.data).astype(np.float64)
    factor = machine.get(x).astype(np.float64)
    shape = (part.n_rows, part.n_cols)
    # Not abs(matrix), which adds up what comes again, in the block's own arrays.
    sums, magnitudes = (
        scipy.sparse.csr_array((values, indices, indptr), shape=shape) @ vector
        for values, vector in ((data, factor), (abs(data), abs(factor)))
    )
    lengths = np.diff(indptr).reshape(-1, *(1,) * (x.ndim - 1))
    permitted = lengths * np.finfo(x.dtype.name).eps * magnitudes
    return Reference(rows, sums, magnitudes, permitted)


def check_product(machine: Machine, y: Any, reference: Reference) -> Verdict:
    """Check y, which was NaN everywhere before the product was made."""
    n_left = int(machine.xp.isnan(y.reshape(len(y), -1)).any(axis=1).sum())
    if n_left:
        return Verdict(f"{n_left:,} of {len(y):,} rows are NaN or were left out", np.nan)
    values = machine.get(y if reference.rows is None else y[reference.rows]).astype(np.float64)
    error = abs(values - reference.sums)
    worst = float(np.max(error / np.where(reference.magnitudes > 0, reference.magnitudes, 1), initial=0))
    is_wrong = ~(error <= reference.permitted)
    if not is_wrong.any():
        return Verdict(None, worst)
    place = np.unravel_index(int(is_wrong.argmax()), is_wrong.shape)
    row = int(place[0]) if reference.rows is None else int(reference.rows[place[0]])
    n_wrong = int(is_wrong.reshape(len(is_wrong), -1).any(axis=1).sum())
    return Verdict(
        f"{n_wrong:,} of {len(values):,} rows checked are wrong: row {row} is {values[place]:.9g} and must be "
        f"{reference.sums[place]:.9g}, to within {reference.permitted[place]:.2g}",
        worst,
    )


def _choose_rows(xp: Any, block: CsrBlock) -> Any:
    """Random rows, the first, the last and the longest; None for all when these are not more than are drawn."""
    n = block.n_rows
    if n <= N_SAMPLED:
        return None
    drawn = scale_words(random_words(derive_keys(2)[0], xp.arange(N_SAMPLED, dtype=np.uint64)), n)
    longest = xp.argsort(xp.diff(block.indptr))[-N_EXTREME:]
    ends = xp.arange(N_EXTREME)
    return xp.unique(xp.concatenate([drawn, longest, ends, n - 1 - ends]))

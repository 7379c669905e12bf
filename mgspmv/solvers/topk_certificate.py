"""Proof of the set of the k highest vertices while ranks still change.

Let x' = alpha P x + alpha m(x) d + (1 - alpha) p be a step, K = (I - alpha P)^-1, which is nonnegative, and
r = x_T - x_(T-1), r' = x_(T-1) - x_(T-2) the last two changes. Where d = p, K maps a multiple of p to a multiple of the
solution x*, which does not change the order of vertices, and for some s > 0 and any b

    s x* = y + alpha P K q;    y = x_T + b r,    q = r - b (r' - r).

b = 0 takes x_T unchanged, b = -alpha / (1 + alpha) removes alternating parts, as in graphs with periodic parts. Let
w = alpha P v for any v, and h = v - w. If q <= c h + e with e >= 0 for all non-dangling vertices (dangling ones only
pass rank on to d), then

    alpha P K q <= c w + alpha / (1 - alpha) |e|_1

for each vertex, and likewise from below for -q. So the remaining change of ranks is about proportional to v, where v
approximates the ranks for a greater alpha: sums of past x with growing weights, for which alpha P v takes no product,
as a step was made from each of these x. Where d differs from p, P includes the dangling term: s = 1, and no vertex is
left out.

Each look chooses c from a histogram of q / h, and accounts for the rounding of the steps. All sums are of integers, so
the result for the same x is bit-identical on any number of workers.

Differs from rank-stability criteria in the literature, which watch whether the order changes, in that it is a proof.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mgspmv.kernels.cpu import N_BINS, UNIT, add_mean, bin_bounds, count_bins, find_highest
from mgspmv.kernels.highest import find_ties
from mgspmv.model import Stability
from mgspmv.solvers.options import PageRankOptions
from mgspmv.solvers.run import Rounding
from mgspmv.store.digests import run_parts

FIRST_LOOK = 4
"""Iterations before the first look."""
LOOK_SHARE = 6
"""Divisor of the iteration that gives the iterations (at least 1) until ranks are added up again."""

Gather = Callable[[Any], list[Any]]
"""Collective call that takes a value, and returns those of all callers in a fixed order."""

FASTEST = 0.25
"""Least factor, as a share of alpha, that bounds are predicted to shrink by in an iteration."""
WAIT_SHARE = 4
"""Divisor of the iteration that gives the most iterations to the next look, as ranks that are close may separate."""
PATIENCE = 0.7
"""Share of the predicted remaining iterations before the next look."""

_PIECE = 1 << 16
"""Rows per task of a thread."""
_SLACK = 1.001
"""Factor for column sums that differ slightly from 1, and for rounding in the computation of bounds."""


def plan_looks(max_iter: int) -> list[int]:
    """Plan the iterations after which to look, ascending; the last possible iteration is one of them."""
    looks, iteration = [], min(2, max_iter)
    while iteration < max_iter:
        looks.append(iteration)
        iteration += max(1, iteration // LOOK_SHARE)
    return [*looks, max_iter]


class _Owned(NamedTuple):
    """Properties of the rows of one owner."""

    to_p: bool
    """Whether d is p."""
    drops: bool
    """Whether the rank of dangling vertices is dropped."""
    rounding: Rounding


class _Counts(NamedTuple):
    """Counts of the rows of one owner at a look."""

    sums: np.ndarray
    """Histograms, as from `TopkCertificate._count`."""
    negative: int
    top: np.ndarray
    """x, r and w of the highest ranks, as from `TopkCertificate._list_top`."""


class _Kept(NamedTuple):
    iteration: int
    x: np.ndarray
    mass: float


class _Choice(NamedTuple):
    """Bounds of the vertices at a look: y - below w - loss and y + above w + excess."""

    lean: float
    """Coefficient b."""
    below: float
    above: float
    loss: float
    excess: float
    own: float
    """Factor of x + |r| that bounds the rounding error of y."""


class TopkCertificate:
    """Watch over the ranks of some rows, together with the owners of the others, until the k highest are proven.

    Parameters
    ----------
    options : of the run, with `stop="topk:..."`
    is_dangling : (n_rows,) bool
    dangling, personalization : of the rows, as in `RankVectors`
    rounding : of the steps of these rows
    gather : collective call of all owners of rows, each with its part; None where these are all rows
    growth : factor by which a step without jumps may grow the L1 norm of a vector, in addition to alpha

    Attributes
    ----------
    found : proven stability; None before that
    elapsed_s : seconds of all looks so far
    """

    def __init__(
        self,
        options: PageRankOptions,
        is_dangling: np.ndarray,
        dangling: np.ndarray,
        personalization: np.ndarray,
        rounding: Rounding,
        gather: Gather | None = None,
        growth: float = 1.0,
    ) -> None:
        assert options.top is not None
        self._k, self._alpha, self._precision = options.top, options.alpha, options.precision
        self._dangling, self._personalization, self._is_left_out = dangling, personalization, is_dangling
        self._rounding = rounding
        self._gather: Gather = gather or (lambda given: [given])
        self._shrink = options.alpha * growth
        looks = plan_looks(options.max_iter)
        self._next = dict(zip([1, *looks], [*looks, looks[-1]], strict=True))
        self._needed = {0, 1} | {look - back for look in looks for back in range(3)}
        self._kept: list[_Kept] = []
        self._v = self._w = np.empty(0)
        self._mass, self._drift = 0.0, 2.0
        self._due, self._looked = FIRST_LOOK, (0, np.inf)
        self._least = -np.inf
        self.found: Stability | None = None
        self.elapsed_s = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes of the stored vectors."""
        return sum(int(v.nbytes) for v in (self._v, self._w, *(kept.x for kept in self._kept)))

    def start(self) -> None:
        """Exchange rounding and jump vectors with the other owners, before the first iteration."""
        d, p = self._dangling, self._personalization
        answers: list[_Owned] = self._gather(_Owned(np.array_equal(d, p), not d.any(), self._rounding))
        rounding = sum((a.rounding for a in answers[1:]), answers[0].rounding)
        self._relative, self._lost = rounding.find_relative(self._precision), rounding.find_mass(self._precision)
        self._is_free = all(a.to_p for a in answers) or all(a.drops for a in answers) or rounding.n_dangling == 0
        if not self._is_free:
            self._is_left_out = np.zeros(1, np.bool_)
        self._amplitude = _SLACK / (1.0 - self._shrink) if self._shrink < 1.0 else np.inf

    def wants(self, iteration: int) -> bool:
        """Return whether `see` is to be called after this iteration."""
        return iteration in self._needed

    def count_steps(self, iteration: int) -> int:
        """Count iterations from this one to the next one to `see`; a large number if there is none."""
        return min((i - iteration for i in self._needed if i > iteration), default=1 << 30)

    def see(self, iteration: int, x: np.ndarray, mass: float) -> None:
        """Store the ranks after an iteration, and try to prove the k highest when a look is due.

        Parameters
        ----------
        x : (n_rows,) ranks, not to be written to any more
        mass : their sum over all dangling vertices
        """
        began = time.perf_counter()
        self._kept = [*self._kept[-2:], _Kept(iteration, x, mass)]
        if iteration == 1:
            self._begin()
        elif iteration in self._next and iteration >= self._due and self._shrink < 1.0:
            self._add(1.0, 1.0)
            self.found = self._look(iteration)
            self._add(self._share(iteration), -1.0)
        elif iteration in self._next:
            share = self._share(iteration)
            self._add(share, share - 1.0)
        self.elapsed_s += time.perf_counter() - began

    # --- v, and alpha times a step of it without jumps

    def _begin(self) -> None:
        """Initialize v and w from the first x and its step."""
        (_, x, mass), (_, after, _) = self._kept
        share = self._share(1)
        self._v = (share - 1.0) * x.astype(np.float64)
        self._w = (share - 1.0) * after.astype(np.float64)
        self._w -= share * (1.0 - self._alpha) * self._personalization
        self._mass = (share - 1.0) * mass

    def _share(self, iteration: int) -> float:
        """Return the weight of the sums up to a look at the next look."""
        greater = (2.0 + self._alpha) / 3.0
        return float((self._alpha / greater) ** (self._next[iteration] - iteration))

    def _add(self, share: float, factor: float) -> None:
        """Weight the past sums, and add the mean of the last two x that damps alternation, and its step."""
        x2, x1, x = self._kept
        lag = self._alpha / (1.0 + self._alpha)

        def add(start: int) -> None:
            part = slice(start, start + _PIECE)
            add_mean(x.x[part], x1.x[part], x2.x[part], self._v[part], self._w[part], lag, share, factor)

        _map(add, len(x.x))
        self._mass = share * self._mass + factor * ((1.0 - lag) * x1.mass + lag * x2.mass)
        self._drift = share * self._drift + 2.0 * abs(factor)

    # --- a look

    def _look(self, iteration: int) -> Stability | None:
        v, w = self._v, self._w
        if self._is_free:
            w = w - (self._alpha * self._mass) * self._dangling
        answers: list[_Counts] = self._gather(_Counts(*self._count(v, w), self._list_top(w)))
        total, below_zero = np.sum([a.sums for a in answers], axis=0), sum(a.negative for a in answers)
        top = np.concatenate([a.top for a in answers])
        top = top[np.argsort(-top[:, 0], kind="stable")[: self._k + 1]]
        choice, lack = self._choose(total, below_zero, top)
        self._postpone(iteration, lack)
        return None if choice is None else self._prove(choice, w, top)

    def _postpone(self, iteration: int, lack: float) -> None:
        """Choose the iteration of the next look.

        Parameters
        ----------
        lack : factor by which bounds must shrink to separate places k and k + 1
        """
        before, lacked = self._looked
        self._looked = iteration, lack
        wait = longest = max(1, iteration // WAIT_SHARE)
        if 0.0 < lack < np.inf:
            rate = FASTEST * self._alpha
            if lacked < np.inf:
                rate = min(max((lack / lacked) ** (1 / (iteration - before)), rate), self._alpha)
            wait = int(PATIENCE * np.log(max(lack, 1.0)) / -np.log(rate))
        self._due = iteration + min(max(1, wait), longest)

    @property
    def _leans(self) -> tuple[float, float]:
        return 0.0, -self._alpha / (1.0 + self._alpha)

    def _own(self, lean: float) -> float:
        """Return the factor of the rounding of a step in y and in q."""
        return 1.0 + 4.0 * abs(lean)

    def _count(self, v: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, int]:
        """Compute histograms of q / h: for each lean, from above and below, in each bin the sums of |q| and of h."""
        (_, x2, _), (_, x1, _), (_, x, _) = self._kept
        leans = np.array(self._leans)
        relative = np.array([self._own(lean) * self._relative for lean in leans])

        def count(start: int) -> tuple[np.ndarray, int]:
            part = slice(start, start + _PIECE)
            left_out = self._is_left_out[part] if len(self._is_left_out) > 1 else self._is_left_out
            sums = np.zeros((len(leans), 2, N_BINS + 1, 2), np.int64)
            negative = count_bins(x[part], x1[part], x2[part], v[part], w[part], left_out, leans, relative, sums)
            return sums, int(negative)

        parts = _map(count, len(x))
        return sum(sums for sums, _ in parts), sum(negative for _, negative in parts)

    def _list_top(self, w: np.ndarray) -> np.ndarray:
        """Return x, r and w of the highest ranks here, (k + 1, 3) or fewer rows, unordered."""
        (_, x1, _), (_, x, _) = self._kept[1:]
        where = np.flatnonzero(x >= self._least)
        if len(where) <= self._k:
            where = np.arange(len(x))
        if len(where) > self._k:
            where = where[np.argpartition(x[where], len(where) - self._k - 1)[len(where) - self._k - 1 :]]
            self._least = 0.9 * float(x[where].min())
        high = x[where].astype(np.float64)
        return np.stack([high, high - x1[where], w[where]], axis=1)

    def _choose(self, sums: np.ndarray, negative: int, top: np.ndarray) -> tuple[_Choice | None, float]:
        """Choose the best bounds at places k and k + 1, None where they do not separate these two; also return the
        factor by which bounds would have to shrink."""
        (x, r, w), (x_next, r_next, w_next) = top[-2], top[-1]
        if x == x_next:
            return None, np.inf
        best, chosen, lack = 0.0, None, np.inf
        for number, lean in enumerate(self._leans):
            own = self._own(lean)
            fixed = own * self._lost * self._amplitude
            drift = 4.0 * self._drift * (self._relative + self._lost) * self._amplitude
            slope = negative * UNIT * self._amplitude + drift
            above, excess = self._choose_bin(sums[number, 0], w_next, slope, fixed)
            below, loss = self._choose_bin(sums[number, 1], w, slope, fixed)
            choice = _Choice(lean, below, above, loss, excess, own * self._relative)
            low, _ = _bound(choice, x, r, w)
            _, high = _bound(choice, x_next, r_next, w_next)
            gap = x - x_next + lean * (r - r_next)
            lack = min(lack, (gap - (low - high)) / gap if gap > 0.0 else np.inf)
            if low - high > best:
                best, chosen = low - high, choice
        return chosen, float(lack)

    def _choose_bin(self, sums: np.ndarray, w: float, slope: float, fixed: float) -> tuple[float, float]:
        """Choose c and the constant added to c w that minimize the bound c w + constant."""
        sizes, widths = sums[:, 0], sums[:, 1]
        bounds = bin_bounds()
        # e is q - c h where that is positive, in the bins above c. Sums of h are in units of the bound of their bin.
        over = np.cumsum(sizes[::-1])[-2::-1] * UNIT
        passed = np.append(widths[1:-1] / bounds[1:], 0.0) * UNIT
        under = np.cumsum(passed[::-1])[::-1]
        slack = 2.0**-40 * over  # rounding of the additions above
        beside = self._shrink * self._amplitude * (over - bounds * under + slack) + bounds * slope
        best = int(np.argmin(bounds * max(w, 0.0) + beside))
        return float(bounds[best]), float(max(0.0, beside[best]) + fixed)

    def _prove(self, choice: _Choice, w: np.ndarray, top: np.ndarray) -> Stability | None:
        """Prove the k highest by the bounds of all vertices; None where the bounds do not separate them."""
        (_, x1, _), (_, x, _) = self._kept[1:]
        least, gap = top[-2, 0], top[-2, 0] - top[-1, 0]

        def look(start: int) -> float:
            part = slice(start, start + _PIECE)
            return float(find_highest(x[part], x1[part], w[part], least, choice.lean, choice.above, choice.own))

        highest = max(_map(look, len(x))) + choice.excess
        where = np.flatnonzero(x >= least)
        high = x[where].astype(np.float64)
        members = np.stack([high, *_bound(choice, high, high - x1[where], w[where])], axis=1)
        answers: list[tuple[np.ndarray, float]] = self._gather((members, highest))
        members = np.concatenate([own for own, _ in answers])
        _, low, high = members[np.argsort(-members[:, 0], kind="stable")].T
        highs = np.append(high, max(highest for _, highest in answers))
        is_cut = np.minimum.accumulate(low) > np.maximum.accumulate(highs[::-1])[::-1][1:]
        if not is_cut[-1] or low.min() <= 0.0:
            return None
        (low_of_last, _), (_, high_of_next) = (_bound(choice, *place) for place in top[-2:])
        bound = max(0.0, float(gap - (low_of_last - high_of_next)))
        return Stability(self._k, True, float(gap), bound, find_ties(is_cut[:-1]))


def _bound(choice: _Choice, x: Any, r: Any, w: Any) -> tuple[Any, Any]:
    """Compute lower and upper bounds of ranks, up to a common factor."""
    y = x + choice.lean * r
    rounding = choice.own * (x + abs(r)) + 2.0**-50 * (choice.below + choice.above) * abs(w)
    return y - choice.below * w - choice.loss - rounding, y + choice.above * w + choice.excess + rounding


def _map(function: Callable[[int], Any], n: int) -> list[Any]:
    """Call a function with the first row of each piece of n rows, and return the results."""
    return run_parts(function, range(0, max(1, n), _PIECE), None)

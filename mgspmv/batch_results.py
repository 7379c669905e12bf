"""Ranks of many vectors, and their provenance."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from mgspmv.display.frames import Columns, TopRanks
from mgspmv.errors import OptionError, ShapeError, UnknownIdError
from mgspmv.kernels.highest import check_places
from mgspmv.model import Event, Stability, Status
from mgspmv.results import ROWS_AT_ONCE, Ranks, Solution, find_non_finite, take_ids
from mgspmv.saving import load_result
from mgspmv.scores import BINS, Summary
from mgspmv.validation import to_json


@dataclass(frozen=True, eq=False)
class BatchSolution(Ranks):
    """PageRank of a graph's vertices for many vectors: all `values`, or the highest ranks of each.

    `batch[label]` is the `Solution` of a vector, if values are kept, `label in batch` tells whether there is one,
    `len(batch)` is the number of vectors, and iteration yields their solutions. Tables have the columns `vector`, `id`
    and `rank`, and a row for each rank that was kept (of the highest, for each above 0), vector after vector.

    Raises
    ------
    ShapeError : the arrays' shapes do not match

    Examples
    --------
    >>> import mgspmv as mg
    >>> edges = [("cat", "pet"), ("dog", "pet"), ("pet", "dog"), ("pet", "cat")]
    >>> batch = mg.pagerank_batch(edges, {"cats": ["cat"], "dogs": ["dog"]})
    >>> round(batch["cats"]["pet"], 4), batch.labels
    (0.4595, ('cats', 'dogs'))
    >>> batch.to_pandas(sort=True).head(2)
      vector   id      rank
    0   cats  pet  0.459459
    1   dogs  pet  0.459459
    """

    labels: tuple[Any, ...]
    """Names of the vectors, strings or integers; their indices by default."""
    alphas: np.ndarray
    """Damping per vector, float64, (n_vectors,)."""
    statuses: tuple[Status, ...]
    """Reason why the iteration ended, per vector."""
    changes: tuple[tuple[float, ...], ...]
    """|x' - x| per iteration of each vector, in the norm of the run."""
    error_bounds_l1: np.ndarray
    """Upper bound of ||ranks - exact ranks||_1 per vector, float64, (n_vectors,)."""
    values: np.ndarray | None
    """Ranks in the order of the store's vertices, float64 or float32, (n_vectors, n); None with `keep_top`."""
    top_ids: np.ndarray | None
    """Ids of the highest ranks per vector, descending, int64 or strings (object), (n_vectors, k); with `keep_top`. If
    fewer than k vertices have a rank above 0, the rest is -1, or empty strings."""
    top_ranks: np.ndarray | None
    """Ranks of `top_ids`, 0 in the rest, float64 or float32, (n_vectors, k); with `keep_top`."""
    seconds: dict[str, float]
    """Seconds by phase, of all vectors together: load, compile, product, enter, residual, keep."""
    _ids: np.ndarray | None
    """`ids`, or None when they are 0..n-1, and with `keep_top`."""
    options: dict[str, Any]
    """Options of the call, as JSON values; with `width`, the most vectors in a pass, and `steps`, the passes made."""
    matrix: dict[str, Any]
    """Origin of the ranks, as in `Solution`."""
    memory: dict[str, list[int]] = field(default_factory=dict)
    """Bytes as in `Solution`, of all vectors together."""
    events: tuple[Event, ...] = ()
    """Measurements of each pass over the matrix; the change is the greatest of the vectors. Empty in batches saved
    before these were recorded."""

    def __post_init__(self) -> None:
        n = len(self.labels)
        kept = [a for a in (self.values, self.top_ids, self.top_ranks) if a is not None]
        per_vector: tuple[Sized, ...] = (self.alphas, self.statuses, self.changes, self.error_bounds_l1, *kept)
        if any(len(each) != n for each in per_vector) or len(set(self.labels)) != n:
            raise ShapeError(f"there are {n} labels of vectors; labels must be unique, with one entry per array")
        if len(kept) != (1 if self.values is not None else 2):
            raise ShapeError("a batch needs either values, or top_ids and top_ranks")

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[Solution]:
        return (self[label] for label in self.labels)

    def __contains__(self, label: Any) -> bool:
        with suppress(UnknownIdError):
            return self._find(label) >= 0
        return False

    def __getitem__(self, label: Any) -> Solution:
        """Return the solution of a vector, by its label, or by its number if labels are names.

        Its seconds and events are empty: vectors share them.

        Raises
        ------
        UnknownIdError : no vector has this label; also a `KeyError`
        OptionError : only the highest ranks were kept
        """
        k = self._find(label)
        values, status, changes = self._get_values(f"vector {label!r}")[k], self.statuses[k], self.changes[k]
        return Solution(
            values=values,
            status=status,
            iterations=len(changes),
            changes=changes,
            seconds={},
            error_bound_l1=float(self.error_bounds_l1[k]),
            _ids=self._ids,
            options=self.options | {"alpha": float(self.alphas[k])},
            matrix=self.matrix,
            non_finite=find_non_finite(values, self._ids, status, len(changes), is_rank=True),
        )

    def __repr__(self) -> str:
        n_good = sum(status.is_success for status in self.statuses)
        kept = "the highest ranks" if self.values is None else f"{self.values.shape[1]} ranks"
        return (
            f"<BatchSolution: {len(self)} vectors, {n_good} succeeded, {self.options['steps']} passes of up "
            f"to {self.options['width']}, {kept} of each, {sum(self.seconds.values()):.3g} s>"
        )

    @property
    def iterations(self) -> np.ndarray:
        """Iterations made for each vector, int64, (n_vectors,)."""
        return np.array([len(changes) for changes in self.changes], np.int64)

    @cached_property
    def ids(self) -> np.ndarray:
        """Ids of the vertices in the source, int64 or strings (object), in the order of `values`, shape (n,).

        Raises
        ------
        OptionError : only the highest ranks were kept, whose ids are `top_ids`
        """
        n = self._get_values("the batch").shape[1]
        return np.arange(n) if self._ids is None else self._ids

    def summary(self, bins: int = BINS) -> dict[Any, Summary]:
        """Apply `Solution.summary` to the vector of each label.

        Raises
        ------
        OptionError : bins is less than 1; only the highest ranks were kept

        Examples
        --------
        >>> import mgspmv as mg
        >>> batch = mg.pagerank_batch(([0, 1, 2, 2], [1, 2, 0, 1]), {"first": [0], "last": [2]})
        >>> round(batch.summary()["first"].max, 4)
        0.3844
        """
        return {label: self[label].summary(bins) for label in self.labels}

    def top(self, k: int | None = None) -> dict[Any, TopRanks]:
        """Return for each label the table of the k highest ranks, as `Solution.top` does, without ranks of 0.

        Parameters
        ----------
        k : int, optional
            Default all that were kept, or 10.

        Raises
        ------
        OptionError : k is less than 1, or more than were kept

        Examples
        --------
        >>> import mgspmv as mg
        >>> batch = mg.pagerank_batch(([0, 1, 2, 2], [1, 2, 0, 1]), {"first": [0], "last": [2]}, keep_top=2)
        >>> batch.top(1)["last"]
        place  id        rank
            1   2  0.45223286
        """
        if k is not None and k < 1:
            raise OptionError(f"k must be at least 1, not {k}")
        if self.values is not None:
            return {label: self[label].top(k or 10) for label in self.labels}
        assert self.top_ids is not None
        assert self.top_ranks is not None
        if k is not None and k > max(self.top_ids.shape[1], self.options["top"]):
            raise OptionError(
                f"only the {self.top_ids.shape[1]} highest ranks were kept, not {k}; rank again with keep_top={k}"
            )
        rows = zip(self.labels, self.top_ids[:, :k], self.top_ranks[:, :k], strict=True)
        return {label: TopRanks(ids[ranks != 0], ranks[ranks != 0]) for label, ids, ranks in rows}

    def check_order(self, k: int | None = None) -> dict[Any, Stability | None]:
        """Apply `Solution.check_order` to the vector of each label.

        If only the highest ranks were kept, the rank after the last one is unknown: unless the last is 0, it stands for
        all ranks after the k highest.

        Parameters
        ----------
        k : int, optional
            Default all that were kept, or 10.

        Examples
        --------
        >>> import mgspmv as mg
        >>> batch = mg.pagerank_batch(([0, 1, 2, 2], [1, 2, 0, 1]), {"first": [0], "last": [2]})
        >>> batch.check_order(1)["last"].is_proven
        True
        """
        if self.values is not None:
            return {label: self[label].check_order(k or 10) for label in self.labels}
        found: dict[Any, Stability | None] = {}
        for label, ranks, bound in zip(self.labels, self._ranks, self.error_bounds_l1, strict=True):
            most = min(int(np.count_nonzero(ranks)), len(ranks) - 1)
            n = most if k is None else min(k, most)
            found[label] = check_places(ranks[: n + 1], float(bound)) if n >= 1 and math.isfinite(bound) else None
        return found

    def digest(self) -> str:
        """Return the SHA-256 of the kept arrays, ranks in little-endian bytes, in hexadecimal."""
        ranks = self._ranks
        digest = hashlib.sha256(np.ascontiguousarray(ranks, dtype=ranks.dtype.newbyteorder("<")).data)
        if self.top_ids is not None:
            digest.update(json.dumps(self.top_ids.tolist()).encode())
        return digest.hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return all but ranks, ids and events as JSON values; a non-finite float becomes its name, a string."""
        rows = zip(self.labels, self.alphas, self.statuses, self.changes, self.error_bounds_l1, strict=True)
        vectors = [
            {
                "label": label,
                "alpha": alpha,
                "status": status.value,
                "iterations": len(changes),
                "change": changes[-1] if changes else None,
                "error_bound_l1": bound,
            }
            for label, alpha, status, changes, bound in rows
        ]
        summary = {"vectors": vectors, "seconds": self.seconds, "memory": self.memory, "digest": self.digest()}
        described: dict[str, Any] = to_json(summary | {"options": self.options, "matrix": self.matrix})
        return described

    def generate_columns(self) -> Iterator[Columns]:
        """Yield the columns `vector`, `id` and `rank` of several vectors at a time."""
        ranks, labels = self._ranks, np.array(self.labels, object if isinstance(self.labels[0], str) else np.int64)
        ids = np.arange(ranks.shape[1]) if self._ids is None else self._ids
        n_at_once = max(1, ROWS_AT_ONCE // max(1, ranks.shape[1]))
        for first in range(0, len(self), n_at_once):
            some = slice(first, first + n_at_once)
            own, n = ranks[some], len(ranks[some])
            columns = {"vector": np.repeat(labels[some], ranks.shape[1])}
            columns["id"] = np.tile(ids, n) if self.top_ids is None else self.top_ids[some].ravel()
            columns["rank"] = own.ravel()
            kept = slice(None) if self.top_ids is None else columns["rank"] != 0
            yield {name: column[kept] for name, column in columns.items()}

    @classmethod
    def take_columns(cls, described: dict[str, Any], columns: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return the arrays of a batch from the columns of its table; raise ValueError if these have too few rows."""
        labels, top, ids, ranks = described["labels"], described["top"], columns["id"], columns["rank"]
        if top is None:
            ranks, ids = ranks.reshape(len(labels), -1), ids.reshape(len(labels), -1)
            if (ids != ids[0]).any():
                raise ValueError("the vectors have different ids")
            return {"values": ranks, "vertex_ids": take_ids(described, ids[0])}
        n_kept = np.array([np.count_nonzero(columns["vector"] == label) for label in labels])
        is_kept = np.arange(top) < n_kept[:, None]
        top_ids, top_ranks = np.full(is_kept.shape, fill_id(ids), ids.dtype), np.zeros(is_kept.shape, ranks.dtype)
        top_ids[is_kept], top_ranks[is_kept] = ids, ranks
        return {"top_ids": top_ids, "top_ranks": top_ranks}

    @property
    def _ranks(self) -> np.ndarray:
        ranks = self.top_ranks if self.values is None else self.values
        assert ranks is not None
        return ranks

    def _get_values(self, owner: str) -> np.ndarray:
        if self.values is None:
            raise OptionError(
                f"{owner} has only its highest ranks: read them with top(); leave out keep_top= to keep all"
            )
        return self.values

    def _find(self, label: Any) -> int:
        if label in self.labels:
            return self.labels.index(label)
        if isinstance(label, int | np.integer) and isinstance(self.labels[0], str) and 0 <= label < len(self):
            return int(label)
        raise UnknownIdError(f"there is no vector {label!r}; labels lists the {len(self)} vectors")


def fill_id(ids: np.ndarray) -> int | str:
    """Return the placeholder for a missing vertex in an array of ids."""
    return "" if ids.dtype == object else -1


def load_batch(path: str | os.PathLike[str]) -> BatchSolution:
    """Read ranks that `BatchSolution.save` wrote; suffixes and errors as in `load_solution`.

    Parameters
    ----------
    path : path
        As for `load_solution`.

    Examples
    --------
    >>> import mgspmv as mg
    >>> mg.pagerank_batch(([0, 1, 2, 2], [1, 2, 0, 1]), {"last": [2]}).save("batch.parquet")
    >>> mg.load_batch("batch.parquet").top(1)["last"]
    place  id        rank
        1   2  0.45223286
    """
    return load_result(path, BatchSolution)

"""The ranks of many vectors and how they were reached: whole, or the highest of each; files in Zarr and Parquet."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mgspmv.display.cards import render_card
from mgspmv.errors import OptionError, ShapeError, StoreDamagedError
from mgspmv.model import Event, Stability, Status, free_memory
from mgspmv.results import Solution, find_non_finite
from mgspmv.saving import (
    ID_DTYPES,
    MEND,
    RANK_DTYPES,
    check_digest,
    format_csv,
    load_result,
    name_ids,
    open_ranks,
    read_array,
    read_column,
    read_ids,
    read_rank_table,
    save_result,
    write_parquet,
    write_zarr,
)
from mgspmv.validation import to_json

if TYPE_CHECKING:
    from mgspmv.saved import SavedBatch

BATCH_SUFFIXES = (".zarr", ".parquet")


@dataclass(frozen=True, eq=False)
class BatchSolution:
    """PageRank of a graph's vertices for many vectors: `values`, or of each the highest ranks.

    `batch[label]` is the `Solution` of a vector, where values are kept.

    Raises
    ------
    ShapeError : arrays that do not fit each other
    """

    labels: tuple[Any, ...]
    """Names of the vectors, strings or integers; their numbers where none were given."""
    alphas: np.ndarray
    """float64, (n_vectors,): damping of each."""
    statuses: tuple[Status, ...]
    """How the iteration of each ended."""
    changes: tuple[tuple[float, ...], ...]
    """|x' - x| at each iteration of each, in the norm of `tol_mode`."""
    error_bounds_l1: np.ndarray
    """float64, (n_vectors,): ||ranks - exact ranks||_1 of each is at most this."""
    values: np.ndarray | None
    """float64 or float32, (n_vectors, n): the ranks, in the order of the store's vertices; None with `top`."""
    top_ids: np.ndarray | None
    """int64 or strings (object), (n_vectors, k): ids of the highest ranks of each, the highest first; with `top`. Where
    fewer than k vertices have a rank above 0, the rest is -1, or empty strings."""
    top_ranks: np.ndarray | None
    """float64 or float32, (n_vectors, k): these ranks, 0 in the rest; with `top`."""
    seconds: dict[str, float]
    """Seconds by phase, of all together: load, compile, product, enter, residual, keep."""
    vertex_ids: np.ndarray | None
    """int64 or strings (object), (n,): the source's names of the vertices; None when they are 0..n-1, or with `top`."""
    options: dict[str, Any]
    """What was asked for, as JSON values; with `width`, the most vectors in a pass, and `steps`, the passes made."""
    matrix: dict[str, Any]
    """As in `Solution`."""
    memory: dict[str, list[int]] = field(default_factory=dict)
    """As in `Solution`, of all together."""
    events: tuple[Event, ...] = ()
    """What each pass over the matrix did; its change is the greatest of the vectors. Empty in batches that were saved
    before these were kept."""

    def __post_init__(self) -> None:
        n = len(self.labels)
        kept = [a for a in (self.values, self.top_ids, self.top_ranks) if a is not None]
        per_vector: tuple[Sized, ...] = (self.alphas, self.statuses, self.changes, self.error_bounds_l1, *kept)
        if any(len(each) != n for each in per_vector) or len(set(self.labels)) != n:
            raise ShapeError(f"there are {n} labels of vectors, which must be different, and something for each")
        if len(kept) != (1 if self.values is not None else 2):
            raise ShapeError("a batch has either values, or the ids and the ranks of the highest")

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[Solution]:
        return (self[label] for label in self.labels)

    def __getitem__(self, label: Any) -> Solution:
        """The solution of a vector, by its label, or by its number where labels are names.

        Its seconds and events are empty: vectors share them.

        Raises
        ------
        OptionError : no vector has this label; only the highest ranks were kept
        """
        k = self._find(label)
        if self.values is None:
            raise OptionError(
                f"of vector {label!r} only the highest ranks were kept: see top(); leave out top= for all"
            )
        options = self.options | {"alpha": float(self.alphas[k])}
        reached = (self.values[k], self.vertex_ids, self.statuses[k], len(self.changes[k]))
        return Solution(
            values=self.values[k],
            status=self.statuses[k],
            iterations=len(self.changes[k]),
            changes=self.changes[k],
            seconds={},
            error_bound_l1=float(self.error_bounds_l1[k]),
            vertex_ids=self.vertex_ids,
            options=options,
            matrix=self.matrix,
            non_finite=find_non_finite(*reached, is_rank=True),
        )

    def __repr__(self) -> str:
        n_good = sum(status.is_success for status in self.statuses)
        kept = "the highest ranks" if self.values is None else f"{self.values.shape[1]} ranks"
        return (
            f"<BatchSolution: {len(self)} vectors, {n_good} of them ended well, {self.options['steps']} passes of up "
            f"to {self.options['width']}, {kept} of each, {sum(self.seconds.values()):.3g} s>"
        )

    def _repr_html_(self) -> str:
        return render_card(self)

    @property
    def iterations(self) -> np.ndarray:
        """int64, (n_vectors,): iterations made of each."""
        return np.array([len(changes) for changes in self.changes], np.int64)

    def top(self, k: int | None = None) -> dict[Any, list[tuple[Any, float]]]:
        """Give for each label the k highest ranks as (vertex id, rank), as `Solution.top` does, without ranks of 0.

        Parameters
        ----------
        k : default all that were kept, or 10

        Raises
        ------
        OptionError : k is less than 1, or more than were kept
        """
        if k is not None and k < 1:
            raise OptionError(f"k must be at least 1, not {k}")
        if self.values is not None:
            return {label: self[label].top(k or 10) for label in self.labels}
        assert self.top_ids is not None
        assert self.top_ranks is not None
        if k is not None and k > max(self.top_ids.shape[1], self.options["top"]):
            raise OptionError(
                f"the {self.top_ids.shape[1]} highest ranks were kept, and not {k}; rank again with top={k}"
            )
        pairs = zip(self.top_ids[:, :k].tolist(), self.top_ranks[:, :k].tolist(), strict=True)
        highest = [[(name, rank) for name, rank in zip(*pair, strict=True) if rank != 0] for pair in pairs]
        return dict(zip(self.labels, highest, strict=True))

    def judge_order(self, k: int | None = None) -> dict[Any, Stability | None]:
        """Tell for each label what `Solution.judge_order` tells.

        Where only the highest were kept, nothing is known of the rank after the last one: unless that is 0, the last
        place that was kept stands for all that come after those that are judged.

        Parameters
        ----------
        k : default all that were kept, or 10
        """
        if self.values is not None:
            return {label: self[label].judge_order(k or 10) for label in self.labels}
        assert self.top_ranks is not None
        pairs = zip(self.labels, self.top_ranks, self.error_bounds_l1, strict=True)
        return {label: _judge_kept(ranks, k, float(bound)) for label, ranks, bound in pairs}

    def digest(self) -> str:
        """SHA-256 of what was kept, ranks in little-endian bytes, in hexadecimal: same bits, same digest."""
        ranks = _get_ranks(self)
        digest = hashlib.sha256(np.ascontiguousarray(ranks, dtype=ranks.dtype.newbyteorder("<")).data)
        if self.top_ids is not None:
            digest.update(json.dumps(self.top_ids.tolist()).encode())
        return digest.hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Give all but ranks, ids and events as JSON values; a float that is not finite becomes a string, its name."""
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
        return {
            key: to_json(value) for key, value in (summary | {"options": self.options, "matrix": self.matrix}).items()
        }

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write what was kept to `path`, in the format that its suffix names; `load_batch` reads it.

        `.zarr`: a group with the array `values`, or `top_ids` and `top_ranks`, and with `vertex_ids`, the rest in its
        attributes; also at a URL. `.parquet`: columns `vector`, `id` and `rank`, a row for each rank that was kept (of
        the highest, for each above 0), vector after vector, the rest in the metadata of its schema under `mgspmv`.

        Raises
        ------
        OptionError : another suffix
        StoreExistsError : something is there and `overwrite` is False, or it is not ranks to be overwritten
        StoreError : it cannot be written
        """
        top = None if self.top_ids is None else self.top_ids.shape[1]
        ids = self.top_ids if self.vertex_ids is None else self.vertex_ids
        others, schema = {"top": top, "vertex_ids": name_ids(ids)}, _make_schema(self)
        write = {
            ".zarr": lambda url: write_zarr(url, self, **others),
            ".parquet": lambda part: write_parquet(part, schema, _generate_tables(self, schema), self, **others),
        }
        save_result(path, write, overwrite=overwrite)

    def _find(self, label: Any) -> int:
        if label in self.labels:
            return self.labels.index(label)
        if isinstance(label, int | np.integer) and isinstance(self.labels[0], str) and 0 <= label < len(self):
            return int(label)
        raise OptionError(f"there is no vector {label!r}; labels has the {len(self)} there are")


def load_batch(path: str | os.PathLike[str]) -> BatchSolution:
    """Read what `BatchSolution.save` wrote; the bits are as they were.

    Raises
    ------
    OptionError : another suffix
    StoreNotFoundError : there is nothing at this path
    StoreFormatError : not a batch, or one of another format version
    StoreUnfinishedError : its writing was never finished
    MissingChunkError, ChecksumError, StoreDamagedError : it is not what was written
    """
    return load_result(path, {".zarr": _read_zarr, ".parquet": _read_parquet})


def _judge_kept(ranks: np.ndarray, k: int | None, bound: float) -> Stability | None:
    """As of `BatchSolution.judge_order`, of the highest ranks of a vector."""
    from mgspmv.iterate.stable import judge_places

    most = min(int(np.count_nonzero(ranks)), len(ranks) - 1)
    k = most if k is None else min(k, most)
    return judge_places(ranks[: k + 1], bound) if k >= 1 and math.isfinite(bound) else None


def _read_zarr(url: str) -> BatchSolution:
    from mgspmv.saved import SavedBatch

    group, saved = open_ranks(url, SavedBatch)
    if saved.top is None:
        ids = read_ids(url, group, "vertex_ids", saved.vertex_ids)
        return _compose(url, saved, ids, values=read_array(url, group, "values", RANK_DTYPES, 2))
    top_ids = read_array(url, group, "top_ids", ("string",) if saved.vertex_ids == "string" else ("int64",), 2)
    return _compose(url, saved, None, top_ids=top_ids, top_ranks=read_array(url, group, "top_ranks", RANK_DTYPES, 2))


def generate_csv(batch: BatchSolution) -> Iterator[bytes]:
    """Lines `vector,id,rank` of all ranks that were kept, vector after vector, many at a time."""
    schema = _make_schema(batch)
    yield b"vector,id,rank\n"
    for table in _generate_tables(batch, schema):
        labels = table["vector"].cast(schema.field("vector").type.value_type)
        yield format_csv(table.set_column(0, "vector", labels))


def _make_schema(batch: BatchSolution) -> Any:
    import pyarrow as pa

    ids = batch.top_ids if batch.vertex_ids is None else batch.vertex_ids
    id_type = pa.large_string() if name_ids(ids) == "string" else pa.int64()
    label_type = pa.large_string() if isinstance(batch.labels[0], str) else pa.int64()
    rank_type = pa.from_numpy_dtype(_get_ranks(batch).dtype)
    return pa.schema({"vector": pa.dictionary(pa.int32(), label_type), "id": id_type, "rank": rank_type})


def _generate_tables(batch: BatchSolution, schema: Any) -> Iterator[Any]:
    """Rows of some vectors at a time, as those of all would take several times the memory of the ranks."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ranks, id_type = _get_ranks(batch), schema.field("id").type
    labels = pa.array(batch.labels, schema.field("vector").type.value_type)
    ids = np.arange(ranks.shape[1]) if batch.vertex_ids is None else batch.vertex_ids
    n_at_once = max(1, ROWS_AT_ONCE // max(1, ranks.shape[1]))
    for first in range(0, len(batch), n_at_once):
        some = ranks[first : first + n_at_once]
        numbers = np.repeat(np.arange(first, first + len(some), dtype=np.int32), ranks.shape[1])
        own = np.tile(ids, len(some)) if batch.top_ids is None else batch.top_ids[first : first + len(some)].ravel()
        vectors = pa.DictionaryArray.from_arrays(pa.array(numbers), labels)
        table = pa.table([vectors, pa.array(own, id_type), pa.array(some.ravel())], schema=schema)
        yield table if batch.top_ids is None else table.filter(pc.not_equal(table["rank"], 0))


def _get_ranks(batch: BatchSolution) -> np.ndarray:
    ranks = batch.top_ranks if batch.values is None else batch.values
    assert ranks is not None
    return ranks


ROWS_AT_ONCE = 2**20
"""Rows of a table that are made before they are written, or those of a vector."""


def _read_parquet(path: str) -> BatchSolution:
    from mgspmv.saved import SavedBatch

    table, saved = read_rank_table(path, SavedBatch)
    ranks, ids = read_column(path, table, "rank", RANK_DTYPES), read_column(path, table, "id", ID_DTYPES)
    n_vectors, top = len(saved.labels), saved.top
    if top is None:
        if len(ranks) % n_vectors:
            raise StoreDamagedError(f"{path}: there are {len(ranks)} ranks for {n_vectors} vectors; {MEND}")
        ranks, ids = ranks.reshape(n_vectors, -1), ids.reshape(n_vectors, -1)
        return _compose(path, saved, None if saved.vertex_ids is None else ids[0], values=ranks)
    if top > saved.matrix["shape"][0] or n_vectors * top * (ids.itemsize + ranks.itemsize) > free_memory():
        raise StoreDamagedError(f"{path}: {top} ranks of each of {n_vectors} vectors are more than there are; {MEND}")
    vectors = table["vector"].value_counts().to_pylist() if "vector" in table.column_names else []
    counts = {str(row["values"]): row["counts"] for row in vectors}
    n_kept = np.array([counts.get(str(label), 0) for label in saved.labels])
    is_kept = np.arange(top) < n_kept[:, None]
    if int(is_kept.sum()) != len(ranks):
        raise StoreDamagedError(f"{path}: there are {len(ranks)} ranks for {n_vectors} vectors of {top}; {MEND}")
    top_ids, top_ranks = np.full(is_kept.shape, fill_id(ids), ids.dtype), np.zeros(is_kept.shape, ranks.dtype)
    top_ids[is_kept], top_ranks[is_kept] = ids, ranks
    return _compose(path, saved, None, top_ids=top_ids, top_ranks=top_ranks)


def fill_id(ids: np.ndarray) -> int | str:
    """What stands for no vertex in an array of ids."""
    return "" if ids.dtype == object else -1


def _compose(path: str, saved: SavedBatch, ids: np.ndarray | None, **kept: np.ndarray | None) -> BatchSolution:
    arrays = {"values": None, "top_ids": None, "top_ranks": None} | kept
    said = {name: value for name, value in saved if name not in ("vertex_ids", "digest", "top")}
    bounds = {name: np.array(said[name], np.float64) for name in ("alphas", "error_bounds_l1")}
    try:
        batch = BatchSolution(vertex_ids=ids, **said | bounds | arrays)
    except ShapeError as error:
        raise StoreDamagedError(f"{path}: {error}; {MEND}") from error
    check_digest(path, batch, saved.digest)
    return batch

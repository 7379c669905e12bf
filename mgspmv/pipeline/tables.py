"""Ranks and tables of the highest as files: CSV, JSON and JSON lines beside what solutions write themselves."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mgspmv.batch_results import BatchSolution
from mgspmv.errors import OptionError
from mgspmv.ingest.weights import check_table, reading_table
from mgspmv.pipeline.definition import LOADABLE, Format
from mgspmv.results import Solution, generate_csv, to_json

Labels = dict[Any, str]
"""Labels of vertices by id."""

ROWS_AT_ONCE = 1 << 18
"""Of a product, as text."""
_COLUMNS = ("vector", "id", "rank")


def save_ranks(solution: Solution, folder: Path, formats: Sequence[Format]) -> None:
    """Write all ranks as `ranks.FORMAT`."""
    for format in formats:
        path = folder / f"ranks.{format}"
        if format in LOADABLE:
            solution.save(path)
            continue
        lines = generate_csv(solution) if format == "csv" else generate_lines(solution)
        with open(path, "wb") as file:
            file.writelines(lines)


def save_batch(batch: BatchSolution, folder: Path, formats: Sequence[Format]) -> None:
    """Write what was kept of all vectors as `ranks.FORMAT`; in text a line for each rank, vector after vector."""
    for format in formats:
        path = folder / f"ranks.{format}"
        if format in LOADABLE:
            batch.save(path)
        elif format == "csv":
            _write_csv(path, _COLUMNS, _list_kept(batch))
        else:
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(dict(zip(_COLUMNS, row, strict=True)))}\n" for row in _list_kept(batch))


def _list_kept(batch: BatchSolution) -> Iterator[tuple[Any, ...]]:
    for k, label in enumerate(batch.labels):
        if batch.values is None:
            assert batch.top_ids is not None
            assert batch.top_ranks is not None
            pairs: Iterable[Any] = zip(batch.top_ids[k].tolist(), batch.top_ranks[k].tolist(), strict=True)
            yield from ((label, name, to_json(rank)) for name, rank in pairs)
            continue
        for ids, values in batch[label].stream():
            yield from ((label, *pair) for pair in zip(ids.tolist(), to_json(values.tolist()), strict=True))


def generate_lines(solution: Solution) -> Iterator[bytes]:
    """The ranks as JSON lines, {"id": ..., "rank": ...}, many at a time; each rank in the fewest digits that give the
    same float again, and what is not finite as a string."""
    for ids, values in solution.stream():
        pairs = zip(map(json.dumps, ids.tolist()), _write_numbers(values), strict=True)
        yield "".join(f'{{"id": {name}, "rank": {rank}}}\n' for name, rank in pairs).encode()


def _write_numbers(values: np.ndarray) -> Iterable[str]:
    """Each in the fewest digits that give the same float again, as JSON; what is not finite as a string."""
    import pyarrow as pa

    if np.isfinite(values).all():
        texts: Iterable[str] = pa.array(values).cast(pa.string()).to_pylist()
        return texts
    return (json.dumps(to_json(value)) for value in values.tolist())


def save_product(product: np.ndarray, ids: np.ndarray | None, path: Path) -> None:
    """Write a product as CSV, with the columns `id` and `y` or, of several vectors, `y0`, `y1`, ...; or as JSON lines,
    {"id": ..., "y": ...}, where y of several vectors is a list.

    Parameters
    ----------
    product : (n_rows,) or (n_rows, k)
    ids : (n_rows,) of the rows; None where they are 0..n_rows - 1
    """
    columns = product.reshape(len(product), -1)
    titles = ("id", *(["y"] if product.ndim == 1 else [f"y{k}" for k in range(columns.shape[1])]))
    pieces = range(0, len(product), ROWS_AT_ONCE)
    rows = (row for first in pieces for row in _list_rows(columns, ids, first, min(first + ROWS_AT_ONCE, len(product))))
    if path.suffix == ".csv":
        _write_csv(path, titles, ((name, *(y.strip('"') for y in own)) for name, own in rows))
        return
    with open(path, "w", encoding="utf-8") as file:
        for name, own in rows:
            y = own[0] if product.ndim == 1 else f"[{', '.join(own)}]"
            file.write(f'{{"id": {json.dumps(name)}, "y": {y}}}\n')


def _list_rows(
    columns: np.ndarray, ids: np.ndarray | None, first: int, last: int
) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Id and numbers, as JSON, of rows `first` to `last` - 1."""
    names = range(first, last) if ids is None else ids[first:last].tolist()
    texts = [_write_numbers(column) for column in columns[first:last].T]
    return zip(names, zip(*texts, strict=True), strict=True)


# --- the highest -----------------------------------------------------------------------------------------------------


def list_top(highest: Sequence[tuple[Any, float]], labels: Labels) -> list[dict[str, Any]]:
    """Of the highest ranks: place, id, rank and, where there are labels, label."""
    return [
        {"place": place, "id": name, "rank": to_json(rank), **({"label": labels.get(name)} if labels else {})}
        for place, (name, rank) in enumerate(highest, 1)
    ]


def save_top(rows: list[dict[str, Any]], folder: Path, *, has_labels: bool, as_lines: bool) -> None:
    """Write the highest ranks as `top.csv` and `top.json` and, where that is asked for, as `top.jsonl`."""
    names = [*(["vector"] if rows and "vector" in rows[0] else []), "place", "id", "rank"]
    names += ["label"] if has_labels else []
    _write_csv(folder / "top.csv", names, ([row[name] for name in names] for row in rows))
    text = json.dumps(rows, indent=1, ensure_ascii=False)
    (folder / "top.json").write_text(f"{text}\n", encoding="utf-8")
    if as_lines:
        lines = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
        (folder / "top.jsonl").write_text(lines, encoding="utf-8")


def _write_csv(path: Path, names: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)


def read_labels(path: str, ids: Iterable[Any], *, string_ids: bool) -> Labels:
    """Labels of some vertices.

    Parameters
    ----------
    path : CSV or Parquet file with the columns `id` and `label`
    string_ids : ids are strings, which in CSV may look like numbers

    Raises
    ------
    OptionError : another suffix, or other columns
    SourceError : no such file, or it cannot be read
    """
    import pyarrow as pa
    from pyarrow import compute, parquet
    from pyarrow import csv as texts

    suffix, id_type = Path(path).suffix, pa.string() if string_ids else pa.int64()
    if suffix not in (".csv", ".parquet"):
        raise OptionError(
            f"{path}: labels are read from .csv or .parquet, not from {suffix or 'a name without suffix'}"
        )
    types = texts.ConvertOptions(column_types={"id": id_type, "label": pa.string()})
    with reading_table(path, suffix[1:]):
        read = texts.read_csv(path, convert_options=types) if suffix == ".csv" else parquet.read_table(path)
        table = check_table(read)
    if missing := [name for name in ("id", "label") if name not in table.column_names]:
        raise OptionError(f"{path}: labels have the columns id and label; {' and '.join(missing)} is not there")
    with reading_table(path, suffix[1:]):
        wanted = table.filter(compute.is_in(table["id"], pa.array(list(ids), table["id"].type)))
    return dict(zip(wanted["id"].to_pylist(), map(str, wanted["label"].to_pylist()), strict=True))

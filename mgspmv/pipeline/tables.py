"""Ranks and tables of the highest as files: CSV, JSON and JSON lines beside what solutions write themselves."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mgspmv.batch_results import BatchSolution
from mgspmv.errors import OptionError, SourceError
from mgspmv.pipeline.definition import LOADABLE, Format
from mgspmv.results import Solution, generate_csv, to_json

Labels = dict[Any, str]
"""Labels of vertices by id."""

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
    import pyarrow as pa

    for ids, values in solution.stream():
        names = map(json.dumps, ids.tolist())
        if np.isfinite(values).all():
            ranks: Iterable[str] = pa.array(values).cast(pa.string()).to_pylist()
        else:
            ranks = (json.dumps(to_json(value)) for value in values.tolist())
        text = "".join(f'{{"id": {name}, "rank": {rank}}}\n' for name, rank in zip(names, ranks, strict=True))
        yield text.encode()


# --- the highest -----------------------------------------------------------------------------------------------------


def list_top(highest: Sequence[tuple[Any, float]], labels: Labels) -> list[dict[str, Any]]:
    """Of the highest ranks: place, id, rank and, where there are labels, label."""
    return [
        {"place": place, "id": name, "rank": to_json(rank), **({"label": labels.get(name)} if labels else {})}
        for place, (name, rank) in enumerate(highest, 1)
    ]


def save_top(rows: list[dict[str, Any]], folder: Path, *, has_labels: bool) -> None:
    """Write the highest ranks as `top.csv` and `top.json`."""
    names = [*(["vector"] if rows and "vector" in rows[0] else []), "place", "id", "rank"]
    names += ["label"] if has_labels else []
    _write_csv(folder / "top.csv", names, ([row[name] for name in names] for row in rows))
    text = json.dumps(rows, indent=1, ensure_ascii=False)
    (folder / "top.json").write_text(f"{text}\n", encoding="utf-8")


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
    try:
        table = texts.read_csv(path, convert_options=types) if suffix == ".csv" else parquet.read_table(path)
    except FileNotFoundError as error:
        raise SourceError("there is no such file", source=path) from error
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"cannot be read as {suffix[1:]}: {error}", source=path) from error
    if missing := [name for name in ("id", "label") if name not in table.column_names]:
        raise OptionError(f"{path}: labels have the columns id and label; {' and '.join(missing)} is not there")
    wanted = table.filter(compute.is_in(table["id"], pa.array(list(ids), table["id"].type)))
    return dict(zip(wanted["id"].to_pylist(), map(str, wanted["label"].to_pylist()), strict=True))

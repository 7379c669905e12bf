"""Ranks, products and tables of the highest as files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mgspmv.batch_results import BatchSolution, generate_csv
from mgspmv.errors import OptionError
from mgspmv.ingest.weights import check_table, reading_table
from mgspmv.pipeline.definition import LOADABLE, Format
from mgspmv.results import Solution
from mgspmv.validation import to_json

Labels = dict[Any, str]
"""Labels of vertices by id."""


def save_ranks(solution: Solution, folder: Path, formats: Sequence[Format]) -> None:
    """Write all ranks as `ranks.FORMAT`."""
    for format in formats:
        solution.save(folder / f"ranks.{format}")


def save_batch(batch: BatchSolution, folder: Path, formats: Sequence[Format]) -> None:
    """Write what was kept of all vectors as `ranks.FORMAT`; in CSV a line for each rank, vector after vector."""
    for format in formats:
        path = folder / f"ranks.{format}"
        if format in LOADABLE:
            batch.save(path)
            continue
        with open(path, "wb") as file:
            file.writelines(generate_csv(batch))


def save_product(product: np.ndarray, ids: np.ndarray | None, path: Path) -> None:
    """Write a product as CSV, with the columns `id` and `y` or, of several vectors, `y0`, `y1`, ...

    Parameters
    ----------
    product : (n_rows,) or (n_rows, k)
    ids : (n_rows,) of the rows; None where they are 0..n_rows - 1
    """
    import pyarrow as pa
    from pyarrow import csv as texts

    columns = {"y": product} if product.ndim == 1 else {f"y{k}": column for k, column in enumerate(product.T)}
    names = {"id": np.arange(len(product)) if ids is None else ids}
    texts.write_csv(pa.table(names | columns), path, texts.WriteOptions(quoting_style="needed", quoting_header="none"))


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
    with open(folder / "top.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([row[name] for name in names] for row in rows)
    text = json.dumps(rows, indent=1, ensure_ascii=False)
    (folder / "top.json").write_text(f"{text}\n", encoding="utf-8")


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

"""Tables of personalisations that users give as files: a row for each vertex of each vector."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mgspmv.errors import OptionError, SourceError

SUFFIXES = (".csv", ".parquet")


def read_seeds(path: str | os.PathLike[str], *, string_ids: bool = False) -> Any:
    """Read a table with the columns `vector`, `vertex` and, maybe, `weight`.

    Parameters
    ----------
    path : a CSV file with a header, or a Parquet file
    string_ids : vertices have strings as ids, which in CSV may look like numbers

    Returns
    -------
    pyarrow.Table, as `mgspmv.api.pagerank_batch` takes it

    Raises
    ------
    OptionError : another suffix
    SourceError : no such file, or it cannot be read as what its suffix says
    """
    import pyarrow as pa
    from pyarrow import csv, parquet

    suffix = Path(path).suffix
    if suffix not in SUFFIXES:
        raise OptionError(
            f"{path}: a table of seeds is read from .csv or .parquet, not from {suffix or 'a name without suffix'}"
        )
    types = csv.ConvertOptions(column_types={"vertex": pa.string()} if string_ids else None)
    try:
        return csv.read_csv(path, convert_options=types) if suffix == ".csv" else parquet.read_table(path)
    except FileNotFoundError as error:
        raise SourceError("there is no such file", source=str(path)) from error
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"cannot be read as {suffix[1:]}: {error}", source=str(path)) from error

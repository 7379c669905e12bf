"""Types of ids: a column of any of them names the same vertices, or is refused with what to do."""

from __future__ import annotations

import uuid
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mgspmv as mg
from mgspmv.errors import OptionError, SourceError
from mgspmv.ingest import tables
from mgspmv.ingest.open import open_source

UUIDS = [uuid.UUID(int=k << 64 | 0xABCDEF) for k in (3, 1, 2)]
NEXT = UUIDS[1:] + UUIDS[:1]
NAMES, OTHERS = ["c", "a", "b"], ["a", "b", "c"]
INTEGERS, TARGETS = [30, 10, 20], [10, 20, 30]


def to_bytes(ids):
    return pa.array([id.bytes for id in ids], pa.binary(16))


def to_dictionary(ids, values=None):
    """All values in reverse, and a place that no row has."""
    values = ids[::-1] if values is None else values
    return pa.DictionaryArray.from_arrays(pa.array(range(len(ids)))[::-1], values)


def make_table(src, dst):
    return pa.table({"src": src, "dst": dst})


UUID_TABLES = {
    "text": make_table([str(id) for id in UUIDS], [str(id) for id in NEXT]),
    "Arrow's type": make_table(pa.array(UUIDS, pa.uuid()), pa.array(NEXT, pa.uuid())),
    "16 bytes": make_table(to_bytes(UUIDS), to_bytes(NEXT)),
    "a slice": make_table(to_bytes(UUIDS[:1] + UUIDS), to_bytes(NEXT[:1] + NEXT)).slice(1),
    "text and type": make_table([str(id) for id in UUIDS], pa.array(NEXT, pa.uuid())),
    "a dictionary": make_table(to_dictionary(pa.array(UUIDS, pa.uuid())), pa.array(NEXT, pa.uuid())),
    "a dictionary of bytes": make_table(to_dictionary(to_bytes(UUIDS)), to_bytes(NEXT)),
    "pandas": pd.DataFrame({"src": UUIDS, "dst": NEXT}),
    "arrays": (UUIDS, np.array(NEXT, object)),
}
NAME_TABLES = {
    "string": make_table(NAMES, OTHERS),
    "large": make_table(pa.array(NAMES, pa.large_string()), pa.array(OTHERS, pa.large_string())),
    "view": make_table(pa.array(NAMES, pa.string_view()), pa.array(OTHERS)),
    "dictionary": make_table(pa.array(NAMES).dictionary_encode(), pa.array(OTHERS)),
    "dictionary of large": make_table(pa.array(NAMES, pa.large_string()).dictionary_encode(), pa.array(OTHERS)),
    "pandas": pd.DataFrame({"src": pd.Categorical(NAMES), "dst": pd.array(OTHERS, "string")}),
    "polars": pl.DataFrame({"src": pl.Series(NAMES, dtype=pl.Categorical), "dst": OTHERS}),
    "lists": (NAMES, OTHERS),
    "NumPy": (np.array(NAMES), np.array(OTHERS, object)),
    "NumPy strings": (np.array(NAMES, np.dtypes.StringDType()), np.array(OTHERS)),
    "series": (pd.Series(NAMES, index=[7, 8, 9]), pl.Series(OTHERS)),
    "categories": (pd.Series(NAMES).astype("category"), pl.Series(OTHERS, dtype=pl.Categorical)),
    "Arrow": (pa.chunked_array([NAMES[:1], NAMES[1:]]), pa.array(OTHERS).dictionary_encode()),
    "an index": (pd.Index(NAMES), tuple(OTHERS)),
}
INTEGER_TABLES = {
    "int64": make_table(INTEGERS, TARGETS),
    "decimal128": make_table(pa.array(map(Decimal, INTEGERS), pa.decimal128(38, 0)), TARGETS),
    "decimal256": make_table(pa.array(map(Decimal, INTEGERS), pa.decimal256(60, 0)), TARGETS),
    "dictionary": make_table(to_dictionary(pa.array(INTEGERS)), pa.array(TARGETS, pa.uint64())),
    "dictionary of decimals": make_table(to_dictionary(pa.array(map(Decimal, INTEGERS), pa.decimal128(5, 0))), TARGETS),
    "pandas": pd.DataFrame({"src": pd.Categorical(INTEGERS), "dst": pd.array(TARGETS, "Int16")}),
    "polars": pl.DataFrame({"src": [Decimal(k) for k in INTEGERS], "dst": TARGETS}),
    "objects": (np.array(INTEGERS, object), TARGETS),
    "decimals in arrays": (pa.array(map(Decimal, INTEGERS), pa.decimal128(38, 0)), np.array(TARGETS, np.uint8)),
    "categories": (pd.Series(INTEGERS).astype("category"), pl.Series(TARGETS)),
}


@pytest.mark.parametrize("part_rows", [1, 2, 1 << 17])
def test_types_of_one_kind_make_one_store(monkeypatch, part_rows):
    monkeypatch.setattr(tables, "PART_ROWS", part_rows)
    kinds = (UUID_TABLES, sorted(map(str, UUIDS))), (NAME_TABLES, sorted(NAMES)), (INTEGER_TABLES, sorted(INTEGERS))
    for sources, ids in kinds:
        digests = {}
        for name, source in sources.items():
            A = mg.ingest(source)
            digests[name] = A.info.digest
            assert A.vertex_ids.tolist() == ids, name
        assert len(set(digests.values())) == 1, digests


def test_files_of_different_types(tmp_path):
    """Of strings, and of integers: the store is that of one file."""
    for tables_of_kind in (UUID_TABLES, NAME_TABLES, INTEGER_TABLES):
        paths, given = [], [table for table in tables_of_kind.values() if isinstance(table, pa.Table)]
        given = [table for table in given if "<values=extension" not in str(table.schema)]  # which Arrow does not read
        for k, table in enumerate(given):
            paths.append(tmp_path / f"{k}.parquet")
            pq.write_table(table, paths[-1])
        whole = pa.concat_tables([given[0]] * len(given))
        assert mg.ingest(paths).info.digest == mg.ingest(whole).info.digest


MISSING = {
    "a null in a dictionary": (make_table(to_dictionary(pa.array(NAMES), pa.array(["a", None, "b"])), OTHERS), 1),
    "a null in a dictionary of integers": (make_table(to_dictionary(pa.array([1, 2]), pa.array([None, 2])), [1, 2]), 1),
    "a null in a dictionary of UUIDs": (
        make_table(to_dictionary(pa.array(UUIDS), pa.array([UUIDS[0], None, UUIDS[1]], pa.uuid())), pa.array(NEXT)),
        1,
    ),
    "a null index": (make_table(pa.array(["a", None]).dictionary_encode(), ["b", "c"]), 1),
    "a null UUID": (make_table(pa.array([UUIDS[0], None]), pa.array(NEXT[:2])), 1),
    "a null decimal": (make_table(pa.array([Decimal(1), None]), [1, 2]), 1),
    "NaN among categories": (pd.DataFrame({"src": pd.Categorical([np.nan, 5]), "dst": [1, 2]}), 0),
    "None among categories": (pd.DataFrame({"src": pd.Categorical(["a", None]), "dst": ["a", "b"]}), 1),
    "a category of polars": (pl.DataFrame({"src": pl.Series(["a", None], dtype=pl.Categorical), "dst": ["a", "b"]}), 1),
    "None in an array": ((["a", None], ["a", "b"]), 1),
    "NaN in an array": ((np.array(["a", np.nan], object), ["a", "b"]), 1),
    "NA in an array": ((pd.array(["a", pd.NA], "string"), ["a", "b"]), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSING)
@pytest.mark.parametrize("part_rows", [1, 1 << 17])
def test_missing_ids_are_refused_with_their_row(monkeypatch, name, part_rows):
    monkeypatch.setattr(tables, "PART_ROWS", part_rows)
    source, row = MISSING[name]
    with pytest.raises(
        SourceError, match=f"row {row} has a missing value in column 'src'; drop such rows, or fill them"
    ):
        mg.ingest(source)


def test_missing_numbers_in_arrays():
    for missing in (pl.Series([1, None]), pa.array([1, None])):
        for arrays, name in (
            ((missing, [1, 2]), "src"),
            (([1, 2], missing), "dst"),
            (([1, 2], [1, 2], missing), "weights"),
        ):
            with pytest.raises(SourceError, match=f"arrays: row 1 has a missing value in column '{name}'; drop"):
                mg.ingest(arrays)  # fmt: skip


ARRAYS = {
    "numbers and names in one list": (
        (["a", 1], ["a", "b"]),
        "src must hold only integers or only strings, Arrow cannot",
    ),
    "numbers too large": ((np.array([1, 2**64]), [1, 2]), "src must hold only integers or only strings, .* too large"),
    "objects": ((["a"], np.array([object()])), "dst must hold only integers or only strings, Arrow cannot convert it"),
    "a list of lists": ([["a", "b"], ["b", "c"]], "cannot read an object of type builtins.list as a matrix or graph"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_are_refused(name):
    source, message = ARRAYS[name]
    with pytest.raises(OptionError, match=message):
        mg.ingest(source)


def test_the_reader_of_arrays():
    assert mg.ingest((NAMES, OTHERS)).info.provenance["source"]["format"] == "arrays"
    with pytest.raises(OptionError, match="3 arcs in arrays: a cluster cannot read rows in the memory of this process"):
        open_source((NAMES, OTHERS)).split(2)


def test_names_are_ranked():
    pairs = [("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")]
    assert list(mg.ingest(tuple(zip(*pairs, strict=True))).vertex_ids) == ["a", "b", "c", "d"]

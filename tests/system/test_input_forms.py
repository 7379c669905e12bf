"""Random labeled tables in every form that is read: the graph of the table, or an error; never another graph."""

from __future__ import annotations

import gzip
import io
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.errors import MgspmvError

Row = tuple[Any, ...]

DELIMITERS = ("\t", "|", ";", ",", " ")
KNOWN = (
    ("source", "target", "weight"),
    ("src", "dst", "w"),
    ("from", "to", "value"),
    ("FromNodeId", "ToNodeId", "wgt"),
)
UNKNOWN = ("who", "whom", "strength")
EXTRA = ("timestamp", "trips", "Type", "edge_id")

TAME = ["alice", "bob", "carol", "Zürich", "日本", "x1", "C++", "o'neil", "a.b@c.de", "_"]
"""Names that nobody takes for anything else."""
WILD = [
    *("New York", "New", "York", "Washington, DC", '5" disk', '"', 'say ""hi""', "a;b", "x|y", "tab\there", ",", "|"),
    *("#ai", "#", "%x", "a#b", "//", "007", "7", "0", "1e5", "1.5", "nan", "-3", "+3", "0x1f", "1,5", "NA", "null"),
    *("source", "target", "to", "weight", "id", "who", "whom", "sep=", "--", "'", "\\", "true", "2020-01-01", "é" * 40),
]


@dataclass(frozen=True)
class Table:
    """Arcs with ids that are all integers or all names, and maybe weights whose sums are exact."""

    rows: list[Row]
    is_weighted: bool
    is_tame: bool

    @property
    def has_names(self) -> bool:
        return isinstance(self.rows[0][0], str)

    @property
    def ids(self) -> list[Any]:
        return [end for row in self.rows for end in row[:2]]

    def to_frame(self, names: Sequence[str], ids: Callable[[Any], Any] = lambda id: id) -> pd.DataFrame:
        columns = {names[k]: [ids(row[k]) for row in self.rows] for k in range(2)}
        return pd.DataFrame(columns | ({names[2]: [row[2] for row in self.rows]} if self.is_weighted else {}))

    def find_digests(self) -> set[str]:
        """Of the graph; where its names are written as integers, also that of the integers."""
        names = ("source", "target", "weight")
        columns = names if self.is_weighted else names[:2]

        def find_digest(frame: pd.DataFrame) -> str:
            return mg.ingest(frame, columns=columns).info.digest

        found = {find_digest(self.to_frame(names))}
        if self.has_names and all(re.fullmatch("0|-?[1-9][0-9]{0,17}", id) for id in self.ids):
            found.add(find_digest(self.to_frame(names, int)))
        return found


@st.composite
def tables(draw: Any) -> Table:
    kind = draw(st.sampled_from(["int", "tame", "wild"]))
    pools = {"int": st.integers(-3, 12) | st.sampled_from([2**62, 10**9]), "tame": st.sampled_from(TAME)}
    pools["wild"] = st.sampled_from(WILD + TAME[:3])
    ids = draw(st.lists(pools[kind], min_size=1, max_size=6, unique=True))
    is_weighted = draw(st.booleans())
    weights = [st.integers(1, 40).map(lambda k: k / 4)] if is_weighted else []
    rows = draw(st.lists(st.tuples(st.sampled_from(ids), st.sampled_from(ids), *weights), min_size=1, max_size=7))
    return Table(rows, is_weighted, kind != "wild")


@dataclass(frozen=True)
class Form:
    """How a table is written as text."""

    delimiter: str
    names: tuple[str, ...] | None
    """Header: of sources, targets and weights."""
    is_quoted: bool
    order: tuple[int, ...]
    """Places of the columns, as a permutation to choose from."""
    has_index: bool
    extra: str | None
    n_files: int
    n_comments: int
    newline: str
    mark: str
    is_compressed: bool
    is_piped: bool
    options: frozenset[str]
    """Which arguments say how it is to be read."""


forms = st.builds(
    Form,
    delimiter=st.sampled_from(DELIMITERS),
    names=st.sampled_from([None, UNKNOWN, *KNOWN]),
    is_quoted=st.booleans(),
    order=st.permutations(range(3)).map(tuple),
    has_index=st.booleans(),
    extra=st.sampled_from([None, None, *EXTRA]),
    n_files=st.integers(1, 3),
    n_comments=st.integers(0, 2),
    newline=st.sampled_from(["\n", "\r\n"]),
    mark=st.sampled_from(["", "\ufeff"]),
    is_compressed=st.booleans(),
    is_piped=st.booleans(),
    options=st.sets(st.sampled_from(["delimiter", "header", "columns", "comment", "ids"])).map(frozenset)
    | st.just(frozenset(["delimiter", "header", "columns", "comment", "ids"])),
)


def quote(field: Any, form: Form) -> str:
    text = str(field)
    blanks = " \t" if form.delimiter == " " else ""
    if form.is_quoted or not text or any(sign in text for sign in '"' + form.delimiter + blanks):
        return '"' + text.replace('"', '""') + '"'
    return text


def build_layout(table: Table, form: Form) -> tuple[list[str], list[list[Any]]]:
    """Names of all columns, and all rows."""
    n = 2 + table.is_weighted
    order = [place for place in form.order if place < n]
    names = [(form.names or ("", "", ""))[place] for place in order]
    rows = [[row[place] for place in order] for row in table.rows]
    if form.extra:
        names, rows = [*names, form.extra], [[*row, 1254192988 + k] for k, row in enumerate(rows)]
    if form.has_index:
        names, rows = ["", *names], [[k, *row] for k, row in enumerate(rows)]
    return names, rows


def find_options(table: Table, form: Form) -> dict[str, Any]:
    n = 2 + table.is_weighted
    order = [place for place in form.order if place < n]
    numbers = tuple(order.index(k) + 1 + form.has_index for k in range(n))
    every = {
        "delimiter": form.delimiter,
        "header": form.names is not None,
        "columns": numbers,
        "comment": "#" if form.n_comments else "none",
        "ids": "string" if table.has_names else "int",
    }
    return {name: value for name, value in every.items() if name in form.options}


def write_text(table: Table, form: Form, folder: Path) -> Any:
    """Write the files, and give what is ingested: a path, several, or bytes for standard input."""
    names, rows = build_layout(table, form)
    n_files = 1 if form.is_piped else min(form.n_files, len(rows))
    paths = []
    for k in range(n_files):
        lines = ["# made by hand", "# twice a week"][: form.n_comments]
        own = rows[k * len(rows) // n_files : (k + 1) * len(rows) // n_files]
        lines += [form.delimiter.join(quote(field, form) for field in row) for row in [names] * bool(form.names) + own]
        data = (form.mark + "".join(line + form.newline for line in lines)).encode()
        data = gzip.compress(data) if form.is_compressed else data
        if form.is_piped:
            return data
        paths.append(folder / f"{k}.csv{'.gz' if form.is_compressed else ''}")
        paths[-1].write_bytes(data)
    return paths[0] if n_files == 1 else paths


def is_well_formed(table: Table, form: Form) -> bool:
    """Whether the form says all: names that are known above names that are tame, or options."""
    if form.options >= {"delimiter", "header", "columns", "comment", "ids"}:
        return not (form.n_comments and begins_with_comment(table, form))
    has_known_extra = form.extra in (None, "timestamp", "Type", "edge_id")
    return form.names in KNOWN and table.is_tame and has_known_extra and "columns" not in form.options


def begins_with_comment(table: Table, form: Form) -> bool:
    names, rows = build_layout(table, form)
    first = [quote(row[0], form) for row in [names] * bool(form.names) + rows]
    return any(text[:1] in ("#", "%") for text in first)


def is_another_table(table: Table, form: Form) -> bool:
    """Whether the lines say another table, by what is documented about places, delimiters, headers and comments."""
    names, rows = build_layout(table, form)
    lines = [[quote(field, form) for field in row] for row in [names] * bool(form.names) + rows]
    n = 2 + table.is_weighted
    in_place = [place for place in form.order if place < n] == list(range(n))
    if "columns" not in form.options:
        if form.names is None and not (in_place and not form.has_index and form.extra is None):
            return True
        if form.names == UNKNOWN and (not in_place or (form.extra == "trips" and not table.is_weighted)):
            return True
    if "delimiter" not in form.options:
        before = DELIMITERS[: DELIMITERS.index(form.delimiter)]
        if any(all(sign in form.delimiter.join(line) for line in lines) for sign in before):
            return True
    if "header" not in form.options and form.names is None and looks_like_header(rows, form.has_index):
        return True
    if "header" not in form.options and form.names == UNKNOWN and set(names) & set(table.ids):
        return True  # unknown names that occur again are ids
    is_commented = any(line[0][:1] in ("#", "%") for line in lines)
    if is_commented and "comment" in form.options and form.n_comments:
        return True
    return is_commented and form.delimiter in " \t" and any(line[0] in ("#", "%") for line in lines)


def looks_like_header(rows: list[list[Any]], has_index: bool) -> bool:
    """Whether a first row of ids has names of columns, or words where there are numbers below."""
    ends = [[str(id) for id in row[has_index : has_index + 3]] for row in rows]
    if len({"source", "from", "to", "target"} & set(ends[0])) > 1:
        return True
    are_numbers = [all(map(is_number, own)) for own in zip(*ends[1:], strict=True)]
    return any(numbers and not is_number(word) for word, numbers in zip(ends[0], are_numbers, strict=False))


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def check(table: Table, source: Any, options: dict[str, Any], *, is_well_formed: bool) -> None:
    """Fail unless a source is read as the table, or is refused and may be."""
    store, refusal = MemoryStore(), None
    is_piped = isinstance(source, bytes)
    with mock.patch("sys.stdin", mock.Mock(buffer=io.BytesIO(source if is_piped else b""))):
        try:
            mg.ingest("-" if is_piped else source, store, **options)
        except MgspmvError as error:
            refusal = error
    event("read" if refusal is None else "refused")
    assert refusal is None or not is_well_formed, str(refusal)
    if refusal is None:
        with mg.open_matrix(store) as A:
            assert A.info.digest in table.find_digests(), (options, str(A.ingest_report))


@pytest.mark.fuzz
@settings(max_examples=60)
@given(table=tables(), form=forms)
def test_texts_are_the_table_or_refused(table, form):
    assume(not is_another_table(table, form))
    with tempfile.TemporaryDirectory() as folder:
        source, options = write_text(table, form, Path(folder)), find_options(table, form)
        check(table, source, options, is_well_formed=is_well_formed(table, form))


@dataclass(frozen=True)
class Shape:
    """How a table of columns is made."""

    library: str
    names: tuple[str, ...]
    order: tuple[int, ...]
    index: str | None
    """What is beside the columns: a saved or named index, or a column of numbers of edges."""
    extra: str | None
    n_files: int
    is_encoded: bool
    """Whether ids are categories, or a dictionary."""
    is_explicit: bool


LIBRARIES = ("pandas", "polars", "arrow", "parquet of pandas", "parquet of arrow", "dask", "csv of pandas")
shapes = st.builds(
    Shape,
    library=st.sampled_from(LIBRARIES),
    names=st.sampled_from([UNKNOWN, *KNOWN]),
    order=st.permutations(range(3)).map(tuple),
    index=st.sampled_from([None, None, "filtered", "named", "edge_id"]),
    extra=st.sampled_from([None, None, *EXTRA[:3]]),
    n_files=st.integers(1, 2),
    is_encoded=st.booleans(),
    is_explicit=st.booleans(),
)


def make_frame(table: Table, shape: Shape) -> pd.DataFrame:
    frame = table.to_frame(shape.names)
    frame = frame[[shape.names[k] for k in shape.order if k < frame.shape[1]]]
    if shape.extra:
        frame[shape.extra] = np.arange(len(frame)) + 1254192988
    if shape.is_encoded and table.has_names:
        frame = frame.astype(dict.fromkeys(shape.names[:2], "category"))
    if shape.index == "edge_id":
        frame.insert(0, "edge_id", np.arange(len(frame)))
    if shape.index in ("filtered", "named"):
        name = "key" if shape.index == "named" else None
        frame = frame.set_index(pd.Index(np.arange(len(frame)) * 2 + 5, name=name))
    return frame


def make_source(table: Table, shape: Shape, folder: Path) -> Any:
    frame = make_frame(table, shape)
    half = (len(frame) + 1) // 2
    parts = [frame] if shape.n_files == 1 or half == len(frame) else [frame[:half], frame[half:]]
    if shape.library == "pandas":
        return frame
    if shape.library == "polars":
        return pytest.importorskip("polars").from_pandas(frame.reset_index(drop=True))
    if shape.library == "arrow":
        return pa.Table.from_pandas(frame)
    if shape.library == "dask":
        return pytest.importorskip("dask.dataframe").from_pandas(frame, npartitions=shape.n_files)
    for k, part in enumerate(parts):
        if shape.library == "parquet of pandas":
            part.to_parquet(folder / f"{k}.parquet")
        elif shape.library == "parquet of arrow":
            pq.write_table(pa.Table.from_pandas(part, preserve_index=False), folder / f"{k}.parquet")
        else:
            part.to_csv(folder / f"{k}.csv")
    return folder


def is_by_place(table: Table, shape: Shape) -> bool:
    """Whether names say nothing, so that places decide, and these say another table."""
    n = 2 + table.is_weighted
    in_place = [place for place in shape.order if place < n] == list(range(n))
    is_plain = in_place and (shape.extra != "trips" or table.is_weighted)
    is_column = shape.library == "csv of pandas" and shape.index == "named"  # text does not say what is an index
    return shape.names == UNKNOWN and not shape.is_explicit and (is_column or not is_plain)


@pytest.mark.fuzz
@settings(max_examples=40)
@given(table=tables(), shape=shapes)
def test_tables_are_the_table_or_refused(table, shape):
    assume(not is_by_place(table, shape))
    options: dict[str, Any] = {"columns": shape.names[: 2 + table.is_weighted]} if shape.is_explicit else {}
    if shape.library == "csv of pandas" and table.has_names:
        options |= {"ids": "string", "comment": "none", "delimiter": ","}
    is_known = shape.names in KNOWN and shape.extra != "trips"
    if shape.library == "csv of pandas":
        is_known &= shape.index != "named" and not set(table.ids) & {*shape.names, "edge_id", "--"}
    with tempfile.TemporaryDirectory() as folder:
        source = make_source(table, shape, Path(folder))
        check(table, source, options, is_well_formed=shape.is_explicit or is_known)

"""Matrix Market files.

Source: R. Boisvert, R. Pozo, K. Remington, "The Matrix Market Exchange Formats: Initial Design", NISTIR 5935 (1996).
Differs from it in being lenient: comments and blank lines may stand anywhere after the banner, lines may be indented,
`double` and `unsigned-integer` (which SciPy writes) are fields too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mgspmv.errors import SourceError
from mgspmv.ingest.columns import TableFormat, TextColumn, nth_line, read_chunks
from mgspmv.ingest.source import FileSource, Layout, symmetrize
from mgspmv.ingest.streams import Chunk, TextLine, TextStream
from mgspmv.ingest.tokens import INT64_MAX, INT64_MIN, is_integer
from mgspmv.model import CooBatch, default_threads, index_dtype

_COMMENTS = b"%"
_BANNERS = ("%%matrixmarket", "%matrixmarket")
_EXAMPLE = "'%%MatrixMarket matrix coordinate real general'"
_FIELDS = {"real": "real", "double": "real", "integer": "integer", "unsigned-integer": "integer", "pattern": "pattern"}
_WORDS = {
    "object": ("matrix",),
    "layout": ("coordinate", "array"),
    "field": tuple(_FIELDS),
    "symmetry": ("general", "symmetric", "skew-symmetric"),
}
"""Words of the banner, in their order."""
_BEYOND_INT64 = 'to read integers beyond int64 and infinities, ingest with dtype="float64"'


@dataclass(frozen=True)
class Header:
    """Contents of the banner and the size line of a Matrix Market file."""

    layout: str
    """Layout of the entries: `coordinate` or `array`."""
    field: str
    """Type of the values: `real`, `integer` or `pattern`."""
    symmetry: str
    """Symmetry of the matrix: `general`, `symmetric` or `skew-symmetric`."""
    n_rows: int
    n_cols: int
    n_entries: int
    """Number of entries listed in the file, without mirror images."""
    size_line: TextLine
    """Line that states the sizes."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.n_rows, self.n_cols

    def check_entries(self, n_read: int, *, are_all: bool = False) -> None:
        """Raise SourceError if more entries were read than the size line states, or less if these are all."""
        if n_read > self.n_entries:
            raise self.size_line.make_error(
                f"expected {self.n_entries} entries, found more; the size line is wrong, or two files were concatenated"
            )
        if are_all and n_read < self.n_entries:
            raise self.size_line.make_error(
                f"expected {self.n_entries} entries, the file ends after {n_read}; it is cut short or its size line is "
                "wrong"
            )


class MatrixMarketSource(FileSource):
    """A Matrix Market file as a `Source`.

    Supported are the object `matrix`; the layouts coordinate and array; the fields real, integer and pattern; the
    symmetries general, symmetric and skew-symmetric, where each entry off the diagonal is given at both places. A
    coordinate file's explicit zeros are entries; of an array, all values except exact zeros are entries. Values are
    float64 for real and int64 for integer; with `as_float64` those for integer are float64 too, also beyond int64 and
    infinite ones.

    Parameters
    ----------
    path : local path or URL; may be compressed with gzip, bzip2, xz or zstd
    threads : number of threads that parse

    Raises
    ------
    SourceError : by `batches`, for complex values, hermitian symmetry and vectors
    SourceError : by `batches`, for anything else that is not a whole Matrix Market file; names the line
    SourceNotFoundError : by `batches`, if there is no file
    """

    default_kind = "matrix"

    def batches(self) -> Iterator[CooBatch]:
        """Yield all entries, in at least one batch; symmetric entries and their mirror images are in the same one."""
        with TextStream(self.name, hashes=self.hashes_files) as text:
            header = read_header(text)
            form, n_read = _find_form(header, self.as_float64), 0
            for chunk, columns, _ in read_chunks(text.chunks(), form, self._threads or default_threads()):
                self.fraction = text.fraction
                header.check_entries(n_read + len(columns[0]))
                yield _make_batch(header, form, chunk, columns, n_read)
                n_read += len(columns[0])
            file = text.provenance()
        header.check_entries(n_read, are_all=True)
        stated = {name: getattr(header, name) for name in ("layout", "field", "symmetry")}
        provenance = {"format": "matrix-market", **file, "header": {**stated, "entries": header.n_entries}}
        taken = {"n_rows": header.n_entries} if header.layout == "coordinate" else {}
        lists_all = header.layout == "array" and header.n_entries > 0  # rows and columns
        place = None if lists_all else header.size_line.make_error
        self._layout = Layout(header.shape, provenance={**provenance, "taken": taken}, stated=place)


def is_banner(line: TextLine) -> bool:
    """Return whether a line is the first of a Matrix Market file."""
    return line.text.lower().startswith(_BANNERS)


def read_header(text: TextStream) -> Header:
    """Read the banner and the size line, and the comments between them.

    Raises
    ------
    SourceError : no banner, or an invalid banner or size line; complex values, hermitian symmetry, a vector
    """
    banner = text.read_line()
    if banner is None:
        raise SourceError(f"the file is empty; expected a first line like {_EXAMPLE}", source=text.name)
    layout, field, symmetry = _parse_banner(banner)
    for _ in text.read_comments(_COMMENTS):
        pass
    line = text.read_line()
    if line is None:
        raise banner.make_error("the file ends before the line of sizes; fetch or write it again")
    n_rows, n_cols, n_entries = _parse_sizes(line, layout, symmetry)
    return Header(layout, field, symmetry, n_rows, n_cols, n_entries, line)


def _parse_banner(line: TextLine) -> tuple[str, str, str]:
    if not is_banner(line):
        raise line.make_error(f"not a Matrix Market file; expected a first line like {_EXAMPLE}")
    words = line.text.lower().split()
    if len(words) != 5:
        raise line.make_error(f"expected a first line of five words like {_EXAMPLE}, found {len(words)}")
    _, _, layout, field, symmetry = words
    # The format defines hermitian for complex values only. A real file with this word may be symmetric, but more
    # likely its imaginary parts are lost, so it is an error.
    for word, (what, choices) in zip(words[1:], _WORDS.items(), strict=True):
        if word not in choices:
            raise line.make_error(f"the {what} must be {' or '.join(choices)}, not {word!r}")
    if field == "pattern" and (layout == "array" or symmetry == "skew-symmetric"):
        raise line.make_error(f"a pattern has no values, so it cannot be {layout} {symmetry}; use a field with values")
    return layout, _FIELDS[field], symmetry


def _parse_sizes(line: TextLine, layout: str, symmetry: str) -> tuple[int, int, int]:
    names = ("rows", "columns", "entries") if layout == "coordinate" else ("rows", "columns")
    tokens = line.text.split()
    if len(tokens) != len(names):
        raise line.make_error(
            f"expected the {len(names)} sizes of the matrix ({', '.join(names)}), found {len(tokens)}"
        )
    for token, name in zip(tokens, names, strict=True):
        if not is_integer(token) or len(token) > 20 or not 0 <= int(token) < INT64_MAX:
            raise line.make_error(
                f"expected the number of {name} to be an integer from 0 below 2^63 - 1, found {token!r}"
            )
    n_rows, n_cols, *n_entries = map(int, tokens)
    if symmetry != "general" and n_rows != n_cols:
        raise line.make_error(f"a {symmetry} matrix must be square, this one has {n_rows} rows and {n_cols} columns")
    if layout == "coordinate":
        return n_rows, n_cols, n_entries[0]
    n_off_diagonal = n_rows * (n_rows - 1) // 2
    n_values = {"general": n_rows * n_cols, "symmetric": n_off_diagonal + n_rows, "skew-symmetric": n_off_diagonal}
    return n_rows, n_cols, n_values[symmetry]


def _find_form(header: Header, as_float64: bool) -> TableFormat:
    columns: tuple[TextColumn, ...] = ()
    if header.layout == "coordinate":
        index: Any = index_dtype(max(header.shape)).name
        columns = TextColumn("row", index, 1, header.n_rows), TextColumn("column", index, 1, header.n_cols)
    if header.field == "real" or (header.field == "integer" and as_float64):
        columns += (TextColumn("value", "float64"),)
    elif header.field == "integer":
        low = INT64_MIN + (header.symmetry == "skew-symmetric")  # the smallest int64 cannot be negated
        columns += (TextColumn("value", "int64", low=low, hint=_BEYOND_INT64),)
    return TableFormat(columns, " ", _COMMENTS)


def _make_batch(header: Header, form: TableFormat, chunk: Chunk, columns: list[Any], n_before: int) -> CooBatch:
    """Return the entries of a chunk and their mirror images, after `n_before` values of an array."""
    if header.layout == "array":
        nonzero, index = np.flatnonzero(columns[0]), index_dtype(max(header.shape))
        rows, cols = _locate_values(n_before + nonzero, header)
        batch = CooBatch(rows.astype(index), cols.astype(index), columns[0][nonzero])
    else:
        batch = CooBatch(columns[0] - 1, columns[1] - 1, columns[2] if len(columns) > 2 else None)
        if header.symmetry == "skew-symmetric" and (wrong := (batch.rows == batch.cols) & (batch.values != 0)).any():
            raise nth_line(chunk, form, int(wrong.argmax())).make_error(
                "the diagonal of a skew-symmetric matrix must be zero; remove the entry or write 'general'"
            )
    whole = symmetrize(batch, header.symmetry)
    if header.field == "integer" and whole.values is not None and whole.values.dtype == np.float64:
        return replace(whole, values=whole.values + 0.0)  # integers have no -0.0
    return whole


def _locate_values(numbers: np.ndarray, header: Header) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns of the values of an array that have these numbers.

    Values are listed column by column; those of a symmetric matrix from the diagonal down, of a skew-symmetric one
    below it.
    """
    if header.symmetry == "general":
        cols, rows = np.divmod(numbers, max(header.n_rows, 1))
        return rows, cols
    tops = np.arange(header.n_cols) + (header.symmetry == "skew-symmetric")
    begins = np.cumsum(header.n_rows - tops) - (header.n_rows - tops)
    cols = np.searchsorted(begins, numbers, side="right") - 1
    return numbers - begins[cols] + tops[cols], cols

"""Matrix Market files compared with SciPy's reader, and every error in one."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
from unittest.mock import patch

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.errors import SourceError
from mgspmv.ingest import streams
from mgspmv.ingest.matrix_market import MatrixMarketSource
from mgspmv.ingest.source import settle
from tests.support.reference_data import shared_data

COMPLEX = "the field must be real or double or integer or unsigned-integer or pattern, not 'complex'"
VECTOR = "the object must be matrix, not 'vector'"
HERMITIAN = "the symmetry must be general or symmetric or skew-symmetric, not 'hermitian'"
NO_BANNER = "not a Matrix Market file; expected a first line like '%%MatrixMarket matrix coordinate real general'"

# file: rows, columns, entries (mirrored ones too; no zeros of arrays), dtype of the values
READ = {
    "fmm/2col_array.mtx": (3, 2, 6, "float64"),
    "fmm/eye3_array.mtx": (3, 3, 3, "float64"),
    "fmm/eye3_pattern.mtx": (3, 3, 3, None),
    "fmm/graphblas__matrix_bool.mtx": (3, 1, 4, "float64"),
    "fmm/graphblas__matrix_int32.mtx": (3, 1, 4, "float64"),
    "fmm/graphblas__matrix_int8.mtx": (3, 1, 4, "float64"),
    "fmm/graphblas__matrix_uint32.mtx": (3, 1, 4, "float64"),
    "fmm/graphblas__matrix_uint8.mtx": (3, 1, 4, "float64"),
    "fmm/kepner_gilbert_graph.mtx": (7, 7, 12, "float64"),
    "fmm/nist_ex1_freeformat.mtx": (5, 5, 8, "float64"),
    "fmm/permissive__permissive_banner_leading_spaces_eye3.mtx": (3, 3, 3, "float64"),
    "fmm/permissive__permissive_lines_indented.mtx": (1, 1, 1, "float64"),
    "fmm/py__eye3.mtx": (3, 3, 3, "float64"),
    "fmm/py__matrix_array_integer_general.mtx": (3, 2, 6, "int64"),
    "fmm/py__matrix_array_real_general.mtx": (3, 2, 6, "float64"),
    "fmm/py__matrix_coordinate_integer_general.mtx": (3, 3, 3, "int64"),
    "fmm/py__matrix_coordinate_pattern_general.mtx": (3, 3, 3, None),
    "fmm/py__matrix_coordinate_pattern_symmetric.mtx": (3, 3, 5, None),
    "fmm/py__matrix_coordinate_real_general.mtx": (3, 3, 3, "float64"),
    "fmm/py__matrix_coordinate_real_general.mtx.bz2": (3, 3, 3, "float64"),
    "fmm/py__matrix_coordinate_real_general.mtx.gz": (3, 3, 3, "float64"),
    "fmm/py__matrix_coordinate_real_symmetric.mtx": (3, 3, 5, "float64"),
    "fmm/row_3by4.mtx": (3, 4, 4, "int64"),
    "fmm/symmetry__coordinate_hermitian_real_row_general_dup.mtx": (3, 3, 6, "float64"),
    "fmm/symmetry__coordinate_pattern_symmetric_row.mtx": (3, 3, 4, None),
    "fmm/symmetry__coordinate_pattern_symmetric_row_general_dup.mtx": (3, 3, 4, None),
    "fmm/symmetry__coordinate_skew_symmetric_row.mtx": (3, 3, 4, "float64"),
    "fmm/symmetry__coordinate_skew_symmetric_row_general_dup.mtx": (3, 3, 4, "float64"),
    "fmm/symmetry__coordinate_symmetric_row.mtx": (3, 3, 5, "float64"),
    "fmm/symmetry__coordinate_symmetric_row_general_dup.mtx": (3, 3, 6, "float64"),
    "fmm/symmetry_array__array_skew-symmetric.mtx": (3, 3, 6, "float64"),
    "fmm/symmetry_array__array_symmetric.mtx": (3, 3, 9, "float64"),
    "lagraph/LFAT5_hypersparse.mtx": (2000, 2000, 46, "float64"),
    "lagraph/comments_cover.mtx": (7, 7, 12, "int64"),
    "lagraph/comments_west0067.mtx": (67, 67, 295, "float64"),
    "lagraph/cover.mtx": (7, 7, 12, "int64"),
    "lagraph/empty.mtx": (3, 4, 0, "float64"),
    "lagraph/lp_afiro_structure.mtx": (27, 51, 102, None),
    "lagraph/mangled14.mtx": (3, 4, 3, "float64"),  # mangled in having a duplicate, which is ours to treat
    "lagraph/mangled_int32.mtx": (7, 7, 12, "int64"),  # mangled for 32-bit integers only
    "lagraph/mangled_skew.mtx": (6, 6, 20, "int64"),  # mangled for unsigned integers only
    "lagraph/mangled_uint32.mtx": (7, 7, 12, "int64"),  # mangled for 32-bit integers only
    "lagraph/matrix_bool.mtx": (7, 7, 12, "int64"),
    "lagraph/matrix_fp32_structure.mtx": (7, 7, 12, None),
    "lagraph/matrix_int16.mtx": (7, 7, 12, "int64"),
    "lagraph/matrix_int64.mtx": (7, 7, 12, "int64"),
    "lagraph/matrix_uint16.mtx": (7, 7, 12, "int64"),
    "lagraph/msf1.mtx": (6, 6, 8, "int64"),
    "lagraph/msf3.mtx": (5, 5, 7, "int64"),
    "lagraph/sample2.mtx": (8, 8, 28, None),
    "lagraph/skew_fp64.mtx": (6, 6, 20, "float64"),
    "lagraph/skew_int32.mtx": (6, 6, 20, "int64"),
    "lagraph/skew_int8.mtx": (6, 6, 20, "int64"),
    "suitesparse/CHOLMOD__Demo__Matrix__pts5ldd03.mtx": (161, 161, 745, "float64"),
    "suitesparse/CHOLMOD__Tcov__Matrix__fullrza.mtx": (2, 2, 2, "float64"),
    "suitesparse/KLU__Matrix__arrow.mtx": (100, 100, 298, "int64"),
    "suitesparse/KLU__Matrix__one.mtx": (2, 2, 4, "float64"),
    "suitesparse/KLU__Matrix__two.mtx": (2, 2, 1, "float64"),
}

# the same for correct files that SciPy rejects: line ends of a single \r; comments between the entries
READ_TIDIED = {
    "fmm/py__misc__windows_newlines.mtx": (3, 3, 3, "float64"),
    "lagraph/west0067_jumbled.mtx": (67, 67, 294, "float64"),
}

# file: line, message
REJECTED = {
    "fmm/graphblas__matrix_double_complex.mtx": (1, COMPLEX),
    "fmm/graphblas__matrix_float_complex.mtx": (1, COMPLEX),
    "fmm/invalid__invalid_bad_banner.mtx": (1, NO_BANNER),
    "fmm/invalid__invalid_bad_field.mtx": (1, "the field must be real or double or integer or "),
    "fmm/invalid__invalid_bad_object.mtx": (1, "the object must be matrix, not '___'"),
    "fmm/invalid__invalid_bad_value.mtx": (3, "expected value to be a number, found 'not_a_double'"),
    "fmm/invalid__invalid_bad_value_3.mtx": (1, VECTOR),
    "fmm/invalid__invalid_dimensions_out_of_range_1.mtx": (3, "number of rows to be an integer from 0"),
    "fmm/invalid__invalid_dimensions_out_of_range_3.mtx": (3, "number of entries to be an integer from 0"),
    "fmm/invalid__invalid_indices_out_of_range_2.mtx": (6, "column to be an integer from 1 to 7, found '2000'"),
    "fmm/invalid__invalid_indices_out_of_range_4.mtx": (6, "column to be an integer from 1 to 7, found '0'"),
    "fmm/invalid__invalid_indices_out_of_range_6.mtx": (6, "column to be an integer from 1 to 7, found '-2'"),
    "fmm/invalid__invalid_symmetry_vector.mtx": (1, VECTOR),
    "fmm/invalid__invalid_truncated_header_2.mtx": (1, "expected a first line of five words like "),
    "fmm/invalid__invalid_truncated_line_2.mtx": (5, "expected 'row column value', found 1 column"),
    "fmm/invalid__invalid_vector_array_too_long.mtx": (1, VECTOR),
    "fmm/invalid__invalid_vector_index_out_of_range_1.mtx": (1, VECTOR),
    "fmm/invalid__invalid_vector_negative_length.mtx": (1, VECTOR),
    "fmm/py__matrix_array_complex_general.mtx": (1, COMPLEX),
    "fmm/py__matrix_coordinate_complex_general.mtx": (1, COMPLEX),
    "fmm/py__matrix_coordinate_complex_hermitian.mtx": (1, COMPLEX),
    # SciPy reads it, with 30 on the diagonal of a matrix that equals its negative transpose
    "fmm/py__matrix_coordinate_real_skew-symmetric.mtx": (6, "diagonal of a skew-symmetric matrix must be zero"),
    # SciPy reads it as symmetric; the format has hermitian for complex values only
    "fmm/symmetry__coordinate_hermitian_real_row.mtx": (1, HERMITIAN),
    "fmm/symmetry__coordinate_hermitian_row.mtx": (1, COMPLEX),
    "fmm/symmetry__coordinate_hermitian_row_general_dup.mtx": (1, COMPLEX),
    "fmm/symmetry_array__array_hermitian.mtx": (1, COMPLEX),
    "fmm/vector_coordinate.mtx": (1, VECTOR),
    "fmm/vector_coordinate_complex_dupes.mtx": (1, VECTOR),
    "lagraph/full_noheader.mtx": (1, NO_BANNER),
    "lagraph/mangled10.mtx": (4, "expected 3 entries, the file ends after 2; it is cut short or its size line"),
    "lagraph/mangled12.mtx": (5, "expected 'row column value', found 2 columns"),
    # SciPy takes the first of the two numbers on each line
    "lagraph/mangled16.mtx": (5, "expected 'value', found 2 columns"),
    "lagraph/mangled3.mtx": (1, "not 'mangled'"),
    # SciPy reads it as symmetric and overlooks that a pattern has a value
    "lagraph/mangled5.mtx": (1, HERMITIAN),
    "lagraph/mangled7.mtx": (5, "expected 'row column value', found 2 columns"),
    "lagraph/mangled9.mtx": (4, "a symmetric matrix must be square, this one has 3 rows and 4 columns"),
    "lagraph/mangled_format.mtx": (1, "a pattern has no values, so it cannot be array symmetric"),
    "lagraph/matrix_uint64.mtx": (8, "value to be a 64-bit integer, found '18446744073709551615'"),
    "suitesparse/CHOLMOD__Demo__Matrix__c.mtx": (1, COMPLEX),
    "suitesparse/CHOLMOD__Demo__Matrix__mangle1.mtx": (1, "the object must be matrix, not 'junk'"),
    "suitesparse/CHOLMOD__Demo__Matrix__mangle3.mtx": (1, "not 'junk'"),
    "suitesparse/CHOLMOD__Tcov__Matrix__cha.mtx": (1, COMPLEX),
    "suitesparse/CHOLMOD__Tcov__Matrix__fullcrud1.mtx": (1, NO_BANNER),
    "suitesparse/CHOLMOD__Tcov__Matrix__fullcsa.mtx": (1, COMPLEX),
    "suitesparse/KLU__Matrix__1c.mtx": (1, COMPLEX),
    "suitesparse/KLU__Matrix__ctina.mtx": (1, COMPLEX),
}


BATCH_BYTES = (7, 2**22)
"""A batch of few entries, and one of all."""


def read(path, batch_bytes=2**22):
    """The matrix as SciPy puts our batches together (a pattern's entries are 1), the batches and the layout."""
    source = MatrixMarketSource(path)
    with patch.object(streams, "CHUNK_BYTES", batch_bytes):
        batches = list(source.batches())
    layout = source.layout()
    assert len({None if batch.values is None else batch.values.dtype for batch in batches}) == 1
    values = np.concatenate([np.ones(len(b.rows)) if b.values is None else b.values for b in batches])
    places = tuple(np.concatenate([getattr(b, name) for b in batches]) for name in ("rows", "cols"))
    return sp.coo_array((values, places), shape=layout.shape), batches, layout


def read_text(tmp_path, text, batch_bytes=2**22):
    path = tmp_path / "a.mtx"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read(path, batch_bytes)


def refusal(tmp_path, text, batch_bytes=2**22):
    with pytest.raises(SourceError) as caught:
        read_text(tmp_path, text, batch_bytes)
    assert caught.value.source == str(tmp_path / "a.mtx")
    return caught.value


def scipy_reads(file):
    return sp.coo_array(scipy.io.mmread(file, spmatrix=False))


def assert_same(matrix, expected, name=""):
    assert matrix.shape == expected.shape, name
    ours, theirs = matrix.tocsr(), expected.tocsr()  # sums duplicates on either side
    ours.eliminate_zeros()
    theirs.eliminate_zeros()
    np.testing.assert_array_equal(ours.indptr, theirs.indptr, name)
    np.testing.assert_array_equal(ours.indices, theirs.indices, name)
    np.testing.assert_array_equal(ours.data, theirs.data, name)


def tidy(path):
    r"""The text with plain line ends, without blank lines and comments."""
    lines = path.read_bytes().replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return b"\n".join([lines[0], *(line for line in lines[1:] if line.strip() and not line.startswith(b"%"))])


@pytest.mark.parametrize("folder", ["fmm", "lagraph", "suitesparse"])
def test_read(folder):
    for name in (name for name in READ if name.startswith(f"{folder}/")):
        path = shared_data(f"mm_edge/{name}")
        n_rows, n_cols, n_entries, dtype = READ[name]
        expected = scipy_reads(path)
        for batch_bytes in BATCH_BYTES:
            matrix, batches, layout = read(path, batch_bytes)
            assert layout.shape == (n_rows, n_cols), name
            assert sum(len(batch.rows) for batch in batches) == n_entries, name
            assert (batches[0].values is None) if dtype is None else (batches[0].values.dtype == dtype), name
            assert_same(matrix, expected, name)


@pytest.mark.parametrize("name", READ_TIDIED)
def test_read_what_scipy_rejects(name):
    path = shared_data(f"mm_edge/{name}")
    with pytest.raises(ValueError, match=r"^Line"):
        scipy_reads(path)
    n_rows, n_cols, n_entries, dtype = READ_TIDIED[name]
    for batch_bytes in BATCH_BYTES:
        matrix, batches, layout = read(path, batch_bytes)
        assert layout.shape == (n_rows, n_cols)
        assert sum(len(batch.rows) for batch in batches) == n_entries
        assert batches[0].values.dtype == dtype
        assert_same(matrix, scipy_reads(io.BytesIO(tidy(path))))


@pytest.mark.parametrize("name", REJECTED)
def test_rejected(name):
    path = shared_data(f"mm_edge/{name}")
    line_number, message = REJECTED[name]
    for batch_bytes in BATCH_BYTES:
        with pytest.raises(SourceError) as caught:
            read(path, batch_bytes)
        assert type(caught.value) is SourceError
        assert caught.value.source == str(path)
        assert caught.value.line_number == line_number
        assert caught.value.text == path.read_text().splitlines()[line_number - 1].strip()
        assert message in str(caught.value)


FIELD_VALUES = {
    "real": st.floats(allow_nan=False).map(repr),
    "double": st.floats(0, 1).map(lambda v: f"{v:.17e}"),
    "integer": st.integers(-(2**63) + 1, 2**63 - 1).map(str),
    "pattern": st.just(""),
}


@st.composite
def files(draw):
    """A file as SciPy writes it, and the same one with all that is allowed beside."""
    field = draw(st.sampled_from(sorted(FIELD_VALUES)))
    layout = "coordinate" if field == "pattern" else draw(st.sampled_from(["coordinate", "array"]))
    symmetries = ["general", "symmetric"] + ["skew-symmetric"] * (field != "pattern")
    symmetry = draw(st.sampled_from(symmetries))
    n_rows = draw(st.integers(1, 6))
    n_cols = n_rows if symmetry != "general" else draw(st.integers(1, 6))
    places = [(i, j) for j in range(1, n_cols + 1) for i in range(1, n_rows + 1)]
    if symmetry != "general":
        places = [(i, j) for i, j in places if i > j or (i == j and symmetry == "symmetric")]
    if layout == "coordinate":
        places = draw(st.lists(st.sampled_from(places), unique=True, max_size=12)) if places else []
    entries = []
    for i, j in places:
        value = draw(FIELD_VALUES[field])
        entries.append([value] if layout == "array" else [str(i), str(j), value][: 2 + (field != "pattern")])
    sizes = [str(n_rows), str(n_cols)] + [str(len(places))] * (layout == "coordinate")
    banner = ["%%MatrixMarket", "matrix", layout, field, symmetry]
    plain = "".join(" ".join(line) + "\n" for line in [banner, sizes, *entries])

    blank = st.sampled_from([" ", "  ", "\t", " \t "])
    between = st.lists(st.sampled_from(["", " ", "% 1 1 1", "  %x (", "%"]), max_size=2)
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    shown = [draw(st.sampled_from([str.upper, str.lower, str.title]))(word) for word in banner[1:]]
    lines = [draw(blank).join(["%%MatrixMarket", *shown])]
    for line in [sizes, *entries]:
        edges = draw(st.sampled_from(["", " ", "\t"])), draw(st.sampled_from(["", " "]))
        lines += [*draw(between), draw(blank).join(line).join(edges)]
    noisy = end.join([*lines, *draw(between)]) + draw(st.sampled_from(["", end]))
    return plain, noisy


@pytest.mark.fuzz
@given(files(), st.sampled_from([1, 7, 30, 2**22]))
def test_round_trip(tmp_path_factory, texts, batch_bytes):
    plain, noisy = texts
    expected = scipy_reads(io.BytesIO(plain.encode()))
    matrix, batches, _ = read_text(tmp_path_factory.getbasetemp(), noisy, batch_bytes)
    assert_same(matrix, expected)
    if " array " not in plain:
        assert matrix.nnz == expected.nnz
    else:
        assert all((batch.values != 0).all() for batch in batches)


def value_of(tmp_path, token, field="real"):
    text = f"%%MatrixMarket matrix coordinate {field} general\n1 1 1\n1 1 {token}\n"
    return read_text(tmp_path, text)[1][0].values[0]


@pytest.mark.parametrize(
    ("token", "value"),
    [
        ("inf", np.inf),
        ("-Infinity", -np.inf),
        ("1e400", np.inf),
        ("1e-400", 0.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("2.2250738585072011e-308", 2.2250738585072011e-308),
        ("9007199254740993", 9007199254740992.0),
        ("0.1", 0.1),
        ("nan", np.nan),
    ],
)
def test_values_are_those_of_scipy(tmp_path, token, value):
    text = f"%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 {token}\n"
    np.testing.assert_array_equal(scipy.io.mmread(io.BytesIO(text.encode()), spmatrix=False).data, [value])
    np.testing.assert_array_equal(value_of(tmp_path, token), value)


@pytest.mark.parametrize(
    ("token", "value"),
    [
        ("1.0D+05", 100000.0),  # SciPy reads 1.0 and overlooks the exponent
        ("-2.5d-1", -0.25),  # the same
        ("+1.5", 1.5),  # SciPy refuses it
    ],
)
def test_values_that_scipy_misreads(tmp_path, token, value):
    assert value_of(tmp_path, token) == value


def test_no_values(tmp_path):
    """SciPy reads the part before the nonsense."""
    with pytest.raises(SourceError, match=r"line 3: .*: value is '1,5', with a decimal comma"):
        value_of(tmp_path, "1,5")
    for token in ("1_0", "0x10", "1.5abc", "1e", "--1", "nan(5)"):
        with pytest.raises(SourceError, match=f"line 3: .*: expected value to be a number, found '{re.escape(token)}'"):
            value_of(tmp_path, token)
    for token, n_columns in (("", 2), ("1 2", 4)):
        with pytest.raises(SourceError, match=f"line 3: .*: expected 'row column value', found {n_columns} columns"):
            value_of(tmp_path, token)


def test_explicit_zeros_are_entries_of_coordinates_but_not_of_arrays(tmp_path):
    coordinate, _, _ = read_text(tmp_path, "%%MatrixMarket matrix coordinate real general\n1 2 2\n1 1 0\n1 2 0\n")
    array, _, layout = read_text(tmp_path, "%%MatrixMarket matrix array real general\n1 3\n0\n-0.0\nnan\n")
    assert (coordinate.nnz, array.nnz, layout.shape) == (2, 1, (1, 3))


def test_no_entries(tmp_path):
    for sizes in ("0 0 0", "3 0 0", "0 4 0"):
        _, batches, layout = read_text(tmp_path, f"%%MatrixMarket matrix coordinate integer general\n{sizes}\n")
        assert layout.shape == tuple(map(int, sizes.split()[:2]))
        assert [(len(b.rows), b.values.dtype) for b in batches] == [(0, np.int64)], sizes


def test_indices_beyond_int32(tmp_path):
    text = f"%%MatrixMarket matrix coordinate pattern general\n{2**40} 5 1\n{2**40} 5\n"
    _, batches, layout = read_text(tmp_path, text)
    assert (batches[0].rows.tolist(), batches[0].rows.dtype) == ([2**40 - 1], np.int64)
    assert layout.shape == (2**40, 5)


def test_provenance(tmp_path):
    text = "%%MatrixMarket matrix coordinate double symmetric\n2 2 1\n2 1 5\n\n% end\n"
    _, _, layout = read_text(tmp_path, text)
    assert settle(layout.provenance) == {
        "format": "matrix-market",
        "name": str(tmp_path / "a.mtx"),
        "bytes": len(text),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "compression": None,
        "header": {"layout": "coordinate", "field": "real", "symmetry": "symmetric", "entries": 1},
        "taken": {"n_rows": 1},
    }
    assert (layout.vertex_ids, layout.positions) == (None, None)
    assert MatrixMarketSource(tmp_path / "a.mtx").default_kind == "matrix"


GENERAL = "%%MatrixMarket matrix coordinate real general\n"


@pytest.mark.parametrize(
    ("text", "line_number", "message"),
    [
        ("", None, "the file is empty; expected a first line like '%%MatrixMarket"),
        ("hello\n", 1, f"'hello': {NO_BANNER}"),
        ("%%MatrixMarket matrix coordinate real\n1 1 1\n", 1, "expected a first line of five words like"),
        (GENERAL.replace("\n", " more\n"), 1, "found 6"),
        (GENERAL.replace("matrix c", "tensor c"), 1, "the object must be matrix, not 'tensor'"),
        (GENERAL.replace("coordinate", "list"), 1, "the layout must be coordinate or array, not 'list'"),
        (
            GENERAL.replace("real", "text"),
            1,
            "the field must be real or double or integer or unsigned-integer or pattern, ",
        ),
        (
            GENERAL.replace("general", "odd"),
            1,
            "the symmetry must be general or symmetric or skew-symmetric, not 'odd'",
        ),
        (GENERAL.replace("general", "hermitian"), 1, HERMITIAN),
        (GENERAL.replace("real", "complex"), 1, COMPLEX),
        ("%%MatrixMarket matrix array pattern general\n", 1, "a pattern has no values, so it cannot be array general"),
        (
            "%%MatrixMarket matrix coordinate pattern skew-symmetric\n",
            1,
            "a pattern has no values, so it cannot be coordinate skew-symmetric; use a field with values",
        ),
        (GENERAL, 1, "the file ends before the line of sizes"),
        (GENERAL + "% c\n\n", 1, "the file ends before the line of sizes"),
        (GENERAL + "%c\n2 2\n", 3, "'2 2': expected the 3 sizes of the matrix (rows, columns, entries), found 2"),
        ("%%MatrixMarket matrix array real general\n2 2 4\n", 2, "the 2 sizes of the matrix (rows, columns), found 3"),
        (
            GENERAL + "2 2.0 1\n",
            2,
            "expected the number of columns to be an integer from 0 below 2^63 - 1, found '2.0'",
        ),
        (GENERAL + "9223372036854775807 1 1\n", 2, "number of rows to be an integer from 0 below 2^63 - 1, found '9"),
        (GENERAL + "1 1 " + "9" * 5000 + "\n", 2, "expected the number of entries to be an integer"),
        (
            GENERAL.replace("general", "symmetric") + "2 3 1\n1 1 1\n",
            2,
            "a symmetric matrix must be square, this one has 2 ",
        ),
        (
            GENERAL + "2 2 2\n1 1 5\n",
            2,
            "'2 2 2': expected 2 entries, the file ends after 1; it is cut short or its size",
        ),
        (
            GENERAL + "% c\n2 2 1\n1 1 5\n\n% c\n 2 1  7\n",
            3,
            "'2 2 1': expected 1 entries, found more; the size line is wrong, or two files were concatenated",
        ),
        (
            "%%MatrixMarket matrix array real general\n2 1\n1\n2\n3\n",
            2,
            "'2 1': expected 2 entries, found more",
        ),
        (
            "%%MatrixMarket matrix array real symmetric\n2 2\n1\n2\n",
            2,
            "'2 2': expected 3 entries, the file ends after 2",
        ),
        (GENERAL + "2 2 2\n1 1 5\n0 1 5\n", 4, "'0 1 5': expected row to be an integer from 1 to 2, found '0'"),
        (GENERAL + "2 2 2\n1 1 5\n3 1 5\n", 4, "'3 1 5': expected row to be an integer from 1 to 2, found '3'"),
        (GENERAL + "2 2 2\n1 1 5\n1 3 5\n", 4, "'1 3 5': expected column to be an integer from 1 to 2, found '3'"),
        (GENERAL + "2 2 1\n99999999999 1 5\n", 3, "expected row to be an integer from 1 to 2, found '99999999999'"),
        (GENERAL + "2 2 2\n1 1 5\n%c\n1 a 5\n", 5, "'1 a 5': expected column to be an integer from 1 to 2, found 'a'"),
        (GENERAL + "2 2 2\n1 1 5\n1 2 b\n", 4, "'1 2 b': expected value to be a number, found 'b'"),
        (GENERAL + "2 2 2\n1 1 5\n1 2\n", 4, "'1 2': expected 'row column value', found 2 columns"),
        (GENERAL + "2 2 2\n1 1 5\n1 2 3 4\n", 4, "'1 2 3 4': expected 'row column value', found 4 columns"),
        (GENERAL.replace("real", "pattern") + "2 2 1\n1 1 5\n", 3, "'1 1 5': expected 'row column', found 3 columns"),
        (
            GENERAL.replace("general", "skew-symmetric") + "2 2 2\n2 1 5\n2 2 -1\n",
            4,
            "'2 2 -1': the diagonal of a skew-symmetric matrix must be zero; remove the entry or write 'general'",
        ),
        (
            "%%MatrixMarket matrix coordinate integer skew-symmetric\n2 2 1\n2 1 -9223372036854775808\n",
            3,
            "expected value to be an integer from -9223372036854775807 to 9223372036854775807",
        ),
    ],
)
def test_errors(tmp_path, text, line_number, message):
    for batch_bytes in BATCH_BYTES:
        error = refusal(tmp_path, text, batch_bytes)
        assert error.line_number == line_number
        assert message in str(error)


def test_zero_on_the_diagonal_of_a_skew_matrix(tmp_path):
    text = "%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 2\n2 1 5\n2 2 0.0\n"
    assert read_text(tmp_path, text)[0].toarray().tolist() == [[0, -5], [5, 0]]


def test_line_numbers_far_into_a_compressed_file(tmp_path):
    n = 200_000
    lines = [
        "%%MatrixMarket matrix coordinate pattern general",
        "% c",
        "",
        f"{n} {n} {n}",
        *(f"{i} {i}" for i in range(1, n + 1)),
    ]
    lines[150_000] = "12 x7"
    error = refusal(tmp_path, gzip.compress("\r\n".join(lines).encode()), 2**16)
    assert (error.line_number, error.text) == (150_001, "12 x7")

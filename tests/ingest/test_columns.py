"""The quick parsers give the same columns and errors as the line-by-line parser."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.errors import SourceError
from mgspmv.ingest import columns
from mgspmv.ingest.columns import TableFormat, TextColumn, read_chunks, split_line
from mgspmv.ingest.streams import Chunk, TextLine

INT = TextColumn("a", "int64")
SMALL = TextColumn("b", "int32", 0, 99)
REAL = TextColumn("v", "float64")
FINITE = TextColumn("w", "float64", finite=True)
NAME = TextColumn("name", "string")
IGNORED = TextColumn("more", None)


def form(*cols, delimiter=" ", comments=b"#%"):
    return TableFormat(cols, delimiter, comments)


def read_columns(chunk, table):
    [(_, found, _)] = read_chunks([chunk], table, 1)
    return found


def read(text, *cols, delimiter=" "):
    chunk = Chunk("t", 1, text if isinstance(text, bytes) else text.encode())
    return [c.tolist() for c in map(np.asarray, read_columns(chunk, form(*cols, delimiter=delimiter)))]


def outcome(parse, chunk, table):
    try:
        return [repr(np.asarray(c).tolist()) for c in parse(chunk, table)]
    except SourceError as error:
        return str(error)


FORMS = [
    form(INT, SMALL),
    form(INT, INT, REAL),
    form(REAL),
    form(INT, SMALL, FINITE, IGNORED),
    form(INT, IGNORED),
    form(NAME, NAME),
    form(NAME, NAME, FINITE),
    form(INT, SMALL, delimiter=","),
    form(NAME, NAME, FINITE, delimiter=","),
    form(NAME, NAME, delimiter="\t"),
    form(INT, INT, IGNORED, delimiter=";"),
    form(INT),
    form(INT, INT),
    form(SMALL, SMALL, SMALL),
    form(INT, INT, delimiter=","),
    form(INT, INT, delimiter="\t"),
]

NUMBERS = (
    "0 1 -1 +7 007 42 99 100 2147483648 9223372036854775807 9223372036854775808 1.5 .5 5. -2e3 1D2 1d-2 1e400 nan -inf"
)
NONSENSE = '0x10 Infinity nan(5) 1_0 1e x é "q" "a,b" " # %c null NA'
WORDS = [*NUMBERS.split(), *NONSENSE.split(), str(10**18), str(10**18 - 1), "", "a b", "\x0b"]
TOKENS = st.sampled_from(WORDS)
GLUE = st.sampled_from([" ", "  ", "\t", " \t", ",", ", ", " ,", ";"])


@st.composite
def texts(draw):
    lines = []
    for _ in range(draw(st.integers(0, 5))):
        glue = draw(GLUE)
        tokens = draw(st.lists(TOKENS, min_size=0, max_size=4))
        lines.append(draw(st.sampled_from(["", " ", "\t"])) + glue.join(tokens) + draw(st.sampled_from(["", " "])))
    return "".join(line + "\n" for line in lines).encode()


def agree(text, table):
    """The quick parsers, compared with the line-by-line parser, which defines what is accepted."""
    chunk = Chunk("t", 1, text)
    assert outcome(read_columns, chunk, table) == outcome(columns._parse_lines, chunk, table), (text, table)


@pytest.mark.fuzz
@given(texts(), st.sampled_from(FORMS))
def test_quick_parsers_agree_with_lines(text, table):
    agree(text, table)


VALID = {"int64": "7", "int32": "8", "float64": "1.5", "string": "ab", None: "z"}


def test_each_word_in_each_column():
    """In the second of three lines whose other columns are valid."""
    for table in FORMS:
        valid = [VALID[column.dtype] for column in table.columns]
        separator = table.delimiter
        line = separator.join(valid)
        for k in range(len(valid)):
            for word in WORDS:
                changed = separator.join([*valid[:k], word, *valid[k + 1 :]])
                agree(f"{line}\n{changed}\n{line}\n".encode(), table)


LINES = (
    "1", "1 ", "1  2", " 1 2", "1 2 ", "1,2", "1 2 3", "-1 2", "+1 2", "1 2\n", "\n1 2", "# 1\n1 2", "1 x", "1 2\n3",
    f"1 {10**18}", "1 2\n3 4 5", "1.0 2", "1\x002", "", "1 200", "1 2", "1\t2", "007 2\n0 0", "1 2.5", "a b", " a b",
    "a  b", "a\tb", "# a\na b", '"a" b', "a b #", "a b\r",
)  # fmt: skip


def test_lines_of_all_sorts():
    for table in FORMS:
        for line in LINES:
            for text in (line, line.replace(" ", table.delimiter), line.replace(" ", f" {table.delimiter} ")):
                agree(f"{text}\n".encode(), table)


def check_doubles(values):
    text = "".join(f"{v!r}\n" for v in values)
    np.testing.assert_array_equal(read(text, REAL)[0], np.array(values))


@pytest.mark.fuzz
@given(st.lists(st.floats(), max_size=20))
def test_nearest_double(values):
    check_doubles(values)


def test_usual_spellings_are_parsed_quickly(monkeypatch):
    """They give the right columns without the line-by-line parser, which takes a hundred times as long."""
    monkeypatch.setattr(columns, "_parse_lines", lambda chunk, table: pytest.fail("slow path"))
    assert read("1 2\n3 4\n", INT, INT) == [[1, 3], [2, 4]]
    assert read("1\t2\n3\t4\n", INT, INT) == [[1, 3], [2, 4]]
    assert read("  1   2 \n# x\n\n3 \t 4\n", INT, INT) == [[1, 3], [2, 4]]
    assert read("1 2 1.5D+05\n", INT, INT, REAL) == [[1], [2], [150000.0]]
    assert read("1, 2\n", INT, INT, delimiter=",") == [[1], [2]]
    assert read("a b 2\n", NAME, NAME, FINITE) == [["a"], ["b"], [2.0]]
    assert read("New York , Oslo\n", NAME, NAME, delimiter=",") == [["New York"], ["Oslo"]]


@pytest.mark.parametrize(("delimiter", "glue"), [(" ", " "), (" ", "\t"), (",", ","), (";", ";"), ("\t", "\t")])
def test_integers(delimiter, glue):
    text = f"1{glue}2\n007{glue}{10**18 - 1}\n0{glue}0\n"
    assert read(text, INT, INT, delimiter=delimiter) == [[1, 7, 0], [2, 10**18 - 1, 0]]
    assert read(text[:4], SMALL, SMALL, delimiter=delimiter) == [[1], [2]]


def test_nothing_gives_empty_columns():
    for text in (b"", b"\n \n", b"# only this\n"):
        a, v, name = read_columns(Chunk("t", 1, text), form(INT, REAL, NAME))
        assert (a.dtype, v.dtype, len(a), len(v), len(name)) == (np.int64, np.float64, 0, 0, 0)


@pytest.mark.parametrize(
    ("text", "cols", "delimiter", "number", "message"),
    [
        ("1 2\n1\n", (INT, INT), " ", 2, "'1': expected 'a a', found 1 column"),
        ("1 2\n\n# c\n1 2 3\n", (INT, INT), " ", 4, "'1 2 3': expected 'a a', found 3 columns"),
        ("1.0 2\n", (INT, INT), " ", 1, "expected a to be a 64-bit integer, found '1.0'"),
        (
            "9223372036854775808 2\n",
            (INT, INT),
            " ",
            1,
            "expected a to be a 64-bit integer, found '9223372036854775808'",
        ),
        ("1" * 5000 + " 2\n", (INT, INT), " ", 1, "expected a to be a 64-bit integer"),
        ("1 100\n", (INT, SMALL), " ", 1, "expected b to be an integer from 0 to 99, found '100'"),
        ("1\n1,5\n", (REAL,), " ", 2, "'1,5': v is '1,5', with a decimal comma"),
        ("0x1p3\n", (REAL,), " ", 1, "expected v to be a number, found '0x1p3'"),
        ("1\nnan\n", (FINITE,), " ", 2, "'nan': expected w to be a finite number, found 'nan'"),
        ("1\n1e999\n", (FINITE,), " ", 2, "expected w to be a finite number, found '1e999'"),
        ("a,\n", (NAME, NAME), ",", 1, "expected name to be a name, found ''"),
        ('a,b\n"a,b\n', (NAME, NAME), ",", 2, "invalid quotes: a quoted field is not closed"),
    ],
)
def test_refusals(text, cols, delimiter, number, message):
    with pytest.raises(SourceError) as caught:
        read(text, *cols, delimiter=delimiter)
    assert (caught.value.source, caught.value.line_number) == ("t", number)
    assert message in str(caught.value)


@pytest.mark.parametrize("delimiter", [" ", ","])
def test_not_utf8(delimiter):
    with pytest.raises(SourceError, match=r"line 2: .* is not UTF-8 text; convert the file to UTF-8"):
        read(
            b"a,b c\n\xe9,b c\n".replace(b",", delimiter.encode()),
            *([NAME] * (3 if delimiter == " " else 2)),
            delimiter=delimiter,
        )


def test_split_line():
    assert split_line(TextLine("t", 1, b" 1 \t 2  "), " ") == ["1", "2"]
    assert split_line(TextLine("t", 1, b'"a, b", c '), ",") == ["a, b", "c"]


@pytest.mark.parametrize(
    ("text", "cols", "delimiter", "message"),
    [
        ("1 2\n07 3\n", "ii", " ", "line 2: '07 3': a is '07', and as an integer it would be the same vertex as 7"),
        ("1 2\n7 +3\n", "ii", " ", "line 2: '7 [+]3': b is '[+]3', .* same vertex as 3"),
        ("007,2,0.5\n", "iiv", ",", "line 1: .*: a is '007'"),
        ("7,2,0.5\n-03,2,0.5\n", "iiv", ",", "line 2: .*: a is '-03', .* same vertex as -3"),
        ('7;2;1\n"08";2;1\n', "iiv", ";", "line 2: .*: a is '08'"),
        ("1 2 00.5\n", "iiv", " ", None),
        ("0 10 0.5\n-10 0 -0.25\n", "iiv", " ", None),
        ("0 10\n100 200\n", "ii", " ", None),
        ("-0 1 01\n", "iiv", " ", None),
    ],
)
def test_leading_zeros_are_an_error_where_they_are_to_be(text, cols, delimiter, message):
    made = {"i": ("int64", True), "v": ("float64", False)}
    columns = [TextColumn(name, made[kind][0], plain=made[kind][1]) for name, kind in zip("abc", cols, strict=False)]
    chunk = Chunk("t", 1, text.encode())
    if message is None:
        assert len(read_columns(chunk, form(*columns, delimiter=delimiter))[0]) == text.count("\n")
        return
    with pytest.raises(SourceError, match=message):
        read_columns(chunk, form(*columns, delimiter=delimiter))

import json

import pytest

from mgspmv.ingest_report import IngestReport, SourceColumn, find_times
from mgspmv.validation import check_fields, to_json

PLAIN = IngestReport(
    name="edges.csv",
    format="edge-list",
    n_files=1,
    source=SourceColumn(1, "src"),
    target=SourceColumn(2, "dst"),
    weight=SourceColumn(3, "w"),
    weight_range=(1.0, 9.0),
    not_read=(SourceColumn(4, "time"), SourceColumn(5, None)),
    delimiter=",",
    header=True,
    header_by="names",
    n_header_lines=1,
    n_comment_lines=2,
    n_rows=7,
    n_mirrored=3,
    n_loops_dropped=1,
    duplicates="sum",
    n_merged=2,
    n_entries=7,
    notes=("each edge is read both ways",),
    warnings=("column 3 looks like times",),
)
NOTHING = dict.fromkeys(("source", "target", "weight", "weight_range", "delimiter", "header", "header_by"))
NOTHING |= dict.fromkeys(("n_header_lines", "n_comment_lines", "n_mirrored", "n_loops_dropped"), 0)
NOTHING |= {"not_read": (), "n_files": 0, "n_merged": 0}
BARE = IngestReport(name="a", format="csc_array", n_rows=1, duplicates="keep", n_entries=1, **NOTHING)
"""Of what has neither columns nor lines."""

SHOWN = {
    "everything": (
        PLAIN,
        "read: edges.csv, edge-list, 7 rows; source: column 1 'src'; target: column 2 'dst'; "
        "weight: column 3 'w', 1 .. 9; not read: column 4 'time', column 5; "
        "delimiter: ',', header: 1 line (names), comments: 2 lines; "
        "3 mirror images added, 2 duplicates merged (sum), 1 loop dropped\n"
        "note: each edge is read both ways\n"
        "warning: column 3 looks like times",
    ),
    "a matrix": (BARE, "read: a, csc_array, 1 entry; 0 duplicates merged (keep), 0 loops dropped"),
}


@pytest.mark.parametrize(("report", "shown"), SHOWN.values(), ids=list(SHOWN))
def test_what_is_shown(report, shown):
    assert str(report) == shown


@pytest.mark.parametrize("report", [PLAIN, BARE])
def test_json_and_back(report):
    assert check_fields(IngestReport, json.loads(json.dumps(to_json(report)))) == report


def test_fields_that_a_newer_version_has_are_ignored():
    assert check_fields(IngestReport, to_json(BARE) | {"later": 1}) == BARE


@pytest.mark.parametrize(
    ("weight_range", "shown"),
    [((1254192988.0, 1254203000.0), "1254192988 .. 1254203000"), ((-0.5, 1e20), "-0.5 .. 1e+20"), ((0, 7), "0 .. 7")],
)
def test_range_of_weights(weight_range, shown):
    weight = SourceColumn(3, None)
    report = IngestReport(**vars(BARE) | {"weight": weight, "weight_range": weight_range})
    assert f"; weight: column 3, {shown}; " in str(report)
    without = IngestReport(**vars(BARE) | {"weight_range": weight_range})
    assert f"; values {shown}; " in str(without)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1254192988, 1254203000, ("2009-09-29", "2009-09-29")),
        (1254192988000, 1700000000000, ("2009-09-29", "2023-11-14")),
        (20090929, 20101231, ("2009-09-29", "2010-12-31")),
        (20090929, 20101332, None),
        (1, 5, None),
        (5, 1254203000, None),
    ],
)
def test_numbers_that_look_like_times(low, high, expected):
    assert find_times(low, high) == expected

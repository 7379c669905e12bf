"""What a report is made of, and how records are read and named in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from mgspmv.display.numbers import format_number, shorten
from mgspmv.model import Status
from mgspmv.report.charts import Chart
from mgspmv.report.record import RunRecord, StepRecord

MOST_ROWS = 50
"""Of a table; those that come after are counted."""
LONGEST = 32
"""Characters of a text in a table; of longer ones the begin and the end."""

_ITERATING = ("product", "exchange", "schedule")


@dataclass(frozen=True)
class Cell:
    """What is in a table."""

    text: str
    style: str = ""
    """Classes of the style sheet."""
    tip: str = ""
    """What there is to say of it; of what is shortened, all of it."""


@dataclass(frozen=True)
class Table:
    """Rows that are all as long as the titles."""

    caption: str
    titles: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    n_left_out: int = 0
    texts: Sequence[int] = (0,)
    """Columns of texts; the others are of numbers."""


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    id: str
    title: str
    lead: str
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()


NOTHING = Cell("–")


def make_table(
    caption: str,
    titles: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    most: int = MOST_ROWS,
    texts: Sequence[int] = (0,),
) -> Table:
    """A table of the first rows, up to `most`."""
    return Table(caption, titles, rows[:most], max(0, len(rows) - most), texts)


def make_cell(value: Any, style: str = "", limit: int = LONGEST) -> Cell:
    """A value in words, shortened."""
    text = say(value)
    return Cell(shorten(text, limit), style, text if len(text) > limit else "")


def say(value: Any) -> str:
    """A JSON value as people read it."""
    if value is None:
        return NOTHING.text
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return format_number(value, 6)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# --- records ---------------------------------------------------------------------------------------------------------


def list_records(run: RunRecord) -> list[StepRecord]:
    """Of the steps that were made or kept, or did not converge."""
    return [step.record for step in run.steps if step.record is not None]


def is_ranks(record: StepRecord) -> bool:
    """Whether it is of a run, of one vector or many."""
    return record.kind in ("pagerank", "batch")


def group_records(records: Iterable[StepRecord]) -> list[tuple[str, list[StepRecord]]]:
    """By the first part of their names, which is that of a matrix."""
    records = list(records)
    names = list(dict.fromkeys(map(_name_group, records)))
    records.sort(key=lambda record: names.index(_name_group(record)))
    return [(name, list(own)) for name, own in groupby(records, key=_name_group)]


def _name_group(record: StepRecord) -> str:
    return record.name.partition("/")[0]


def name_in_group(record: StepRecord) -> str:
    """The rest of its name; all of it where that is the first part."""
    return record.name.partition("/")[2] or record.name


def list_statuses(record: StepRecord) -> list[Status]:
    """Of a run and of each of its vectors; empty for other steps."""
    own = [record.result.get("status"), *(vector["status"] for vector in record.result.get("vectors", []))]
    return [Status(status) for status in own if status is not None]


def has_ended_well(record: StepRecord) -> bool:
    """Whether no status is one of failure."""
    return all(status.is_success for status in list_statuses(record))


def measure_rate(record: StepRecord) -> float:
    """Entries times iterations over the seconds that iterating took; 0 where nothing is known."""
    elapsed_s = sum(record.seconds.get(phase, 0.0) for phase in _ITERATING)
    return float(record.matrix.get("nnz", 0)) * record.result.get("iterations", 0) / elapsed_s if elapsed_s else 0.0


def select(records: Iterable[StepRecord], is_wanted: Callable[[StepRecord], Any]) -> list[StepRecord]:
    """Those that are wanted."""
    return [record for record in records if is_wanted(record)]

"""A run of a pipeline as one page of HTML that needs nothing else: no other file, no network and no script."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, get_args

from mgspmv.display.numbers import (
    format_bytes,
    format_count,
    format_number,
    format_scaled,
    format_seconds,
    read_number,
    shorten,
)
from mgspmv.model import Status
from mgspmv.report import sections, views
from mgspmv.report.record import RunRecord, State
from mgspmv.report.summary import list_facts, list_peaks, list_problems

if TYPE_CHECKING:
    from jinja2 import Template


def render_report(run: RunRecord, *, title: str | None = None) -> str:
    """One HTML document about a run: summary, steps, convergence, time, memory, ranks, comparison, provenance.

    Whatever comes from the user (names, ids, labels, paths, errors) is text in it, never markup.

    Parameters
    ----------
    run : as a pipeline returns it, or as `load_run` reads it
    title : default the name of the run

    Raises
    ------
    MissingDependencyError : matplotlib is not installed
    """
    records = views.list_records(run)
    ranked = list(filter(views.is_ranks, records))
    states = Counter(step.state for step in run.steps)
    page = _load_template().render(
        title=title or run.name,
        run=run,
        records=records,
        ranked=ranked,
        fastest=max(filter(views.measure_rate, ranked), key=views.measure_rate, default=None),
        n_well=sum(map(views.has_ended_well, ranked)),
        counts=", ".join(f"{states[state]} {state}" for state in get_args(State) if states[state]),
        sources_read=[(record.name, source) for record in records for source in views.find_sources(record)],
        outputs=[(record.name, output) for record in records for output in record.outputs],
        groups=views.group_records(records),
        varied=views.find_varied(records),
        facts=list_facts(run),
        peaks=list_peaks(records),
        problems=list_problems(run),
        circumstances=views.list_circumstances(run),
        convergence=sections.draw_convergence(run),
        times=sections.draw_times(run),
        memory=views.list_memory(records),
        distributions=sections.draw_distributions(run),
    )
    return f"{page.strip()}\n"


def _or_dash(format: Callable[[Any], str]) -> Callable[[Any], str]:
    """A filter that shows what is not known as a dash."""
    return lambda value: "–" if value is None else format(value)


@cache
def _load_template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "before": views.say_before,
        "bytes": _or_dash(format_bytes),
        "count": _or_dash(format_count),
        "json": lambda value: json.dumps(value, indent=2, ensure_ascii=False),
        "number": lambda value, digits=3: format_number(read_number(value), digits),
        "rate": lambda record: format_scaled(rate) if (rate := views.measure_rate(record)) else "–",
        "say": views.say,
        "seconds": _or_dash(format_seconds),
        "share": _or_dash(lambda value: f"{read_number(value):.1%}"),
        "shorten": shorten,
        "enumerate": views.enumerate_first,
        "has_ended_well": views.has_ended_well,
        "iterations": views.count_iterations,
        "name_in_group": views.name_in_group,
        "name_ranks": views.name_ranks,
    }
    environment.globals["successes"] = [str(status) for status in Status if status.is_success]
    return environment.from_string((files("mgspmv.report") / "page.html.jinja").read_text(encoding="utf-8"))

"""Page of HTML about a run of a pipeline, self-contained: no other file, no network and no script."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
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
from mgspmv.errors import PipelineError
from mgspmv.model import Status
from mgspmv.report import sections
from mgspmv.report.record import RunRecord, State, StepRecord

if TYPE_CHECKING:
    from jinja2 import Template


def render_report(run: RunRecord) -> str:
    """Return one HTML document about a run: summary, steps, convergence, time, memory, ranks, comparison, provenance.

    User input (names, ids, labels, paths, errors) is escaped, never markup.

    Parameters
    ----------
    run : as a pipeline returns it, or as `load_run` reads it

    Raises
    ------
    MissingDependencyError : matplotlib is not installed
    PipelineError : the record has values that no run writes
    """
    from jinja2 import TemplateError

    try:
        return f"{_render(run).strip()}\n"
    except (ArithmeticError, AttributeError, LookupError, TemplateError, TypeError, ValueError) as error:
        raise PipelineError(
            f"{run.file}: the record of the run is damaged ({type(error).__name__}: {shorten(str(error), 80)}); "
            "restore a copy, or run the pipeline again"
        ) from error


def _render(run: RunRecord) -> str:
    records = sections.list_records(run)
    ranked = list(filter(sections.is_ranks, records))
    states = Counter(step.state for step in run.steps)
    return _load_template().render(
        run=run,
        records=records,
        ranked=ranked,
        fastest=max(filter(sections.measure_rate, ranked), key=sections.measure_rate, default=None),
        n_well=sum(map(sections.has_ended_well, ranked)),
        counts=", ".join(f"{states[state]} {state}" for state in get_args(State) if states[state]),
        sources_read=[(record.name, source) for record in records for source in sections.find_sources(record)],
        outputs=[(record.name, output) for record in records for output in record.outputs],
        groups=sections.group_records(records),
        varied=sections.find_varied(records),
        facts=_list_facts(run),
        peaks=_list_peaks(records),
        problems=_list_problems(run),
        convergence=sections.draw_convergence(run),
        times=sections.draw_times(run),
        memory=sections.list_memory(records),
        distributions=sections.draw_distributions(run),
    )


# --- header ----------------------------------------------------------------------------------------------------------


def _list_facts(run: RunRecord) -> list[tuple[str, str]]:
    """List time, duration, file, versions and hardware of a run, as far as they are known."""
    records = sections.list_records(run)
    facts = {
        "began": f"{datetime.fromisoformat(run.began):%Y-%m-%d %H:%M:%S %Z}".strip() if run.began else "",
        "took": format_seconds(run.elapsed_s) if run.elapsed_s else "",
        "file": run.file,
        "program": f"mgspmv {run.version}" if run.version else "",
        "versions": _list_versions(records),
        "hardware": "; ".join(_list_hardware(records)),
    }
    return [(name, value) for name, value in facts.items() if value]


def _list_versions(records: Iterable[StepRecord]) -> str:
    """List the versions of Python and libraries; if steps differ, all of their versions."""
    found: dict[str, list[str]] = {}
    for record in records:
        for name, version in record.provenance.get("versions", {}).items():
            found.setdefault(name, []).append(str(version))
    named = {name: " and ".join(dict.fromkeys(versions)) for name, versions in found.items() if name != "mgspmv"}
    return ", ".join(f"{name} {versions}" for name, versions in named.items())


def _list_hardware(records: Sequence[StepRecord]) -> list[str]:
    """List the hardware of the steps, without repetitions."""
    said = [_describe_machine(record.provenance.get("machine", {})) for record in records]
    said += [sections.format_value(record.matrix.get("hardware") or "") for record in records]
    return [hardware for hardware in dict.fromkeys(said) if hardware]


def _describe_machine(machine: Mapping[str, Any]) -> str:
    counts = [f"{machine['processors']} processors"] if "processors" in machine else []
    counts += [format_bytes(machine["memory_bytes"])] if "memory_bytes" in machine else []
    return ", ".join([*(str(machine[name]) for name in ("host", "processor") if machine.get(name)), *counts])


def _list_peaks(records: Iterable[StepRecord]) -> list[tuple[int, str]]:
    """List the peak memory of each step in a process and on a device."""
    names = {"host_peak_bytes": "process", "device_bytes": "device"}
    return [
        (max(record.memory[name]), f"{where}: {record.name}")
        for record in records
        for name, where in names.items()
        if record.memory.get(name)
    ]


def _list_problems(run: RunRecord) -> list[tuple[list[str], str, str]]:
    """List failed and skipped steps, and runs that did not converge: names, state and reason; steps with the same state
    and reason are grouped."""
    found: dict[tuple[str, str], list[str]] = {}
    for step in run.steps:
        why: tuple[str, str] | None = None
        if step.state in ("failed", "skipped"):
            why = (step.state, step.error or "no reason was recorded")
        elif step.record is not None and not sections.has_ended_well(step.record):
            status = next(status for status in sections.list_statuses(step.record) if not status.is_success)
            why = (f"did not converge: {status}", status.advice)
        if why is not None:
            found.setdefault(why, []).append(step.name)
    return [(names, state, text) for (state, text), names in found.items()]


# --- template --------------------------------------------------------------------------------------------------------


def _or_dash(format: Callable[[Any], str]) -> Callable[[Any], str]:
    """Return a filter that shows None as a dash."""
    return lambda value: "–" if value is None else format(value)


@cache
def _load_template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "bytes": _or_dash(format_bytes),
        "count": _or_dash(format_count),
        "json": lambda value: json.dumps(value, indent=2, ensure_ascii=False),
        "number": lambda value, digits=3: format_number(read_number(value), digits),
        "rate": lambda record: format_scaled(rate) if (rate := sections.measure_rate(record)) else "–",
        "format_value": sections.format_value,
        "seconds": _or_dash(format_seconds),
        "share": _or_dash(lambda value: f"{read_number(value):.1%}"),
        "shorten": shorten,
        "enumerate": sections.enumerate_first,
        "has_ended_well": sections.has_ended_well,
        "iterations": sections.count_iterations,
        "name_in_group": sections.name_in_group,
        "name_ranks": sections.name_ranks,
        "provenance": sections.list_provenance,
    }
    environment.globals["successes"] = [str(status) for status in Status if status.is_success]
    return environment.from_string((files("mgspmv.report") / "page.html.jinja").read_text(encoding="utf-8"))

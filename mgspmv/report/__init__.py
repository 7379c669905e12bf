"""Report of a run of a pipeline: one page of HTML, self-contained: no other file, no network and no script."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, get_args

from mgspmv.display import format_bytes, format_number, format_scaled, format_seconds, read_number, shorten
from mgspmv.display.charts import Chart, Series, draw_lines
from mgspmv.errors import PipelineError
from mgspmv.model import Status
from mgspmv.report.record import RunRecord, State, StepRecord, load_run
from mgspmv.validation import rename_former

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = ["load_run", "render_report"]

MOST_VARIED = 3
"""Most options with different values in names of runs, in addition to `_USUAL_OPTIONS`."""
MOST_LEVELS = 4
"""Most tolerances in a chart."""
_USUAL_OPTIONS = ("alpha", "tol", "precision")
_MEMORY = ("planned_bytes", "held_bytes", "device_bytes", "host_peak_bytes")
_ITERATING = ("product", "exchange", "schedule")
_NORMS = {"l1": "L1", "l1_per_node": "L1", "fixed": "L1", "linf": "maximum norm", "relative": "relative to the rank"}
"""Norms in the labels of charts, by the option `norm`."""
_PHASES = (
    "read", "load", "queue", "prepare", "start", "compile", "product", "exchange", "schedule", "look", "checkpoint",
    "residual", "collect", "save",
)  # fmt: skip


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
        records = list_records(run)
        ranked = list(filter(is_ranks, records))
        states = Counter(step.state for step in run.steps)
        page: str = _load_template().render(
            run=run,
            records=records,
            ranked=ranked,
            n_well=sum(map(has_ended_well, ranked)),
            counts=", ".join(f"{states[state]} {state}" for state in get_args(State) if states[state]),
            sources_read=[(record.name, source) for record in records for source in find_sources(record)],
            outputs=[(record.name, output) for record in records for output in record.outputs],
            groups=group_records(records),
            varied=find_varied(records),
            facts=_list_facts(run),
            problems=_list_problems(run),
            convergence=draw_convergence(run),
            times=list_times(run),
            memory=list_memory(records),
        )
    except (ArithmeticError, AttributeError, LookupError, TemplateError, TypeError, ValueError) as error:
        raise PipelineError(
            f"{run.file}: the record of the run is damaged ({type(error).__name__}: {shorten(str(error), 80)}); "
            "restore a copy, or run the pipeline again"
        ) from error
    return f"{page.strip()}\n"


# --- records ---------------------------------------------------------------------------------------------------------


def format_value(value: Any) -> str:
    """Format a JSON value for people."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return format_number(value, 6)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def list_records(run: RunRecord) -> list[StepRecord]:
    """List the records of steps that were made or kept, or did not converge."""
    return [step.record for step in run.steps if step.record is not None]


def is_ranks(record: StepRecord) -> bool:
    """Return whether the record is of ranks, of one vector or many."""
    return record.kind in ("pagerank", "batch")


def find_varied(records: Iterable[StepRecord]) -> list[str]:
    """Return the options usually shown, and those that differ among the runs."""
    options = [record.options for record in records if is_ranks(record)]
    names = dict.fromkeys(name for own in options for name in own)
    differing = [name for name in names if len({format_value(own.get(name)) for own in options}) > 1]
    usual = [name for name in _USUAL_OPTIONS if name in names]
    return usual + [name for name in differing if name not in usual][:MOST_VARIED]


def group_records(records: Iterable[StepRecord]) -> list[tuple[str, list[StepRecord]]]:
    """Group records by the first part of their names, which names a matrix."""
    groups: dict[str, list[StepRecord]] = {}
    for record in records:
        groups.setdefault(record.name.partition("/")[0], []).append(record)
    return [*groups.items()]


def name_in_group(record: StepRecord) -> str:
    """Return the rest of a record's name; all of it if it has one part."""
    return record.name.partition("/")[2] or record.name


def name_ranks(record: StepRecord) -> str:
    """Return the name of the run's highest ranks; of many vectors, with the label of the first."""
    vectors = record.result.get("vectors")
    return f"{name_in_group(record)}, {vectors[0]['label']}" if vectors else name_in_group(record)


def list_statuses(record: StepRecord) -> list[Status]:
    """Return the statuses of a run and of each of its vectors; an empty list for other steps."""
    own = [record.result.get("status"), *(vector["status"] for vector in record.result.get("vectors", []))]
    return [Status(status) for status in own if status is not None]


def has_ended_well(record: StepRecord) -> bool:
    """Return whether all statuses are successes."""
    return all(status.is_success for status in list_statuses(record))


def count_iterations(record: StepRecord) -> int:
    """Return the iterations of a run, or of its vectors together."""
    own = [record.result, *record.result.get("vectors", [])]
    return sum(int(described.get("iterations", 0)) for described in own)


def format_rate(record: StepRecord) -> str:
    """Format entries times iterations per second of iterating; a dash if unknown."""
    elapsed_s = sum(record.seconds.get(phase, 0.0) for phase in _ITERATING)
    n = record.matrix.get("nnz", 0) * record.result.get("iterations", 0)
    return format_scaled(n / elapsed_s) if n and elapsed_s else "–"


def find_sources(record: StepRecord) -> list[Mapping[str, Any]]:
    """Return the files that a matrix was read from, and the other input files of any step."""
    source = record.provenance.get("matrix", {}).get("source", {}) if record.kind == "matrix" else {}
    others = [
        {"name": own.get("path"), "format": name, "sha256": own.get("digest")}
        for name, own in record.provenance.get("inputs", {}).items()
        if name != "source"
    ]
    return [*(source.get("files", [source]) if source else []), *others]


def list_memory(records: Iterable[StepRecord]) -> list[tuple[str, int, list[int | None]]]:
    """List for each worker of a step its bytes: predicted, held, on a device, and the peak of its process."""
    found = []
    for record in records:
        columns = [record.memory.get(name, []) for name in _MEMORY]
        for worker in range(max(map(len, columns[1:]))):
            own = [column[worker] if worker < len(column) else None for column in columns]
            found.append((record.name, worker, own))
    return found


def list_provenance(record: StepRecord) -> dict[str, Any]:
    """Return the key, inputs, options, matrix, versions and hardware of a step; the provenance of its matrix is of the
    step that made the matrix."""
    provenance = {k: v for k, v in record.provenance.items() if k != "matrix" or record.kind == "matrix"}
    names = ("key", "inputs", "began", "ended", "options", "matrix")
    return {name: getattr(record, name) for name in names} | {"provenance": provenance}


def enumerate_first(names: Sequence[str], most: int) -> str:
    """Join the first names, followed by the number of the others."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# --- convergence -----------------------------------------------------------------------------------------------------


def draw_convergence(run: RunRecord) -> list[Chart]:
    """Draw the changes of the runs on each matrix."""
    charts = []
    for group, records in group_records(filter(is_ranks, list_records(run))):
        lines = [line for record in records for line in _draw_changes(record)]
        if lines:
            norms = [str(rename_former(record.options).get("norm", "l1")) for record in records]
            y = f"change ({', '.join(dict.fromkeys(_NORMS.get(norm, norm) for norm in norms))})"
            charts.append(draw_lines(f"{group}: convergence", lines, "iteration", y, levels=_list_levels(records)))
    return charts


def _draw_changes(record: StepRecord) -> list[Series]:
    """Return the lines of a run, or of its vectors whose changes are known."""
    result, name = record.result, name_in_group(record)
    vectors = result.get("vectors", [])
    # Of many vectors, the pace is the reason for recording the changes of some.
    paces = [f" ({vector['pace']})" if "pace" in vector and len(vectors) > 1 else "" for vector in vectors]
    labels = [f"{name}, {vector['label']}{pace}" for vector, pace in zip(vectors, paces, strict=True)]
    named = [(name, result), *zip(labels, vectors, strict=True)]
    return [
        Series(label, list(enumerate(map(read_number, own["changes"]), 1)), Status(own["status"]).is_success)
        for label, own in named
        if own.get("changes")
    ]


def _list_levels(records: Iterable[StepRecord]) -> list[tuple[float, str]]:
    """List the changes at which the runs end, without repetitions."""
    levels = {}
    for record in records:
        mode, tol = rename_former(record.options).get("norm"), read_number(record.options.get("tol"))
        if tol > 0 and mode != "fixed":
            change = tol * record.matrix["shape"][0] if mode == "l1_per_node" else tol
            levels[change] = f"tol {format_number(change)}"
    return list(levels.items())[:MOST_LEVELS]


# --- time ------------------------------------------------------------------------------------------------------------


def list_times(run: RunRecord) -> list[tuple[str, list[str], list[tuple[str, list[float | None]]]]]:
    """List the phases of runs and of other steps, each with the seconds of every step by phase."""
    records = [record for record in list_records(run) if record.seconds]
    kinds = {"Runs": [own for own in records if is_ranks(own)], "Other steps": [o for o in records if not is_ranks(o)]}
    found = []
    for title, own in kinds.items():
        known = {phase for record in own for phase in record.seconds}
        phases = sorted(known, key=lambda phase: (_PHASES.index(phase) if phase in _PHASES else len(_PHASES), phase))
        if own:
            found.append((title, phases, [(record.name, [*map(record.seconds.get, phases)]) for record in own]))
    return found


# --- header ----------------------------------------------------------------------------------------------------------


def _list_facts(run: RunRecord) -> list[tuple[str, str]]:
    """List time, duration, file, versions and hardware of a run, as far as they are known."""
    records = list_records(run)
    facts = {
        "began": f"{datetime.fromisoformat(run.began):%Y-%m-%d %H:%M:%S %Z}".strip() if run.began else "",
        "took": format_seconds(run.elapsed_s) if run.elapsed_s else "",
        "file": "" if run.file == run.name else run.file,
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
    said = []
    for machine in (record.provenance.get("machine", {}) for record in records):
        parts = [str(machine[name]) for name in ("host", "processor") if machine.get(name)]
        if "processors" in machine:
            parts.append(f"{machine['processors']} {'processor' if machine['processors'] == 1 else 'processors'}")
        parts += [format_bytes(machine["memory_bytes"])] if "memory_bytes" in machine else []
        said.append(", ".join(parts))
    said += [format_value(record.matrix.get("hardware") or "") for record in records]
    return [hardware for hardware in dict.fromkeys(said) if hardware]


def _list_problems(run: RunRecord) -> list[tuple[list[str], str, str]]:
    """List failed and skipped steps, and runs that did not converge: names, state and reason; steps with the same state
    and reason are grouped."""
    found: dict[tuple[str, str], list[str]] = {}
    for step in run.steps:
        why: tuple[str, str] | None = None
        if step.state in ("failed", "skipped"):
            why = (step.state, step.error or "no reason was recorded")
        elif step.record is not None and not has_ended_well(step.record):
            status = next(status for status in list_statuses(step.record) if not status.is_success)
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
        "count": _or_dash(lambda value: f"{value:,.0f}"),
        "json": lambda value: json.dumps(value, indent=2, ensure_ascii=False),
        "number": lambda value, digits=3: format_number(read_number(value), digits),
        "rate": format_rate,
        "format_value": format_value,
        "seconds": _or_dash(format_seconds),
        "share": _or_dash(lambda value: f"{read_number(value):.1%}"),
        "shorten": shorten,
        "enumerate": enumerate_first,
        "has_ended_well": has_ended_well,
        "iterations": count_iterations,
        "name_in_group": name_in_group,
        "name_ranks": name_ranks,
        "provenance": list_provenance,
        "read_number": read_number,
    }
    environment.globals["successes"] = [str(status) for status in Status if status.is_success]
    return environment.from_string((files("mgspmv.report") / "page.html.jinja").read_text(encoding="utf-8"))

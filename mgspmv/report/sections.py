"""Charts of a report, by section."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mgspmv.display.numbers import format_count, format_number, read_number
from mgspmv.model import Status
from mgspmv.report.charts import N_COLORS, Bar, Chart, Series, draw_bars, draw_lines
from mgspmv.report.record import RunRecord, StepRecord
from mgspmv.report.views import group_records, is_ranks, list_records, name_in_group

MOST_LEVELS = 4
"""Most tolerances in a chart."""
_PHASES = (
    "load", "queue", "prepare", "start", "compile", "product", "exchange", "schedule", "look", "checkpoint", "residual",
    "collect", "save",
)  # fmt: skip
_TIMES = {"product_s": "product", "exchange_s": "exchange", "wait_s": "waiting"}


# --- convergence -----------------------------------------------------------------------------------------------------


def draw_convergence(run: RunRecord) -> list[Chart]:
    """Draw the changes of the runs on each matrix."""
    charts = []
    for group, records in group_records(filter(is_ranks, list_records(run))):
        lines = [line for record in records for line in _draw_changes(record)]
        if lines:
            y, levels = f"change, {_name_norms(records)}", _list_levels(records)
            charts.append(draw_lines(f"{group}: convergence", lines, "iteration", y, levels=levels))
    return charts


def _draw_changes(record: StepRecord) -> list[Series]:
    """Return the lines of a run, or of its vectors whose changes are known."""
    result, name = record.result, name_in_group(record)
    vectors = result.get("vectors", [])
    named = [(name, result), *((f"{name}, {_name_vector(vector, vectors)}", vector) for vector in vectors)]
    return [
        Series(label, list(enumerate(map(read_number, own["changes"]), 1)), Status(own["status"]).is_success)
        for label, own in named
        if own.get("changes")
    ]


def _name_vector(vector: Mapping[str, Any], vectors: Sequence[Any]) -> str:
    """Return the label of a vector, with its pace, which is the reason for recording its changes."""
    pace = f" ({vector['pace']})" if "pace" in vector and len(vectors) > 1 else ""
    return f"{vector['label']}{pace}"


_NORMS = {
    "l1": "sum over all vertices",
    "l1_per_node": "sum over all vertices",
    "linf": "largest of any vertex",
    "relative": "largest, relative to the rank",
    "fixed": "sum over all vertices",
}


def _name_norms(records: Iterable[StepRecord]) -> str:
    modes = [record.options.get("norm", "l1") for record in records]
    names = dict.fromkeys(_NORMS.get(mode, mode) for mode in modes)
    return next(iter(names)) if len(names) == 1 else "each in the norm of its run"


def _list_levels(records: Iterable[StepRecord]) -> list[tuple[float, str]]:
    """List the changes at which the runs end, without repetitions."""
    levels = {}
    for record in records:
        mode, tol = record.options.get("norm"), read_number(record.options.get("tol"))
        if tol > 0 and mode != "fixed":
            change = tol * record.matrix["shape"][0] if mode == "l1_per_node" else tol
            levels[change] = f"tol {format_number(change)}"
    return list(levels.items())[:MOST_LEVELS]


# --- time ------------------------------------------------------------------------------------------------------------


def draw_times(run: RunRecord) -> list[Chart]:
    """Draw the seconds of steps by phase, and of runs on several workers by worker."""
    timed = [record for record in list_records(run) if record.seconds]
    kept = {step.name for step in run.steps if step.state == "kept"}
    ranked = [record for record in timed if is_ranks(record)]
    others = [record for record in timed if not is_ranks(record)]
    charts = []
    if others:
        labels = [_mark_kept(record.name, record, kept) for record in others]
        charts.append(_draw_phases("Other steps than runs: time by phase", others, labels, _choose_phases(others)))
    phases = _choose_phases(ranked)
    for group, records in group_records(ranked):
        labels = [_mark_kept(name_in_group(record), record, kept) for record in records]
        charts.append(_draw_phases(f"{group}: time by phase", records, labels, phases))
    charts += [_draw_workers(record) for record in timed if _count_workers(record) > 1]
    return charts


def _mark_kept(name: str, record: StepRecord, kept: set[str]) -> str:
    return f"{name} (kept)" if record.name in kept else name


def _choose_phases(records: Iterable[StepRecord]) -> list[str]:
    """Return the phases that took longest in sum, in their usual order; one fewer than there are colors."""
    took: dict[str, float] = {}
    for record in records:
        for phase, elapsed_s in record.seconds.items():
            took[phase] = took.get(phase, 0.0) + elapsed_s
    longest = sorted(took, key=lambda phase: -took[phase])[: N_COLORS - 1]
    return sorted(longest, key=lambda phase: _PHASES.index(phase) if phase in _PHASES else len(_PHASES))


def _draw_phases(title: str, records: Sequence[StepRecord], labels: Sequence[str], phases: Sequence[str]) -> Chart:
    """Draw stacks of these phases, and of the sum of the others if there are any."""
    stacks = [[*(own.get(phase) for phase in phases), _sum_others(own, phases)] for own in (r.seconds for r in records)]
    n_series = len(phases) + any(stack[-1] for stack in stacks)
    bars = [Bar(label, stack[:n_series]) for label, stack in zip(labels, stacks, strict=True)]
    return draw_bars(title, bars, [*phases, "other"][:n_series])


def _sum_others(seconds: Mapping[str, float], phases: Sequence[str]) -> float:
    return sum(elapsed_s for phase, elapsed_s in seconds.items() if phase not in phases)


def _count_workers(record: StepRecord) -> int:
    return max((len(event.get("product_s", ())) for event in record.result.get("events", [])), default=0)


def _draw_workers(record: StepRecord) -> Chart:
    events = record.result["events"]
    bars = [
        # A run that lost workers has iterations with fewer of them.
        Bar(f"worker {worker}", [sum(sum(event[name][worker : worker + 1]) for event in events) for name in _TIMES])
        for worker in range(_count_workers(record))
    ]
    return draw_bars(f"{record.name}: time by worker", bars, list(_TIMES.values()))


# --- ranks and degrees -----------------------------------------------------------------------------------------------


def draw_distributions(run: RunRecord) -> list[Chart]:
    """Draw the number of vertices at or above each rank and degree."""
    charts = []
    for group, records in group_records(list_records(run)):
        lines = [Series(name_in_group(own), _read_points(own.distribution)) for own in records if own.distribution]
        if lines:
            charts.append(draw_lines(f"{group}: ranks", lines, "rank", "vertices of at least this rank", is_x_log=True))
        charts += [_draw_degrees(f"{own.name}: degrees", own.degrees) for own in records if any(own.degrees.values())]
    return charts


def _read_points(pairs: Iterable[Sequence[Any]]) -> list[tuple[float, float]]:
    return [(read_number(x), read_number(y)) for x, y in pairs]


def _draw_degrees(title: str, degrees: Mapping[str, Sequence[Sequence[float]]]) -> Chart:
    names = {"in": "in-degree", "out": "out-degree", "rows": "entries of a row"}
    what = "rows" if "rows" in degrees else "vertices"
    lines, notes = [], []
    for kind, pairs in degrees.items():
        lines.append(Series(names.get(kind, kind), [(x, y) for x, y in _read_points(pairs) if x > 0]))
        if pairs and pairs[0][0] == 0:
            n_without = pairs[0][1] - (pairs[1][1] if len(pairs) > 1 else 0)
            notes.append(f"{format_count(n_without)} {what} of {names.get(kind, kind)} 0 are not drawn")
    chart = draw_lines(title, lines, "degree", f"{what} of at least this degree", is_x_log=True)
    return replace(chart, note="; ".join(filter(None, [*notes, chart.note])))

"""The sections of a report: what of a run's records goes into which table and chart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

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
from mgspmv.report.charts import N_COLORS, Bar, Chart, Line, draw_bars, draw_lines
from mgspmv.report.record import RunRecord, StepOutcome, StepRecord
from mgspmv.report.views import (
    NOTHING,
    Cell,
    Section,
    Table,
    group_records,
    has_ended_well,
    is_ranks,
    list_records,
    make_cell,
    make_table,
    measure_rate,
    name_in_group,
    say,
    select,
)

MOST_MOVED = 15
"""Vertices that moved, of each comparison; and vectors, of each batch."""
RANKED_BESIDE = 3
"""Runs whose highest vertices are in one table, which paper is wide enough for."""
MOST_NAMED, LONGEST_NAME = 3, 20
"""Vertices that entered or left the highest of a vector, and characters of a name among them."""
MOST_LEVELS = 4
"""Tolerances in one chart."""
MOST_VARIED = 3
"""Options that are not usual to name, of runs that differ in them."""

_USUAL_OPTIONS = ("alpha", "tol", "precision")
_PHASES = (
    "load", "queue", "prepare", "start", "compile", "product", "exchange", "schedule", "look", "checkpoint", "residual",
    "collect", "save",
)  # fmt: skip
_TIMES = {"product_s": "product", "exchange_s": "exchange", "wait_s": "waiting"}
_MEASURED = {"held_bytes": "held", "device_bytes": "on a device", "host_peak_bytes": "process"}
_STATES = {"made": "good", "kept": "plain", "failed": "bad", "skipped": "dim"}


def list_sections(run: RunRecord) -> list[Section]:
    """Those of which the run has something to show."""
    makers = (_show_steps, _show_convergence, _show_times, _show_memory, _show_distributions, _show_highest)
    sections = [make(run) for make in (*makers, _show_comparisons)]
    return [section for section in sections if section.charts or section.tables]


# --- steps and runs --------------------------------------------------------------------------------------------------


def _show_steps(run: RunRecord) -> Section:
    varied = _find_varied(select(list_records(run), is_ranks))
    runs = [_describe_run(step, varied) for step in run.steps if step.kind in ("pagerank", "batch")]
    others = [_describe_step(step) for step in run.steps if step.kind not in ("pagerank", "batch")]
    tables = []
    if runs:
        titles = ("Run", "State", *varied, "Iterations", "Status", "L1 error at most", "Time", "Edges/s")
        tables.append(make_table("Runs", titles, runs, texts=(0, 1)))
    if others:
        titles = ("Step", "State", "Kind", "Rows", "Entries", "Time", "Predicted", "Written")
        tables.append(make_table("Other steps", titles, others, texts=(0, 1, 2)))
    batches = [_list_vectors(record) for record in list_records(run) if record.result.get("vectors")]
    lead = (
        "Made in this run; kept from an earlier one, whose numbers these are; failed; or skipped, as what it needs "
        "failed. Edges a second are entries times iterations over the seconds that iterating took."
    )
    return Section("steps", "Steps and runs", lead, tables=[*tables, *batches])


def _find_varied(records: Iterable[StepRecord]) -> list[str]:
    """Options that are usual to name, and those that differ among the runs."""
    options = [record.options for record in records]
    names = dict.fromkeys(name for own in options for name in own)
    differing = [name for name in names if len({say(own.get(name)) for own in options}) > 1]
    usual = [name for name in _USUAL_OPTIONS if name in names]
    return usual + [name for name in differing if name not in usual][:MOST_VARIED]


def _describe_run(step: StepOutcome, varied: Sequence[str]) -> list[Cell]:
    head, record = [Cell(step.name), _tell_state(step)], step.record
    if record is None:
        return [*head, *[NOTHING] * (len(varied) + 5)]
    result, rate = record.result, measure_rate(record)
    return [
        *head,
        *(make_cell(record.options.get(option)) for option in varied),
        _count(result.get("iterations")),
        _tell_status(str(result.get("status", NOTHING.text)), has_ended_well(record)),
        Cell(format_number(read_number(result.get("error_bound_l1")))),
        Cell(format_seconds(sum(record.seconds.values()))),
        Cell(format_scaled(rate)) if rate else NOTHING,
    ]


def _describe_step(step: StepOutcome) -> list[Cell]:
    head, record = [Cell(step.name), _tell_state(step), Cell(step.kind)], step.record
    predicted = NOTHING if step.predicted_s is None else Cell(format_seconds(step.predicted_s))
    if record is None:
        return [*head, *[NOTHING] * 3, predicted, NOTHING]
    return [
        *head,
        _count(record.matrix.get("shape", [None])[0]),
        _count(record.matrix.get("nnz")),
        Cell(format_seconds(sum(record.seconds.values()))),
        predicted,
        Cell(format_bytes(sum(output.n_bytes for output in record.outputs))) if record.outputs else NOTHING,
    ]


def _list_vectors(record: StepRecord) -> Table:
    rows = [
        [
            make_cell(vector["label"]),
            Cell(format_number(read_number(vector.get("alpha")))),
            _tell_status(vector["status"], Status(vector["status"]).is_success),
            _count(vector.get("iterations")),
            Cell(format_number(read_number(vector.get("error_bound_l1")))),
        ]
        for vector in record.result["vectors"]
    ]
    titles = ("Vector", "alpha", "Status", "Iterations", "L1 error at most")
    return make_table(f"Vectors of {record.name}", titles, rows, MOST_MOVED)


def _tell_state(step: StepOutcome) -> Cell:
    return Cell(step.state, f"state {_STATES[step.state]}", step.error or "")


def _tell_status(status: str, is_success: bool) -> Cell:
    return Cell(status.replace("_", " "), "" if is_success else "bad")


def _count(count: float | None) -> Cell:
    return NOTHING if count is None else Cell(format_count(count))


# --- convergence -----------------------------------------------------------------------------------------------------


def _show_convergence(run: RunRecord) -> Section:
    charts = []
    for group, records in group_records(select(list_records(run), is_ranks)):
        lines = [line for record in records for line in _draw_changes(record)]
        if lines:
            y, levels = f"change, {_name_norms(records)}", _list_levels(records)
            charts.append(draw_lines(f"{group}: convergence", lines, "iteration", y, levels=levels))
    lead = (
        "How much the ranks changed in each iteration, and the tolerance at which a run ends. A dot is the end of a "
        "run that ended as it was asked to, a cross of one that did not. Of a batch there are the slowest vector, the "
        "median and the fastest."
    )
    return Section("convergence", "Convergence", lead, charts)


def _draw_changes(record: StepRecord) -> list[Line]:
    """Of a run, or of the vectors of which changes are known."""
    result, name = record.result, name_in_group(record)
    vectors = result.get("vectors", [])
    named = [(name, result), *((f"{name}, {_name_vector(vector, vectors)}", vector) for vector in vectors)]
    return [
        Line(label, list(enumerate(map(read_number, own["changes"]), 1)), Status(own["status"]).is_success)
        for label, own in named
        if own.get("changes")
    ]


def _name_vector(vector: Mapping[str, Any], vectors: Sequence[Any]) -> str:
    """Its label, and why its changes are there where those of others are not."""
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
    modes = [record.options.get("tol_mode", "l1") for record in records]
    names = dict.fromkeys(_NORMS.get(mode, mode) for mode in modes)
    return next(iter(names)) if len(names) == 1 else "each in the norm of its run"


def _list_levels(records: Iterable[StepRecord]) -> list[tuple[float, str]]:
    """The changes at which the runs end, each once."""
    levels = {}
    for record in records:
        mode, tol = record.options.get("tol_mode"), read_number(record.options.get("tol"))
        if tol > 0 and mode != "fixed":
            change = tol * record.matrix["shape"][0] if mode == "l1_per_node" else tol
            levels[change] = f"tol {format_number(change)}"
    return list(levels.items())[:MOST_LEVELS]


# --- time ------------------------------------------------------------------------------------------------------------


def _show_times(run: RunRecord) -> Section:
    timed = select(list_records(run), lambda record: record.seconds)
    kept = {step.name for step in run.steps if step.state == "kept"}
    ranked = select(timed, is_ranks)
    others = select(timed, lambda record: not is_ranks(record))
    charts = []
    if others:
        labels = [_mark_kept(record.name, record, kept) for record in others]
        charts.append(_draw_phases("Other steps than runs: time by phase", others, labels, _choose_phases(others)))
    phases = _choose_phases(ranked)
    for group, records in group_records(ranked):
        labels = [_mark_kept(name_in_group(record), record, kept) for record in records]
        charts.append(_draw_phases(f"{group}: time by phase", records, labels, phases))
    charts += [_draw_workers(record) for record in timed if _count_workers(record) > 1]
    lead = (
        "Where the time went: of each step by phase, and of runs on several workers the seconds of all iterations by "
        "worker. What was kept from an earlier run shows the seconds of that one."
    )
    return Section("time", "Time", lead, charts)


def _mark_kept(name: str, record: StepRecord, kept: set[str]) -> str:
    return f"{name} (kept)" if record.name in kept else name


def _choose_phases(records: Iterable[StepRecord]) -> list[str]:
    """The phases that took longest of all, as many as there are colors but for one, in the order in which they
    usually are; unknown ones come last."""
    took: dict[str, float] = {}
    for record in records:
        for phase, elapsed_s in record.seconds.items():
            took[phase] = took.get(phase, 0.0) + elapsed_s
    longest = sorted(took, key=lambda phase: -took[phase])[: N_COLORS - 1]
    return sorted(longest, key=lambda phase: _PHASES.index(phase) if phase in _PHASES else len(_PHASES))


def _draw_phases(title: str, records: Sequence[StepRecord], labels: Sequence[str], phases: Sequence[str]) -> Chart:
    """Stacks of these phases, and of the others together where there are any."""
    stacks = [[*(own.get(phase) for phase in phases), _sum_others(own, phases)] for own in (r.seconds for r in records)]
    n_series = len(phases) + any(stack[-1] for stack in stacks)
    bars = [Bar(label, stack[:n_series]) for label, stack in zip(labels, stacks, strict=True)]
    return draw_bars(title, bars, [*phases, "other"][:n_series], format_seconds, is_stacked=True)


def _sum_others(seconds: Mapping[str, float], phases: Sequence[str]) -> float:
    return sum(elapsed_s for phase, elapsed_s in seconds.items() if phase not in phases)


def _count_workers(record: StepRecord) -> int:
    events = record.result.get("events") or [{}]
    return len(events[0].get("product_s", ()))


def _draw_workers(record: StepRecord) -> Chart:
    events = record.result["events"]
    bars = [
        Bar(f"worker {worker}", [sum(event[name][worker] for event in events) for name in _TIMES])
        for worker in range(_count_workers(record))
    ]
    return draw_bars(f"{record.name}: time by worker", bars, list(_TIMES.values()), format_seconds, is_stacked=True)


# --- memory ----------------------------------------------------------------------------------------------------------


def _show_memory(run: RunRecord) -> Section:
    charts, alone = [], []
    for record in list_records(run):
        bars = _compare_memory(record)
        if len(bars) == 1:
            alone.append(replace(bars[0], label=record.name))
        elif bars:
            charts.append(_draw_memory(f"{record.name}: memory by worker", bars))
    if alone:
        charts.insert(0, _draw_memory("Steps in one process: memory", alone))
    lead = (
        "Predicted: what was set aside for the step before it began, beside what the process had already. Held: matrix "
        "and vectors where the kernels compute. On a device: what the process holds there. A triangle marks where "
        "these are more than was predicted. Process: the most that was resident since it began, which has interpreter, "
        "libraries and what earlier steps took in it."
    )
    return Section("memory", "Memory", lead, charts)


def _compare_memory(record: StepRecord) -> list[Bar]:
    """Of each worker."""
    taken = record.memory
    planned = taken.get("planned_bytes") or taken.get("predicted_bytes") or []
    n_workers = max((len(taken.get(name, ())) for name in _MEASURED), default=0)
    return [_compare_worker(taken, planned, worker) for worker in range(n_workers)]


def _compare_worker(taken: Mapping[str, Sequence[int]], planned: Sequence[int], worker: int) -> Bar:
    """Predicted and measured; a prediction is about what is on the device if there is one, else about what is held."""
    predicted = planned[worker] if worker < len(planned) else None
    measured = {name: own[worker] or None for name in _MEASURED if worker < len(own := taken.get(name) or ())}
    compared = "device_bytes" if measured.get("device_bytes") else "held_bytes"
    excess = _say_excess(measured.get(compared), predicted)
    warnings = [excess if name == compared else "" for name in _MEASURED]
    return Bar(f"worker {worker}", [predicted, *(measured.get(name) for name in _MEASURED)], ["", *warnings])


def _say_excess(value: int | None, predicted: int | None) -> str:
    if value is None or not predicted or value <= predicted:
        return ""
    percent = 100 * (value - predicted) / predicted
    return f"+{percent:.0f}%" if percent >= 10 else f"+{percent:.2g}%"


def _draw_memory(title: str, bars: Sequence[Bar]) -> Chart:
    return draw_bars(title, bars, ["predicted", *_MEASURED.values()], format_bytes, is_stacked=False)


# --- ranks and degrees -----------------------------------------------------------------------------------------------


def _show_distributions(run: RunRecord) -> Section:
    charts, tables = [], []
    for group, records in group_records(list_records(run)):
        lines = [Line(name_in_group(own), _read_points(own.distribution)) for own in records if own.distribution]
        if lines:
            charts.append(draw_lines(f"{group}: ranks", lines, "rank", "vertices of at least this rank", is_x_log=True))
        charts += [_draw_degrees(f"{own.name}: degrees", own.degrees) for own in records if any(own.degrees.values())]
        summaries = [_summarize(own) for own in records if own.summary]
        if summaries:
            titles = ("Run", "Least", "Median", "99 % are at most", "Highest", "Sum", "Gini coefficient")
            tables.append(make_table(f"{group}: ranks", titles, summaries))
    lead = (
        "How many vertices have at least such a rank or degree, both on logarithmic scales, on which power laws are "
        "straight lines."
    )
    return Section("distributions", "Ranks and degrees", lead, charts, tables)


def _read_points(pairs: Iterable[Sequence[Any]]) -> list[tuple[float, float]]:
    return [(read_number(x), read_number(y)) for x, y in pairs]


def _draw_degrees(title: str, degrees: Mapping[str, Sequence[Sequence[float]]]) -> Chart:
    names = {"in": "in-degree", "out": "out-degree", "rows": "entries of a row"}
    what = "rows" if "rows" in degrees else "vertices"
    lines, notes = [], []
    for kind, pairs in degrees.items():
        lines.append(Line(names.get(kind, kind), [(x, y) for x, y in _read_points(pairs) if x > 0]))
        if pairs and pairs[0][0] == 0:
            n_without = pairs[0][1] - (pairs[1][1] if len(pairs) > 1 else 0)
            notes.append(f"{format_count(n_without)} {what} of {names.get(kind, kind)} 0 are not drawn")
    chart = draw_lines(title, lines, "degree", f"{what} of at least this degree", is_x_log=True)
    return replace(chart, note="; ".join(filter(None, [*notes, chart.note])))


def _summarize(record: StepRecord) -> list[Cell]:
    found, percentiles = record.summary, record.summary.get("percentiles", {})
    numbers = (found.get("min"), percentiles.get("50"), percentiles.get("99"), found.get("max"), found.get("sum"))
    cells = [Cell(format_number(read_number(number), 4)) for number in (*numbers, found.get("gini"))]
    return [Cell(name_in_group(record)), *cells]


# --- the highest, and who moved --------------------------------------------------------------------------------------


def _show_highest(run: RunRecord) -> Section:
    tables = [
        _list_highest(f"{group}, continued" if first else group, records[first : first + RANKED_BESIDE])
        for group, records in group_records(select(list_records(run), lambda record: record.top))
        for first in range(0, len(records), RANKED_BESIDE)
    ]
    return Section("highest", "Highest vertices", "The vertices of the highest ranks, run beside run.", tables=tables)


def _list_highest(caption: str, records: Sequence[StepRecord]) -> Table:
    """A row for each place; of each run the vertex, its label where it has one, and its rank."""
    titles = ["", *(title for record in records for title in (_name_ranks(record), "rank"))]
    rows = []
    for place in range(max(len(record.top) for record in records)):
        row = [Cell(f"{place + 1}", "dim")]
        for record in records:
            row += _name_vertex(*record.top[place]) if place < len(record.top) else [Cell(""), Cell("")]
        rows.append(row)
    return make_table(caption, titles, rows, texts=range(1, len(titles), 2))


def _name_ranks(record: StepRecord) -> str:
    """Of a run; of many vectors, of the first."""
    vectors = record.result.get("vectors")
    return f"{name_in_group(record)}, {vectors[0]['label']}" if vectors else name_in_group(record)


def _name_vertex(name: Any, rank: Any, label: Any = None) -> list[Cell]:
    told = f"{label} ({name})" if label is not None and str(label) != str(name) else str(name)
    return [make_cell(told, "name"), Cell(format_number(read_number(rank), 5))]


def _show_comparisons(run: RunRecord) -> Section:
    compared = select(list_records(run), lambda record: record.comparison)
    records = select(compared, lambda record: record.kind != "batch")
    titles = ("Run", "Before", "In both", "New", "Gone", "Spearman", "Kendall of the highest", "L1", "Overlap")
    tables = [make_table("Agreement", titles, [_compare(own) for own in records], texts=(0, 1))] if records else []
    tables += [_list_moved(own) for own in records if own.comparison.get("moved")]
    tables += [table for own in compared if own.kind == "batch" for table in _compare_vectors(own)]
    lead = (
        "Against the ranks that were there before. Spearman and Kendall are 1 where the order of the vertices that are "
        "in both is the same; L1 is the sum of how much the ranks differ; the overlap is the share of the highest that "
        "are the same. Of batches, the vectors that changed most."
    )
    return Section("comparison", "Since the run before", lead, tables=tables)


def _compare(record: StepRecord) -> list[Cell]:
    found = record.comparison
    overlap = read_number(found.get("overlap"))
    return [
        Cell(record.name),
        make_cell(_say_before(found.get("before"))),
        *(_count(found.get(name)) for name in ("n_common", "n_new", "n_gone")),
        *(Cell(format_number(read_number(found.get(name)), 5)) for name in ("spearman", "kendall_top", "l1")),
        NOTHING if math.isnan(overlap) else Cell(f"{overlap:.1%}"),
    ]


_MEASURES = {"overlap": "Overlap", "spearman": "Spearman", "kendall_top": "Kendall of the highest", "l1": "L1"}


def _compare_vectors(record: StepRecord) -> list[Table]:
    """Of a batch: what its vectors came to together, and those whose highest changed most."""
    found = record.comparison
    rows = [
        [Cell(title), _measure(name, own.get("worst")), make_cell(own.get("of")), _measure(name, own.get("median"))]
        for name, title in _MEASURES.items()
        if (own := found["summary"].get(name))
    ]
    counts = [f"{found.get(f'n_vectors{name}', 0):,}{said}" for name, said in _VECTORS.items()]
    caption = f"{record.name}: {', '.join(counts)}; before: {_say_before(found.get('before'))}"
    changed = [own for own in found["vectors"] if own["overlap"] < 1 or own.get("l1")]
    known = {name: title for name, title in _MEASURES.items() if name in found["summary"]}
    titles = ("Vector", *known.values(), "Entered", "Left")
    vectors = [_describe_vector(own, known) for own in changed]
    texts = (0, len(titles) - 2, len(titles) - 1)
    tables = [
        make_table(caption, ("Of the vectors of both", "Worst", "of", "Median"), rows, texts=(0, 2)),
        make_table(f"{record.name}: vectors that changed most", titles, vectors, MOST_MOVED, texts),
    ]
    return [table for table in tables if table.rows]


_VECTORS = {"": " vectors in both", "_new": " new", "_gone": " gone"}


def _measure(name: str, value: Any) -> Cell:
    number = read_number(value)
    if math.isnan(number):
        return NOTHING
    return Cell(f"{number:.1%}" if name == "overlap" else format_number(number, 5))


def _describe_vector(vector: Mapping[str, Any], known: Iterable[str]) -> list[Cell]:
    names = [_list_names(vector[key], vector[f"n_{key}"]) for key in ("entered", "left")]
    return [make_cell(vector["label"]), *(_measure(name, vector[name]) for name in known), *names]


def _list_names(rows: Sequence[Sequence[Any]], count: int) -> Cell:
    """The first few, and how many more there are; all that are known as its tip."""
    names = [str(name) for name, *_ in rows]
    first = ", ".join(shorten(name, LONGEST_NAME) for name in names[:MOST_NAMED])
    more = f" and {count - MOST_NAMED:,} more" if count > MOST_NAMED else ""
    return Cell(f"{first}{more}", "name", ", ".join(names)) if names else NOTHING


def _say_before(before: Any) -> str:
    """When those ranks were made, or which they are."""
    if isinstance(before, Mapping):
        before = before.get("ended") or before.get("key")
    return say(before)


def _list_moved(record: StepRecord) -> Table:
    rows = [_describe_move(*moved) for moved in record.comparison["moved"]]
    titles = ("Vertex", "Moved", "Place before", "Place now", "Rank before", "Rank now")
    return make_table(f"{record.name}: who moved furthest", titles, rows, MOST_MOVED)


def _describe_move(name: Any, before: int | None, now: int | None, rank_before: Any, rank_now: Any) -> list[Cell]:
    ranks = [Cell(format_number(read_number(rank), 5)) for rank in (rank_before, rank_now)]
    return [make_cell(str(name), "name"), _point(before, now), _count(before), _count(now), *ranks]


def _point(before: int | None, now: int | None) -> Cell:
    """Up or down, and how many places."""
    if before is None or now is None:
        return Cell("new" if before is None else "gone", "dim")
    if now == before:
        return Cell("=", "dim")
    return Cell(f"▲ {before - now:,}", "up") if now < before else Cell(f"▼ {now - before:,}", "down")

"""What the benchmark of PageRank found, as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.iterations import FEW, MANY
from benchmarks.program import PRECISIONS
from benchmarks.rank_checks import N_CHECKED
from benchmarks.rank_records import PEERS, PREPARATIONS, Record
from benchmarks.tables import Setting, format_ms, format_row, format_setting
from benchmarks.targets import LARGE, judge_targets, mean_ratio

LEGEND = (
    f"ms: (least time of {MANY} iterations - least time of {FEW}) / {MANY - FEW}; no run had converged.",
    "cuGraph: the faster of two, told of all vertices and of those that have arcs, where some have none.",
    "cuGraph / float32, cuGraph / exact: how many times as fast that is.",
    "of limit: the least time over the measured one. The least time is that of 4 bytes an edge, and of old and new "
    "ranks and old and new z once, at the bandwidth of a copy, {copy:,.4g} GB/s in this run; a graph that fits into "
    "caches can be above it.",
    f"Preparation: the median of {PREPARATIONS} after one that compiles, from arcs on the device (CSR of in-edges, and "
    "for cuGraph a list) to when iterations can begin.",
    f"Errors: largest relative difference of a rank after {N_CHECKED} iterations to an iteration in float64; to "
    "cuGraph: to its ranks.",
)


def format_report(
    setting: Setting, records: Sequence[Record], left_out: Mapping[str, str], copy_bytes_per_s: float
) -> str:
    """All tables, below what they were measured on."""
    parts = format_setting(setting)
    if records:
        parts += ["", "### Iterations", "", *_tabulate_iterations(records)]
        parts += ["", "### Preparation", "", *_tabulate_preparation(records)]
        parts += ["", "### Errors", "", *_tabulate_errors(records)]
        parts += _list_problems(records)
        parts += ["", "### Targets", "", *_list_targets(records, on_device="device" in setting.notes)]
        parts += ["", *(f"- {line.format(copy=copy_bytes_per_s / 1e9)}" for line in LEGEND)]
    if left_out:
        parts += ["", "Graphs left out:", "", *(f"- {name}: {why}" for name, why in left_out.items())]
    return "\n".join([*parts, ""])


def _tabulate_iterations(records: Sequence[Record]) -> Iterator[str]:
    own = _list_own(records)
    titles = ["graph", "vertices", "edges", "cuGraph ms"]
    for name in own:
        titles += [f"{name} ms", f"cuGraph / {name}", "G edges/s", "of limit"]
    yield from _begin_table(titles)
    for graph in _group(records).values():
        first = next(iter(graph.values()))
        cells = [first.graph, f"{first.n_vertices:,}", f"{first.n_edges:,}", _find_peer(graph, _show_time)]
        for name in own:
            record = graph[name]
            cells += [
                _show_time(record),
                _show(record.ratio, "{:.2f}"),
                _show(record.edges_per_s and record.edges_per_s / 1e9, "{:.4g}"),
                _show(record.limit_share, "{:.0%}"),
            ]
        yield format_row(cells)
    means = [mean_ratio(records, name) for name in own]
    if any(mean is not None for mean in means):
        cells = [f"geometric mean from {LARGE:,} edges", "", "", ""]
        for mean in means:
            cells += ["", _show(mean, "**{:.2f}**"), "", ""]
        yield format_row(cells)


def _tabulate_preparation(records: Sequence[Record]) -> Iterator[str]:
    own = _list_own(records)
    yield from _begin_table(["graph", "cuGraph s", *(t for name in own for t in (f"{name} ms", "in iterations"))])
    for name, graph in _group(records).items():
        cells = [name, _find_peer(graph, lambda r: _show(r.prepare_s, "{:.4g}"))]
        for record in (graph[name] for name in own):
            cells += [format_ms(record.prepare_s), _show(record.prepare_iterations, "{:.1f}")]
        yield format_row(cells)


def _tabulate_errors(records: Sequence[Record]) -> Iterator[str]:
    own = _list_own(records)
    yield from _begin_table(["graph", "cuGraph", *(title for name in own for title in (name, "to cuGraph"))])
    for name, graph in _group(records).items():
        cells = [name, _find_peer(graph, lambda r: _show(r.error, "{:.1e}"))]
        for record in (graph[name] for name in own):
            cells += [_show(record.error, "{:.1e}"), _show(record.peer_error, "{:.1e}")]
        yield format_row(cells)


def _list_targets(records: Sequence[Record], *, on_device: bool) -> Iterator[str]:
    if not on_device:
        yield "- none on the host: they are for a device, beside cuGraph"
        return
    for target in judge_targets(records):
        verdict = "met" if target.is_met else "NOT MET"
        yield f"- {target.name}: wanted {target.wanted}, found {target.found}: {verdict}"
    if not any(r.is_peer for r in records):
        yield "- beside cuGraph: not compared"


def _list_problems(records: Sequence[Record]) -> list[str]:
    """What was not timed, a line each."""
    problems = [r for r in records if r.problem is not None]
    lines = [f"- {r.graph}, {r.contender}: {'WRONG: ' if r.is_wrong else ''}{r.problem}" for r in problems]
    return ["", "Not timed:", "", *lines] if lines else []


# --- cells -----------------------------------------------------------------------------------------------------------


def _group(records: Sequence[Record]) -> dict[str, dict[str, Record]]:
    """Records by graph and contender."""
    graphs: dict[str, dict[str, Record]] = {}
    for record in records:
        graphs.setdefault(record.graph, {})[record.contender] = record
    return graphs


def _list_own(records: Sequence[Record]) -> list[str]:
    return [name for name in PRECISIONS if any(r.contender == name for r in records)]


def _find_peer(graph: Mapping[str, Record], show: Callable[[Record], str]) -> str:
    """What is shown of the faster peer, or of one that has no time."""
    peers = [graph[name] for name in PEERS if name in graph]
    timed = [r for r in peers if r.iteration_s is not None]
    return show(min(timed, key=lambda r: r.iteration_s or 0.0)) if timed else show(peers[0]) if peers else ""


def _show_time(record: Record) -> str:
    if record.iteration_s is None:
        return "WRONG" if record.is_wrong else "–"
    return format_ms(record.iteration_s)


def _show(number: float | None, form: str) -> str:
    return "" if number is None else form.format(number)


def _begin_table(titles: Sequence[str]) -> Iterator[str]:
    yield format_row(titles)
    yield format_row(["---", *["---:"] * (len(titles) - 1)])

"""Page `/pagerank` of Dask's dashboard: runs of the cluster, in progress and ended.

It shows a table of all runs; and of one run, the last or the one that the address names, progress, curves and the work
of its workers.

Dask documents no way to add a page to its dashboard. All uses of `distributed.dashboard` are in this module; runs work
without the page if that has changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
from bokeh.layouts import column, row
from bokeh.models import BasicTicker, ColumnDataSource, Div, NumeralTickFormatter
from bokeh.plotting import figure
from bokeh.server.tornado import BokehTornado
from distributed.dashboard.components.scheduler import BOKEH_THEME, env
from distributed.dashboard.core import BokehApplication
from distributed.dashboard.scheduler import template_variables
from tornado.ioloop import IOLoop

from mgspmv.cluster.worker_metrics import PHASES
from mgspmv.display import format_scaled, format_seconds
from mgspmv.monitor.runs import PAGE, USED, Runs, RunState

if TYPE_CHECKING:
    from bokeh.document import Document
    from distributed import Scheduler

PERIOD_MS = 1000
"""Milliseconds between two updates."""
LINE, MEMORY_COLORS = "#2f7edf", ("#2f7edf", "#d9670a")
PHASE_COLORS = ("#2f7edf", "#f0a13c", "#5d6470")
"""Colors of product, exchange and wait; distinct with color blindness and in grayscale."""
LEAST_WIDTH, WIDTH = 300, 420
"""Pixels: least width of a figure, and of one that shares a row; others are below each other."""
STYLE = (files("mgspmv.monitor") / "page.css").read_text(encoding="utf-8")
"""Style of the text of the page."""

COLUMNS = {
    "run": "run",
    "operation": "operation",
    "matrix": "matrix",
    "workers": "workers",
    "state": "state",
    "iterations": "iterations",
    "change": "change",
    "iterations_per_s": "iterations/s",
    "edges_per_s": "edges/s",
    "left": "time left",
    "began": "began",
    "elapsed": "elapsed",
    "errors": "errors",
}
"""Headings of the table's columns, by field."""
TEXTS = ("run", "operation", "matrix", "state", "errors")
"""Fields that are text, which is on the left."""


def add_page(scheduler: Scheduler, runs: Runs) -> bool:
    """Add a page of runs to the scheduler's dashboard, with a link in its navigation; return whether there is one."""
    served = getattr(scheduler, "http_application", None)
    own = [app for app in getattr(served, "applications", ()) if isinstance(app, BokehTornado)]
    if served is None or not own:
        return False
    variables = template_variables(scheduler)  # one dict for all pages of this scheduler
    if PAGE not in variables["pages"]:
        variables["pages"].append(PAGE)
    pages = {f"/{PAGE}": partial(make_page, runs)}
    app = BokehApplication(pages, scheduler, prefix=own[0].prefix, template_variables=variables)
    served.add_application(app)
    app.initialize(IOLoop.current())
    app.start()
    return True


def make_page(runs: Runs, scheduler: Scheduler, extra: dict[str, Any], doc: Document) -> None:
    """Fill a document, and keep it up to date.

    Parameters
    ----------
    extra : variables of Dask's templates
    """
    request = doc.session_context.request if doc.session_context is not None else None
    chosen = [] if request is None else request.arguments.get("run", [])
    page = Page(runs, chosen[0].decode(errors="replace") if chosen else None)
    page.update()
    doc.add_root(page.root)
    doc.template = env.get_template("simple.html")
    doc.template_variables.update(extra)
    doc.template_variables["active_page"] = PAGE
    doc.theme = BOKEH_THEME
    doc.add_periodic_callback(page.update, PERIOD_MS)


class Page:
    """Page in one browser session.

    Parameters
    ----------
    chosen : id of the run that is shown; the last run if None or unknown
    """

    def __init__(self, runs: Runs, chosen: str | None = None) -> None:
        self._runs, self._version = runs, -1
        self._chosen = chosen
        text: dict[str, Any] = {"sizing_mode": "stretch_width", "stylesheets": [STYLE]}
        # The element itself scrolls, so that new text does not move what is seen.
        self._table = Div(name="runs", styles={"max-height": "190px", "overflow": "auto"}, **text)
        self._head = Div(name="head", **text)
        self._change = _make_source("change", "iteration", "change")
        self._rate = _make_source("rate", "iteration", "million_edges_per_s")
        plans = [f"{where}_plan" for where in USED]
        self._workers = _make_source("workers", "rank", "name", *PHASES, *USED, *plans, "left", "right")
        wrapping: dict[str, Any] = {"sizing_mode": "stretch_width", "styles": {"flex-wrap": "wrap"}}
        self._shown = column(
            self._head,
            row(*self._draw_curves(), **wrapping),
            row(*self._draw_workers(), **wrapping),
            sizing_mode="stretch_width",
            name="shown",
        )
        self.root = column(self._table, self._shown, sizing_mode="stretch_width")

    def update(self) -> None:
        """Update the page if runs have changed."""
        if self._version == self._runs.version:
            return
        self._version = self._runs.version
        runs = list(reversed(self._runs.by_id.values()))
        self._shown.visible = bool(runs)
        shown = next((run for run in runs if run.run == self._chosen), runs[0] if runs else None)
        self._table.text = describe_runs(runs, shown)
        if shown is not None:
            self._show(shown)

    def _show(self, run: RunState) -> None:
        self._head.text = describe_run(run)
        changes = {i: change for i, change in run.changes.items() if change > 0}  # a logarithmic axis cannot show 0
        self._change.data = {"iteration": [*changes], "change": [*changes.values()]}
        rates = [rate * run.edges / 1e6 for rate in run.rates.values()]
        self._rate.data = {"iteration": [*run.rates], "million_edges_per_s": rates}
        ranks = np.arange(run.n_workers)
        columns = {"rank": ranks, "name": [worker["name"] for worker in run.workers]}
        columns |= {where: n_bytes / 1e9 for where, n_bytes in run.used_bytes.items()}
        columns |= {f"{where}_plan": run.planned_bytes(where) / 1e9 for where in USED}
        columns |= dict(zip(PHASES, 1e3 * run.mean_seconds, strict=True))
        has_devices = bool(run.used_bytes["device"].any() or run.planned_bytes("device").any())
        aside = 0.2 if has_devices else 0.0
        self._workers.data = columns | {"left": ranks - aside, "right": ranks + aside}
        for shown in (*self._on_device, self._device_key):
            shown.visible = has_devices

    def _draw_curves(self) -> tuple[figure, figure]:
        tips = {"iteration": "@iteration", "change": "@change{0.000e}"}
        change = _make_figure("change per iteration", tips, y_axis_type="log")
        rate = _make_figure("million edges/s", x_range=change.x_range)
        change.line("iteration", "change", source=self._change, color=LINE, line_width=2)
        rate.line("iteration", "million_edges_per_s", source=self._rate, color=LINE, line_width=2)
        rate.y_range.start = 0
        rate.yaxis.formatter = NumeralTickFormatter(format="0,0.[00]")
        return change, rate

    def _draw_workers(self) -> tuple[figure, figure]:
        tips = {"worker": "@name", **{phase: f"@{phase}{{0.000}} ms" for phase in PHASES}}
        times = _make_figure("time per iteration in ms, mean", tips, x="worker")
        times.vbar_stack(PHASES, x="rank", width=0.8, source=self._workers, color=PHASE_COLORS, legend_label=[*PHASES])
        planned = {where: f"@{where}{{0.000}} GB, planned @{where}_plan{{0.000}} GB" for where in USED}
        memory = _make_figure(
            "memory in GB (bar: used, with Python; dash: planned)",
            {"worker": "@name"} | planned, x="worker", x_range=times.x_range,
        )  # fmt: skip
        for side, where, color in zip(("left", "right"), USED, MEMORY_COLORS, strict=True):
            memory.vbar(side, width=0.38, top=where, source=self._workers, color=color, legend_label=where, name=where)
            dash: dict[str, Any] = {"marker": "dash", "size": 24, "color": "black", "line_width": 3}
            memory.scatter(side, f"{where}_plan", source=self._workers, name=where, **dash)
        self._on_device = memory.select(name="device")
        self._device_key = memory.legend[0].items[-1]
        return _place_legend(times), _place_legend(memory)


def describe_runs(runs: list[RunState], shown: RunState | None) -> str:
    """Describe all runs as a table of HTML, in which the one that is shown is marked."""
    if not runs:
        return "<p>No runs yet. Runs of mgspmv on this cluster are shown here as soon as they begin.</p>"
    has_errors = any(run.errors for run in runs)
    columns = [name for name in COLUMNS if name != "errors" or has_errors]
    head = "".join(f"<th{_place(name)}>{COLUMNS[name]}</th>" for name in columns)
    rows = []
    for run in runs:
        cells = {name: escape(value) for name, value in _format_run(run).items()}
        cells["run"] = f'<a href="{PAGE}?run={quote(run.run, safe="")}">{cells["run"]}</a>'
        style = ' class="chosen"' if run is shown else ""
        rows.append(f"<tr{style}>{''.join(f'<td{_place(name)}>{cells[name]}</td>' for name in columns)}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _place(name: str) -> str:
    styles = [style for style, is_given in (("text", name in TEXTS), ("error", name == "errors")) if is_given]
    return f' class="{" ".join(styles)}"' if styles else ""


def describe_run(run: RunState) -> str:
    """Describe a run, apart from its curves, as HTML."""
    shown, (n_rows, n_cols), checkpoints = _format_run(run), run.matrix["shape"], ""
    if run.checkpointed is not None:
        ago = f"{run.changed - run.checkpointed:,.0f} s ago"
        checkpoints = f"{run.checkpoints:,}, last after iteration {run.checkpoint_iteration:,}, {ago}"
    facts = {
        "state": shown["state"],
        "iterations": shown["iterations"],
        "change": shown["change"] + (f" (stops below {run.threshold:.3g})" if run.threshold else ""),
        "rate": ", ".join(
            f"{shown[name]} {COLUMNS[name]}" for name in ("iterations_per_s", "edges_per_s") if shown[name]
        ),
        "workers": f"{run.n_workers} ({run.backend})",
        "executor": f"{run.executor}, transport {run.transport}",
        "held": f"{max(run.held_bytes) / 1e6:,.1f} MB per worker at most",
        "received": f"{sum(run.exchanged_bytes) / 1e6:,.1f} MB",
        "restarts": str(run.restarts) if run.restarts else "",
        "checkpoints": checkpoints,
        "matrix": f"{run.matrix['url']}, {n_rows:,} x {n_cols:,}, {run.edges:,} entries",
        "options": ", ".join(f"{name}={value}" for name, value in run.options.items()),
        "seconds": ", ".join(f"{phase} {elapsed_s:.3g}" for phase, elapsed_s in run.seconds.items()),
    }
    long = ("matrix", "options", "seconds")
    lines = [
        f"<div{' class=long' if name in long else ''}><dt>{name}</dt><dd>{escape(value)}</dd></div>"
        for name, value in facts.items()
        if value
    ]
    errors = [f'<p class="error">{escape(error)}</p>' for error in run.errors]
    title = f"<h2>{escape(run.operation)} {escape(run.run)}</h2>"
    return f"{title}{_describe_progress(run)}{''.join(errors)}<dl>{''.join(lines)}</dl>"


def _describe_progress(run: RunState) -> str:
    """Describe the progress of a run as a bar and a line of text; empty if the run has ended."""
    if not run.is_running:
        return ""
    left, seconds_left = run.iterations_left, run.seconds_left
    if left is None or not run.iterations:
        return f"<p>{escape(run.state)}</p>"
    total = run.iterations + left
    said = f"iteration {run.iterations:,} of about {total:,}"
    if total == run.most_iterations:
        said = f"iteration {run.iterations:,} of {'' if run.threshold is None else 'at most '}{total:,}"
    if seconds_left is not None:
        said += f", {format_seconds(seconds_left)} left"
    return f'<progress max="{total}" value="{run.iterations}"></progress><p>{said}</p>'


def _format_run(run: RunState) -> dict[str, str]:
    """Return the texts of a run that both the table and the description show."""
    left = run.seconds_left if run.is_running else None
    return {
        "run": run.run,
        "operation": run.operation,
        "matrix": run.matrix["url"].rstrip("/").rpartition("/")[2],
        "workers": f"{run.n_workers:,}",
        "state": run.state,
        "iterations": f"{run.iterations:,}",
        "change": _format(run.change, "{:.3e}"),
        "iterations_per_s": _format(run.iterations_per_s, "{:,.1f}"),
        "edges_per_s": format_scaled(run.edges_per_s) if math.isfinite(run.edges_per_s) else "",
        "left": "" if left is None else format_seconds(left),
        "began": f"{datetime.fromtimestamp(run.began):%H:%M:%S}",
        "elapsed": format_seconds(run.elapsed_s),
        "errors": "; ".join(run.errors),
    }


def _make_source(name: str, *columns: str) -> ColumnDataSource:
    return ColumnDataSource({column: [] for column in columns}, name=name)


def _make_figure(title: str, tips: Mapping[str, str] | None = None, *, x: str = "iteration", **axes: Any) -> figure:
    tools: dict[str, Any] = {"tools": "pan,box_zoom,wheel_zoom,reset", "active_scroll": None}
    tools["tooltips"] = None if tips is None else [*tips.items()]
    size: dict[str, Any] = {"height": 260, "min_width": LEAST_WIDTH, "sizing_mode": "stretch_width"}
    drawn = figure(title=title, x_axis_label=x, styles={"flex": f"1 1 {WIDTH}px"}, **size, **tools, **axes)
    drawn.toolbar.autohide = True
    drawn.xaxis.ticker = BasicTicker(min_interval=1, mantissas=[1, 2, 5], num_minor_ticks=0)  # integers only
    return drawn


def _place_legend(drawn: figure) -> figure:
    drawn.y_range.start = 0
    legend = drawn.legend[0]
    legend.orientation = "horizontal"
    drawn.add_layout(legend, "above")
    return drawn


def _format(value: float, how: str) -> str:
    return how.format(value) if math.isfinite(value) else ""

"""Page `/pagerank` of Dask's dashboard: runs of the cluster, in progress and ended.

It shows a table of all runs, and of the selected run, by default the last one, curves and the work of its workers.

Dask documents no way to add a page to its dashboard. All uses of `distributed.dashboard` are in this module; runs work
without the page if that has changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from bokeh.layouts import column, row
from bokeh.models import BasicTicker, ColumnDataSource, DataTable, Div, NumeralTickFormatter, TableColumn
from bokeh.plotting import figure
from bokeh.server.tornado import BokehTornado
from distributed.dashboard.components.scheduler import BOKEH_THEME, env
from distributed.dashboard.core import BokehApplication
from distributed.dashboard.scheduler import template_variables
from tornado.ioloop import IOLoop

from mgspmv.cluster.worker_metrics import PHASES
from mgspmv.monitor.runs import USED, Runs, RunState

if TYPE_CHECKING:
    from bokeh.document import Document
    from distributed import Scheduler

PAGE = "pagerank"
"""Address of the page on the dashboard, and its name in the navigation bar."""
PERIOD_MS = 1000
"""Milliseconds between two updates."""
LINE, MEMORY_COLORS = "#0072b2", ("#56b4e9", "#cc79a7")
PHASE_COLORS = ("#0072b2", "#e69f00", "#999999")
"""Colors of product, exchange and wait; distinct with color blindness and in grayscale."""

COLUMNS = {
    "run": ("run", 110),
    "operation": ("operation", 130),
    "matrix": ("matrix", 200),
    "workers": ("workers", 60),
    "state": ("state", 90),
    "iterations": ("iterations", 70),
    "change": ("change", 80),
    "iterations_per_s": ("iterations / s", 90),
    "edges_per_s": ("edges / s", 90),
    "began": ("began", 70),
    "elapsed_s": ("seconds", 70),
    "errors": ("errors", 250),
}
"""Headings and widths in pixels of the table's columns, by field."""


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
    page = Page(runs)
    page.update()
    doc.add_root(page.root)
    doc.template = env.get_template("simple.html")
    doc.template_variables.update(extra)
    doc.template_variables["active_page"] = PAGE
    doc.theme = BOKEH_THEME
    doc.add_periodic_callback(page.update, PERIOD_MS)


class Page:
    """Page in one browser session."""

    def __init__(self, runs: Runs) -> None:
        self._runs, self._version = runs, -1
        self._chosen: str | None = None
        self._is_updating = False
        self._rows = _make_source("runs", *COLUMNS)
        self._rows.selected.on_change("indices", self._choose)
        headings = [TableColumn(field=name, title=title, width=width) for name, (title, width) in COLUMNS.items()]
        shown: dict[str, Any] = {"index_position": None, "reorderable": False, "autosize_mode": "none", "height": 170}
        table = DataTable(source=self._rows, columns=headings, sizing_mode="stretch_width", **shown)
        self._said = Div(sizing_mode="stretch_width", name="said")
        self._head = Div(sizing_mode="stretch_width", name="head")
        self._change = _make_source("change", "iteration", "change")
        self._rate = _make_source("rate", "iteration", "million_edges_per_s")
        plans = [f"{where}_plan" for where in USED]
        self._workers = _make_source("workers", "rank", "name", *PHASES, *USED, *plans, "left", "right")
        self._shown = column(
            row(*self._draw_curves(), sizing_mode="stretch_width"),
            row(self._draw_workers(), self._draw_memory(), sizing_mode="stretch_width"),
            self._head,
            sizing_mode="stretch_width",
            name="shown",
        )
        self.root = column(self._said, table, self._shown, sizing_mode="stretch_width")

    def update(self) -> None:
        """Update the page if runs have changed."""
        if self._version == self._runs.version:
            return
        self._version = self._runs.version
        runs = list(reversed(self._runs.by_id.values()))
        self._list(runs)
        n_running = sum(run.is_running for run in runs)
        self._said.text = (
            f"The last {len(runs)} runs, {n_running} running now. Select one in the table; the default is the last run."
            if runs
            else "No runs yet. Runs of mgspmv on this cluster are shown here as soon as they begin."
        )
        self._shown.visible = bool(runs)
        if runs:
            self._show(next((run for run in runs if run.run == self._chosen), runs[0]))

    def _list(self, runs: list[RunState]) -> None:
        rows = [_describe_row(run) for run in runs]
        self._is_updating = True  # the assignments below call `_choose`
        self._rows.data = {name: [each[name] for each in rows] for name in COLUMNS}
        if self._chosen is not None:
            self._rows.selected.indices = [k for k, run in enumerate(runs) if run.run == self._chosen]
        self._is_updating = False

    def _choose(self, name: str, old: list[int], new: list[int]) -> None:
        """Show the run selected in the table; without a selection the last run."""
        if self._is_updating:
            return
        ids = self._rows.data["run"]
        self._chosen = ids[new[0]] if new and new[0] < len(ids) else None
        self._version = -1
        self.update()

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
        columns |= dict(zip(PHASES, 1e3 * run.mean_seconds, strict=True)) | {"left": ranks - 0.2, "right": ranks + 0.2}
        self._workers.data = columns

    def _draw_curves(self) -> tuple[figure, figure]:
        tips = {"iteration": "@iteration", "change": "@change{0.000e}"}
        change, rate = _make_figure("change", tips, y_axis_type="log"), _make_figure("million edges / s")
        change.line("iteration", "change", source=self._change, color=LINE, line_width=2)
        rate.line("iteration", "million_edges_per_s", source=self._rate, color=LINE, line_width=2)
        rate.y_range.start = 0
        rate.yaxis.formatter = NumeralTickFormatter(format="0,0.[00]")
        return change, rate

    def _draw_workers(self) -> figure:
        tips = {"worker": "@name", **{phase: f"@{phase}{{0.000}} ms" for phase in PHASES}}
        drawn = _make_figure("milliseconds of an iteration, by worker", tips, x="worker")
        drawn.vbar_stack(PHASES, x="rank", width=0.9, source=self._workers, color=PHASE_COLORS, legend_label=[*PHASES])
        return _place_legend(drawn)

    def _draw_memory(self) -> figure:
        planned = {where: f"@{where}{{0.000}} GB, planned @{where}_plan{{0.000}} GB" for where in USED}
        drawn = _make_figure(
            "GB: bars used, including Python; dashes planned", {"worker": "@name"} | planned, x="worker"
        )
        for side, where, color in zip(("left", "right"), USED, MEMORY_COLORS, strict=True):
            drawn.vbar(side, width=0.38, top=where, source=self._workers, color=color, legend_label=where)
            drawn.scatter(side, f"{where}_plan", source=self._workers, marker="dash", size=14, color="#000000")
        return _place_legend(drawn)


def describe_run(run: RunState) -> str:
    """Describe a run, apart from its curves, as HTML."""
    n_rows, n_cols = run.matrix["shape"]
    facts = {
        "state": run.state,
        "iterations": f"{run.iterations:,}",
        "change": _format(run.change, "{:.3e}"),
        "iterations / s": _format(run.iterations_per_s, "{:,.1f}"),
        "edges / s": _format(run.edges_per_s, "{:.3g}"),
        "restarts": str(run.restarts),
        "checkpoints": _describe_checkpoints(run),
        "on": f"{run.n_workers} workers, {run.backend}, {run.executor}, {run.transport}",
        "held": f"{max(run.held_bytes) / 1e6:,.1f} MB at most per worker, for rows and vectors",
        "received": f"{sum(run.exchanged_bytes) / 1e6:,.1f} MB",
        "matrix": f"{run.matrix['url']}, {n_rows:,} x {n_cols:,}, {run.edges:,} entries",
        "options": ", ".join(f"{name}={value}" for name, value in run.options.items()),
        "seconds": ", ".join(f"{phase} {elapsed_s:.3g}" for phase, elapsed_s in run.seconds.items()),
    }
    lines = [f"<b>{name}</b> {escape(value)}" for name, value in facts.items() if value]
    errors = [f"<b>error</b> {escape(error)}" for error in run.errors]
    return f"<b>{escape(run.operation)} {escape(run.run)}</b><br>" + "<br>".join([*errors, *lines])


def _describe_checkpoints(run: RunState) -> str:
    if run.checkpointed is None:
        return ""
    ago = f"{run.changed - run.checkpointed:,.0f} s ago"
    return f"{run.checkpoints:,}, last after iteration {run.checkpoint_iteration:,}, {ago}"


def _describe_row(run: RunState) -> dict[str, Any]:
    return run.describe() | {
        "matrix": run.matrix["url"].rstrip("/").rpartition("/")[2],
        "change": _format(run.change, "{:.3e}"),
        "iterations_per_s": _format(run.iterations_per_s, "{:,.1f}"),
        "edges_per_s": _format(run.edges_per_s, "{:.3g}"),
        "began": f"{datetime.fromtimestamp(run.began):%H:%M:%S}",
        "elapsed_s": f"{run.elapsed_s:.1f}",
        "errors": "; ".join(run.errors),
    }


def _make_source(name: str, *columns: str) -> ColumnDataSource:
    return ColumnDataSource({column: [] for column in columns}, name=name)


def _make_figure(title: str, tips: Mapping[str, str] | None = None, *, x: str = "iteration", **axes: Any) -> figure:
    tools: dict[str, Any] = {"tools": "pan,box_zoom,wheel_zoom,reset", "active_scroll": None}
    tools["tooltips"] = None if tips is None else [*tips.items()]
    drawn = figure(title=title, height=260, x_axis_label=x, sizing_mode="stretch_width", **tools, **axes)
    drawn.toolbar.autohide = True
    drawn.xaxis.ticker = BasicTicker(min_interval=1, mantissas=[1, 2, 5], num_minor_ticks=0)  # integers only
    return drawn


def _place_legend(drawn: figure) -> figure:
    drawn.y_range.start = 0
    legend = drawn.legend[0]
    legend.update(orientation="horizontal", padding=2, background_fill_alpha=0, border_line_color=None)
    drawn.add_layout(legend, "below")
    return drawn


def _format(value: float, how: str) -> str:
    return how.format(value) if math.isfinite(value) else ""

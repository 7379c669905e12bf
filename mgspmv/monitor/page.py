"""The page `/pagerank` of Dask's dashboard: runs of the cluster, live, and those that have ended.

A table of all runs; curves of up to `MOST_SHOWN` of them in common figures; and for each of these what its workers do.
Where nobody has chosen, the last run is shown.

Dask documents no way to add a page to its dashboard. All that this takes of `distributed.dashboard` is in this module;
runs do without the page where that has changed.
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
from bokeh.models import (
    BasicTicker,
    ColorBar,
    ColumnDataSource,
    DataTable,
    Div,
    HoverTool,
    InlineStyleSheet,
    LinearColorMapper,
    NumeralTickFormatter,
    Range1d,
    Select,
    TableColumn,
)
from bokeh.plotting import figure
from bokeh.server.tornado import BokehTornado
from distributed.dashboard.components.scheduler import BOKEH_THEME, env
from distributed.dashboard.core import BokehApplication
from distributed.dashboard.scheduler import template_variables
from tornado.ioloop import IOLoop

from mgspmv.distribute.worker_metrics import PHASES
from mgspmv.monitor.runs import Run, Runs

if TYPE_CHECKING:
    from bokeh.document import Document
    from distributed import Scheduler

PAGE = "pagerank"
"""Address of the page on the dashboard, and its name in the navigation."""
MOST_SHOWN = 3
"""Runs side by side."""
PERIOD_MS = 1000
"""Between two looks at what is new."""
RUN_COLOURS = ("#0072b2", "#d55e00", "#009e73")
PHASE_COLOURS = ("#0072b2", "#e69f00", "#999999")
"""Of product, exchange and wait: told apart by who sees no red or green, and in grey."""
HOST, DEVICE = "#56b4e9", "#cc79a7"

DARK = """
<style>
  @media (prefers-color-scheme: dark) {
    html { background: #0d0d0d; }
    .content { filter: invert(0.92) hue-rotate(180deg); }
    .navbar ul { background-color: #999; }
  }
</style>
"""
"""Dask's pages are light; this one is also dark, where the reader wants pages to be."""
TEMPLATE = "{% extends 'simple.html' %}{% block extra_resources %}" + DARK + "{% endblock %}"

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
"""Headings and widths of the table."""


def add_page(scheduler: Scheduler, runs: Runs) -> bool:
    """Show runs on the scheduler's dashboard, with a link in its navigation; whether it has one."""
    served = getattr(scheduler, "http_application", None)
    own = [app for app in getattr(served, "applications", ()) if isinstance(app, BokehTornado)]
    if served is None or not own:
        return False
    variables = template_variables(scheduler)  # the same dict for all pages of this scheduler
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
    extra : what Dask's templates want to know
    """
    page = Page(runs)
    page.update()
    doc.title = "Dask: PageRank"
    doc.add_root(page.root)
    doc.template = env.from_string(TEMPLATE)
    doc.template_variables.update(extra)
    doc.template_variables["active_page"] = PAGE
    doc.theme = BOKEH_THEME
    doc.add_periodic_callback(page.update, PERIOD_MS)


class Page:
    """What one reader sees."""

    def __init__(self, runs: Runs) -> None:
        self._runs, self._version = runs, -1
        self._chosen: list[str] | None = None
        self._is_updating = False
        self._rows = ColumnDataSource({name: [] for name in COLUMNS}, name="runs")
        self._rows.selected.on_change("indices", self._choose)
        headings = [TableColumn(field=name, title=title, width=width) for name, (title, width) in COLUMNS.items()]
        table = DataTable(
            source=self._rows,
            columns=headings,
            height=170,
            index_position=None,
            reorderable=False,
            autosize_mode="none",
            sizing_mode="stretch_width",
            stylesheets=[InlineStyleSheet(css=".bk-data-table { z-index: 0; }")],
        )
        self._said = Div(sizing_mode="stretch_width", name="said")
        self._curves = [_Curves(place) for place in range(MOST_SHOWN)]
        figures = [
            _draw_curves("change", "change", self._curves, "log"),
            _draw_curves("iterations_per_s", "iterations / s", self._curves),
            _draw_curves("million_edges_per_s", "million edges / s", self._curves, has_ceiling=True),
        ]
        self._panels = [_Panel(place) for place in range(MOST_SHOWN)]
        self.root = column(
            self._said,
            table,
            row(*figures, sizing_mode="stretch_width"),
            row(*(panel.root for panel in self._panels), sizing_mode="stretch_width"),
            sizing_mode="stretch_width",
        )

    def update(self) -> None:
        """Show what is new."""
        if self._version == self._runs.version:
            return
        self._version = self._runs.version
        runs = list(reversed(self._runs.by_id.values()))
        self._list(runs)
        shown = self._find_shown(runs)
        n_running = sum(run.is_running for run in runs)
        self._said.text = (
            f"{sum(self._runs.begun.values())} runs on this cluster, {n_running} running now. Choose up to "
            f"{MOST_SHOWN} in the table (Ctrl or Shift adds one); else the last one is shown."
            if runs
            else "No run yet. This page shows runs of mgspmv on this cluster from when they begin."
        )
        for place in range(MOST_SHOWN):
            run = shown[place] if place < len(shown) else None
            self._curves[place].show(run)
            self._panels[place].show(run)

    def _list(self, runs: list[Run]) -> None:
        rows = [_describe_row(run) for run in runs]
        self._is_updating = True
        send(self._rows, {name: [each[name] for each in rows] for name in COLUMNS})
        if self._chosen is not None:
            self._rows.selected.indices = [k for k, run in enumerate(runs) if run.run in self._chosen]
        self._is_updating = False

    def _choose(self, name: str, old: list[int], new: list[int]) -> None:
        """Take what the reader selects in the table; nothing is the last run again."""
        if self._is_updating:
            return
        ids = self._rows.data["run"]
        self._chosen = [ids[k] for k in new if k < len(ids)] or None
        self._version = -1
        self.update()

    def _find_shown(self, runs: list[Run]) -> list[Run]:
        chosen = [run for run in runs if run.run in (self._chosen or ())]
        return chosen[:MOST_SHOWN] or runs[:1]


class _Curves:
    """One run in the figures that all share."""

    def __init__(self, place: int) -> None:
        self.colour = RUN_COLOURS[place]
        self.change = ColumnDataSource({"iteration": [], "change": []}, name=f"change-{place}")
        rates: dict[str, list[float]] = {"iteration": [], "iterations_per_s": [], "million_edges_per_s": []}
        self.rate = ColumnDataSource(rates, name=f"rate-{place}")
        self.ceiling = ColumnDataSource({"iteration": [], "million_edges_per_s": []}, name=f"ceiling-{place}")

    def show(self, run: Run | None) -> None:
        if run is None:
            for source in (self.change, self.rate, self.ceiling):
                send(source, {name: [] for name in source.data})
            return
        iterations, changes = run.curve.points
        shown = changes > 0  # the others have no logarithm
        send(self.change, {"iteration": iterations[shown], "change": changes[shown]})
        seconds = run.bins.seconds.sum(axis=1).mean(axis=1)
        rate = np.divide(1.0, seconds, out=np.full(len(seconds), np.nan), where=seconds > 0)
        lasts = np.minimum(run.bins.lasts, run.iterations)
        send(self.rate, {"iteration": lasts, "iterations_per_s": rate, "million_edges_per_s": rate * run.edges / 1e6})
        ceiling = run.ceiling_edges_per_s
        ends = [] if ceiling is None else [1, run.iterations]
        send(self.ceiling, {"iteration": ends, "million_edges_per_s": [(ceiling or 0.0) / 1e6] * len(ends)})


class _Panel:
    """What the workers of one run do."""

    def __init__(self, place: int) -> None:
        colour = RUN_COLOURS[place]
        self._run: Run | None = None
        self._head = Div(
            name=f"head-{place}", sizing_mode="stretch_width", styles={"border-top": f"4px solid {colour}"}
        )
        self._workers = ColumnDataSource(
            {
                name: []
                for name in ("rank", "name", *PHASES, "host", "host_plan", "device", "device_plan", "left", "right")
            },
            name=f"workers-{place}",
        )
        self._over = ColumnDataSource({name: [] for name in ("iteration", *PHASES)}, name=f"over-{place}")
        self._imbalance = ColumnDataSource({"iteration": [], "imbalance": []}, name=f"imbalance-{place}")
        self._cells = ColumnDataSource(
            {"image": [], "x": [], "y": [], "width": [], "height": []}, name=f"cells-{place}"
        )
        self._mapper = LinearColorMapper("Viridis256", low=0, high=1, nan_color="rgba(0, 0, 0, 0)")
        self._reached, self._ranks = Range1d(0, 1), Range1d(-0.5, 0.5)
        self._select = Select(title="seconds of workers in", options=list(PHASES), value=PHASES[0], width=160)
        self._select.on_change("value", lambda name, old, new: self.show(self._run))
        self.root = column(
            self._head,
            self._draw_workers(),
            self._draw_over(),
            self._select,
            self._draw_cells(),
            self._draw_imbalance(),
            self._draw_memory(),
            sizing_mode="stretch_width",
            visible=False,
            name=f"panel-{place}",
        )

    def show(self, run: Run | None) -> None:
        """Show a run, or nothing."""
        self._run = run
        if self.root.visible != (run is not None):
            self.root.visible = run is not None
        if run is None:
            return
        text = describe_run(run)
        if self._head.text != text:
            self._head.text = text
        ranks = np.arange(run.n_workers)
        mean_ms = 1e3 * run.bins.mean_seconds
        used = {where: run.used_bytes(where) / 1e9 for where in ("host", "device")}
        planned = {f"{where}_plan": run.planned_bytes(where) / 1e9 for where in ("host", "device")}
        columns = {"rank": ranks, "name": [worker["name"] for worker in run.workers]} | used | planned
        columns |= dict(zip(PHASES, mean_ms, strict=True)) | {"left": ranks - 0.2, "right": ranks + 0.2}
        send(self._workers, columns)
        lasts = np.minimum(run.bins.lasts, run.iterations)
        seconds = run.bins.seconds
        over = dict(zip(PHASES, 1e3 * seconds.mean(axis=2).T, strict=True))
        send(self._over, {"iteration": lasts} | over)
        send(self._imbalance, {"iteration": lasts, "imbalance": run.bins.imbalance})
        self._show_cells(run, 1e3 * seconds[:, PHASES.index(self._select.value)])

    def _show_cells(self, run: Run, cells: np.ndarray) -> None:
        """Milliseconds of (k, n_workers), in an image that has room for all bins."""
        n, limit, stride = run.n_workers, run.bins.limit, run.bins.stride
        image = np.full((n, limit), np.nan, np.float32)
        image[:, run.bins.lasts // stride - 1] = cells.T
        _set_range(self._reached, 0, max(run.iterations, 1))
        _set_range(self._ranks, -0.5, n - 0.5)
        high = float(np.nanmax(cells)) if cells.size else 1.0
        if not self._mapper.high / 1.5 <= high <= self._mapper.high:
            self._mapper.high = 1.2 * high or 1.0
        place = {"x": [0], "y": [-0.5], "width": [limit * stride], "height": [n]}
        send(self._cells, {"image": [image], **place})

    def _draw_workers(self) -> figure:
        drawn = _make_figure("milliseconds of an iteration, by worker", x="worker", height=220, x_range=self._ranks)
        drawn.vbar_stack(PHASES, x="rank", width=0.9, source=self._workers, color=PHASE_COLOURS, legend_label=[*PHASES])
        drawn.y_range.start = 0
        _place_legend(drawn)
        _label(drawn, {"worker": "@name", **{phase: f"@{phase}{{0.000}} ms" for phase in PHASES}})
        return drawn

    def _draw_over(self) -> figure:
        drawn = _make_figure("milliseconds of an iteration, mean of the workers", height=220)
        drawn.varea_stack(
            PHASES, x="iteration", source=self._over, color=PHASE_COLOURS, legend_label=[*PHASES], fill_alpha=0.9
        )
        drawn.y_range.start = 0
        _place_legend(drawn)
        return drawn

    def _draw_cells(self) -> figure:
        drawn = _make_figure(
            "milliseconds of workers, by iteration", height=260, x_range=self._reached, y_range=self._ranks
        )
        drawn.yaxis.axis_label = "worker"
        drawn.yaxis.ticker = drawn.xaxis.ticker
        drawn.image("image", "x", "y", "width", "height", source=self._cells, color_mapper=self._mapper)
        bar = ColorBar(color_mapper=self._mapper, width=8, padding=2, ticker=BasicTicker(desired_num_ticks=5))
        bar.background_fill_alpha = 0
        drawn.add_layout(bar, "right")
        drawn.grid.visible = False
        return drawn

    def _draw_imbalance(self) -> figure:
        drawn = _make_figure("imbalance: product of the slowest worker over the mean", height=160)
        drawn.line("iteration", "imbalance", source=self._imbalance, color="#404040", line_width=2)
        return drawn

    def _draw_memory(self) -> figure:
        drawn = _make_figure(
            "GB: bars used, with Python itself; dashes planned",
            x="worker",
            height=220,
            x_range=self._ranks,
        )
        for side, where, colour in (("left", "host", HOST), ("right", "device", DEVICE)):
            drawn.vbar(side, width=0.38, top=where, source=self._workers, color=colour, legend_label=where)
            drawn.scatter(
                side, f"{where}_plan", source=self._workers, marker="dash", size=14, color="#000000", line_width=2
            )
        drawn.y_range.start = 0
        _place_legend(drawn)
        tips = {"worker": "@name"}
        for where in ("host", "device"):
            tips |= {where: f"@{where}{{0.000}} GB, planned @{where}_plan{{0.000}} GB"}
        _label(drawn, tips)
        return drawn


def send(source: ColumnDataSource, columns: Mapping[str, Any]) -> None:
    """Let a source have these columns, if they are others than it has."""
    if not all(_is_same(source.data[name], columns[name]) for name in columns):
        source.data = dict(columns)


def _is_same(old: Any, new: Any) -> bool:
    a, b = np.asarray(old), np.asarray(new)
    return np.array_equal(a, b, equal_nan=a.dtype.kind == b.dtype.kind == "f")


def describe_run(run: Run) -> str:
    """What is known of a run besides its curves, as HTML."""
    n_rows, n_cols = run.matrix["shape"]
    facts = {
        "state": run.state,
        "iterations": f"{run.iterations:,}",
        "change": _format(run.change, "{:.3e}"),
        "iterations / s": _format(run.iterations_per_s, "{:,.1f}"),
        "edges / s": _format(run.edges_per_s, "{:.3g}"),
        "memory allows": _format(run.ceiling_edges_per_s or math.nan, "{:.3g} edges / s"),
        "restarts": str(run.restarts),
        "recoveries": "; ".join(map(_describe_recovery, run.recoveries)),
        "checkpoints": _describe_checkpoints(run),
        "on": f"{run.n_workers} workers, {run.backend or 'hosts and devices'}, {run.drive}, {run.transport}",
        "held": f"{max(run.held_bytes) / 1e6:,.1f} MB at most by a worker, for its rows and vectors",
        "received": f"{sum(run.exchanged_bytes) / 1e6:,.1f} MB",
        "matrix": f"{run.matrix['url']}, {n_rows:,} x {n_cols:,}, {run.edges:,} entries",
        "options": ", ".join(f"{name}={value}" for name, value in run.options.items()),
        "seconds": ", ".join(f"{phase} {elapsed_s:.3g}" for phase, elapsed_s in run.seconds.items()),
    }
    lines = [f"<b>{name}</b> {escape(value)}" for name, value in facts.items() if value]
    errors = [f"<b>error</b> {escape(error)}" for error in run.errors]
    return f"<b>{escape(run.operation)} {escape(run.run)}</b><br>" + "<br>".join([*errors, *lines])


def _describe_recovery(told: Mapping[str, Any]) -> str:
    workers = f"{told['workers_before']} to {told['workers_after']} workers"
    who = f"{'a worker' if told['worker'] is None else 'worker ' + told['worker']} {told['kind']}"
    return f"{who}, from iteration {told['resumed_after']:,}, {workers}, {told['seconds']:.1f} s"


def _describe_checkpoints(run: Run) -> str:
    if run.since_checkpoint_s is None:
        return ""
    last = f"the last of iteration {run.checkpoint_iteration:,}, {run.checkpoint_bytes / 1e6:,.1f} MB"
    return f"{run.checkpoints:,}, {last}, {run.since_checkpoint_s:,.0f} s ago"


def _describe_row(run: Run) -> dict[str, Any]:
    return {
        "run": run.run,
        "operation": run.operation,
        "matrix": run.matrix["url"].rstrip("/").rpartition("/")[2],
        "workers": run.n_workers,
        "state": run.state,
        "iterations": run.iterations,
        "change": _format(run.change, "{:.3e}"),
        "iterations_per_s": _format(run.iterations_per_s, "{:,.1f}"),
        "edges_per_s": _format(run.edges_per_s, "{:.3g}"),
        "began": f"{datetime.fromtimestamp(run.began):%H:%M:%S}",
        "elapsed_s": f"{run.elapsed_s:.1f}",
        "errors": "; ".join(run.errors),
    }


def _draw_curves(
    name: str, title: str, runs: list[_Curves], y_axis_type: str = "linear", *, has_ceiling: bool = False
) -> figure:
    drawn = _make_figure(title, height=280, y_axis_type=y_axis_type)
    for run in runs:
        source = run.change if name == "change" else run.rate
        drawn.line("iteration", name, source=source, color=run.colour, line_width=2)
        drawn.scatter("iteration", name, source=source, color=run.colour, size=4)
        if has_ceiling:
            drawn.line("iteration", name, source=run.ceiling, color=run.colour, line_width=2, line_dash="dashed")
    if y_axis_type == "linear":
        drawn.y_range.start = 0
        drawn.yaxis.formatter = NumeralTickFormatter(format="0,0.[00]")
    _label(drawn, {"iteration": "@iteration", title: f"@{name}{{0.000e}}" if name == "change" else f"@{name}{{0,0.0}}"})
    return drawn


def _make_figure(title: str, *, height: int, x: str = "iteration", **options: Any) -> figure:
    drawn = figure(
        title=title,
        height=height,
        x_axis_label=x,
        sizing_mode="stretch_width",
        tools="pan,box_zoom,wheel_zoom,reset",
        active_scroll=None,
        min_width=200,
        **options,
    )
    drawn.toolbar.autohide = True
    drawn.xaxis.ticker = BasicTicker(min_interval=1, mantissas=[1, 2, 5], num_minor_ticks=0)  # whole numbers
    if x == "worker":
        drawn.xgrid.visible = False
    return drawn


def _place_legend(drawn: figure) -> None:
    legend = drawn.legend[0]
    legend.update(orientation="horizontal", padding=2, background_fill_alpha=0, border_line_color=None)
    drawn.add_layout(legend, "below")


def _label(drawn: figure, tips: Mapping[str, str]) -> None:
    drawn.add_tools(HoverTool(tooltips=list(tips.items())))


def _set_range(axis: Range1d, start: float, end: float) -> None:
    if (axis.start, axis.end) != (start, end):
        axis.update(start=start, end=end)


def _format(value: float, how: str) -> str:
    return how.format(value) if math.isfinite(value) else ""

"""What a comparison found, as text, Markdown and JSON; and what it was found on."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from benchmarks.machines import Machine
from benchmarks.measure import Row
from benchmarks.program import write_json

Table = tuple[str, Sequence[Sequence[str]]]
"""Title and lines, the header first. Where the fifth cell of a line is empty, the fourth is a remark."""

DISTRIBUTIONS = (
    "mgspmv", "dask", "numpy", "scipy", "numba", "python-graphblas", "suitesparse-graphblas", "scikit-network",
    "networkit", "igraph", "networkx", "pyarrow", "polars", "duckdb",
)  # fmt: skip
HEADER = (
    "scale", "program", "threads", "median ms", "least ms", "runs", "iterations", "ms / iter.", "error", "ratio",
    "wanted",
)  # fmt: skip
LEGEND = (
    "ratio: the row's median over that of ours with as many threads and the same stop; 2 says that ours takes half.",
    "error: largest relative error of a product, beside SciPy in float64; L1 error of ranks, beside SciPy by another "
    "algorithm to 1e-9, so that less is not seen.",
    "SciPy, scikit-network and NetworkX use one thread whatever they are given, so they stand beside ours with one.",
    "igraph and mgspmv, tol 1e-10: igraph cannot be told to stop before 1e-10.",
    "(*) scikit-network's default solver treats vertices without out-arcs in another way; its error is to its own "
    "equation.",
)


@dataclass(frozen=True)
class Setting:
    """What the numbers were measured on."""

    command: str
    date: str
    """UTC."""
    hardware: str
    system: str
    versions: dict[str, str]
    """Of the distributions that are installed."""
    load_before: float
    """Processes that wanted a processor in the minute before: 0 on an idle machine."""
    notes: dict[str, str] = field(default_factory=dict)
    """The device and its software, the graph, other programs: what not all benchmarks have."""

    @classmethod
    def observe(cls, module: str, arguments: Sequence[str] | None, machine: Machine | None = None) -> Setting:
        """Observe what this process runs on.

        Parameters
        ----------
        arguments : of the program; None for those of this process
        machine : where products are timed
        """
        command = ["python", "-m", module, *(sys.argv[1:] if arguments is None else arguments)]
        memory = psutil.virtual_memory().total / 2**30
        return cls(
            " ".join(command),
            datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            f"{_name_processor()}, {psutil.cpu_count()} processors, {memory:.0f} GiB",
            f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
            {name: found for name in DISTRIBUTIONS if (found := _find_version(name))},
            os.getloadavg()[0],
            {} if machine is None else machine.describe(),
        )

    def note(self, **notes: str) -> Setting:
        """Add notes."""
        return replace(self, notes=self.notes | notes)

    def lines(self) -> list[str]:
        """For the reader."""
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        shown = {
            "command": self.command,
            "date": f"{self.date}, load average before {self.load_before:.1f}",
            "hardware": self.hardware,
            "system": self.system,
            "versions": versions,
            **self.notes,
        }
        return [f"{name + ':':<10}{text}" for name, text in shown.items()]


def write_files(
    options: argparse.Namespace,
    rows: Sequence[Any],
    tables: Sequence[Table],
    setting: Setting,
    legend: Sequence[str],
) -> None:
    """Write what was found where `add_file_options` was told to; `rows` are dataclasses."""
    write_json(options.json, {"setting": asdict(setting), "rows": [asdict(r) for r in rows]})
    if options.markdown:
        options.markdown.write_text(format_markdown(tables, setting, legend))


def format_text(tables: Sequence[Table]) -> str:
    """Each table in columns."""
    return "\n\n".join(f"{title}\n{_align(lines)}" for title, lines in tables)


def format_markdown(tables: Sequence[Table], setting: Setting, legend: Sequence[str]) -> str:
    """The same in Markdown, with what it was measured on."""
    parts = format_setting(setting)
    for title, (header, *lines) in tables:
        rule = ["---" if k == 1 else "---:" for k in range(len(header))]
        parts += ["", f"### {title}", "", *("| " + " | ".join(line) + " |" for line in (header, rule, *lines))]
    return "\n".join([*parts, "", *(f"- {line}" for line in legend), ""])


def format_setting(setting: Setting) -> list[str]:
    """The block above tables that says what was measured, when and on what."""
    return ["```", *setting.lines(), "```"]


def format_row(cells: Sequence[str]) -> str:
    """A line of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def format_ms(seconds: float | None) -> str:
    """Milliseconds, or nothing."""
    return "" if seconds is None else f"{seconds * 1e3:.4g}"


def tabulate(rows: Sequence[Row]) -> list[Table]:
    """A table a task."""
    tasks = dict.fromkeys(row.task for row in rows)
    return [(task, [HEADER, *(_cells(row) for row in rows if row.task == task)]) for task in tasks]


def _cells(row: Row) -> Sequence[str]:
    scale = f"{row.scale}"
    if not row.seconds:
        return scale, row.name, str(row.threads), row.remark, *[""] * 7
    per_iteration = f"{row.median_s / row.iterations * 1e3:.1f}" if row.iterations else ""
    return (
        scale,
        row.name,
        str(row.threads),
        f"{row.median_s * 1e3:.1f}",
        f"{min(row.seconds) * 1e3:.1f}",
        str(len(row.seconds)),
        str(row.iterations or ""),
        per_iteration,
        f"{row.error:.0e}",
        "" if row.ratio is None else f"{row.ratio:.2f}",
        judge(row.ratio, row.floor),
    )


def judge(ratio: float | None, floor: float | None) -> str:
    """What a ratio is to be at least, and whether it is."""
    return "" if ratio is None or floor is None else f"{floor:.1f} {'met' if ratio >= floor else 'NOT MET'}"


def _align(lines: Sequence[Sequence[str]]) -> str:
    timed = [line for line in lines if line[4]]  # where there is no time, the remark runs on over the columns after it
    widths = [max(len(line[k]) for line in (lines if k < 3 else timed)) for k in range(len(lines[0]))]
    return "\n".join(_align_line(line, widths) for line in lines)


def _align_line(line: Sequence[str], widths: Sequence[int]) -> str:
    cells = [f"{cell:{'<' if k == 1 else '>'}{widths[k]}}" for k, cell in enumerate(line)]
    return "  ".join(cells).rstrip()


def _find_version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _name_processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())

"""The chart of the README: ratios that docs/measured has, as an SVG file for light and one for dark pages.

    python -m benchmarks.readme_chart

Each bar is the time of another library over that of mgspmv in the same run on the same machine. Nothing is measured
here.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.sizing_model import DOCS, read_measured

FOLDER = DOCS / "images"
THEMES = {"light": ("#1f2328", "#d0d7de", "#0b6e99"), "dark": ("#e6edf3", "#3d444d", "#4fb3dc")}
"""Colors of text, of lines and of bars by theme."""

GRAPHS = {
    "ratings": "ratings, 134 M edges",
    "uniform24": "uniform, 268 M",
    "rmat22": "R-MAT, 65 M",
    "rmat24": "R-MAT, 263 M",
    "rmat23-undirected": "undirected R-MAT, 131 M",
    "sparse": "two edges a vertex, 67 M",
    "heavy-tails": "heavy tails, 134 M",
    "citations": "citations, 101 M",
    "communities": "communities, 99 M",
    "web": "web-like, 87 M",
    "grid": "grid, 67 M",
    "small-world": "small world, 134 M",
}
"""Those of more than 50 million edges in docs/measured/h200-pagerank.md, by name."""
LIBRARIES = {
    "NetworkX": ("18", "NetworkX", "1"),
    "igraph": ("20", "igraph", "2"),
    "NetworKit": ("20", "NetworKit", "2"),
    "scikit-network": ("20", "scikit-network, piteration (*)", "1"),
}
"""Rows of docs/measured/benchmarks.md: scale of the R-MAT graph, program, threads."""


def read_gpu_ratios() -> dict[str, float]:
    """Read the ratios of an iteration on a GPU, cuGraph over mgspmv in float32."""
    table = ("Twelve made graphs", "Iterations")
    return {
        title: read_measured("measured/h200-pagerank.md", table, (name,), "cuGraph / float32")
        for name, title in GRAPHS.items()
    }


def read_cpu_ratios() -> dict[str, float]:
    """Read the ratios of a whole PageRank on two processors, with as many threads as the other library uses."""
    page, table = "measured/benchmarks.md", ("Whole PageRank",)
    return {title: read_measured(page, table, row, "ratio") for title, row in LIBRARIES.items()}


def draw(text: str, line: str, bar: str) -> Figure:
    """Draw both charts next to each other, in these colors."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_bars(left, read_gpu_ratios(), "GPU: one iteration on an H200", (text, line, bar))
    _draw_bars(right, read_cpu_ratios(), "CPU: PageRank on two cores", (text, line, bar))
    left.set_xlabel("times as fast as cuGraph", color=text)
    right.set_xlabel("times as fast, logarithmic", color=text)
    right.set_xscale("log")
    right.set_xlim(1, 60)
    right.set_xticks([1, 2, 5, 10, 20, 50], labels=["1", "2", "5", "10", "20", "50"])
    right.minorticks_off()
    return figure


def _draw_bars(axes: Axes, ratios: dict[str, float], title: str, colors: tuple[str, str, str]) -> None:
    text, line, bar = colors
    names = list(ratios)[::-1]
    drawn = axes.barh(names, [ratios[name] for name in names], color=bar, height=0.62)
    axes.bar_label(drawn, [f"{ratios[name]:.1f}" for name in names], padding=3, color=text)
    axes.axvline(1, color=text, linewidth=1)
    axes.set_title(title, color=text, fontsize=10, loc="left")
    axes.margins(x=0.12)
    axes.tick_params(colors=text, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(line)


def main() -> None:
    """Write a file for each theme."""
    with rc_context({"svg.hashsalt": "mgspmv", "svg.fonttype": "path", "font.size": 9}):
        for theme, colors in THEMES.items():
            path = Path(FOLDER, f"ratios-{theme}.svg")
            draw(*colors).savefig(path, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()

"""The chart of the README shows what was measured."""

from __future__ import annotations

import pytest

from benchmarks import readme_chart


def test_bars_are_the_measured_ratios(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed, which draws the chart")
    measured = [readme_chart.read_gpu_ratios(), readme_chart.read_cpu_ratios()]
    figure = readme_chart.draw(*readme_chart.THEMES["light"])
    for axes, ratios in zip(figure.axes, measured, strict=True):
        names = [label.get_text() for label in axes.get_yticklabels()]
        assert dict(zip(names, (bar.get_width() for bar in axes.patches), strict=True)) == ratios
    monkeypatch.setattr(readme_chart, "FOLDER", tmp_path)
    readme_chart.main()
    assert {path.name for path in tmp_path.iterdir()} == {"ratios-light.svg", "ratios-dark.svg"}


def test_the_readme_quotes_the_least_and_the_greatest():
    gpu, cpu = readme_chart.read_gpu_ratios().values(), readme_chart.read_cpu_ratios().values()
    text = (readme_chart.DOCS.parent / "README.md").read_text()
    assert f"{min(gpu):.1f} to {max(gpu):.1f} times as fast" in text
    assert f"{min(cpu):.1f} to {max(cpu):.0f} times as fast" in text

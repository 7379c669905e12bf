"""What the parts of mgspmv hand to each other, and what this process may take."""

from __future__ import annotations

import psutil
import pytest

from mgspmv import model


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, 10**6),
        ({"memory.max": "max\n", "memory.current": "5\n"}, 10**6),
        ({"memory.max": "70000\n", "memory.current": "20000\n"}, 50000),
        ({"memory.max": "70000000\n", "memory.current": "20000\n"}, 10**6),
        ({"memory.max": "70000\n"}, 10**6),
    ],
    ids=["no group", "no limit", "a limit", "a limit beyond the machine", "no use"],
)
def test_free_memory_is_that_of_the_control_group(monkeypatch, tmp_path, files, wanted):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(model, "Path", lambda path: tmp_path)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 10**6})())
    assert model.free_memory() == wanted


def test_peak_memory_is_that_of_the_process_now(tmp_path, monkeypatch):
    """By /proc, or else by what the system counts, which may go back to before the program began."""
    now = psutil.Process().memory_info().rss
    peak = model.peak_memory()
    assert 0.9 * now <= peak
    monkeypatch.setattr(model, "Path", lambda path: tmp_path / "nothing")
    assert 0.9 * peak <= model.peak_memory()
    (tmp_path / "nothing").write_text("VmPeak:\t  99 kB\nVmHWM:\t  12 kB\n")
    assert model.peak_memory() == 12 * 1024

"""What the parts of mgspmv hand to each other, and what this process may take."""

from __future__ import annotations

import psutil
import pytest

from mgspmv import model


@pytest.mark.parametrize(("of_groups", "wanted"), [(None, 10**6), (10**5, 10**5), (10**7, 10**6), (0, 0)])
def test_free_memory_is_the_least_of_the_machine_and_of_control_groups(monkeypatch, of_groups, wanted):
    monkeypatch.setattr(model, "find_free_memory", lambda: of_groups)
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

"""Limits of control groups: trees as Linux shows them, of both versions, in containers and out of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from mgspmv import environment
from mgspmv.environment import (
    find_available_memory,
    find_free_memory,
    find_memory_limit,
    peak_memory,
    return_freed_memory,
)

NONE = f"{2**63 - 4096}\n"


def of_2(limit: int | str, used: int, **told: int) -> dict[str, str]:
    """Files of a group of version 2."""
    stat = "".join(f"{name} {value}\n" for name, value in told.items())
    return {"memory.max": f"{limit}\n", "memory.current": f"{used}\n", "memory.stat": stat}


def of_1(limit: int | str, used: int, **told: int) -> dict[str, str]:
    """Files of a group of version 1."""
    stat = "".join(f"{name} {value}\n" for name, value in told.items())
    return {"memory.limit_in_bytes": f"{limit}\n", "memory.usage_in_bytes": f"{used}\n", "memory.stat": stat}


@pytest.mark.parametrize(
    ("own", "groups", "limit", "free"),
    [
        ("", {}, None, None),
        ("0::/\n", {}, None, None),
        ("0::/a/b\n", {"a/b": of_2("max", 5), "a": of_2("max", 9)}, None, None),
        ("0::/a/b\n", {"a/b": of_2(900, 100)}, 900, 800),
        ("0::/a/b\n", {"a/b": of_2("max", 100), "a": of_2(500, 300)}, 500, 200),
        ("0::/a/b\n", {"a/b": of_2(400, 100), "a": of_2(500, 350)}, 400, 150),
        ("0::/a/b\n", {"a/b": of_2(400, 390), "a": of_2(500, 400)}, 400, 10),
        ("0::/a/b\n", {"": of_2(70, 20)}, 70, 50),
        ("0::/a/b\n", {"c": of_2(70, 20)}, None, None),
        ("0::/a\n", {"a": of_2(500, 450, anon=100, inactive_file=300, active_file=50)}, 500, 400),
        ("0::/a\n", {"a": of_2(500, 600)}, 500, 0),
        ("0::/a\n", {"a": of_2(500, 100, inactive_file=120)}, 500, 500),
        ("0::/a\n", {"a": {"memory.max": "500\n"}}, 500, None),
        ("3:cpu:/x\n2:memory:/a/b\n", {"memory/a/b": of_1(NONE, 5), "memory/a": of_1(500, 300)}, 500, 200),
        ("2:cpu,memory:/a\n", {"memory/a": of_1(300, 100), "memory": of_1(NONE, 100)}, 300, 200),
        ("2:memory:/docker/5f\n0::/\n", {"memory": of_1(300, 100)}, 300, 200),
        ("2:memory:/a\n", {"memory/a": of_1(500, 400, inactive_file=1, total_inactive_file=300)}, 500, 400),
        ("2:cpu:/a\n", {"memory/a": of_1(300, 100)}, None, None),
    ],
    ids=[
        "no control groups", "nothing shown", "no limit", "its own", "the one around it", "the one around it is fuller",
        "its own is fuller", "a container that sees itself as the top", "another's", "pages of files", "beyond",
        "files alone", "no use told", "version 1", "version 1, two controllers", "version 1, in a container",
        "version 1, pages of files", "version 1, of processors alone",
    ],
)  # fmt: skip
def test_the_least_of_all_groups_counts(
    own: str,
    groups: dict[str, dict[str, str]],
    limit: int | None,
    free: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environment, "SYSTEM", tmp_path)
    files = {f"sys/fs/cgroup/{group}/{name}": text for group, named in groups.items() for name, text in named.items()}
    for name, text in (files | {"proc/self/cgroup": own}).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert find_memory_limit() == limit
    assert find_free_memory() == free


def test_peak_memory_is_that_of_the_process_now(tmp_path, monkeypatch):
    """By /proc, or else by what the system counts, which may go back to before the program began."""
    now = psutil.Process().memory_info().rss
    peak = peak_memory()
    assert 0.9 * now <= peak
    monkeypatch.setattr(environment, "Path", lambda path: tmp_path / "nothing")
    assert 0.9 * peak <= peak_memory()
    (tmp_path / "nothing").write_text("VmPeak:\t  99 kB\nVmHWM:\t  12 kB\n")
    assert peak_memory() == 12 * 1024


def test_available_memory_is_told_by_the_system_or_by_psutil(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "SYSTEM", tmp_path)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=7))
    assert find_available_memory() == 7
    (tmp_path / "proc").mkdir()
    told = tmp_path / "proc" / "meminfo"
    told.write_text("MemTotal:       16 kB\nMemFree:         1 kB\nMemAvailable:    5 kB\nHugePages_Total:       0\n")
    assert find_available_memory() == 5 * 1024
    told.write_text("MemTotal:       16 kB\nMemFree:         1 kB\n")
    assert find_available_memory() == 7


@pytest.mark.parametrize("has_trim", [True, False])
def test_freed_memory_is_returned_where_the_c_library_can(has_trim, monkeypatch):
    trimmed = []
    library = SimpleNamespace(malloc_trim=trimmed.append) if has_trim else SimpleNamespace()
    monkeypatch.setattr(environment.ctypes, "CDLL", lambda _: library)
    return_freed_memory()
    assert trimmed == [0] * has_trim

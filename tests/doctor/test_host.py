"""Checks of a machine, on systems that are made up in a folder."""

from __future__ import annotations

import resource
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest

from mgspmv import control_groups
from mgspmv.doctor import host
from mgspmv.doctor.findings import run_check
from mgspmv.monitor import versions
from tests.support.waiting import HANG_S


@pytest.fixture
def system(tmp_path, monkeypatch):
    """`system({path: text})` writes what is below / there."""
    monkeypatch.setattr(host, "SYSTEM", tmp_path)
    monkeypatch.setattr(control_groups, "SYSTEM", tmp_path)

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


@pytest.fixture
def installed(monkeypatch):
    """`installed({name: (version, requirements)})` is all that is installed."""

    def set_distributions(found):
        def find(name):
            if name not in found:
                raise PackageNotFoundError(name)
            return SimpleNamespace(version=found[name][0], requires=found[name][1])

        monkeypatch.setattr(host, "distribution", find)

    return set_distributions


def test_all_of_this_machine_is_told():
    for check in host.CHECKS:
        for finding in run_check(check, HANG_S):
            assert (finding.name, finding.kind) == (check.name, "host")
            assert finding.found


# --- versions --------------------------------------------------------------------------------------------------------


def test_versions_that_belong_together(installed):
    installed({"mgspmv": ("0.1", ["dask>=2", "absent; python_version < '3'"]), "dask": ("2.1", ["x; extra == 'all'"])})
    found = host.check_versions()
    assert found.status == "ok"
    assert found.found.startswith("mgspmv ")


def test_versions_that_do_not(installed):
    installed(
        {
            "mgspmv": ("0.1", ["dask>=2", "distributed>=2", "gone>=1", "cupy-cuda12x>=14; extra == 'cuda12'"]),
            "dask": ("2.1", []),
            "distributed": ("2.0", ["dask==2.0"]),
            "cupy-cuda12x": ("13.0", []),
            "dask-cuda": ("26.10", ["rapids-dask-dependency==26.10"]),
            "rapids-dask-dependency": ("26.10", ["distributed==3.0"]),
        }
    )
    found = host.check_versions()
    assert found.status == "wrong"
    assert found.values["conflicts"] == [
        "mgspmv 0.1 requires gone>=1, which is not installed",
        "mgspmv 0.1 requires cupy-cuda12x>=14, and 13.0 is installed",
        "distributed 2.0 requires dask==2.0, and 2.1 is installed",
        "rapids-dask-dependency 26.10 requires distributed==3.0, and 2.0 is installed",
    ]


def test_what_only_tests_require_is_no_conflict(installed):
    installed({"mgspmv": ("0.1", ["polars>=9; extra == 'test'"]), "polars": ("1.0", [])})
    assert host.list_conflicts() == []


def test_versions_of_what_is_not_installed(monkeypatch):
    def fail():
        raise PackageNotFoundError("mgspmv")

    monkeypatch.setattr(versions, "find_versions", fail)
    assert host.check_versions().status == "skipped"


# --- processors and memory -------------------------------------------------------------------------------------------


def test_processors_without_a_quota(system):
    system({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"})
    found = host.check_processors()
    assert (found.status, found.values["quota"]) == ("ok", None)


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/job/step\n", "sys/fs/cgroup/job/cpu.max": "150000 100000\n",
         "sys/fs/cgroup/job/step/cpu.max": "max 100000\n"},
        {"proc/self/cgroup": "4:cpu,cpuacct:/job\n3:memory:/other\n",
         "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "150000\n",
         "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
         "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"},
    ],
    ids=["of a group around it, version 2", "version 1"],
)  # fmt: skip
def test_processors_of_a_control_group(system, monkeypatch, files):
    system(files)
    monkeypatch.setattr(host, "default_threads", lambda: 8)
    found = host.check_processors()
    assert (found.status, found.values) == ("warning", {"processors": 8, "quota": 1.5})
    assert "--threads 1" in found.remedy


@pytest.mark.parametrize(
    ("files", "free", "status", "words"),
    [
        ({}, 8 << 30, "ok", "8.59 GB are free"),
        ({}, 1 << 30, "warning", "1.07 GB are free"),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{9 << 30}\n"}, 8 << 30, "ok",
         "of at most 9.66 GB"),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{1 << 30}\n"}, 1 << 29, "warning",
         "0.537 GB are free, of at most 1.07 GB"),
    ],
)  # fmt: skip
def test_memory(system, monkeypatch, files, free, status, words):
    system(files)
    monkeypatch.setattr(host, "free_memory", lambda: free)
    found = host.check_memory()
    assert found.status == status
    assert words in found.found


# --- files and folders -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "status", "remedy"),
    [
        ((4096, 4096), "ok", ""),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), "ok", ""),
        ((1024, 524288), "warning", "`ulimit -n 65536`"),
        ((1024, 1024), "warning", "LimitNOFILE=65536"),
        ((128, 2048), "wrong", "`ulimit -n 2048`"),
    ],
)
def test_open_files(monkeypatch, limits, status, remedy):
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    found = host.check_open_files()
    assert found.status == status
    assert remedy in found.remedy


@pytest.mark.parametrize(("free", "status"), [(2 << 30, "ok"), (60 << 20, "warning")])
def test_shared_memory(system, monkeypatch, free, status):
    folder = system({"dev/shm/x": ""})
    there = SimpleNamespace(f_blocks=free, f_frsize=1, f_bavail=free)
    monkeypatch.setattr(host.os, "statvfs", lambda path: there if path == folder / "dev/shm" else None)
    assert host.check_shared_memory().status == status


def test_a_system_without_shared_memory(system):
    system({})
    assert host.check_shared_memory().status == "skipped"


def refuse_writing(monkeypatch):
    def fail(**_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(host.tempfile, "TemporaryFile", fail)


@pytest.mark.parametrize("check", [host.check_compiled_cache, host.check_kernel_cache])
def test_caches(monkeypatch, tmp_path, check):
    monkeypatch.setenv("MGSPMV_CACHE", str(tmp_path / "not" / "there"))
    assert check().status == "ok"
    assert list(tmp_path.iterdir()) == []
    refuse_writing(monkeypatch)
    found = check()
    assert found.status == "warning"
    assert found.found.endswith("Read-only file system")
    assert "NUMBA_CACHE_DIR" in found.remedy or "MGSPMV_CACHE" in found.remedy


def test_numba_without_any_folder(monkeypatch):
    class Cache:
        @property
        def cache_path(self):
            raise RuntimeError("cannot cache function 'pack': no locator available")

    monkeypatch.setattr("mgspmv.exchange.halo.pack", SimpleNamespace(_cache=Cache()))
    found = host.check_compiled_cache()
    assert found.status == "wrong"
    assert "no locator available" in found.found

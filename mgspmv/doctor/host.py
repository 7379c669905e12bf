"""Checks of the machine: versions, processors, memory, files and folders."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from mgspmv.control_groups import find_memory_limit, list_groups, read_text
from mgspmv.doctor.findings import Findings, make_check, ok, shorten, skip, warn, wrong
from mgspmv.model import default_threads, free_memory

ROOTS = ("mgspmv", "distributed", "dask-cuda", "distributed-ucxx-cu12", "distributed-ucxx-cu13")
"""Distributions whose requirements, and theirs, are compared with what is installed."""
EXTRAS = ("", "cuda12", "cuda13", "ucxx12", "ucxx13", "remote")
"""Whose requirements count where what they name is installed."""
FOLLOWED = ("dask", "distributed", "rapids-dask-dependency")
"""Of those that they require, whose requirements are compared too."""
LOW_MEMORY = 2 << 30
"""Bytes below which little more than the interpreter and its libraries fits."""
FEW_FILES, MANY_FILES = 256, 4096
"""Open files: what a cluster of this machine alone needs, and what one of dozens of workers does."""
SMALL_SHM = 1 << 30
"""Bytes of shared memory below which NCCL may run out of it: it takes some 10 MB for each channel of each pair."""
SYSTEM = Path("/")
"""Where `proc`, `sys` and `dev` are."""


def check_versions() -> Findings:
    """Whether the installed distributions are those that mgspmv, Dask and the others for GPUs require."""
    from mgspmv.monitor.versions import find_versions

    try:
        found = find_versions()
    except PackageNotFoundError:
        return skip("mgspmv is not installed as a package, so that its requirements are not known")
    problems = list_conflicts()
    said = ", ".join(f"{name} {version}" for name, version in found.items())
    if not problems:
        return ok(said, versions=found)
    return wrong(
        "; ".join(problems),
        "Libraries of versions that do not belong together fail in ways that say nothing of it.",
        "Install them anew, all at once, in an environment of its own: `pip install 'mgspmv'` with the extras that are "
        "wanted, such as `mgspmv[cuda12]`.",
        versions=found,
        conflicts=problems,
    )


def list_conflicts() -> list[str]:
    """Requirements that are not met, in words; of optional ones those that are installed in another version."""
    from packaging.requirements import Requirement

    problems, left, seen = [], deque(ROOTS), set(ROOTS)
    while left:
        name = left.popleft()
        if (own := _find_distribution(name)) is None:
            continue
        for requirement in map(Requirement, own[1]):
            installed = _find_distribution(requirement.name)
            if installed is None:
                if requirement.marker is None or requirement.marker.evaluate({"extra": EXTRAS[0]}):
                    problems.append(f"{name} {own[0]} requires {requirement}, which is not installed")
                continue
            marker = requirement.marker
            is_meant = marker is None or any(marker.evaluate({"extra": extra}) for extra in EXTRAS)
            if is_meant and not requirement.specifier.contains(installed[0], prereleases=True):
                wanted = f"{requirement.name}{requirement.specifier}"
                problems.append(f"{name} {own[0]} requires {wanted}, and {installed[0]} is installed")
            if requirement.name in FOLLOWED and requirement.name not in seen:
                seen.add(requirement.name)
                left.append(requirement.name)
    return list(dict.fromkeys(problems))


def _find_distribution(name: str) -> tuple[str, list[str]] | None:
    """Version and requirements of what is installed; None for nothing."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    return found.version, found.requires or []


def check_processors() -> Findings:
    """Whether the processors that threads are started for are those that the control group lets run."""
    n_threads, quota = default_threads(), find_quota()
    values = {"processors": n_threads, "quota": quota}
    if quota is None or quota >= n_threads:
        return ok(f"{n_threads} processors may be used", **values)
    return warn(
        f"{n_threads} processors may be used, and the control group has time for {quota:g}",
        f"{n_threads} threads would be started, all of which stand still when the time of {quota:g} is used up.",
        f"Say --threads {max(1, int(quota))}, or give the container {n_threads} processors (--cpus, or its limit).",
        **values,
    )


def find_quota() -> float | None:
    """Processors whose time the control group has, the least of it and those around it; None for no limit."""
    quotas = []
    for group in list_groups("cpu"):
        words = read_text(group / "cpu.max").split() or [
            read_text(group / "cpu.cfs_quota_us").strip(),
            read_text(group / "cpu.cfs_period_us").strip(),
        ]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def check_memory() -> Findings:
    """How much may be taken, of the machine and by the limits of control groups."""
    free, limit = free_memory(), find_memory_limit()
    values = {"free_bytes": free, "limit_bytes": limit}
    said = "" if limit is None else f", of at most {_show(limit)} by the control group"
    if free < LOW_MEMORY:
        return warn(
            f"{_show(free)} are free{said}",
            "Little more than the interpreter and its libraries fits into that.",
            "End other processes, raise the limit of the job or container where it has one, or use more machines.",
            **values,
        )
    return ok(f"{_show(free)} are free{said}", **values)


def check_open_files() -> Findings:
    """How many files and connections a process may have open."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (1 << 30 if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard))
    values = {"soft_limit": soft, "hard_limit": hard}
    if soft >= MANY_FILES:
        return ok(f"a process may have {soft:,} files open", **values)
    how = f"`ulimit -n {min(hard, 65536)}`" if hard > soft else "`LimitNOFILE=65536` of its service"
    judge = wrong if soft < FEW_FILES else warn
    return judge(
        f"a process may have {soft:,} files open",
        "A scheduler has some ten connections for each worker, a worker one to every other, and chunks of a store that "
        "are read take one each.",
        f"Raise it with {how} before the scheduler and the workers are started.",
        **values,
    )


def check_shared_memory() -> Findings:
    """/dev/shm, through which NCCL and processes of one machine pass data."""
    folder = SYSTEM / "dev/shm"
    if not folder.is_dir():
        return skip("this system has no /dev/shm")
    there = os.statvfs(folder)
    total, free = there.f_blocks * there.f_frsize, there.f_bavail * there.f_frsize
    values = {"total_bytes": total, "free_bytes": free}
    if free >= SMALL_SHM:
        return ok(f"{_show(free)} of {_show(total)} are free in /dev/shm", **values)
    return warn(
        f"{_show(free)} of {_show(total)} are free in /dev/shm",
        "NCCL passes through it what GPUs of one machine cannot write to each other, and fails when it is full.",
        "Start the container with --shm-size=8g, or remove what earlier processes left in /dev/shm.",
        **values,
    )


def check_compiled_cache() -> Findings:
    """Whether Numba can keep what it compiles."""
    how = (
        "Set NUMBA_CACHE_DIR to a folder that can be written and stays, on a disk of the machine, for all processes "
        "and workers."
    )
    try:
        from mgspmv.exchange.halo import pack

        folder = Path(pack._cache.cache_path)
    except RuntimeError as error:  # Numba's, of a file beside which, and for whose user, it finds no folder
        return wrong(f"Numba has no folder for what it compiles: {shorten(error)}", "Nothing that computes loads.", how)
    if (problem := find_write_problem(folder)) is None:
        return ok(f"Numba keeps what it compiles in {folder}", folder=str(folder))
    return warn(
        f"Numba keeps what it compiles in {folder}, which cannot be written: {problem}",
        "Every process compiles the kernels again, which takes some ten seconds to a minute.",
        how,
        folder=str(folder),
    )


def check_kernel_cache() -> Findings:
    """Whether compiled CUDA kernels can be kept."""
    from mgspmv.kernels.cache import CACHE_VARIABLE, find_folder

    folder = find_folder()
    if (problem := find_write_problem(folder)) is None:
        return ok(f"compiled CUDA kernels are kept in {folder}", folder=str(folder))
    return warn(
        f"compiled CUDA kernels cannot be kept in {folder}: {problem}",
        "Every process compiles the CUDA kernels again.",
        f"Set {CACHE_VARIABLE} to a folder that can be written.",
        folder=str(folder),
    )


def find_write_problem(folder: Path) -> str | None:
    """What keeps files from being written in a folder, which may still have to be made; nothing is left there."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"mgspmv")
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _show(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.3g} GB"


CHECKS = tuple(
    make_check("host", function)
    for function in (
        check_versions,
        check_processors,
        check_memory,
        check_open_files,
        check_shared_memory,
        check_compiled_cache,
        check_kernel_cache,
    )
)
"""In the order in which they are told."""

"""Diagnosis of a machine, its GPUs, its folders, a store or a cluster: problems and remedies.

Each check is a function that returns findings. None raises, and each ends within a timeout. Here are those of this
machine, `examine`, which runs them all, and the compilation of kernels.
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any, Literal, get_args

import numpy as np

from mgspmv.display import format_bytes
from mgspmv.environment import find_memory_limit, list_groups, read_text
from mgspmv.errors import FormatError, MgspmvError
from mgspmv.files import find_inside, is_url
from mgspmv.ingest.files import translate_error
from mgspmv.model import Precision, free_memory, ignore

TIMEOUT_S = 30.0
"""Default timeout of each check, in seconds."""
TWINS = (("cupy-cuda12x", "cupy-cuda13x", "cupy"), ("distributed-ucxx-cu12", "distributed-ucxx-cu13"))
"""Groups of distributions that exclude each other, as they write the same files."""
LOW_MEMORY = 2 << 30
"""Bytes below which little more than the interpreter and its libraries fits."""
FEW_FILES, MANY_FILES = 256, 4096
"""Open files that a cluster on this machine needs, and a cluster of dozens of workers."""
MANY_PROCESSES = 1024
"""Upper estimate of the processes and threads of one worker per GPU, with its libraries."""
SMALL_SHM = 1 << 30
"""Bytes of shared memory that NCCL may exceed, as it takes about 10 MB per channel of each pair."""
LITTLE_ROOM, CACHE_ROOM = 10 << 30, 1 << 30
"""Free bytes below which sorting a large matrix fails, and below which compiled kernels may not fit."""
READ_BYTES = 32 << 20
"""Most bytes that are read from a store."""
SHARED_MEMORY = Path("/dev/shm")
GPU_EXTRA = "mgspmv[cuda12] for a driver of CUDA 12, or mgspmv[cuda13] for one of CUDA 13 or later"
FREE_SHARE = 0.5
"""Share of a device's memory; less free memory means that another process uses it."""
COMPILING_S = 600.0
"""Most seconds that all kernels take to compile on a slow machine."""
VERTICES = 1 << 16
"""Vertices of the graphs that are ranked to compile kernels, enough for edges that are not merged."""


FindingStatus = Literal["ok", "warning", "wrong", "skipped"]
"""Result of a check; `warning`: works, but is slow or may fail later; `skipped`: not checked, or does not exist."""


@dataclass(frozen=True)
class Finding:
    """Result of a check.

    Examples
    --------
    >>> from mgspmv.doctor import examine
    >>> {finding.status for finding in examine()} <= {"ok", "warning", "wrong", "skipped"}
    True
    """

    status: FindingStatus
    found: str
    """Result in one line, or the reason why it is unknown."""
    remedy: str = ""
    """Remedy for what is wrong and for warnings, in whole sentences."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Measurements for programs: JSON values, with units in their names."""
    name: str = ""
    """Name of the check, such as `limits`."""
    where: str = ""
    """Worker that was checked; empty for this machine."""

    @property
    def needs_remedy(self) -> bool:
        """True if a remedy is required."""
        return self.status in ("warning", "wrong")


Findings = Finding | Iterable[Finding]

RESTART = "Read the logs of the named workers, and restart them."
NOT_KEPT = (
    "functions compiled by Numba are kept nowhere, as no folder for them can be written: each process compiles them"
)


class Skipped(Exception):
    """Reason why a check cannot run; `run_check` turns it into a finding."""


def ok(found: str, **values: Any) -> Finding:
    """Make a finding of status `ok`."""
    return Finding("ok", found, values=values)


def warn(found: str, remedy: str, **values: Any) -> Finding:
    """Make a finding of status `warning`: it works, but is slow or may fail later."""
    return Finding("warning", found, remedy, values)


def wrong(found: str, remedy: str, **values: Any) -> Finding:
    """Make a finding of status `wrong`: it does not work."""
    return Finding("wrong", found, remedy, values)


def run_check(name: str, check: Callable[[], Findings], limit_s: float) -> list[Finding]:
    """Run a check in a thread, which is abandoned after the time limit, and return its findings.

    Errors become findings: those of this package are `wrong`, others `skipped`.
    """
    found: list[Finding] = []

    def work() -> None:
        try:
            findings = check()
            for finding in [findings] if isinstance(findings, Finding) else findings:
                found.append(finding)
        except Skipped as error:
            found.append(Finding("skipped", str(error)))
        except MgspmvError as error:
            found.append(wrong(shorten(error), RESTART, error=type(error).__name__))
        except (Exception, SystemExit) as error:  # libraries may raise SystemExit
            found.append(Finding("skipped", f"the check failed: {type(error).__name__}: {shorten(error)}"))

    # A daemon thread does not keep the process alive if the check hangs.
    thread = Thread(target=work, name=f"mgspmv-doctor-{name}", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        remedy = "Runs would hang for the same reason: restart the component that hangs, or allow more time by --wait."
        found = [wrong(f"the check did not finish within {limit_s:g} s", remedy, limit_s=limit_s)]
    return [replace(finding, name=name) for finding in found]


def shorten(text: object, limit: int = 500) -> str:
    """Return the text of an error in one line."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


# --- packages --------------------------------------------------------------------------------------------------------


def check_packages() -> Finding:
    """List the versions of mgspmv and its libraries, and find distributions that overwrite each other."""
    from mgspmv.environment import find_versions

    versions, installed = find_versions(), _list_installed()
    together = [[name for name in twins if name in installed] for twins in TWINS]
    problems = [f"{' and '.join(both)} are installed together" for both in together if len(both) > 1]
    if not problems:
        return ok(", ".join(f"{name} {version}" for name, version in versions.items()), versions=versions)
    remedy = "Uninstall all of them, and reinstall the one for the driver's CUDA, such as `pip install mgspmv[cuda12]`."
    return wrong("; ".join(problems), remedy, versions=versions, conflicts=problems)


def _list_installed() -> set[str]:
    return {own.metadata["Name"].lower().replace("_", "-") for own in distributions()}


# --- limits ----------------------------------------------------------------------------------------------------------


def check_limits() -> Iterator[Finding]:
    """Check memory, open files, processes and shared memory, also those of control groups."""
    free, limit = free_memory(), find_memory_limit()
    said = f"{format_bytes(free)} of memory are free"
    said += "" if limit is None else f"; the control group allows {format_bytes(limit)}"
    remedy = "End other processes, or raise the limit of the job or container."
    yield _grade(said, remedy, is_low=free < LOW_MEMORY, free_bytes=free, limit_bytes=limit)
    files, most_files = map(_count, resource.getrlimit(resource.RLIMIT_NOFILE))
    said = f"a process may have {files:,} files open"
    how = f"`ulimit -n {min(most_files, 65536)}`" if most_files > files else "`LimitNOFILE=65536` of its service"
    remedy = f"Raise it with {how} before scheduler and workers are started."
    yield _grade(said, remedy, is_wrong=files < FEW_FILES, is_low=files < MANY_FILES, open_files=files)
    told = [read_text(group / "pids.max").strip() for group in list_groups("pids")]
    limits = [_count(resource.getrlimit(resource.RLIMIT_NPROC)[0]), *(int(most) for most in told if most.isdigit())]
    processes = min(limits)
    remedy = "Raise `ulimit -u`, or the limit of the container (--pids-limit) or service (TasksMax=)."
    said = f"{processes:,} processes and threads may run"
    yield _grade(said, remedy, is_low=processes < MANY_PROCESSES, processes=processes)
    if SHARED_MEMORY.is_dir():
        shared = shutil.disk_usage(SHARED_MEMORY).free
        said = f"{format_bytes(shared)} are free in {SHARED_MEMORY}, through which NCCL passes data"
        yield _grade(said, "Start the container with --shm-size=8g.", is_low=shared < SMALL_SHM, shared_bytes=shared)


def _grade(said: str, remedy: str, *, is_wrong: bool = False, is_low: bool, **values: Any) -> Finding:
    return wrong(said, remedy, **values) if is_wrong else warn(said, remedy, **values) if is_low else ok(said, **values)


def _count(limit: int) -> int:
    return 1 << 30 if limit == resource.RLIM_INFINITY else limit


# --- folders ---------------------------------------------------------------------------------------------------------


def check_folders() -> Iterator[Finding]:
    """Check that the folders for scratch files and compiled kernels are writable, and have free space."""
    from mgspmv.kernels.compiled import find_compiled
    from mgspmv.kernels.modules import CACHE_VARIABLE, find_folder

    folders = {
        "scratch files": (Path(tempfile.gettempdir()), LITTLE_ROOM, "TMPDIR, or pass --scratch,"),
        "the cache": (find_folder(), CACHE_ROOM, CACHE_VARIABLE),
    }
    compiled = find_compiled(os.environ.get("NUMBA_CACHE_DIR", ""))
    if compiled is None:
        yield warn(NOT_KEPT, "Set NUMBA_CACHE_DIR or MGSPMV_CACHE to a writable folder.")
    else:
        folders["functions compiled by Numba"] = (compiled, CACHE_ROOM, "NUMBA_CACHE_DIR")
    for name, (folder, least, variable) in folders.items():
        remedy = f"Set {variable} to a writable folder on a disk with more free space."
        problem, free = _find_write_problem(folder)
        values: dict[str, Any] = {"folder": str(folder), "free_bytes": free}
        if problem is not None:
            make_finding = wrong if name == "scratch files" else warn
            yield make_finding(f"the folder of {name} {folder} cannot be written: {problem}", remedy, **values)
        else:
            said = f"folder of {name} {folder}: {format_bytes(free)} free"
            yield _grade(said, remedy, is_low=free < least, **values)


def _find_write_problem(folder: Path) -> tuple[str | None, int]:
    """Return why a folder, which may not exist yet, is not writable, or None; and its free bytes."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"mgspmv")
            file.flush()
        return None, shutil.disk_usage(folder).free
    except OSError as error:
        return error.strerror or str(error), 0


# --- GPUs ------------------------------------------------------------------------------------------------------------


def _count_gpus() -> int:
    """Count the GPUs that the driver knows, whether or not this process may use them."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except Exception:  # pynvml has its own class of error, and may be missing
        return 0


def check_gpus() -> Iterator[Finding]:
    """Check driver and memory, and compile and run a kernel on each GPU."""
    known = _count_gpus()
    if find_spec("cupy") is None:
        if not known:
            raise Skipped("CuPy is not installed; everything runs on CPUs")
        yield warn(f"CuPy is not installed, but there are {known} GPUs", f"Install {GPU_EXTRA}.", gpus=known)
        return
    import cupy

    from mgspmv.environment import find_gpus
    from mgspmv.kernels.device import find_device_problem

    if (problem := find_device_problem()) is not None:
        if not known:
            yield Finding("skipped", f"there is no GPU: {problem}")
            return
        remedy = (
            "Check CUDA_VISIBLE_DEVICES and nvidia-smi, and start containers with --gpus all. If the driver is older "
            f"than CuPy's CUDA, update it, or install {GPU_EXTRA}."
        )
        yield wrong(f"the driver reports {known} GPUs, but CUDA finds none in this process: {problem}", remedy)
        return
    named = find_gpus()
    for k in range(cupy.cuda.runtime.getDeviceCount()):
        with cupy.cuda.Device(k):
            free, total = cupy.cuda.runtime.memGetInfo()
            problem = find_kernel_problem()
        said = f"GPU {k}, {named[f'gpu {k}']}, driver for CUDA {named['CUDA of the driver']}"
        values = {"gpu": named[f"gpu {k}"], "free_bytes": free, "total_bytes": total}
        if problem is not None:
            remedy = f"Restart the machine; then reinstall driver and libraries: {GPU_EXTRA}."
            yield wrong(f"{said}: {problem}", remedy, **values)
        elif free < FREE_SHARE * total:
            remedy = "Find the processes that use it with nvidia-smi, and end them."
            yield warn(f"{said}: {format_bytes(free)} of {format_bytes(total)} are free", remedy, **values)
        else:
            yield ok(f"{said}: a test product is correct, {format_bytes(free)} are free", **values)


def find_kernel_problem() -> str | None:
    """Compare a small product on the current GPU with the CPU, and a sum of ones; return the problem, or None."""
    import cupy

    from mgspmv.kernels.select import bind_kernel
    from mgspmv.model import CsrBlock

    rng = np.random.default_rng(1)
    n, per_row = 1000, 8
    indices = np.sort(rng.integers(0, n, (n, per_row)), axis=1).astype(np.int32).ravel()
    data = rng.integers(1, 9, n * per_row).astype(np.float64)
    block = CsrBlock(0, n, np.arange(0, n * per_row + 1, per_row, dtype=np.int64), indices, data)
    x, wanted = rng.integers(1, 9, n).astype(np.float64), np.zeros(n)
    bind_kernel(block, "float64").multiply(x, wanted)
    try:
        y = cupy.zeros(n)
        bind_kernel(block, "float64", backend="cuda").multiply(cupy.asarray(x), y)
        found = y.get()
        total = float(cupy.ones(n, np.float16).sum(dtype=np.float32))  # this kernel includes CUDA's headers
    except Exception as error:  # of CuPy, or OSError for a missing library
        return f"kernels do not run: {type(error).__name__}: {shorten(error)}"
    if total != n:
        return f"the sum of {n} ones is {total:g}"
    n_bad = int((found != wanted).sum())
    return f"{n_bad} of {n} entries of a product are wrong" if n_bad else None


# --- stores ----------------------------------------------------------------------------------------------------------


def check_store(store: str) -> Finding:
    """Read a file or folder at a path or URL."""
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(store, skip_instance_cache=is_url(store))
        if not system.exists(path):
            remedy = "Check the path. It must refer to the same data on all workers."
            return wrong(f"{store} does not exist", remedy, store=store)
        began, n_bytes = time.perf_counter(), 0
        names = [name for name, told in find_inside(system, path).items() if told.get("size")]
        for name in names:
            n_bytes += len(system.cat_file(name, start=0, end=READ_BYTES - n_bytes))
            if n_bytes >= READ_BYTES:
                break
        elapsed_s = max(time.perf_counter() - began, 1e-9)
    except Exception as error:  # the class depends on the library behind the URL
        told = error if isinstance(error, MgspmvError) else translate_error(store, error)
        said = f"{store} cannot be used: {shorten(str(told).removeprefix(f'{store}: '))}"
        remedy = "Check the path, the address, the connection and the credentials (docs/object-stores.md)."
        return wrong(said, remedy, store=store, error=type(told).__name__)
    if not n_bytes:
        return wrong(f"{store} contains no data", "Check the path.", store=store)
    rate = n_bytes / elapsed_s
    said = f"{store}: {n_bytes:,} bytes of {len(names)} files read at {rate / 1e6:.3g} MB/s"
    return ok(said, store=store, files=len(names), bytes_per_s=rate)


# --- kernels ---------------------------------------------------------------------------------------------------------


def compile_kernels() -> Finding:
    """Compile the kernels of usual runs of ingest and PageRank on this machine's CPU and GPU, and keep them."""
    from mgspmv.kernels.compiled import find_compiled
    from mgspmv.kernels.device import has_device
    from mgspmv.kernels.modules import watch_compiling

    if find_compiled(os.environ.get("NUMBA_CACHE_DIR", "")) is None:
        return wrong(NOT_KEPT, "Set NUMBA_CACHE_DIR or MGSPMV_CACHE to a writable folder.")
    backends = ["cpu", "cuda"] if has_device() else ["cpu"]
    compiled: list[float] = []
    began = time.perf_counter()
    folders = tempfile.TemporaryDirectory(prefix="mgspmv-warm-")
    with folders as folder, watch_compiling(lambda: compiled.append(0.0)):
        _run_all(Path(folder), backends)
    seconds = time.perf_counter() - began
    found = f"compiled and kept in {seconds:.3g} s" if compiled else "all were compiled before"
    return ok(f"kernels of {' and '.join(backends)}: {found}", seconds=seconds, is_new=bool(compiled))


def _run_all(folder: Path, backends: Sequence[str]) -> None:
    """Make small runs: ingest of texts and of arrays, with and without weights, and PageRank in each precision."""
    import mgspmv as mg
    from mgspmv.ingest.block_sorting import SMALL
    from mgspmv.kernels.host import SMALL_NNZ
    from mgspmv.kernels.select import list_kernels

    texts = {
        "pattern": "0 1\n1 2\n2 0\n",
        "weighted": "0 1 0.5\n1 2 2\n2 0 1\n",
        "names": "ann bob\nbob eve\neve ann\n",
    }
    for name, text in texts.items():
        path = folder / f"{name}.txt"
        path.write_text(text * (2 * SMALL // text.count("\n") + 1))  # more than what is not compiled
        mg.ingest(path, folder / f"{name}-text.zarr")
    # More than what NumPy's functions compute.
    edges = np.random.default_rng(0).integers(0, VERTICES, (2, 2 * SMALL_NNZ))
    for name, columns in (("pattern", (*edges,)), ("weighted", (*edges, np.ones(edges.shape[1])))):
        store = folder / f"{name}.zarr"
        mg.ingest(columns, store)
        for backend in backends:
            for kernel in ("auto", *(list_kernels("cuda", for_steps=True) if backend == "cuda" else ())):
                for precision in get_args(Precision):
                    with suppress(FormatError):  # a layout that does not support the values
                        placed = mg.open(store).on(backend, kernel=kernel)
                        mg.pagerank(placed, precision=precision, max_iter=1, norm="fixed")
            mg.pagerank(store, stop="topk:10", throw=False)


CHECKS: dict[str, Callable[[], Findings]] = {
    "packages": check_packages,
    "limits": check_limits,
    "folders": check_folders,
    "gpus": check_gpus,
}
"""Checks by name, in the order of their execution."""


def examine(
    reach: Callable[[], AbstractContextManager[Any]] | None = None,
    stores: Sequence[str] = (),
    timeout: float = TIMEOUT_S,
    on_check: Callable[[str], object] = ignore,
    warm: bool = False,
) -> list[Finding]:
    """Check this machine, stores and, where one is named, a cluster.

    Parameters
    ----------
    reach : callable, optional
        Starts or connects to a cluster, as a context manager of its client or address; None for no cluster.
    stores : sequence of str, default ()
        Paths and URLs that are read, on a cluster by all workers too.
    timeout : float, default 30.0
        Seconds for each check.
    on_check : callable, optional
        Called with the name of each check before it starts.
    warm : bool, default False
        Compile the kernels of usual runs of ingest and PageRank on this machine, and keep them.

    Returns
    -------
    At least one finding for each check.

    Examples
    --------
    >>> from mgspmv.doctor import examine
    >>> "packages" in {finding.name for finding in examine()}
    True
    """
    found: list[Finding] = []

    def run(checks: Mapping[str, Callable[[], Findings]], limit_s: float) -> None:
        for name, check in checks.items():
            on_check(name)
            found.extend(run_check(name, check, limit_s))

    run(CHECKS, timeout)
    if warm:
        run({"kernels": compile_kernels}, max(timeout, COMPILING_S))
    for store in stores:
        run({"store": partial(check_store, store)}, timeout)
    if reach is None:
        return found
    from mgspmv.cluster.dask_cluster import Cluster
    from mgspmv.doctor.cluster import make_checks

    with ExitStack() as stack:
        try:
            cluster = Cluster(stack.enter_context(reach()), timeout)
        except MgspmvError as error:
            remedy = "Start the cluster, and give the address that is printed in the log of its scheduler."
            return [*found, Finding(**vars(wrong(shorten(error), remedy)) | {"name": "workers"})]
        stack.callback(cluster.close)
        run(make_checks(cluster, stores, timeout), 4 * timeout)  # their waits have their own timeouts
    return found

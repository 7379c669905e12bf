"""Checks of where data are: the folder for what does not fit into memory, and files, folders and object stores."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from mgspmv.doctor.findings import Check, Finding, Findings, make_check, ok, shorten, warn, wrong
from mgspmv.errors import MgspmvError, SourceNotFoundError
from mgspmv.files import find_inside, is_url
from mgspmv.ingest.ahead import Readers, map_ahead
from mgspmv.ingest.remote import explain, refuse_protocol

SCRATCH_BYTES = 128 << 20
"""That are written to the scratch folder, and read again."""
READ_BYTES = 128 << 20
"""That are read of a store at most."""
PIECE_BYTES = 4 << 20
"""Of a read, about that of a chunk."""
READS_AT_A_TIME = 8
ENOUGH_BYTES = 16 << 20
"""Below which throughput is not judged."""
SHORT_READS = 5
"""That latency is the median of."""
TAKE_S = 5.0
"""Seconds after which nothing more is written or read; what was until then is what counts."""
SLOW_BYTES_PER_S = 100e6
"""Below which storage is what a run waits for: one thread parses text at about that rate."""
SLOW_LATENCY_S = 0.2
LITTLE_ROOM = 10 << 30
"""Bytes free in the scratch folder below which sorting a large matrix fails."""
IN_MEMORY = ("tmpfs", "ramfs")
"""File systems whose files take memory."""
MOUNTS = Path("/proc/self/mounts")


# --- the scratch folder ----------------------------------------------------------------------------------------------


def check_scratch() -> Findings:
    """Room and throughput of the folder that the system has for temporary files."""
    folder = Path(tempfile.gettempdir())
    there = os.statvfs(folder)
    free, system = there.f_bavail * there.f_frsize, find_file_system(folder)
    values: dict[str, Any] = {"folder": str(folder), "file_system": system, "free_bytes": free}
    if free < 2 * SCRATCH_BYTES:
        return wrong(
            f"{_show(free)} are free in {folder}",
            "What does not fit into memory is written there while matrices are sorted.",
            "Make room there, or set TMPDIR or --scratch to a folder on a disk with room.",
            **values,
        )
    try:
        written, read = measure_scratch(folder)
    except OSError as error:
        return wrong(
            f"{folder} cannot be written: {error.strerror or error}",
            "What does not fit into memory is written there while matrices are sorted.",
            "Set TMPDIR or --scratch to a folder that can be written.",
            **values,
        )
    values |= {"written_bytes_per_s": written, "read_bytes_per_s": read}
    said = f"{folder} ({system or 'unknown file system'}): {_show(free)} free, writes {_show(written)}/s"
    if read is not None:
        said += f", reads {_show(read)}/s"
    if system in IN_MEMORY:
        return warn(
            f"{folder} is in memory ({system}), {_show(free)} free",
            "What is written there because it does not fit into memory would take memory.",
            "Set TMPDIR or --scratch to a folder on a disk.",
            **values,
        )
    if free < LITTLE_ROOM:
        return warn(
            said,
            "Sorting a matrix of more than memory takes up to 24 bytes an entry there.",
            "Make room there, or set TMPDIR or --scratch to a folder on a disk with room.",
            **values,
        )
    return _judge_rate(said, min(written, read or written), "Set TMPDIR or --scratch to a faster disk.", values)


def measure_scratch(folder: Path) -> tuple[float, float | None]:
    """Bytes per second written, to the disk, and read from it; no read where the system keeps what was written."""
    block = os.urandom(PIECE_BYTES)  # nothing that a file system compresses
    with tempfile.TemporaryFile(prefix="mgspmv-doctor-", dir=folder, buffering=0) as file:
        began, n_bytes = time.perf_counter(), 0
        while n_bytes < SCRATCH_BYTES and time.perf_counter() - began < TAKE_S:
            n_bytes += file.write(block)
        os.fsync(file.fileno())
        written = n_bytes / _elapsed(began)
        if not _drop_cached(file.fileno()):
            return written, None
        began, n_read = time.perf_counter(), 0
        while n_read < n_bytes and time.perf_counter() - began < TAKE_S:
            n_read += len(os.pread(file.fileno(), PIECE_BYTES, n_read))
        return written, n_read / _elapsed(began)


def find_file_system(folder: Path) -> str | None:
    """Name of the file system that a folder is on, as `ext4`; None where the system does not tell."""
    place, best, system = folder.resolve(), -1, None
    try:
        lines = MOUNTS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, point, kind, *_ = line.split()
        mounted = Path(point.replace("\\040", " "))
        if place.is_relative_to(mounted) and len(mounted.parts) >= best:
            best, system = len(mounted.parts), kind
    return system


def _drop_cached(file: int) -> bool:
    """Have the system forget what it keeps of a file in memory; whether it can be told to."""
    if not hasattr(os, "posix_fadvise"):
        return False
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    return True


# --- stores ----------------------------------------------------------------------------------------------------------


def make_store_checks(stores: list[str]) -> list[Check]:
    """A check for each file, folder or URL."""
    return [Check("store", "storage", partial(check_store, store)) for store in stores]


def check_store(store: str) -> Finding:
    """Whether a path or URL can be read, how soon and how fast.

    Parameters
    ----------
    store : a file, or a folder, such as a matrix store, of which the largest files are read
    """
    url = store.removeprefix("obstore+")
    values: dict[str, Any] = {"store": store}
    try:
        read, files = _list_files(url)
        if not files:
            return wrong(
                f"{store} has no files with anything in them",
                "There is nothing to read there.",
                "Check the path, and that all of what makes the data was written.",
                **values,
            )
        latency = _measure_latency(read, files)
        n_bytes, rate = _measure_reading(read, files)
    except MgspmvError as error:
        return _blame(store, error)
    except Exception as error:  # of whatever class the library behind the URL has
        return _blame(store, explain(url, error))
    values |= {"latency_s": latency, "bytes_per_s": rate, "files": len(files), "bytes": sum(files.values())}
    said = f"{store}: a byte is read in {1e3 * latency:.3g} ms, {_show(n_bytes)} with {_show(rate)}/s"
    if latency > SLOW_LATENCY_S:
        return warn(
            said,
            "Each chunk and each attribute of a store is a read, and waits that long.",
            "Read it from a machine nearer to it, in the same region, or copy it there.",
            **values,
        )
    if n_bytes < ENOUGH_BYTES:
        return ok(f"{said}, which is too little to say how fast it is", **values)
    return _judge_rate(said, rate, "Copy it to a faster disk, or read it from a machine nearer to it.", values)


Read = Callable[[str, int, int], int]
"""Reads bytes `start` .. `stop` of a file by its name; how many came."""


def _list_files(url: str) -> tuple[Read, dict[str, int]]:
    """How files there are read, and their bytes by name, the largest first."""
    if is_url(url) and not url.startswith("file://"):
        return _list_remote(url)
    path = Path(url.removeprefix("file://"))
    if not path.exists():
        raise SourceNotFoundError("there is no such file or folder; check the path", source=url)
    names = [path] if path.is_file() else [name for name in path.rglob("*") if name.is_file()]
    return _read_local, _sort({str(name): name.stat().st_size for name in names})


def _list_remote(url: str) -> tuple[Read, dict[str, int]]:
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(url, skip_instance_cache=True)
    except ValueError as error:
        raise refuse_protocol(url, error) from error
    info = system.info(path)
    if info["type"] == "directory":
        sizes = {name: own.get("size") or 0 for name, own in find_inside(system, path).items()}
    else:
        sizes = {path: info.get("size") or READ_BYTES}

    def read(name: str, start: int, stop: int) -> int:
        return len(system.cat_file(name, start=start, end=stop))

    return read, _sort(sizes)


def _sort(sizes: dict[str, int]) -> dict[str, int]:
    return {name: n for name, n in sorted(sizes.items(), key=lambda item: -item[1]) if n}


def _read_local(name: str, start: int, stop: int) -> int:
    file = os.open(name, os.O_RDONLY)
    try:
        if hasattr(os, "posix_fadvise"):  # what was read before would come from memory
            first, last = start - start % mmap.PAGESIZE, stop + -stop % mmap.PAGESIZE
            os.posix_fadvise(file, first, last - first, os.POSIX_FADV_DONTNEED)
        return len(os.pread(file, stop - start, start))
    finally:
        os.close(file)


def _measure_latency(read: Read, files: dict[str, int]) -> float:
    """Seconds of a read of one byte, after one that opens connections."""
    name, seconds = next(iter(files)), []
    read(name, 0, 1)
    for _ in range(SHORT_READS):
        began = time.perf_counter()
        read(name, 0, 1)
        seconds.append(_elapsed(began))
    return median(seconds)


def _measure_reading(read: Read, files: dict[str, int]) -> tuple[int, float]:
    """Bytes, and bytes per second, of several reads at a time, each once, until there are enough or the time is up."""
    pieces = [
        (name, start, min(start + PIECE_BYTES, n)) for name, n in files.items() for start in range(0, n, PIECE_BYTES)
    ]
    pieces = pieces[: READ_BYTES // PIECE_BYTES]
    began = time.perf_counter()

    def pass_on(piece: tuple[str, int, int]) -> int:
        return read(*piece) if time.perf_counter() - began < TAKE_S else 0

    with Readers(READS_AT_A_TIME, "mgspmv-doctor-read") as pool:
        n_bytes = sum(map_ahead(pool, pass_on, pieces, READS_AT_A_TIME))
    return n_bytes, n_bytes / _elapsed(began)


def _judge_rate(said: str, rate: float, remedy: str, values: dict[str, Any]) -> Finding:
    if rate >= SLOW_BYTES_PER_S:
        return ok(said, **values)
    return warn(said, "A run waits for it, and not for processors or GPUs.", remedy, **values)


def _blame(store: str, error: MgspmvError) -> Finding:
    return wrong(
        f"{store} cannot be read: {shorten(str(error).removeprefix(f'{store}: ').removeprefix('cannot be read: '))}",
        "What is there can be neither ingested nor ranked from here.",
        "Check the path, the address, the connection and the credentials (docs/object-stores.md).",
        store=store,
        error=type(error).__name__,
    )


def _elapsed(began: float) -> float:
    return max(time.perf_counter() - began, 1e-9)


def _show(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.3g} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.3g} MB"


CHECKS = (make_check("storage", check_scratch),)

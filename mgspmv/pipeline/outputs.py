"""What steps write: made in a folder of its own, put in its place once all of it is whole, and known again.

    FOLDER/.mgspmv/made/NAME/   ranks.parquet  top.csv  ...      while they are written: nobody looks for them here
                                record.json                      the last: from here on they are whole
    FOLDER/NAME/                ranks.parquet  top.csv  ...      where they are moved to, or uploaded
    FOLDER/.mgspmv/steps/NAME.json                               the last: from here on the step is finished

What is killed before record.json is there leaves what was in FOLDER/NAME as it was. What is killed after it is moved on
by the next run, which computes nothing again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import numpy as np

from mgspmv.batch_results import BatchSolution, load_batch
from mgspmv.errors import MgspmvError, StoreError, StoreFormatError
from mgspmv.files import exchange, find_inside, is_url
from mgspmv.ingest.remote import MARKS
from mgspmv.os_errors import translate_os_error
from mgspmv.pipeline.locks import PRIVATE
from mgspmv.pipeline.places import explain_failures, fetch, find_system
from mgspmv.pipeline.records import Records, read_record, write_record
from mgspmv.pipeline.sources import compute_checksum
from mgspmv.pipeline.steps import Step
from mgspmv.report.record import Output, StepRecord
from mgspmv.results import Solution, load_solution

RECORD = "record.json"


@dataclass(frozen=True)
class Results:
    """The results of a step."""

    records: Records
    step: Step

    @property
    def staged(self) -> Path:
        """Where they are written; on the file system of their place, where that is a local one."""
        target = self.step.target
        root = self.records.folder if is_url(target) else Path(target.removesuffix(self.step.name))
        return root / PRIVATE / "made" / quote(self.step.name, safe="=,")

    @property
    def checkpoint(self) -> Path:
        """Where the state of the step is kept until it is finished."""
        return self.records.folder / PRIVATE / "checkpoints" / quote(self.step.name, safe="=,")

    @property
    def is_waiting(self) -> bool:
        """Whether they are whole and not all in their place."""
        return (self.staged / RECORD).exists()

    def begin(self) -> Path:
        """The folder to write to, with nothing in it.

        Raises
        ------
        StoreError : it cannot be made
        """
        try:
            shutil.rmtree(self.staged, ignore_errors=True)
            self.staged.mkdir(parents=True)
        except OSError as error:
            raise translate_os_error(error, self.staged, "write") from error
        return self.staged

    def discard(self) -> None:
        """Remove what was written, unless it is whole."""
        if not self.is_waiting:
            shutil.rmtree(self.staged, ignore_errors=True)

    def describe(self, digests: dict[str, str]) -> list[Output]:
        """What was written.

        Parameters
        ----------
        digests : of files and folders whose bytes depend on more than what they hold, by their names
        """
        found = sorted(path for path in self.staged.iterdir() if path.name != RECORD)
        return [
            Output(
                f"{self.step.target}/{path.name}",
                measure_bytes(path),
                digests.get(path.name) or compute_checksum(path),
                read_stamp(str(path)) or "",
            )
            for path in found
        ]

    def finish(self, record: StepRecord) -> StepRecord:
        """Have what was written taken as whole, and put it in its place; the record as it is kept."""
        write_record(self.staged / RECORD, record.to_dict())
        return self.publish(goes_on=False)

    def publish(self, *, goes_on: bool = True) -> StepRecord:
        """Put what is whole in its place; the record as it is kept.

        Parameters
        ----------
        goes_on : whether some of it may be there already

        Raises
        ------
        StoreError : it cannot be written there
        """
        record = read_record(self.staged / RECORD)
        if record is None:  # another version of the program made it
            shutil.rmtree(self.staged)
            raise StoreError(f"{self.staged} was made by another version of the program and is removed; run again")
        target, before = self.step.target, self.records.read_step(self.step.name)
        with explain_failures("write to", target):
            move = _upload if is_url(target) else _move
            for output in record.outputs:
                is_local = goes_on and not is_url(target)  # where what is moved keeps its stamp
                if not (is_local and read_stamp(f"{target}/{_name(output)}") == output.stamp):
                    move(self.staged, target, _name(output))
            outputs = [replace(output, path=f"{target}/{_name(output)}") for output in record.outputs]
            record = replace(record, outputs=[_stamp(output) for output in outputs])
            shutil.copy(self.staged / RECORD, self.staged / f"{RECORD}.copy")
            move(self.staged, target, f"{RECORD}.copy", RECORD)
            _remove_others(target, before, record)
        self.records.write_step(record)
        self._clear()
        return record

    def _clear(self) -> None:
        """Remove what was written, and the last that it is whole: until then the next run goes on with it."""
        for path in self.staged.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != RECORD:
                path.unlink()
        shutil.rmtree(self.staged)

    def find_damage(self, record: StepRecord) -> str | None:
        """What of the results is not there as it was written, in words."""
        for output in record.outputs:
            path = f"{self.step.target}/{_name(output)}"
            if not is_whole(path, output):
                return f"{path} is not there as it was written"
        return None

    def find_ranks(self, record: StepRecord) -> Output | None:
        """Ranks that can be read again and are as they were written."""
        for output in record.outputs:
            own = replace(output, path=f"{self.step.target}/{_name(output)}")
            if _name(output) in ("ranks.zarr", "ranks.parquet") and is_whole(own.path, own):
                return own
        return None


def _name(output: Output) -> str:
    return output.path.rstrip("/").rpartition("/")[2]


def _stamp(output: Output) -> Output:
    return replace(output, stamp=read_stamp(output.path) or "")


# --- putting in place ------------------------------------------------------------------------------------------------


def _move(staged: Path, target: str, name: str, final: str | None = None) -> None:
    """On one file system; nothing where it was done before. A folder that is replaced takes its place."""
    source, place = staged / name, Path(target) / (final or name)
    if not source.exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir():
        if exchange(source, place):
            return
        aside = staged / f".{name}.old"  # this file system cannot
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(place, aside)
    os.replace(source, place)


def _upload(staged: Path, target: str, name: str, final: str | None = None) -> None:
    """To an object store. The metadata that make a folder a Zarr group go first and come last."""
    source, (system, place) = staged / name, find_system(f"{target}/{final or name}")
    if source.is_file():
        system.put_file(str(source), place)
        return
    marks = [path for path in (source / "zarr.json",) if path.exists()]
    if system.exists(place):
        for mark in marks:
            with suppress(FileNotFoundError):
                system.rm_file(f"{place}/{mark.name}")
        system.rm(place, recursive=True) if system.exists(place) else None
    inside = [path for path in sorted(source.rglob("*")) if path.is_file() and path not in marks]
    for path in [*inside, *marks]:
        system.put_file(str(path), f"{place}/{path.relative_to(source).as_posix()}")


def _remove_others(target: str, before: StepRecord | None, record: StepRecord) -> None:
    """Remove what the step wrote before and did not now, as the ranks in a format that is no longer asked for."""
    kept = {_name(output) for output in record.outputs}
    for name in {_name(output) for output in before.outputs} - kept if before is not None else ():
        if is_url(target):
            system, place = find_system(f"{target}/{name}")
            with suppress(FileNotFoundError):
                system.rm(place, recursive=True)
        elif (path := Path(target) / name).is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


# --- knowing again ---------------------------------------------------------------------------------------------------


def read_stamp(path: str) -> str | None:
    """What changes when a file or folder is written to: sizes and times of change; None where there is none.

    Raises
    ------
    StoreError : nobody can look there
    OptionError : as of `find_system`
    """
    if is_url(path):
        return _read_stamp_there(path)
    local = Path(path)
    try:
        found = [local, *sorted(local.rglob("*"))] if local.is_dir() else [local]
        stats = [(own.relative_to(local).as_posix(), own.stat()) for own in found if own.is_file()]
    except OSError:
        return None
    if not stats:
        return None
    said = " ".join(f"{name}:{stat.st_size}:{stat.st_mtime_ns}" for name, stat in stats)
    return said if len(stats) == 1 else hashlib.sha256(said.encode()).hexdigest()


def _read_stamp_there(url: str) -> str | None:
    system, place = find_system(url)
    with explain_failures("look for", url):
        found = find_inside(system, place)
    if not found:
        return None
    said = {name: [str(info.get(mark)) for mark in ("size", *MARKS)] for name, info in sorted(found.items())}
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def measure_bytes(path: Path) -> int:
    """Of a file, or of all in a folder."""
    return sum(own.stat().st_size for own in ([path] if path.is_file() else path.rglob("*")) if own.is_file())


def is_whole(path: str, output: Output) -> bool:
    """Whether what is at a path is what was written: by its stamp, or by what it holds where that differs.

    Raises
    ------
    StoreError, OptionError : as of `read_stamp`
    """
    stamp = read_stamp(path)
    if stamp is None:
        return False
    if stamp == output.stamp:
        return True
    try:
        with fetch(path) as local:
            return digest_output(local) == output.digest
    except (MgspmvError, OSError, ValueError):
        return False


def digest_output(path: Path) -> str:
    """SHA-256 of what a result holds, which for ranks and Zarr is independent of when and how it was written.

    Raises
    ------
    MgspmvError, OSError, ValueError : it cannot be read
    """
    if path.name in ("ranks.zarr", "ranks.parquet"):
        return digest_ranks(load_ranks(path))
    if path.suffix == ".zarr":
        import zarr

        return digest_array(np.asarray(zarr.open_array(path, mode="r")[...]))
    return compute_checksum(path)


def load_ranks(path: Path) -> Solution | BatchSolution:
    """Ranks of one vector or of many."""
    try:
        return load_solution(path)
    except StoreFormatError:
        return load_batch(path)


def digest_ranks(solution: Solution | BatchSolution) -> str:
    """SHA-256 of ranks and ids."""
    digest = hashlib.sha256(solution.digest().encode())
    ids = solution.vertex_ids
    if ids is not None:
        digest.update(json.dumps(ids.tolist()).encode() if ids.dtype == object else np.ascontiguousarray(ids).data)
    return digest.hexdigest()


def digest_array(array: np.ndarray) -> str:
    """SHA-256 of an array's type, shape and elements."""
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return hashlib.sha256(f"{array.dtype.str} {array.shape}".encode() + array.tobytes()).hexdigest()

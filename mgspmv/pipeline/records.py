"""Records that a pipeline keeps in its folder, and results of steps: written to their place, each file in one step, and
checked in later runs.

ROOT/NAME/            ranks.parquet  top.csv  ...  record.json
FOLDER/.mgspmv/
  lock                held while a run works
  sources.json        checksums of files that were read
  steps/NAME.json     record of a completed step; written last, atomically
  begun/NAME.json     matrix being made, so that one that was made but not recorded is recognized
  runs/TIME.json      each run that made something, or failed to

A run that is killed while it computes leaves ROOT/NAME unchanged. If one is killed while it writes, the next run makes
the step again.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import zarr
from filelock import FileLock, Timeout

from mgspmv.batch_results import BatchSolution
from mgspmv.environment import find_versions
from mgspmv.errors import PipelineBusyError, hide_secrets, translate_os_error
from mgspmv.files import create_file, find_inside, find_system, is_url, translating_errors, write_beside
from mgspmv.ingest.files import MARKS
from mgspmv.model import default_threads
from mgspmv.pipeline.steps import Checksums, Identity, PipelineStep
from mgspmv.report.record import Output, RunRecord, StepRecord, read_record
from mgspmv.results import Solution
from mgspmv.validation import check_seal, digest_json, parse_json, seal, to_json

RECORD = "record.json"
PRIVATE = ".mgspmv"
"""Name of the folder with the private files of a pipeline."""


@dataclass(frozen=True)
class Records:
    """Records of a pipeline."""

    folder: Path
    """Folder of the pipeline."""
    base: str = ""
    """Folder of the definition, to which paths in records are relative: it can be moved."""

    @property
    def private(self) -> Path:
        """Folder of the records."""
        return self.folder / PRIVATE

    @cached_property
    def checksums(self) -> Checksums:
        """Checksums of the inputs of steps."""
        return Checksums(self.private / "sources.json")

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Lock the folder of the pipeline for this process.

        Raises
        ------
        PipelineBusyError : another process holds the lock
        StoreError : the folder cannot be written to, or its file system has no locks
        """
        path = self.private / "lock"
        # A soft lock, which is a plain file, would outlive a killed run.
        lock = FileLock(path, thread_local=False, fallback_to_soft=False)
        made = [folder for folder in (self.private, self.folder) if not folder.exists()]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout as error:
            raise PipelineBusyError(
                f"another run is using {self.folder}; wait until it ends, or set another folder"
            ) from error
        except OSError as error:
            for folder in made:
                with suppress(OSError):
                    folder.rmdir()
            raise translate_os_error(error, path, "lock") from error
        try:
            yield
        finally:
            lock.release()

    def read_step(self, name: str) -> StepRecord | None:
        """Read the record of a step; None if it is missing, damaged or of another format version."""
        path = self._locate("steps", name)
        with suppress(OSError, ValueError):
            return read_record(StepRecord, parse_json(path.read_bytes()), str(path))
        return None

    def read_kept(self, name: str, target: str) -> StepRecord | None:
        """Read the record of a step, with the paths of its outputs in a target, which may have been moved."""
        record = self.read_step(name)
        if record is None:
            return None
        if record.kind != "matrix":
            return _change_paths(record, lambda path: f"{target}/{path.rstrip('/').rpartition('/')[2]}")
        return replace(_change_paths(record, lambda _: target), matrix=record.matrix | {"url": target})

    def make_portable(self, record: StepRecord) -> StepRecord:
        """Return a record with paths relative to the folder of the definition, if they are in it."""
        prefix = os.path.join(self.base, "")
        url = record.matrix["url"].removeprefix(prefix)
        return replace(
            _change_paths(record, lambda path: path.removeprefix(prefix)), matrix=record.matrix | {"url": url}
        )

    def write_step(self, record: StepRecord) -> None:
        """Write the record of a step, and remove that of its start."""
        # In this order: a run killed in between finds the step completed.
        write_record(self._locate("steps", record.name), record.to_dict())
        with suppress(FileNotFoundError):
            self._locate("begun", record.name).unlink()

    def read_begun(self, name: str) -> dict[str, Any] | None:
        """Read the record of the stage of a matrix that was begun; None if it is missing or unreadable."""
        with suppress(OSError, ValueError):
            found = parse_json(self._locate("begun", name).read_bytes())
            if isinstance(found, dict) and found.keys() >= {"key", "before", "updates"}:
                check_seal(found)
                return found
        return None

    def write_begun(self, name: str, begun: dict[str, Any]) -> None:
        """Write the record of a stage that begins."""
        write_record(self._locate("begun", name), begun)

    def write_run(self, record: RunRecord) -> None:
        """Write the record of a run, named by the time of its start."""
        stem = record.began.replace(":", "").replace("+0000", "Z")
        write_record(self._locate("runs", stem), record.to_dict())

    def _locate(self, what: str, name: str) -> Path:
        return self.private / what / f"{name}.json"


def _change_paths(record: StepRecord, change: Callable[[str], str]) -> StepRecord:
    return replace(record, outputs=[replace(own, path=change(own.path)) for own in record.outputs])


def now() -> str:
    """Return the current time, UTC in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def write_record(path: Path | str, described: dict[str, Any]) -> None:
    """Write a record with its digest at a path or URL, atomically."""
    sealed = seal(json.loads(hide_secrets(json.dumps(described))))
    with create_file(path) as file:
        file.write(f"{hide_secrets(json.dumps(sealed, indent=1, allow_nan=False))}\n".encode())


# --- results ---------------------------------------------------------------------------------------------------------


def write_ranks(ranks: Solution | BatchSolution, target: str, formats: Sequence[str]) -> list[Output]:
    """Write ranks in each of the formats into a folder."""
    digest, outputs = digest_ranks(ranks), []
    for format in formats:
        place = f"{target}/ranks.{format}"
        if not is_url(place) or format == "zarr":
            ranks.save(place, overwrite=True)
        else:
            with tempfile.TemporaryDirectory() as folder, translating_errors("write to", place):
                ranks.save(part := f"{folder}/ranks.{format}")
                system, name = find_system(place)
                system.put_file(part, name)
        outputs.append(_describe(place, digest))
    return outputs


def write_top(highest: Mapping[Any, Sequence[tuple[Any, float]]], target: str) -> list[Output]:
    """Write the highest ranks as `top.csv` and `top.json` into a folder.

    Parameters
    ----------
    highest : pairs of id and rank of each vector, by its label; of a run, under None
    """
    rows = [
        ({} if vector is None else {"vector": vector}) | {"place": place, "id": name, "rank": to_json(rank)}
        for vector, pairs in highest.items()
        for place, (name, rank) in enumerate(pairs, 1)
    ]
    names = [*([] if None in highest else ["vector"]), "place", "id", "rank"]
    lines = io.StringIO(newline="")
    writer = csv.DictWriter(lines, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    text = json.dumps(rows, indent=1, ensure_ascii=False)
    return [write_text(lines.getvalue(), f"{target}/top.csv"), write_text(f"{text}\n", f"{target}/top.json")]


def write_text(text: str, place: str) -> Output:
    """Write text to a file or object."""
    content = text.encode()
    with create_file(place) as file:
        file.write(content)
    return _describe(place, hashlib.sha256(content).hexdigest())


def write_array(array: np.ndarray, place: str) -> Output:
    """Write an array as `.npy` file, or as a Zarr array.

    Raises
    ------
    StoreError : it cannot be written
    """
    if place.endswith(".npy"):
        with create_file(place) as file:
            np.save(file, array)
    elif is_url(place):
        with tempfile.TemporaryDirectory() as folder, translating_errors("write to", place):
            _write_zarr(Path(folder), array)
            _upload(Path(folder), place)
    else:
        with write_beside(place) as part:
            _write_zarr(part, array)
    return _describe(place, digest_array(array))


def _write_zarr(place: Path, array: np.ndarray) -> None:
    options: dict[str, Any] = {"config": {"write_empty_chunks": True}, "overwrite": True}
    zarr.create_array(place, shape=array.shape, dtype=array.dtype, **options)[...] = array


def _upload(folder: Path, place: str) -> None:
    """Upload a Zarr array; its metadata is removed first and written last, as absent chunks are read as zeros."""
    system, target = find_system(place)
    if system.exists(target):
        with suppress(FileNotFoundError):
            system.rm_file(f"{target}/zarr.json")
        system.rm(target, recursive=True)
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    names.remove("zarr.json")
    for each in (names, ["zarr.json"]):
        system.put([f"{folder}/{name}" for name in each], [f"{target}/{name}" for name in each])


def digest_ranks(solution: Solution | BatchSolution) -> str:
    """Return the SHA-256 of ranks and ids."""
    digest = hashlib.sha256(solution.digest().encode())
    ids = solution._ids
    if ids is not None:
        digest.update(json.dumps(ids.tolist()).encode() if ids.dtype == object else np.ascontiguousarray(ids).data)
    return digest.hexdigest()


def digest_array(array: np.ndarray) -> str:
    """Return the SHA-256 of an array's type, shape and elements."""
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return hashlib.sha256(f"{array.dtype.str} {array.shape}".encode() + array.tobytes()).hexdigest()


# --- records of results ----------------------------------------------------------------------------------------------


def make_record(step: PipelineStep, identity: Identity, began: str, made: dict[str, Any], **fields: Any) -> StepRecord:
    """Make the record of a step that ends now.

    Parameters
    ----------
    began : time of its start
    made : provenance of its matrix
    fields : other fields of the record; `options` that are not among those of the step are added to them
    """
    options = fields.pop("options", {}) | identity.options
    return StepRecord(
        key=identity.key,
        kind=step.kind,
        name=step.name,
        inputs=identity.inputs,
        options=to_json(options),
        began=began,
        ended=now(),
        provenance=to_json(_describe_provenance(step, identity) | {"matrix": made}),
        **fields,
    )


def _describe_provenance(step: PipelineStep, identity: Identity) -> dict[str, Any]:
    """Return the machine, versions and inputs of a step."""
    files = step.written.model_dump(mode="json")
    sources = {
        name: {"path": files.get(name), "digest": found}
        for name, found in identity.inputs.items()
        if name not in ("matrix", "store")
    }
    machine = {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "processors": default_threads(),
        "memory_bytes": int(psutil.virtual_memory().total),
        "command": sys.argv,
    }
    return {"versions": find_versions(), "machine": machine, "inputs": sources}


def publish_record(target: str, record: StepRecord, before: StepRecord | None) -> None:
    """Write the record of results next to them.

    Parameters
    ----------
    before : record of the replaced results; files in formats that are no longer requested are removed
    """
    write_record(f"{target}/{RECORD}", record.to_dict())
    with translating_errors("write to", target):
        system, place = find_system(target)
        names = set() if before is None else {_name(own) for own in before.outputs}
        for name in names - {_name(own) for own in record.outputs}:
            with suppress(FileNotFoundError):
                system.rm(f"{place}/{name}", recursive=True)


# --- checking --------------------------------------------------------------------------------------------------------


def find_damage(target: str, record: StepRecord) -> str:
    """Describe a result that is missing or changed; return an empty string if all are unchanged."""
    changed = (path for path, is_unchanged in _check_outputs(target, record) if not is_unchanged)
    return next((f"{path} is missing or was changed" for path in changed), "")


def find_ranks(target: str, record: StepRecord) -> str | None:
    """Return the path of ranks that can be loaded and are unchanged, or None."""
    found = _check_outputs(target, record, ("ranks.zarr", "ranks.parquet"))
    return next((path for path, is_unchanged in found if is_unchanged), None)


def _check_outputs(target: str, record: StepRecord, names: Sequence[str] = ()) -> Iterator[tuple[str, bool]]:
    """Yield the paths of results, of these names if some are given, and whether they are as they were written."""
    for output in record.outputs:
        if not names or _name(output) in names:
            path = f"{target}/{_name(output)}"
            yield path, look_at(path)[0] == output.stamp


def _describe(place: str, digest: str) -> Output:
    stamp, n_bytes = look_at(place)
    return Output(place, n_bytes, digest, stamp or "")


def _name(output: Output) -> str:
    return output.path.rstrip("/").rpartition("/")[2]


def look_at(path: str) -> tuple[str | None, int]:
    """Return the stamp and the bytes of a file or folder. The stamp is a digest of sizes and times of change, which
    changes when it is written to; None if missing.
    """
    system, place = find_system(path)
    with translating_errors("look for", path):
        found = find_inside(system, place)
    marks = ("size", *MARKS) if is_url(path) else ("size", "mtime")
    told = {name.removeprefix(place): [str(info.get(mark)) for mark in marks] for name, info in sorted(found.items())}
    return digest_json(told) if told else None, sum(info.get("size") or 0 for info in found.values())

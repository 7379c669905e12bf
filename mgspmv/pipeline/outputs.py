"""Results of steps: written to a temporary folder, moved to their place when complete, and checked in later runs.

    ROOT/.mgspmv/made/.NAME.0123abcd.part/   ranks.parquet  top.csv  ...      while they are written
    ROOT/NAME/                               ranks.parquet  top.csv  ...      where they are moved to, or uploaded
    FOLDER/.mgspmv/steps/NAME.json                                            written last: the step is finished

A run that is killed before the move leaves ROOT/NAME unchanged. If one is killed during the move, the next run makes
the step again.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from mgspmv.batch_results import BatchSolution
from mgspmv.files import (
    find_inside,
    find_system,
    hold_folder,
    is_url,
    move_into_place,
    translating_errors,
)
from mgspmv.ingest.remote import MARKS
from mgspmv.pipeline.records import PRIVATE, write_record
from mgspmv.pipeline.sources import compute_checksum
from mgspmv.pipeline.steps import PipelineStep
from mgspmv.report.record import Output, StepRecord
from mgspmv.results import Solution
from mgspmv.validation import digest_json, to_json

RECORD = "record.json"


# --- writing ---------------------------------------------------------------------------------------------------------


@contextmanager
def stage(step: PipelineStep, folder: Path) -> Iterator[Path]:
    """Yield a temporary folder for results, and remove the folders of killed runs of the step.

    Parameters
    ----------
    folder : folder of the pipeline, used for results at URLs; other results are staged on their own file system

    Raises
    ------
    StoreError : it cannot be made
    """
    root = folder if is_url(step.target) else Path(step.target.removesuffix(step.name))
    made = root / PRIVATE / "made"
    with ExitStack() as stack:
        with translating_errors("write to", str(made)):
            made.mkdir(parents=True, exist_ok=True)
            staged = stack.enter_context(hold_folder(made, f".{quote(step.name, safe='=,')}.", ".part"))
        yield staged


def save_top(highest: Mapping[Any, Sequence[tuple[Any, float]]], folder: Path) -> None:
    """Write the highest ranks as `top.csv` and `top.json`.

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
    with open(folder / "top.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    text = json.dumps(rows, indent=1, ensure_ascii=False)
    (folder / "top.json").write_text(f"{text}\n", encoding="utf-8")


def publish(staged: Path, target: str, digests: dict[str, str]) -> list[Output]:
    """Move results to their place.

    Parameters
    ----------
    target : folder that they are moved to
    digests : digests of the contents of files and folders whose bytes are not reproducible, by name

    Raises
    ------
    StoreError : they cannot be written there
    """
    outputs = []
    for path in sorted(staged.iterdir()):
        place, n_bytes = f"{target}/{path.name}", measure_bytes(path)
        digest = digests.get(path.name) or compute_checksum(path)
        _move(path, place)
        outputs.append(Output(place, n_bytes, digest, read_stamp(place) or ""))
    return outputs


def publish_record(target: str, record: StepRecord, before: StepRecord | None) -> None:
    """Write the record of published results next to them.

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


def _name(output: Output) -> str:
    return output.path.rstrip("/").rpartition("/")[2]


def _move(source: Path, target: str) -> None:
    """Move a file or folder to its place, on one file system; what it replaces is removed with the temporary folder."""
    with translating_errors("write to", target):
        if is_url(target):
            _upload(source, target)
            return
        place = Path(target)
        place.parent.mkdir(parents=True, exist_ok=True)
        move_into_place(source, place, source.with_name(f".{source.name}.old"))


def _upload(source: Path, target: str) -> None:
    """Upload a file or folder. The metadata that make a folder a Zarr group are removed first and written last."""
    system, place = find_system(target)
    if source.is_file():
        system.put_file(str(source), place)
        return
    mark = source / "zarr.json"
    if system.exists(place):
        with suppress(FileNotFoundError):
            system.rm_file(f"{place}/{mark.name}")
        system.rm(place, recursive=True) if system.exists(place) else None
    inside = [path for path in sorted(source.rglob("*")) if path.is_file() and path != mark]
    for path in [*inside, mark]:
        system.put_file(str(path), f"{place}/{path.relative_to(source).as_posix()}")


# --- checking outputs ------------------------------------------------------------------------------------------------


def find_damage(target: str, record: StepRecord) -> str:
    """Describe a result that is missing or changed; return an empty string if all are unchanged."""
    for output in record.outputs:
        path = f"{target}/{_name(output)}"
        if read_stamp(path) != output.stamp:
            return f"{path} is missing or was changed"
    return ""


def find_ranks(target: str, record: StepRecord) -> str | None:
    """Return the path of ranks that can be loaded and are unchanged, or None."""
    for output in record.outputs:
        path = f"{target}/{_name(output)}"
        if _name(output) in ("ranks.zarr", "ranks.parquet") and read_stamp(path) == output.stamp:
            return path
    return None


def read_stamp(path: str) -> str | None:
    """Return a digest of sizes and times of change, which changes when a file or folder is written to; None if missing.

    Raises
    ------
    StoreError : it cannot be inspected
    OptionError : as in `find_system`
    """
    system, place = find_system(path)
    with translating_errors("look for", path):
        found = find_inside(system, place)
    marks = ("size", *MARKS) if is_url(path) else ("size", "mtime")
    told = {name.removeprefix(place): [str(info.get(mark)) for mark in marks] for name, info in sorted(found.items())}
    return digest_json(told) if told else None


def measure_bytes(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    return sum(own.stat().st_size for own in ([path] if path.is_file() else path.rglob("*")) if own.is_file())


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

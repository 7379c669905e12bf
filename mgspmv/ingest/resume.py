"""What an ingest keeps of its work, for another to go on with when it is broken off.

    .web.zarr.ingest/   lock            held while an ingest works here
                        journal.json    what is kept, and of which source and options; replaced as a whole
                        entries         runs of the sorter
                        vertices        names, their sorted runs, what is known of the vertices in the end
                        marks-3         which integers occurred, a bit for each
                        version         name of the version that is about to be the store's

While the source is read, the journal is replaced every so often, once all that it names is on the disk, and once more
when the source was read to its end. It says how much of each file it means: what was appended since does not count.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from mgspmv.errors import OptionError, ProgressError, SourceNotFoundError, StoreError, hide_secrets
from mgspmv.ingest.names import SpilledNames, keep_names, restore_names
from mgspmv.ingest.remote import describe_url
from mgspmv.ingest.scratch import KeptFile, KeptFolder
from mgspmv.ingest.sorter import EntrySorter
from mgspmv.ingest.source import FileSource, Layout, Place, Source, StatedShape
from mgspmv.ingest.streams import is_pipe
from mgspmv.ingest.vertices import OccurringIntegers, OccurringNames
from mgspmv.os_errors import describe_os_error, is_operators, refuse_source
from mgspmv.store.places import StoreLike, describe_store, find_path
from mgspmv.store.versions import list_versions
from mgspmv.validation import parse_json

FORMAT = 2
"""Of the journal and of what it names."""
PROGRESS_S = 10.0
"""Seconds of reading after which progress is kept."""
PROGRESS_PART = 50
"""Of the time that was read, one such part must have passed too: each time adds a run, and rows are sorted from all."""
LOCK, JOURNAL, ENTRIES, VERTICES, VERSION = "lock", "journal.json", "entries", "vertices", "version"

_OWN = re.compile(rf"{LOCK}|({re.escape(JOURNAL)}|{VERSION})(\.part)?|{ENTRIES}|{VERTICES}|marks-\d+")


class Feed(Protocol):
    """What is known of the entries that were read."""

    def keep(self) -> dict[str, Any]:
        """JSON values that `restore` needs."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Know what another knew."""
        ...


class Journal:
    """What is kept of the work, and what is gone on with.

    Parameters
    ----------
    path : the folder, which is nobody else's
    claims : what the work is: JSON values, `source` and `options`

    Raises
    ------
    ProgressError : what is there is of other work, or is damaged
    StoreError : nothing can be written there
    """

    def __init__(self, path: Path, claims: dict[str, Any]) -> None:
        self._path, self._claims = path, claims
        found = _read_journal(path, claims) or {"files": {}, "state": None}
        self._state: dict[str, Any] | None = found["state"]
        try:
            self._folder = KeptFolder(path, found["files"])
        except ValueError as error:
            raise _refuse(path, f"what is kept of it is damaged ({error})") from error
        self._pool = ThreadPoolExecutor(1, "mgspmv-keep")
        self._written: Future[None] | None = None
        self._vertices: OccurringIntegers | OccurringNames | None = None
        self._began = self._kept_at = time.monotonic()

    @property
    def entries(self) -> KeptFile:
        """The file for the entries."""
        return self._folder.open(ENTRIES)

    def resume(self, source: FileSource, sorter: EntrySorter, feed: Feed) -> Layout | None:
        """Have all go on where it was kept; what is known of a source that was read to its end, else None.

        Raises
        ------
        StoreError : it cannot be read
        """
        state = self._state
        source.on_begin, source.is_kept = self._begin, True
        if state is None:
            return None
        source.start = source.place = Place(*state["place"])
        sorter.restore(state["sorter"])
        feed.restore(state["feed"])
        return None if state["layout"] is None else _restore_layout(self._folder, state["layout"])

    def keep(self, source: FileSource, sorter: EntrySorter, feed: Feed) -> None:
        """Keep what was read, between two batches, unless that was done a short time ago.

        Raises
        ------
        StoreError : it cannot be written
        """
        now = time.monotonic()
        is_written = self._written is None or self._written.done()
        if is_written and now - self._kept_at >= max(PROGRESS_S, (now - self._began) / PROGRESS_PART):
            self._keep(source, sorter, feed, None)

    def finish(self, source: FileSource, sorter: EntrySorter, feed: Feed, layout: Layout) -> None:
        """Keep all of a source that was read to its end; Raises as `keep`."""
        self._keep(source, sorter, feed, layout)

    def name_version(self, name: str) -> None:
        """Keep what the store's next write names: once it does, nothing is to be gone on with. Raises as `keep`."""
        try:
            _write_whole(self._path / VERSION, name)
        except OSError as error:
            raise _refuse_writing(self._path, error) from error

    def close(self) -> None:
        """Let go of the files, once what is to be kept is."""
        self._pool.shutdown()
        self._folder.close()

    def _begin(self, vertices: Any) -> None:
        if isinstance(vertices, OccurringIntegers | OccurringNames):
            self._vertices = vertices
            vertices.restore(self._folder, None if self._state is None else self._state["vertices"])

    def _keep(self, source: FileSource, sorter: EntrySorter, feed: Feed, layout: Layout | None) -> None:
        if self._written is not None:
            self._written.result()
        vertices = None if self._vertices is None or layout is not None else self._vertices.keep(self._folder)
        state = {
            "place": astuple(source.place),
            "sorter": sorter.keep(),
            "feed": feed.keep(),
            "vertices": vertices,
            "layout": None if layout is None else _keep_layout(self._folder, layout),
        }
        document = {**self._claims, "files": self._folder.describe(), "state": state}
        text = json.dumps(document)  # here, for what it names changes with the next batch
        self._written = self._pool.submit(self._write, text, self._folder.files())
        self._kept_at = time.monotonic()

    def _write(self, text: str, files: list[KeptFile]) -> None:
        for file in files:
            file.sync()
        _write_journal(self._path, text)
        for path in set(self._path.glob("marks-*")) - {file.path for file in files}:
            path.unlink()


# --- folders ---------------------------------------------------------------------------------------------------------


def find_kept_folder(store: StoreLike, scratch: str | os.PathLike[str] | None) -> Path | None:
    """Where the progress of an ingest into a store is kept; None where there is no place for it.

    Parameters
    ----------
    scratch : the folder that it is in; None for the one that a local store is in
    """
    path = find_path(store)
    if scratch is None:
        return None if path is None else path.with_name(f".{path.name}.ingest")
    url = describe_store(store) if path is None else str(path)
    mark = hashlib.sha256(url.encode()).hexdigest()[:8]  # for stores of one name in other folders
    name = re.sub(r"[^\w.-]", "_", hide_secrets(url).rstrip("/").rpartition("/")[2])
    return Path(scratch).absolute() / f".{name}-{mark}.ingest"


@contextlib.contextmanager
def keep_journal(folder: Path | None, source: Source, options: dict[str, Any]) -> Iterator[Journal]:
    """The journal of an ingest, which is removed when that is done, and kept where it fails.

    Parameters
    ----------
    folder : as of `find_kept_folder`
    options : all that the store depends on beside the source

    Raises
    ------
    OptionError : a source that cannot be read from another place than its begin, or of which it cannot be told whether
        it changed; no folder
    ProgressError : what is there is of another source or other options, is damaged, or is another process's
    StoreError : nothing can be written there
    """
    if not isinstance(source, FileSource) or not source.files:
        raise OptionError(
            f"{source.name} is read from its begin only: resume=True is for edge lists, Matrix Market and Parquet "
            "files; leave it out"
        )
    if folder is None:
        raise OptionError(
            "resume=True keeps progress beside the store, which is in no local folder; name a folder for it by scratch="
        )
    claims = {"source": [_identify(name) for name in source.files], "options": _normalise(options)}
    with _lock(folder):
        journal = None
        try:
            journal = Journal(folder, claims)
            yield journal
        except BaseException:
            if journal is not None:
                journal.close()
            if not (folder / JOURNAL).exists():  # there is nothing to go on with
                _remove(folder)
            raise
        journal.close()
        _remove(folder)


def remove_kept(folder: Path | None) -> None:
    """Remove what an ingest left that was broken off; what another process works with stays."""
    if folder is not None and (folder / LOCK).exists():
        with contextlib.suppress(ProgressError), _lock(folder):
            _remove(folder)


def remove_finished(folder: Path | None, store: StoreLike) -> None:
    """Remove what an ingest left that was killed when its store was whole already; all else stays."""
    if folder is None or not (folder / LOCK).exists():
        return
    with contextlib.suppress(ProgressError, StoreError), _lock(folder):
        if not (folder / JOURNAL).exists() or _is_finished(folder, store):
            _remove(folder)


def _is_finished(folder: Path, store: StoreLike) -> bool:
    """Whether the store has the version that an ingest was about to name."""
    try:
        return (folder / VERSION).read_text() in [info.version for info in list_versions(store)]
    except (FileNotFoundError, StoreError):
        return False


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Have a folder for this process alone, made where it is missing."""
    held = None
    while held is None:
        held = _try_lock(folder)
    try:
        yield
    finally:
        os.close(held)


def _try_lock(folder: Path) -> int | None:
    """The file that is locked; None where another process has just removed it."""
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            opened = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
            stack.callback(os.close, opened)
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(opened), os.stat(folder / LOCK)):
                stack.pop_all()
                return opened
        except FileNotFoundError:
            pass
        except BlockingIOError as error:
            raise ProgressError(
                f"another process keeps its progress in {folder}, for it ingests into this store too; wait for its "
                "end, or stop it"
            ) from error
        except OSError as error:
            with contextlib.suppress(OSError):  # what else is there is not ours
                folder.rmdir()
            raise StoreError(
                f"cannot keep progress in {folder}: {describe_os_error(error, folder)}; name another place by scratch="
            ) from error
    return None


def _remove(folder: Path) -> None:
    """Remove a folder with what is ours in it, the journal first and the lock last."""
    names = [path.name for path in folder.iterdir() if _OWN.fullmatch(path.name)]
    names.sort(key=lambda name: (name == LOCK, name != JOURNAL))
    for name in names:
        (folder / name).unlink()
    with contextlib.suppress(OSError):  # what else is there is not ours
        folder.rmdir()


# --- journals --------------------------------------------------------------------------------------------------------


def _identify(name: str) -> dict[str, Any]:
    """What tells this content of a file from another."""
    if "://" in name:
        return describe_url(name)
    if is_pipe(name):
        raise OptionError(f"{name} is a pipe, which can be read once only; leave out resume=True, or save it as a file")
    try:
        found = os.stat(name)
    except OSError as error:
        if is_operators(error):
            raise refuse_source(error, name, "") from error
        raise SourceNotFoundError(f"there is no such file ({error.strerror}); check the path", source=name) from error
    return {"name": os.path.abspath(name), "bytes": found.st_size, "mtime_ns": found.st_mtime_ns}


def _normalise(options: dict[str, Any]) -> Any:
    """As they come back from a journal."""
    return json.loads(json.dumps({name: value for name, value in options.items() if value is not None}, default=str))


def _write_journal(folder: Path, text: str) -> None:
    try:
        _write_whole(folder / JOURNAL, json.dumps({"format": FORMAT, "sha256": _digest(text), "journal": text}))
    except OSError as error:
        raise _refuse_writing(folder, error) from error


def _write_whole(path: Path, text: str) -> None:
    """Have a file on the disk with a text, or what it had before."""
    part = path.with_name(f"{path.name}.part")
    with open(part, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    _sync_folder(path.parent)


def _refuse_writing(folder: Path, error: OSError) -> StoreError:
    return StoreError(f"cannot keep progress in {folder}: {describe_os_error(error, folder)}")


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read_journal(folder: Path, claims: dict[str, Any]) -> dict[str, Any] | None:
    """The journal of the same work; None where there is none."""
    try:
        outer = parse_json((folder / JOURNAL).read_bytes())
        made_as, text, digest = outer["format"], outer["journal"], outer["sha256"]
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise _refuse(folder, "its journal is damaged") from error
    if made_as != FORMAT:
        raise _refuse(folder, f"another version of mgspmv kept it (format {made_as}, and this one has {FORMAT})")
    if not isinstance(text, str) or _digest(text) != digest:
        raise _refuse(folder, "its journal is damaged")
    journal: dict[str, Any] = json.loads(text)
    if differences := [*_compare_files(journal["source"], claims["source"]), *_compare_options(journal, claims)]:
        raise _refuse(folder, "; ".join(differences))
    return journal


def _compare_files(then: list[dict[str, Any]], now: list[dict[str, Any]]) -> Iterator[str]:
    """How files differ from those of before."""
    if len(then) != len(now):
        yield f"it was of {len(then)} files, and there are {len(now)}"
        return
    for old, new in zip(then, now, strict=True):
        if old["name"] != new["name"]:
            yield f"it read {old['name']} where {new['name']} is now"
        elif old != new:
            what = next(name for name in {**old, **new} if old.get(name) != new.get(name))
            yield f"{new['name']} was changed since ({what} was {old.get(what)} and is {new.get(what)})"


def _compare_options(then: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    old, new = then["options"], now["options"]
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            yield f"{name} was {old.get(name)!r} and is {new.get(name)!r}"


def _refuse(folder: Path, why: str) -> ProgressError:
    return ProgressError(
        f"the ingest that was broken off cannot be gone on with: {why}. Nothing is lost: undo that, or leave out "
        f"resume=True, or remove {folder}, which starts from the beginning"
    )


# --- layouts ---------------------------------------------------------------------------------------------------------


def _keep_layout(folder: KeptFolder, layout: Layout) -> dict[str, Any]:
    file, ids = folder.open(VERTICES), layout.vertex_ids
    kept: dict[str, Any] = {"shape": layout.shape, "are_ids": layout.are_ids, "provenance": layout.provenance}
    kept["stated"] = None if layout.stated is None else vars(layout.stated)
    kept["positions"] = None if layout.positions is None else file.put(layout.positions)
    kept["names"] = None if layout.names is None else layout.names.keep()
    kept["ids"] = file.put(ids) if isinstance(ids, np.ndarray) and ids.dtype == np.int64 else None
    kept["vertex_names"] = None
    if ids is not None and kept["ids"] is None:
        kept["vertex_names"] = keep_names(file, pa.array(ids[:], pa.large_string()))
    return kept


def _restore_layout(folder: KeptFolder, kept: dict[str, Any]) -> Layout:
    file = folder.open(VERTICES)
    ids, names = None if kept["ids"] is None else file.get(kept["ids"]), None
    if kept["vertex_names"] is not None:
        ids = restore_names(file, kept["vertex_names"]).to_numpy(zero_copy_only=False)
    if kept["names"] is not None:
        names = SpilledNames(None, file)
        names.restore(kept["names"])
    return Layout(
        shape=(kept["shape"][0], kept["shape"][1]),
        vertex_ids=ids,
        positions=None if kept["positions"] is None else file.get(kept["positions"]),
        are_ids=kept["are_ids"],
        names=names,
        provenance=kept["provenance"],
        stated=StatedShape(**kept["stated"]) if kept["stated"] else None,
    )

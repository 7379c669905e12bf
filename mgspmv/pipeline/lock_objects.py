"""What keeps two runs off one place in an object store: an object that says whose it is, as long as it is renewed.

PLACE/.mgspmv/locks/NAME     of the store, or of the results of a matrix, at PLACE/NAME

It is only created where there is none, as far as the store can do that, and read again. One that was not renewed for
`STALE_S` is of a run that is gone, as is one of another run in the folder of this pipeline, which this process holds.
"""

from __future__ import annotations

import json
import secrets
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from mgspmv.errors import MgspmvError, PipelineBusyError, hide_secrets
from mgspmv.pipeline.places import explain_failures, find_system
from mgspmv.validation import parse_json

RENEW_S = 30
"""Seconds after which a lock is renewed."""
STALE_S = 600
"""Seconds after which one that was not renewed is nobody's, by the clocks of those who ask."""


@contextmanager
def hold_objects(
    places: Sequence[str], folder: str, holder: dict[str, Any], pipeline: str, on_lost: Callable[[], None]
) -> Iterator[None]:
    """Have places at URLs for this run alone; a warning says where no lock can be had, and the work goes on.

    Parameters
    ----------
    folder : beside a place, where its lock is
    holder : who this is
    pipeline : known to all runs in the folder of this pipeline, of which there is one at a time
    on_lost : called when another run took a lock over, as it had not been renewed

    Raises
    ------
    PipelineBusyError : another run writes there, or has taken over since
    """
    own = {**holder, "pipeline": pipeline, "run": secrets.token_hex(8)}
    locks, ended = [_Lock(place, folder, own) for place in places], threading.Event()
    held: list[_Lock] = []
    lost: list[_Lock] = []

    def renew() -> None:
        while not ended.wait(RENEW_S):
            lost.extend(lock for lock in held if lock not in lost and not lock.renew())
            if lost:
                on_lost()

    renewing = threading.Thread(target=renew, name="mgspmv-locks", daemon=True)
    try:
        for lock in locks:
            if lock.take():
                held.append(lock)
        renewing.start()
        yield
    finally:
        ended.set()
        if renewing.is_alive():
            renewing.join()
        for lock in held:
            lock.release()
    if lost:
        raise PipelineBusyError(
            f"another run took over {lost[0].place}, for this one was not heard of for {STALE_S // 60} minutes; run "
            "again when that has ended"
        )


@dataclass(frozen=True)
class _Lock:
    place: str
    folder: str
    own: dict[str, Any]

    @property
    def url(self) -> str:
        parent, _, name = self.place.rstrip("/").rpartition("/")
        return f"{parent}/{self.folder}/{name}"

    def take(self) -> bool:
        """Whether there is a lock now, which is this run's.

        Raises
        ------
        PipelineBusyError : it is another's
        """
        try:
            with explain_failures("write to", self.url):
                self._create()
        except PipelineBusyError:
            raise
        except MgspmvError as error:
            place = hide_secrets(self.place)
            warnings.warn(f"other runs are not kept from writing to {place} meanwhile: {error}", stacklevel=2)
            return False
        return True

    def renew(self) -> bool:
        """Whether it is still this run's; a store that does not answer is asked again the next time."""
        with suppress(Exception):
            found = self._read()
            if found is not None and found.get("run") != self.own["run"]:
                return False
            self._write()
        return True

    def release(self) -> None:
        """Leave the place to others."""
        with suppress(Exception):
            found = self._read()
            if found is not None and found.get("run") == self.own["run"]:
                self._remove()

    def _create(self) -> None:
        found = self._read()
        if found is not None:
            self._refuse_unless_left(found)
            self._remove()
        try:
            self._write(mode="create")
        except Exception:
            if self._read() is None:  # else another was quicker
                raise
        found = self._read() or {}
        if found.get("run") != self.own["run"]:
            raise self._describe_busy(found)

    def _refuse_unless_left(self, found: dict[str, Any]) -> None:
        is_of_here = found.get("pipeline") == self.own["pipeline"]
        if not is_of_here and _measure_age(found) < STALE_S:
            raise self._describe_busy(found)

    def _describe_busy(self, found: dict[str, Any]) -> PipelineBusyError:
        who = dict.fromkeys(("pid", "host", "began", "renewed"), "?") | found
        return PipelineBusyError(
            f"another run writes {self.place}: process {who['pid']} on {who['host']}, since {who['began']}, last heard "
            f"of {who['renewed']}; wait for its end, or have this one write elsewhere; if it is dead, wait "
            f"{STALE_S // 60} minutes, or remove {self.url}"
        )

    def _read(self) -> dict[str, Any] | None:
        system, name = find_system(self.url)
        try:
            found = parse_json(system.cat_file(name))
        except FileNotFoundError:
            return None
        except ValueError:  # nobody's
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, mode: str = "overwrite") -> None:
        system, name = find_system(self.url)
        described = {**self.own, "renewed": datetime.now(UTC).isoformat(timespec="seconds")}
        system.pipe_file(name, json.dumps(described).encode(), mode=mode)

    def _remove(self) -> None:
        system, name = find_system(self.url)
        system.rm_file(name)


def _measure_age(found: dict[str, Any]) -> float:
    """Seconds since a lock was renewed; infinite where it does not say."""
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(found["renewed"])).total_seconds()
    except (KeyError, TypeError, ValueError):
        return float("inf")

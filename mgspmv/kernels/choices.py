"""Kernels that were found to be the fastest, kept in `choices.json` in the user's cache and never in a store."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mgspmv.kernels.cache import CACHE_VARIABLE, find_folder, replace_file, warn_once
from mgspmv.validation import parse_json
from mgspmv.version import __version__


@dataclass(frozen=True)
class Case:
    """What a choice holds for; for nothing else, and for no other version of this package."""

    digest: str
    """Of the store."""
    start: int
    """First of the block's rows."""
    stop: int
    """The row after its last one."""
    dtype: str
    """Of x."""
    device: str
    """What computes."""

    @property
    def key(self) -> str:
        """The name of its choice in the file."""
        rows = f"rows {self.start}-{self.stop}"
        return "; ".join((self.digest, rows, self.dtype, self.device, f"mgspmv {__version__}"))


def find_file() -> Path:
    """Where choices are kept."""
    return find_folder() / "choices.json"


def read_choice(case: Case) -> str | None:
    """The kernel that was kept for this case; None where none was."""
    kept = _read_all(find_file()).get(case.key)
    return kept["kernel"] if isinstance(kept, dict) and isinstance(kept.get("kernel"), str) else None


def keep_choice(case: Case, seconds: dict[str, float]) -> str:
    """Keep the fastest kernel and the times of all; the name of that kernel. Of two processes that write at once, one
    may undo what the other kept: it is then timed again."""
    fastest = min(seconds, key=lambda name: seconds[name])
    path = find_file()
    kept = {"kernel": fastest, "milliseconds": {name: round(s * 1e3, 6) for name, s in seconds.items()}}
    try:
        replace_file(path, json.dumps(_read_all(path) | {case.key: kept}, indent=1).encode())
    except OSError as error:
        warn_once(
            f"the choice of a kernel cannot be kept in {path} ({error}), so kernels will be timed again; set "
            f"${CACHE_VARIABLE} to a folder that can be written"
        )
    return fastest


def _read_all(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        found = error
    if isinstance(found, dict):
        return found
    warn_once(
        f"the choices of kernels in {path} cannot be read and are left out; the next choice that is kept replaces the "
        "file"
    )
    return {}

"""Warnings of workers that share a terminal with their command: one line, without Python's file and source.

The processes of clusters on this machine preload this module.
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from typing import Any

from mgspmv.errors import escape_controls, hide_secrets


def dask_setup(worker: Any) -> None:
    """Shorten the warnings of a worker in its own process."""
    if worker.nanny is not None:
        warnings.showwarning = partial(_show, worker.name)


def _show(name: Any, message: Warning | str, *_: Any, **__: Any) -> None:
    line = " ".join(str(message).split())
    print(f"warning: worker {name}: {escape_controls(hide_secrets(line))}", file=sys.stderr, flush=True)

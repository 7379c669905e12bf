"""What the steps of a run share."""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mgspmv.api.arguments import ignore
from mgspmv.model import Event, Progress, default_threads
from mgspmv.monitor.versions import find_versions
from mgspmv.pipeline.computing import Computing
from mgspmv.pipeline.identity import Identity
from mgspmv.pipeline.reading import Definition
from mgspmv.pipeline.records import Records
from mgspmv.pipeline.sources import Checksums
from mgspmv.pipeline.steps import Step


@dataclass(frozen=True)
class Work:
    """What the steps of a run share."""

    definition: Definition
    records: Records
    checksums: Checksums
    computing: Computing
    report: Progress = ignore
    """Called with (step and phase, done, total or None)."""
    on_event: Callable[[Step, Event], None] | None = None
    is_interrupted: threading.Event = field(default_factory=threading.Event)
    """Set when steps are to end, which they do at the next thing that they report."""

    def listen(self, step: Step) -> Listener:
        """What a step reports to."""
        return Listener(self, step)


@dataclass(frozen=True)
class Listener:
    """What a step reports to.

    Raises
    ------
    KeyboardInterrupt : from each call, once the run is interrupted
    """

    work: Work
    step: Step

    def on_progress(self, phase: str, done: int, total: int | None) -> None:
        """`done` of `total` units of a phase are done."""
        if self.work.is_interrupted.is_set():
            raise KeyboardInterrupt
        self.work.report(f"{self.step.name}: {phase}", done, total)

    def on_event(self, event: Event) -> None:
        """An iteration is done."""
        self.on_progress("iterate", event.iteration, getattr(self.step.section, "max_iter", None))
        if self.work.on_event is not None:
            self.work.on_event(self.step, event)


def describe_provenance(step: Step, identity: Identity, **more: Any) -> dict[str, Any]:
    """Where and with what a step was made, as JSON values."""
    files = step.section.model_dump(mode="json")
    sources = {
        name: {"path": files.get({"source": "path"}.get(name, name)), "digest": found}
        for name, found in identity.inputs.items()
        if name not in ("matrix", "store")
    }
    return {"versions": find_versions(), "machine": _describe_machine(), "inputs": sources, **more}


def _describe_machine() -> dict[str, Any]:
    import psutil

    return {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "processors": default_threads(),
        "memory_bytes": int(psutil.virtual_memory().total),
        "pid": os.getpid(),
        "command": sys.argv,
    }

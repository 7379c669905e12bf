"""What the steps of a run share: records, the cluster that is started when it is first needed, an opened matrix."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mgspmv.api import open_matrix
from mgspmv.api.matrix import Matrix
from mgspmv.model import Event, Progress, default_threads, ignore
from mgspmv.monitor.versions import find_versions
from mgspmv.pipeline.definition import ClusterSection
from mgspmv.pipeline.keys import Identity
from mgspmv.pipeline.reading import Definition
from mgspmv.pipeline.records import Records
from mgspmv.pipeline.sources import Checksums
from mgspmv.pipeline.steps import Step


class Computing:
    """Where a pipeline computes; what it starts ends when it is closed.

    Parameters
    ----------
    section : of the cluster; None for this process
    client : of a cluster to be used in place of that
    threads : of this process; None for one for each processor
    on_note : called with lines on the cluster, when it is started or reached
    """

    def __init__(
        self,
        section: ClusterSection | None,
        client: Any = None,
        threads: int | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> None:
        self.is_on_cluster = section is not None or client is not None
        self.section = section or ClusterSection()
        self._client, self._is_given = client, client is not None
        self.threads, self._on_note = threads, on_note
        self._stack = ExitStack()

    def close(self) -> None:
        """End what was started."""
        self._stack.close()

    @property
    def makes_matrices(self) -> bool:
        """Whether the workers of the cluster make matrices too."""
        return self.is_on_cluster and self.section.ingest

    @property
    def kernel_threads(self) -> int | None:
        """Of the kernels of a step, on a cluster of those of each worker."""
        return self.section.threads if self.is_on_cluster else self.threads

    @property
    def client(self) -> Any:
        """Of the cluster, which is started or reached when this is first asked for.

        Raises
        ------
        ClusterError : it cannot be
        """
        if self._client is None:
            self._client = self._reach()
        return self._client

    def _reach(self) -> Any:
        from mgspmv.distribute.cluster import Cluster
        from mgspmv.distribute.managers import start_cluster
        from mgspmv.distribute.tls import use_tls

        own = self.section
        self._stack.enter_context(use_tls(own.tls))
        reached: Any = own.address
        if own.kind != "address":
            started = start_cluster(own.kind, own.workers, own.threads, self._on_note, **own.options)
            reached = self._stack.enter_context(started)
        cluster = Cluster(reached, own.timeout)
        self._stack.callback(cluster.close)
        if self._on_note is not None and cluster.dashboard_link:
            self._on_note(f"dashboard: {cluster.dashboard_link}")
        return cluster.client

    @property
    def distributing(self) -> dict[str, Any]:
        """Options of `Matrix.distribute`."""
        own = self.section
        backend = "auto" if self._is_given else {"local": "cpu", "cuda": "cuda"}.get(own.kind, "auto")
        return {"backend": backend} | own.given("device_memory", "host_memory", "transport", "timeout", "threads")


class OpenedMatrix:
    """A matrix that is opened, and loaded once for all that is computed of it.

    Parameters
    ----------
    store : where it is
    """

    def __init__(self, store: str, computing: Computing) -> None:
        self._store, self.computing = store, computing
        self._distributed: tuple[tuple[bool, bool], Any] | None = None

    @cached_property
    def matrix(self) -> Matrix:
        """The matrix itself, opened in this process.

        Raises
        ------
        StoreError : it cannot be
        """
        return open_matrix(self._store)

    def close(self) -> None:
        """Let go of what was loaded, here and on workers."""
        self._let_go()
        if "matrix" in self.__dict__:
            self.matrix.close()

    def find(self, is_turned: bool, *, on_progress: Any, for_steps: bool = False) -> Any:
        """The matrix or its transpose, on the cluster where that computes.

        Parameters
        ----------
        for_steps : for the steps of PageRank, for which devices lay a graph out

        Raises
        ------
        KindError : the store does not hold the transpose
        ClusterError, CapacityError : as of `Matrix.distribute`
        """
        matrix = self.matrix.T if is_turned else self.matrix
        if not self.computing.is_on_cluster:
            return matrix
        wanted = (is_turned, for_steps)
        if self._distributed is None or self._distributed[0] != wanted:
            self._let_go()
            client = self.computing.client
            options: dict[str, Any] = {**self.computing.distributing, "on_progress": on_progress}
            distribute = matrix.distribute if for_steps else matrix.distribute_for_products
            self._distributed = wanted, distribute(client, **options)
        return self._distributed[1]

    def _let_go(self) -> None:
        if self._distributed is not None:
            self._distributed[1].close()
        self._distributed = None


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

    def listen(self, step: Step) -> Listener:
        """What a step reports to."""
        return Listener(self, step)


@dataclass(frozen=True)
class Listener:
    """What a step reports to."""

    work: Work
    step: Step

    def on_progress(self, phase: str, done: int, total: int | None) -> None:
        """`done` of `total` units of a phase are done."""
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

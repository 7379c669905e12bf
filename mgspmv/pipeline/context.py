"""State shared by the steps of a run: records, a cluster that is started on demand, an opened matrix."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from typing import Any

import psutil

from mgspmv.api.matrix import Matrix, open_matrix
from mgspmv.model import default_threads, ignore
from mgspmv.monitor.progress import watched
from mgspmv.pipeline.definition import ClusterSection
from mgspmv.pipeline.reading import Definition
from mgspmv.pipeline.records import Records, now
from mgspmv.pipeline.steps import Identity, PipelineStep
from mgspmv.report.record import StepRecord
from mgspmv.validation import to_json
from mgspmv.version import find_versions


class RunContext(ExitStack):
    """State shared by the steps of a run; a cluster that it starts is closed with the context.

    Parameters
    ----------
    client : client of a cluster to use in place of the definition's
    on_note : called with messages about the cluster when it is started or connected to
    """

    def __init__(
        self, definition: Definition, records: Records, client: Any, on_note: Callable[[str], None] | None
    ) -> None:
        super().__init__()
        self.definition, self.pipeline, self.records = definition, definition.pipeline, records
        self.is_on_cluster = self.pipeline.cluster is not None or client is not None
        self.cluster = self.pipeline.cluster or ClusterSection()
        self._given, self._on_note = client, on_note or ignore

    @cached_property
    def client(self) -> Any:
        """Client of the cluster, which is started or connected to on first access.

        Raises
        ------
        ClusterError : the cluster cannot be started, or does not answer
        """
        if self._given is not None:
            return self._given
        from mgspmv.cluster.managers import connect

        kind = self.cluster.kind if self.cluster.address is None else None
        given = self.cluster.given("timeout", "workers", "threads", "options", "tls")
        return self.enter_context(connect(kind, self.cluster.address, **given, on_note=self._on_note))

    def distribute(self, matrix: Matrix, *, build_layout: bool) -> Any:
        """Load a matrix on the workers, as the definition says.

        Raises
        ------
        ClusterError, CapacityError : as in `Matrix.distribute`
        """
        started = {} if self._given is not None else {"local": "cpu", "cuda": "cuda"}
        backend: Any = started.get(self.cluster.kind, "auto")
        names = ("transport", "timeout", "threads", "executor", "device_memory", "host_memory")
        placed = matrix.on(self.client, backend=backend, **self.cluster.given(*names))
        return watched(placed.distribute_as_placed)(build_layout=build_layout)


class OpenedMatrix(ExitStack):
    """Opened matrix, loaded once for all results computed from it; released with the context.

    Parameters
    ----------
    store : path or URL of its store
    """

    def __init__(self, store: str, work: RunContext) -> None:
        super().__init__()
        self._store, self._work, self._loaded = store, work, ExitStack()
        self._distributed: dict[tuple[bool, bool], Any] = {}

    @cached_property
    def matrix(self) -> Matrix:
        """Matrix opened in this process.

        Raises
        ------
        StoreError : the store cannot be opened
        """
        matrix = self.enter_context(open_matrix(self._store))
        self.enter_context(self._loaded)  # after the matrix, so that it is closed before the matrix
        return matrix

    def find(self, is_turned: bool, *, for_steps: bool = False) -> Any:
        """Return the matrix or its transpose, distributed if a cluster computes.

        Parameters
        ----------
        for_steps : True for the steps of PageRank, for which devices convert a graph to another layout

        Raises
        ------
        KindError : the store does not hold the transpose
        ClusterError, CapacityError : as in `Matrix.distribute`
        """
        matrix = self.matrix.T if is_turned else self.matrix
        if not self._work.is_on_cluster:
            return matrix
        wanted = (is_turned, for_steps)
        if wanted not in self._distributed:
            self._distributed.clear()
            self._loaded.close()  # first: the workers may not have memory for both
            distributed = self._work.distribute(matrix, build_layout=for_steps)
            self._distributed[wanted] = self._loaded.enter_context(distributed)
        return self._distributed[wanted]


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

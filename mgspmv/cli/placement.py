"""Placement of a command: in this process, on a cluster that it starts, or on a running one."""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import date, time
from typing import TYPE_CHECKING, Any

from mgspmv.cli.output import end_meanwhile, open_progress, print_note
from mgspmv.errors import OptionError

if TYPE_CHECKING:
    from mgspmv.api.matrix import Matrix
    from mgspmv.cluster.matrix import DistributedMatrix
    from mgspmv.monitor.progress import ProgressLine


@dataclass(frozen=True)
class PlacementOptions:
    """Placement of a command, by its options; this process when neither cluster nor scheduler is given."""

    cluster: str | None = None
    workers: int | None = None
    threads: int | None = None
    cluster_option: list[str] | None = None
    scheduler: str | None = None
    tls: str | None = None
    timeout: float = 30.0

    def __post_init__(self) -> None:
        if self.cluster is not None and self.scheduler is not None:
            raise OptionError("--cluster starts a cluster and --scheduler uses a running one; give only one of them")
        if self.cluster is not None:
            if self.cluster in ("local", "cuda"):
                from mgspmv.cluster.forking import begin_server

                begin_server(has_devices=self.cluster == "cuda")  # loads modules while others are loaded here
            from mgspmv.cluster.managers import find_manager

            find_manager(self.cluster)
        if self.options and self.cluster is None:
            raise OptionError("--cluster-option configures a started cluster; add --cluster, or leave it out")
        if self.workers is not None and self.cluster is None:
            raise OptionError("--workers is the size of a started cluster; add --cluster, or leave it out")
        if self.tls is not None and self.is_embedded:
            raise OptionError("--tls encrypts the connections of a cluster; add --cluster or --scheduler")
        if self.tls == "temporary" and self.cluster is None:
            raise OptionError("--tls temporary needs --cluster; name the folder of the running cluster's certificates")
        if not self.timeout > 0:
            raise OptionError(f"--timeout must be a positive number of seconds, not {self.timeout:g}")

    def choose_backend(self, backend: str) -> str:
        """Resolve `auto` for started workers: `cpu` for `local`, and `cuda` for `cuda`."""
        started = {"local": "cpu", "cuda": "cuda"}
        return started.get(self.cluster or "", backend) if backend == "auto" else backend

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the cluster's class."""
        given = [parse_setting("--cluster-option", text, "queue=gpu") for text in self.cluster_option or ()]
        for key, _ in given:
            if key in ("kind", "workers", "threads", "on_note"):
                raise OptionError(f"--cluster-option cannot set {key}; use --cluster, --workers and --threads")
        return dict(given)

    @property
    def is_embedded(self) -> bool:
        """True if this process computes."""
        return self.cluster is None and self.scheduler is None


@dataclass(frozen=True)
class ComputingOptions(PlacementOptions):
    """Placement of a command that computes products, with memory limits."""

    backend: str = "auto"
    device_memory: str | None = None
    host_memory: str | None = None

    def place(self, matrix: Matrix, client: Any, **options: Any) -> Matrix:
        """Return a matrix placed on a client, or in this process without one.

        Parameters
        ----------
        options : others of `Matrix.on`
        """
        given = self._limits | options
        backend: Any = self.choose_backend(self.backend)
        if client is None:
            return matrix.on(backend, **given)
        return matrix.on(client, backend=backend, timeout=self.timeout, **given)

    def read_edges(self, source: str, client: Any, **options: Any) -> DistributedMatrix:
        """Let the workers of a client read edges and hold them; `options` are others of `mgspmv.read_edges`."""
        import mgspmv as mg

        backend: Any = self.choose_backend(self.backend)
        return mg.read_edges(source, client, backend=backend, timeout=self.timeout, **self._limits | options)

    @property
    def _limits(self) -> dict[str, Any]:
        return {"threads": self.threads, "device_memory": self.device_memory, "host_memory": self.host_memory}


def parse_setting(option: str, text: str, example: str) -> tuple[str, Any]:
    """Split KEY=VALUE of an option; the value is parsed as TOML or JSON, else, and if it is a time, kept as text.

    Raises
    ------
    OptionError : the text is not KEY=VALUE
    """
    key, sign, value = (part.strip() for part in text.partition("="))
    if not (key and sign):
        raise OptionError(f"{option} {text}: expected KEY=VALUE, such as {example}")
    with suppress(tomllib.TOMLDecodeError):
        read = tomllib.loads(f"value = {value}")["value"]
        return key, value if isinstance(read, date | time) else read  # wall times are written as times
    with suppress(ValueError):
        return key, json.loads(value)
    return key, value


@contextmanager
def quieten_dask() -> Iterator[None]:
    """Keep loggers of Dask and other libraries off stderr; errors that end a run are raised, and printed once.

    Loggers of loaded programs have separate handlers.
    """
    import distributed  # noqa: F401 (or it would be loaded later, and give its loggers handlers then)

    loggers = [logger for logger in logging.root.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    others = [logging.root, *(logger for logger in loggers if logger.name.partition(".")[0] != "mgspmv")]
    handlers = [handler for logger in others for handler in logger.handlers]
    handlers += [] if logging.lastResort is None else [logging.lastResort]

    def reject(record: logging.LogRecord) -> bool:
        return False

    for handler in handlers:
        handler.addFilter(reject)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(reject)


@contextmanager
def open_client(place: PlacementOptions, progress: ProgressLine | None = None, *, waits: bool = True) -> Iterator[Any]:
    """Open the client of a cluster, or None where this process computes; a started cluster ends with the context.

    Parameters
    ----------
    progress : shows the phases of connecting; None for a separate display
    waits : False returns while the cluster ends, except after an error; the command waits for it at its end
    """
    if place.is_embedded:
        yield None
        return
    from mgspmv.cluster.managers import connect
    from mgspmv.monitor.events import find_dashboard

    with ExitStack() as stack:
        stack.enter_context(quieten_dask())
        with open_progress() if progress is None else nullcontext(progress) as shown:
            shown.phase("connecting" if place.cluster is None else "starting workers")
            client = stack.enter_context(
                connect(
                    place.cluster,
                    place.scheduler,
                    timeout=place.timeout,
                    workers=place.workers,
                    threads=place.threads,
                    options=place.options,
                    tls=place.tls,
                    on_note=print_note,
                )
            )
            if (dashboard := find_dashboard(client)) is not None:
                print_note(f"dashboard: {dashboard}")
        yield client
        if not waits:
            end_meanwhile(stack.pop_all().close)

"""Placement of products and iterations: where they compute, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mgspmv.errors import OptionError
from mgspmv.kernels.catalogue import Backend
from mgspmv.kernels.select import choose_backend
from mgspmv.model import check_choice
from mgspmv.partition import parse_bytes

Executor = Literal["auto", "embedded", "tasks", "supersteps"]
TransportChoice = Literal["auto", "nccl", "peer"]
BackendChoice = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class Placement:
    """Place where a matrix computes, and how; set by `Matrix.on`, `Matrix.distribute` and `DistributedMatrix.on`.

    Raises
    ------
    OptionError : an invalid option, or one that does not suit the others
    """

    client: Any = None
    """Client, cluster or address to distribute the matrix on for each call; None where it computes as it is."""
    is_distributed: bool = False
    """Whether workers of a cluster hold the matrix."""
    backend: BackendChoice = "auto"
    """Backend of this process or, with `client`, of its workers."""
    kernel: str = "auto"
    threads: int | None = None
    executor: Executor = "auto"
    device_memory: str | int | None = None
    host_memory: str | int | None = None
    transport: TransportChoice = "auto"
    timeout: float = 30.0
    recover: int = 5

    def __post_init__(self) -> None:
        check_threads(self.threads)
        check_choice("backend", self.backend, ("auto", "cpu", "cuda"))
        check_choice("executor", self.executor, ("auto", "embedded", "tasks", "supersteps"))
        check_choice("transport", self.transport, ("auto", "nccl", "peer"))
        if not isinstance(self.recover, int | np.integer) or isinstance(self.recover, bool) or self.recover < 0:
            raise OptionError(f"recover must be an integer of 0 or more, not {self.recover!r}")
        if self.is_on_cluster and self.executor == "embedded":
            raise OptionError(
                "executor='embedded' computes in this process, not on workers; leave it out, or use the opened matrix "
                "without a cluster"
            )
        if not self.is_on_cluster and self.executor in ("tasks", "supersteps"):
            raise OptionError(
                f"executor={self.executor!r} needs a cluster; pass one as where=, or use a matrix of distribute()"
            )
        if not self.is_on_cluster and self.transport != "auto":
            raise OptionError("transport= applies to the workers of a cluster; pass one as where=")
        if self.is_limited and not self.is_on_cluster and self.backend == "cpu":
            raise OptionError(
                "device_memory= and host_memory= limit what a run on CUDA or on a cluster takes; leave them out with "
                "backend='cpu'"
            )

    @property
    def is_on_cluster(self) -> bool:
        """True if workers of a cluster compute."""
        return self.is_distributed or self.client is not None

    @property
    def computes(self) -> Backend:
        """Backend of this process; `cpu` where workers compute.

        Raises
        ------
        BackendError, MissingDependencyError : CUDA cannot be used here
        OptionError : memory of a device is limited, and this process computes on its host
        """
        backend = "cpu" if self.is_on_cluster else choose_backend(self.backend)
        if self.is_limited and backend == "cpu" and not self.is_on_cluster:
            raise OptionError(
                "device_memory= and host_memory= limit what a run on CUDA takes, and this process computes on its "
                "host; leave them out"
            )
        return backend

    @property
    def is_limited(self) -> bool:
        """True if a limit of memory is given."""
        return self.device_memory is not None or self.host_memory is not None

    @property
    def limits(self) -> dict[str, int | None]:
        """Most bytes to take, by memory."""
        return {"device_memory": parse_size(self.device_memory), "host_memory": parse_size(self.host_memory)}

    @property
    def chosen_executor(self) -> Executor:
        """The executor; of `auto` the default of the place."""
        if self.executor == "auto":
            return "supersteps" if self.is_on_cluster else "embedded"
        return self.executor


def parse_size(size: str | int | None) -> int | None:
    """Parse a size in bytes; None stays None."""
    return None if size is None else parse_bytes(size)


def check_threads(threads: int | None) -> None:
    """Raise `OptionError` unless `threads` is None or an integer of at least 1."""
    if threads is not None and not isinstance(threads, int | np.integer):
        raise OptionError(f"threads must be an integer, not {threads!r}")
    if threads is not None and threads < 1:
        raise OptionError(f"threads must be at least 1, not {threads}")

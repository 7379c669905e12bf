"""What the benchmark of PageRank finds of one program on one graph."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

PEERS = ("cugraph", "cugraph-compact")
"""cuGraph told of all vertices, and of those that have arcs; the faster is what ratios are to."""
PREPARATIONS = 7
"""How often preparation is timed, after one that compiles; the median counts."""


@dataclass(frozen=True)
class Record:
    """What was found of a contender on a graph."""

    graph: str
    family: str
    contender: str
    is_peer: bool
    n_vertices: int
    n_isolated: int
    """Vertices without arcs."""
    n_edges: int
    """Arcs, all that are stored."""
    problem: str | None = None
    """Why there is no time."""
    is_wrong: bool = False
    """Whether the problem is wrong ranks."""
    error: float | None = None
    """Largest relative difference of a rank to the iteration in float64; None where it is not finite."""
    peer_error: float | None = None
    """The same to the first peer that was right."""
    prepare_s: float | None = None
    """From arcs on the device, CSR here and unsorted there, to when iterations can begin."""
    iteration_s: float | None = None
    """Of one iteration."""
    prepare_iterations: float | None = None
    """Preparation over an iteration."""
    edges_per_s: float | None = None
    limit_s: float | None = None
    """Least time of an iteration: the bytes of `count_bytes` at the bandwidth of a copy. None for peers."""
    limit_share: float | None = None
    """That over the time of an iteration."""
    ratio: float | None = None
    """The faster peer's time over that here: how many times as fast this is."""

    def to_dict(self) -> dict[str, Any]:
        """For scripts."""
        return {name: value for name, value in asdict(self).items() if value is not None}

"""Check, then time: what every comparison has in common."""

from __future__ import annotations

import gc
import itertools
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, TypeVar

import numpy as np

from benchmarks.stores import Graph

T = TypeVar("T")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Rounds:
    """How often all take their turn."""

    least: int = 9
    """At least so many times, unless `most_s` is over; always three times, or `least` if that is less."""
    least_s: float = 5.0
    """For at least so many seconds, lest a moment's noise meets all runs of a short task."""
    most_s: float = 150.0
    """No further round begins after so many seconds."""

    def is_over(self, done: int, elapsed_s: float) -> bool:
        if done < min(3, self.least):
            return False
        return elapsed_s >= self.most_s or (done >= self.least and elapsed_s >= self.least_s)


@dataclass(frozen=True)
class Verdict:
    """What a check says of a result."""

    is_right: bool
    error: float
    """Largest relative error of a product; L1 error of ranks."""


class Peer(ABC):
    """A program that does the task, in one of its settings; ours are peers too."""

    name: str
    """Of the row."""
    is_ours = False
    is_parallel = False
    """Whether it uses the threads it is given; else it uses one."""
    beside: str | None = None
    """Name of our row that does the same with as many threads."""
    floor: float | None = None
    """Ours is to be so many times as fast."""
    largest_scale = 40
    """Left out of larger graphs, which would take it too long or too much memory."""

    @abstractmethod
    def prepare(self, graph: Graph, threads: int) -> None:
        """Import the library and make its own object of the graph, which is not timed."""

    @abstractmethod
    def run(self) -> Any:
        """Do the task, timed, and give the result as the library does."""

    @abstractmethod
    def check(self, values: np.ndarray, graph: Graph) -> Verdict:
        """Whether the result is right."""

    def read(self, result: Any) -> np.ndarray:
        """The result as an array, not timed."""
        return np.asarray(result)

    def count_iterations(self, result: Any) -> int | None:
        """How many iterations were made, where the library tells."""
        return None


@dataclass(frozen=True)
class Row:
    """What was found of a peer on a graph."""

    task: str
    scale: int
    n_arcs: int
    name: str
    threads: int
    error: float | None = None
    """As in `Verdict`; None where it did not run."""
    iterations: int | None = None
    seconds: tuple[float, ...] = ()
    """Of each run; empty for a peer that was left out or wrong."""
    ratio: float | None = None
    """Median over the median of our row beside it: how many times as fast ours is."""
    floor: float | None = None
    """What the ratio is to be at least."""
    remark: str = ""
    """Why there is no time."""
    is_wrong: bool = False

    @property
    def median_s(self) -> float:
        return median(self.seconds) if self.seconds else math.nan


def say(message: str) -> None:
    """Tell who waits what is being done."""
    print(message, file=sys.stderr, flush=True)


def compare(task: str, peers: Sequence[Peer], graph: Graph, threads: int, rounds: Rounds, say: Say) -> list[Row]:
    """Check every peer, then time those that were right, in turn: A B C A B C ..."""
    rows, able = [], []
    for peer in peers:
        say(f"{task}, scale {graph.scale}: preparing and checking {peer.name}")
        row = _check(task, peer, graph, threads)
        rows.append(row)
        able += [peer] if not row.remark else []
    say(f"{task}, scale {graph.scale}: timing {len(able)} programs in turn")
    seconds = take_turns({peer.name: partial(_time_once, peer) for peer in able}, rounds)
    return _add_times(rows, {peer.name: peer for peer in able}, seconds)


def _check(task: str, peer: Peer, graph: Graph, threads: int) -> Row:
    asked = threads if peer.is_parallel else 1
    known = {"task": task, "scale": graph.scale, "n_arcs": graph.pull.nnz, "name": peer.name, "threads": asked}
    if graph.scale > peer.largest_scale:
        return Row(**known, remark=f"left out above scale {peer.largest_scale}")
    try:
        peer.prepare(graph, asked)
        result = peer.run()
    except (ImportError, MemoryError) as error:
        return Row(**known, remark=f"left out: {error or 'not enough memory'}")
    values = peer.read(result)
    if values.shape != (graph.n,):
        return Row(**known, remark=f"WRONG: shape {values.shape}", is_wrong=True)
    verdict = peer.check(values, graph)
    remark = "" if verdict.is_right else f"WRONG: error {verdict.error:.2g}"
    iterations = peer.count_iterations(result)
    return Row(**known, error=verdict.error, iterations=iterations, remark=remark, is_wrong=not verdict.is_right)


def take_turns(tasks: Mapping[str, Callable[[], T]], rounds: Rounds, *, turns_back: bool = False) -> dict[str, list[T]]:
    """What each task gives each time, when they take turns: A B C A B C ..., or A B C C B A ... when it turns back."""
    results: dict[str, list[T]] = {name: [] for name in tasks}
    began = time.perf_counter()
    gc.collect()
    gc.disable()  # a collection would walk the graphs of all the others
    try:
        for done in itertools.count():
            if rounds.is_over(done, time.perf_counter() - began):
                break
            for name in reversed(tasks) if turns_back and done % 2 else tasks:
                results[name].append(tasks[name]())
    finally:
        gc.enable()
    return results


def _time_once(peer: Peer) -> float:
    began = time.perf_counter()
    result = peer.run()
    elapsed_s = time.perf_counter() - began
    del result  # kept until here: to free it is not timed
    return elapsed_s


def _add_times(rows: list[Row], able: dict[str, Peer], seconds: dict[str, list[float]]) -> list[Row]:
    timed = []
    for row in rows:
        taken = seconds.get(row.name, [])
        peer = able.get(row.name)
        ours = seconds.get(peer.beside, []) if peer and peer.beside else []
        ratio = median(taken) / median(ours) if taken and ours else None
        floor = peer.floor if peer else None
        timed.append(Row(**vars(row) | {"seconds": tuple(taken), "ratio": ratio, "floor": floor}))
    return timed

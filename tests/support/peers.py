"""Workers of a run as threads of this process, over connections that deliver as late as they can."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from tests.support.waiting import HANG_S


class StuckError(AssertionError):
    """All workers wait and no message is under way."""


class Network:
    """Connections between workers. One message is delivered when all who have not finished wait for one.

    So whoever can go on does so before anybody reads a message, and a sender that writes again into what was not read
    yet is found out. Messages of one worker to another stay in order and are not copied, as between workers of one
    process.

    Parameters
    ----------
    seed : of the order in which messages are delivered
    last : a worker that gets a message only when nobody else can
    """

    def __init__(self, n_workers: int, seed: int = 0, last: int | None = None) -> None:
        self._boxes: list[list[deque[dict[str, Any]]]] = [[deque() for _ in range(n_workers)] for _ in range(n_workers)]
        self._random, self._last = random.Random(seed), last
        self._given: list[SimpleQueue[tuple[int, dict[str, Any]] | None]] = [SimpleQueue() for _ in range(n_workers)]
        self._lock = threading.Lock()
        self._running = set(range(n_workers))
        self._waiting: set[int] = set()
        self.most_waiting = 0
        """Messages of one worker to another that there were at most at a time."""

    def links(self, rank: int) -> NetworkLinks:
        return NetworkLinks(self, rank)

    def send(self, sender: int, rank: int, message: dict[str, Any]) -> None:
        with self._lock:
            box = self._boxes[rank][sender]
            box.append(message)
            self.most_waiting = max(self.most_waiting, len(box))

    def receive(self, rank: int) -> tuple[int, dict[str, Any]]:
        with self._lock:
            self._running.remove(rank)
            self._waiting.add(rank)
            self._deliver()
        given = self._given[rank].get()
        if given is None:
            raise StuckError(f"worker {rank} waits for ever")
        return given

    def finish(self, rank: int) -> None:
        """This worker waits for nothing any more."""
        with self._lock:
            self._running.discard(rank)
            self._deliver()

    def _deliver(self) -> None:
        if self._running:
            return
        ready = [(r, s) for r in sorted(self._waiting) for s, box in enumerate(self._boxes[r]) if box]
        preferred = [pair for pair in ready if pair[0] != self._last] or ready
        if preferred:
            rank, sender = self._random.choice(preferred)
            self._waiting.remove(rank)
            self._running.add(rank)
            self._given[rank].put((sender, self._boxes[rank][sender].popleft()))
        else:
            for rank in self._waiting:
                self._given[rank].put(None)
            self._waiting.clear()


class NetworkLinks:
    """The connections of one worker, as `mgspmv.exchange.peer_comm.PeerComm`."""

    def __init__(self, network: Network, rank: int) -> None:
        self._network, self._rank = network, rank
        self.sent: list[tuple[int, dict[str, Any]]] = []

    def send(self, messages: Any) -> None:
        for rank, message in messages.items():
            self.sent.append((rank, message))
            self._network.send(self._rank, rank, message)

    def receive(self, missing: Sequence[int]) -> tuple[int, dict[str, Any]]:
        assert missing, "nothing is missing"
        return self._network.receive(self._rank)


def run_workers(network: Network, n_workers: int, work: Callable[[int], Any]) -> list[Any]:
    """`work(rank)` of each worker, each in its thread; the first error is raised."""
    results: list[Any] = [None] * n_workers
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except BaseException as error:
            errors.append(error)
        finally:
            network.finish(rank)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(n_workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
        assert not thread.is_alive(), "a worker hangs"
    for error in sorted(errors, key=lambda e: isinstance(e, StuckError)):
        raise error
    return results

"""Workers that join a cluster while a run goes on, and could help it."""

from __future__ import annotations

import concurrent.futures
import logging
import time
from collections.abc import Sequence

from mgspmv.distribute.cluster import Cluster
from mgspmv.exchange.links import Member

LOOK_S = 1.0
"""Seconds between two looks at who is in the cluster."""

logger = logging.getLogger("mgspmv.runs")


class Newcomers:
    """Looks for workers beside those of a run, about once a second, while nobody waits for it.

    Parameters
    ----------
    members : the workers of the run
    devices : whether they compute on devices, which others must have too
    """

    def __init__(self, cluster: Cluster, members: Sequence[Member], *, devices: bool) -> None:
        self._cluster, self._members, self._devices = cluster, members, devices
        self._looking: concurrent.futures.Future[set[Member]] | None = None
        self._looked_s = time.monotonic()
        self._seen: set[Member] = set()
        self._ready: set[Member] = set()

    def look(self) -> int:
        """How many could join now: they were seen twice, answer, and have what is needed."""
        if self._looking is not None and self._looking.done():
            self._take(self._looking)
            self._looking, self._looked_s = None, time.monotonic()
        elif self._looking is None and time.monotonic() - self._looked_s >= LOOK_S:
            self._looking = self._cluster.begin(self._look())
        return len(self._ready)

    def _take(self, looked: concurrent.futures.Future[set[Member]]) -> None:
        """Of a scheduler that does not answer the run itself says so, and of workers the next look."""
        error = looked.exception()
        if error is not None:
            logger.debug("no look at who joins the cluster: %r", error)
        self._ready = set() if error is not None else looked.result()

    async def _look(self) -> set[Member]:
        """Those that are ready, of those that are there."""
        there = await self._cluster.find_new(self._members)
        again, self._seen = there & self._seen, there
        unknown = again - self._ready
        return (again & self._ready) | (await self._cluster.prepare(unknown, devices=self._devices))

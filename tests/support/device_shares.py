"""Devices of the shares of an ingest, played by threads of this process."""

from __future__ import annotations

import threading
from typing import Any

from mgspmv.kernels.formats import array_module
from tests.support.waiting import HANG_S


class HostStaging:
    """Copies arrays on the host, where the kernels' reference sorts them."""

    def put(self, array):
        return array.copy()

    def finish(self):
        pass


class PlayedGroup:
    """Devices of shares that are threads of this process."""

    def __init__(self, n: int) -> None:
        self._meeting, self._sent = threading.Barrier(n), dict[int, Any]()
        self.n_trades = 0

    def give_up(self) -> None:
        """Let no share wait for others."""
        self._meeting.abort()

    def join(self, rank: int) -> PlayedDevices:
        return PlayedDevices(self, rank)

    def trade(self, rank: int, sent: list[Any]) -> Any:
        self._meeting.wait(HANG_S)
        self._sent[rank] = sent
        if self._meeting.wait(HANG_S) == 0:
            self.n_trades += 1
        found = [self._sent[other][rank] for other in sorted(self._sent)]
        return array_module(sent[0]).concatenate(found)


class PlayedDevices:
    def __init__(self, group: PlayedGroup, rank: int) -> None:
        self.group, self._rank = group, rank

    def trade(self, sent: list[Any]) -> Any:
        return self.group.trade(self._rank, sent)

"""Faults strike what they name, and heal."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass

import psutil
import pytest
from distributed import Client

from tests.support.chaos.faults import Cut, Interrupt, Kill, Moment, Scene, Stop, Strikes
from tests.support.chaos.fleet import Fleet, Shape
from tests.support.hosts import Network, why_not_split
from tests.support.waiting import HANG_S, wait_for

pytestmark = pytest.mark.external("ip")
NOW = Moment("join", 0.0)


@dataclass(frozen=True)
class PlayedDriver:
    """Tells what a test lets it tell."""

    told: list[str]
    exit_code: int | None = None

    def has_told(self, phase):
        return phase in self.told

    def read_told(self):
        return [{"phase": phase, "done": 0} for phase in self.told]


@pytest.fixture
def scene(tmp_path):
    """Without programs."""
    return Scene(None, PlayedDriver(["join"]), tmp_path / "run.zarr", 1.0)


@pytest.fixture
def start(tmp_path, scene):
    """`start(...)` gives a scene with two workers and a client."""
    made = []

    def begin(**shape):
        fleet = Fleet(Network(is_split=not why_not_split()), tmp_path / "fleet", Shape(2, **shape)).__enter__()
        client = Client(fleet.address, set_as_default=False)
        made.extend([client, fleet])
        return Scene(fleet, scene.driver, scene.checkpoint, 1.0), client

    yield begin
    for each in made:
        each.close()


def list_workers(client):
    return sorted(worker["name"] for worker in client.scheduler_info(n_workers=-1)["workers"].values())


def ask(client, name, function, *args):
    return client.submit(function, *args, workers=[name], pure=False, retries=0)


def test_processes_are_killed_and_stopped(start):
    scene, client = start()
    stop, process = Stop(NOW, "w0"), psutil.Process(scene.find("w0").pid)
    stop.strike(scene)
    assert wait_for(lambda: process.status() == psutil.STATUS_STOPPED)
    stop.heal(scene)
    assert ask(client, "w0", sum, [1, 2]).result(HANG_S) == 3
    Kill(NOW, "w1").strike(scene)
    assert wait_for(lambda: scene.find("w1").exit_code == -signal.SIGKILL)
    assert wait_for(lambda: list_workers(client) == ["w0"])
    Kill(NOW, "w1").strike(scene)  # has no effect on a process that is gone
    Kill(NOW, "scheduler").strike(scene)
    assert wait_for(lambda: scene.find("scheduler").exit_code == -signal.SIGKILL)


@pytest.mark.skipif(bool(why_not_split()), reason=why_not_split() or "it can be done")
def test_links_are_cut(start):
    scene, client = start()
    cut = Cut(NOW, "w0")
    assert ask(client, "w0", len, b"").result(HANG_S) == 0
    cut.strike(scene)
    with pytest.raises(TimeoutError):
        ask(client, "w0", len, b"").result(1.0)
    cut.heal(scene)
    assert ask(client, "w0", len, b"").result(HANG_S) == 0


@dataclass(frozen=True)
class Noted(Interrupt):
    """Strikes and heals in a list only."""

    noted: tuple[list, ...] = ()

    def strike(self, scene):
        self.noted[0].append("strike")

    def heal(self, scene):
        self.noted[0].append("heal")


def test_a_fault_strikes_when_its_phase_has_begun(scene):
    noted = []
    strikes = Strikes((Noted(Moment("iterate", 0.1), (noted,)),), scene)
    time.sleep(0.3)
    assert noted == []
    scene.driver.told.append("iterate")
    assert wait_for(lambda: strikes.struck.keys() == {0})
    strikes.end()
    assert noted == ["strike", "heal"]


def test_a_fault_that_cannot_strike_is_an_error(scene):
    strikes = Strikes((Kill(NOW, "w7"),), scene)
    assert wait_for(lambda: strikes.failures)
    strikes.end()
    assert strikes.struck == {}

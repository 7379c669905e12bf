"""Faults strike what they name, and heal."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass

import psutil
import pytest
from distributed import Client

import mgspmv as mg
from mgspmv.checkpoints import Checkpoints
from tests.support.chaos.disks import Disk, why_no_disks
from tests.support.chaos.faults import (
    Cut,
    FlipState,
    Interrupt,
    Jump,
    Kill,
    Moment,
    Scene,
    Stop,
    Strikes,
)
from tests.support.chaos.fleet import Fleet, Shape
from tests.support.chaos.programs import why_no_clock
from tests.support.hosts import Network, why_not_split
from tests.support.waiting import HANG_S, wait_for

pytestmark = pytest.mark.external("cc", "ip", "mount")
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
    own = not why_no_disks()
    with Disk(tmp_path / "matrix", own) as matrix, Disk(tmp_path / "place", own) as place:
        mg.generate("rmat", matrix.folder / "matrix.zarr", scale=8)
        yield Scene(None, PlayedDriver(["join"]), matrix, place, 1.0)


@pytest.fixture
def start(tmp_path, scene):
    """`start(...)` gives a scene with two workers and a client."""
    made = []

    def begin(**shape):
        fleet = Fleet(Network(is_split=not why_not_split()), tmp_path / "fleet", Shape(2, **shape)).__enter__()
        client = Client(fleet.address, set_as_default=False)
        made.extend([client, fleet])
        return Scene(fleet, scene.driver, scene.matrix, scene.place, 1.0), client

    yield begin
    for each in made:
        each.close()


def list_workers(client):
    return sorted(worker["name"] for worker in client.scheduler_info(n_workers=-1)["workers"].values())


def ask(client, name, function, *args):
    return client.submit(function, *args, workers=[name], pure=False, retries=0)


# --- processes and links ---------------------------------------------------------------------------------------------


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


@pytest.mark.skipif(bool(why_no_clock()), reason=why_no_clock() or "it can be done")
def test_jump(start):
    scene, client = start()

    def measure(name):
        """Minutes by which a worker's wall clock and its monotonic clock are ahead."""
        wall, monotonic = ask(client, name, read_clocks).result(HANG_S)
        return round((wall - time.time()) / 60), round((monotonic - read_clocks()[1]) / 60)

    assert measure("w0") == (0, 0)
    jump = Jump(NOW, "w0", 3600)
    jump.strike(scene)
    assert (measure("w0"), measure("w1")) == ((60, 0), (0, 0))
    jump.heal(scene)
    assert measure("w0") == (0, 0)
    Jump(NOW, "scheduler", -3600).strike(scene)
    assert round((client.run_on_scheduler(time.time) - time.time()) / 60) == -60


def read_clocks():
    """Return the wall clock, and the monotonic one against a clock that no library changes."""
    return time.time(), time.monotonic() - time.clock_gettime(time.CLOCK_BOOTTIME)


# --- disks -----------------------------------------------------------------------------------------------------------


def test_flip_a_bit_of_the_checkpoint(scene):
    with mg.open_matrix(scene.store) as A:
        for iterations in (2, 4):
            options = {"tol_mode": "fixed", "max_iter": iterations, "resume": True}
            mg.pagerank(A, checkpoint=str(scene.checkpoint), **options)
    FlipState(NOW, 0.9, 0.6, 5).strike(scene)
    with pytest.warns(UserWarning, match="is not whole"):
        assert Checkpoints(str(scene.checkpoint)).restore().reached.iteration == 2


# --- moments ---------------------------------------------------------------------------------------------------------


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

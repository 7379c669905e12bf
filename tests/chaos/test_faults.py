"""Each fault strikes: what it is to hurt is hurt, and whole again where it heals."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from resource import RLIM_INFINITY, RLIMIT_AS, prlimit

import psutil
import pytest
from distributed import Client

import mgspmv as mg
from mgspmv.checkpoints import Checkpoints
from tests.support.chaos.disks import Disk, why_no_disks
from tests.support.chaos.faults import (
    Add,
    Cut,
    Fill,
    FlipMatrix,
    FlipState,
    Forbid,
    Interrupt,
    Jump,
    Kill,
    Moment,
    Retire,
    Scene,
    Slow,
    Starve,
    Stop,
    Strikes,
)
from tests.support.chaos.fleet import Fleet, Shape
from tests.support.chaos.programs import Process, why_no_clock
from tests.support.hosts import Network, why_not_split
from tests.support.waiting import HANG_S, wait_for

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


# --- processes -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_kill(start):
    scene, client = start()
    Kill(NOW, "w1").strike(scene)
    assert wait_for(lambda: scene.find("w1").exit_code == -signal.SIGKILL, 20)
    assert wait_for(lambda: list_workers(client) == ["w0"], 20)
    Kill(NOW, "w1").strike(scene)  # it is gone, and nothing happens
    Kill(NOW, "scheduler").strike(scene)
    assert wait_for(lambda: scene.find("scheduler").exit_code == -signal.SIGKILL, 20)


@pytest.mark.slow
def test_kill_below_a_nanny(start):
    scene, client = start(has_nannies=True)
    # A nanny whose worker dies before it has begun itself ends too.
    assert wait_for(lambda: set(client.run(find_status, nanny=True).values()) == {"running"}, HANG_S)
    before = scene.find("w0").find_computing()
    assert before != scene.find("w0").pid
    Kill(NOW, "w0").strike(scene)
    assert wait_for(lambda: not psutil.pid_exists(before), 20)
    assert wait_for(lambda: scene.find("w0").find_computing() not in (before, scene.find("w0").pid), HANG_S)
    assert wait_for(lambda: list_workers(client) == ["w0", "w1"], 40)


def find_status(dask_worker):
    return dask_worker.status.name


@pytest.mark.slow
def test_stop(start):
    scene, client = start()
    stop, process = Stop(NOW, "w0"), psutil.Process(scene.find("w0").pid)
    stop.strike(scene)
    assert wait_for(lambda: process.status() == psutil.STATUS_STOPPED, HANG_S)
    stop.heal(scene)
    assert ask(client, "w0", sum, [1, 2]).result(HANG_S) == 3


@pytest.mark.slow
def test_starve(start):
    scene, client = start()
    starve = Starve(NOW, "w0")
    assert ask(client, "w0", take_memory).result(HANG_S) is None
    starve.strike(scene)
    with pytest.raises((MemoryError, TimeoutError)):  # the latter where it has none even to say so
        ask(client, "w0", take_memory).result(5.0)
    assert ask(client, "w1", take_memory).result(HANG_S) is None
    starve.heal(scene)
    worker = scene.find("w0")
    assert worker.exit_code is not None or prlimit(worker.pid, RLIMIT_AS) == (RLIM_INFINITY, RLIM_INFINITY)


def take_memory():
    bytearray(1 << 30)


@pytest.mark.slow
def test_retire_and_add(start):
    scene, client = start()
    Retire(NOW, "w0").strike(scene)
    assert wait_for(lambda: list_workers(client) == ["w1"], 20)
    Add(NOW).strike(scene)
    assert wait_for(lambda: list_workers(client) == ["w1", "w2"], 20)


@pytest.mark.slow
@pytest.mark.skipif(bool(why_no_clock()), reason=why_no_clock() or "it can be done")
def test_jump(start):
    scene, client = start()

    def measure(name):
        """Minutes that the wall clock of a worker is ahead, and seconds that its other clock has gone on more than one
        that no library changes."""
        ahead, more = ask(client, name, look_at_clocks).result(HANG_S)
        return round((ahead - time.time()) / 60), round(more, 1)

    assert measure("w0") == (0, 0)
    jump = Jump(NOW, "w0", 3600)
    jump.strike(scene)
    assert (measure("w0"), measure("w1")) == ((60, 0), (0, 0))
    jump.heal(scene)
    assert measure("w0") == (0, 0)
    Jump(NOW, "scheduler", -3600).strike(scene)
    assert round((client.run_on_scheduler(time.time) - time.time()) / 60) == -60


def look_at_clocks():
    began_s = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
    time.sleep(0.1)
    went_on_s = time.monotonic() - began_s[0]
    return time.time(), went_on_s - (time.clock_gettime(time.CLOCK_BOOTTIME) - began_s[1])


# --- links -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(bool(why_not_split()), reason=why_not_split() or "it can be done")
def test_cut_and_slow(start):
    scene, client = start()
    cut, slow = Cut(NOW, "w0"), Slow(NOW, "w0", 64)
    assert ask(client, "w0", len, b"").result(HANG_S) == 0
    cut.strike(scene)
    with pytest.raises(TimeoutError):
        ask(client, "w0", len, b"").result(1.0)
    cut.heal(scene)
    assert ask(client, "w0", len, b"").result(HANG_S) == 0
    slow.strike(scene)
    slow_s = time_answer(client)
    assert slow_s > 1.0
    slow.heal(scene)
    assert time_answer(client) < slow_s / 2


def time_answer(client):
    began_s = time.monotonic()
    assert len(ask(client, "w0", bytes, 16_000).result(HANG_S)) == 16_000
    return time.monotonic() - began_s


# --- disks -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(bool(why_no_disks()), reason=why_no_disks() or "it can be done")
@pytest.mark.parametrize("fault", [Fill(NOW), Forbid(NOW), Forbid(NOW, is_matrix=True)], ids=str)
def test_disks(fault, scene):
    hurt = (scene.matrix if "matrix" in str(fault) else scene.place).folder / "file"
    fault.strike(scene)
    with pytest.raises(OSError):
        hurt.write_bytes(bytes(10_000))
    fault.heal(scene)
    hurt.write_bytes(bytes(10_000))


def test_flip_a_bit_of_the_matrix(scene):
    FlipMatrix(NOW, 0.4, 0.6, 5).strike(scene)
    assert "are damaged" in mg.verify(scene.store)[0]


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
    assert wait_for(lambda: noted == ["strike"])
    assert wait_for(lambda: strikes.struck == {0: strikes.struck[0]})
    strikes.end()
    assert noted == ["strike", "heal"]
    assert strikes.struck[0].endswith("s, iterate 0")


def test_a_fault_heals_after_a_while(scene):
    noted = []
    strikes = Strikes((Noted(NOW, (noted,), heal_s=0.1),), scene)
    assert wait_for(lambda: noted == ["strike", "heal"])
    strikes.end()
    assert noted == ["strike", "heal"]


def test_a_fault_whose_moment_does_not_come_does_not_strike(scene):
    noted = []
    strikes = Strikes((Noted(Moment("residual", 0.0), (noted,)), Noted(Moment("checkpoint", 0.0), (noted,))), scene)
    strikes.end()
    assert (noted, strikes.struck, strikes.failures) == ([], {}, [])


def test_a_fault_that_cannot_strike_is_told(scene):
    strikes = Strikes((Kill(NOW, "w7"),), scene)
    assert wait_for(lambda: strikes.failures)
    strikes.end()
    assert strikes.struck == {}


def test_a_state_is_being_written_until_it_is_whole(scene):
    state = scene.checkpoint / "states" / "s000001-0000000a"
    state.mkdir(parents=True)
    assert scene.has_come("checkpoint")
    (state / "zarr.json").write_text("{}")
    assert scene.has_come("checkpoint")
    (state / "zarr.json").write_text('{"attributes": {"mgspmv_state": {}}}')
    assert not scene.has_come("checkpoint")


def test_all_that_ask_at_once_hear_how_a_process_ended():
    def await_end(process):
        while process.exitcode is None:
            pass
        return process.exitcode

    for _ in range(10):
        process = Process(target=signal.pause)
        process.start()
        with ThreadPoolExecutor(4) as pool:
            ends = [pool.submit(await_end, process) for _ in range(4)]
            os.kill(process.pid, signal.SIGKILL)
        assert [end.result() for end in ends] == [-signal.SIGKILL] * 4

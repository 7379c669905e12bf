"""The two last states of a run: written by several, current by one write, and never taken when they are not whole."""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import zarr

from mgspmv.checkpoints import Checkpoints, call_limited, write_slice
from mgspmv.errors import CheckpointError, StoreError, StoreExistsError
from mgspmv.heartbeat import beat
from mgspmv.model import RunProgress
from mgspmv.validation import digest_json
from tests.support.buckets import serve_s3
from tests.support.waiting import HANG_S

N = 1000
IDENTITY = {"matrix": "abc", "alpha": 0.85, "out_weight": None}


def make_x(iteration, dtype=np.float64):
    return np.random.default_rng(iteration).random(N).astype(dtype)


def reach(iteration, **changed):
    changes = tuple(0.1**k / 3 for k in range(iteration))
    return RunProgress(
        **{"iteration": iteration, "changes": changes, "epoch": 2, "run": "r", "identity": IDENTITY} | changed
    )


def keep(checkpoints, iteration, cuts=(0, N), dtype=np.float64):
    """Write a state, each slice by a thread; where it is."""
    x, address = make_x(iteration, dtype), checkpoints.name_next()
    with ThreadPoolExecutor(4) as pool:
        slices = list(pool.map(lambda own: write_slice(address, own[0], x[own[0] : own[1]]), pairwise(cuts)))
    checkpoints.commit(address, slices[::-1], reach(iteration))
    assert checkpoints.remove_old() is None
    return address


def open_checkpoints(place, *iterations, **options):
    checkpoints = Checkpoints(place)
    checkpoints.prepare(is_shared=False)
    for iteration in iterations:
        keep(checkpoints, iteration, **options)
    return checkpoints


def test_slices_that_workers_wrote_elsewhere(tmp_path):
    """As workers of other machines do, whose folder of this name is another one."""
    checkpoints = open_checkpoints(tmp_path / "here", 1)
    address, x = checkpoints.name_next(), make_x(2)
    slices = [
        write_slice(address, 0, x[:600]),
        write_slice(replace(address, place=tmp_path / "there"), 600, x[600:]),
        write_slice(replace(address, place=tmp_path / "there"), N, x[N:]),
    ]
    with pytest.raises(
        CheckpointError, match="1 of the 3 slices written by workers are missing; choose a place for checkpoint="
    ):
        checkpoints.commit(address, slices, reach(2))
    assert checkpoints.restore().reached.iteration == 1


def list_states(place):
    return sorted(path.name for path in Path(place, "states").iterdir() if path.is_dir())


def find_state(place, k):
    return Path(place, "states", list_states(place)[k])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("cuts", [(0, N), (0, 1, 600, 600, N), (0, 0, 300, N)])
def test_what_was_written_comes_back(tmp_path, cuts, dtype):
    open_checkpoints(tmp_path / "c", 3, cuts=cuts, dtype=dtype)
    restored = Checkpoints(tmp_path / "c").restore()
    assert restored.reached == reach(3)
    assert restored.x.dtype == dtype
    assert restored.x.tobytes() == make_x(3, dtype).tobytes()


def test_the_last_two_are_kept(tmp_path):
    checkpoints = open_checkpoints(tmp_path, 1, 2, 3)
    assert len(list_states(tmp_path)) == 2
    assert checkpoints.restore().reached.iteration == 3
    assert [name[:7] for name in list_states(tmp_path)] == ["s000002", "s000003"]
    goes_on = Checkpoints(tmp_path)
    goes_on.prepare(is_shared=True)
    goes_on.restore()
    keep(goes_on, 4)
    assert [name[:7] for name in list_states(tmp_path)] == ["s000003", "s000004"]


def test_what_was_never_finished_is_not_there(tmp_path):
    assert Checkpoints(tmp_path / "c").restore() is None
    checkpoints = open_checkpoints(tmp_path / "c")
    assert checkpoints.restore() is None
    write_slice(checkpoints.name_next(), 0, make_x(1))
    assert checkpoints.restore() is None
    keep(checkpoints, 2)
    address = checkpoints.name_next()
    write_slice(address, 0, make_x(3))
    assert checkpoints.restore().reached.iteration == 2
    assert len(list_states(tmp_path / "c")) == 2
    keep(checkpoints, 4)
    assert address.name not in list_states(tmp_path / "c")


def flip(path, at=-20):
    raw = bytearray(path.read_bytes())
    raw[at] ^= 16
    path.write_bytes(raw)


DAMAGES = {
    "a flipped bit of a chunk": lambda state: flip(next(state.rglob("c/0"))),
    "a chunk cut short": lambda state: next(state.rglob("c/0")).write_bytes(b"abc"),
    "an empty chunk": lambda state: next(state.rglob("c/0")).write_bytes(b""),
    "no chunk": lambda state: next(state.rglob("c/0")).unlink(),
    "no slice": lambda state: shutil.rmtree(state / "x000000000400"),
    "another slice": lambda state: shutil.copytree(
        state / "x000000000000", state / "x000000000400", dirs_exist_ok=True
    ),
    "a flipped bit of a name": lambda state: flip(
        state / "zarr.json", (state / "zarr.json").read_bytes().find(b"mgspmv")
    ),
    "attributes that are cut": lambda state: (state / "zarr.json").write_bytes((state / "zarr.json").read_bytes()[:99]),
    "other attributes": lambda state: change_attributes(state, lambda told: told["reached"].update(iteration=7)),
    "other changes": lambda state: change_attributes(state, lambda told: told["reached"]["changes"].pop()),
    "fewer slices": lambda state: change_attributes(state, lambda told: told["slices"].pop()),
    "other words": lambda state: change_attributes(state, lambda told: told.clear()),
}


def change_attributes(state, change):
    described = json.loads((state / "zarr.json").read_text())
    change(described["attributes"]["mgspmv_state"])
    (state / "zarr.json").write_text(json.dumps(described))


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_state_is_passed_over(tmp_path, damage):
    open_checkpoints(tmp_path, 5, 6, cuts=(0, 400, N))
    damage(find_state(tmp_path, -1))
    with pytest.warns(UserWarning, match=r"cannot be used: .*; resuming from iteration 5 instead"):
        restored = Checkpoints(tmp_path).restore()
    assert restored.x.tobytes() == make_x(5).tobytes()
    damage(find_state(tmp_path, 0))
    with pytest.raises(CheckpointError, match=r"holds no usable checkpoint: state s0.* leave out resume=True"):
        Checkpoints(tmp_path).restore()


def test_slices_in_the_place_of_each_other_are_noticed(tmp_path):
    open_checkpoints(tmp_path, 5, cuts=(0, 500, N))
    first, second = (find_state(tmp_path, -1) / f"x{start:012}" / "c" / "0" for start in (0, 500))
    contents = second.read_bytes(), first.read_bytes()
    first.write_bytes(contents[0])
    second.write_bytes(contents[1])
    with pytest.raises(CheckpointError, match=r"is damaged \(x000000000000 does not match"):
        Checkpoints(tmp_path).restore()


def test_slices_of_other_codecs_are_not_unpacked(tmp_path):
    open_checkpoints(tmp_path, 5)
    path = find_state(tmp_path, -1) / "x000000000000" / "zarr.json"
    told = json.loads(path.read_text())
    told["codecs"] = [told["codecs"][0], {"name": "gzip", "configuration": {"level": 1}}]
    path.write_text(json.dumps(told))
    with pytest.raises(CheckpointError, match="has the codecs bytes, gzip instead of bytes, blosc, crc32c"):
        Checkpoints(tmp_path).restore()


def test_slices_must_be_all_of_it(tmp_path):
    checkpoints = open_checkpoints(tmp_path)
    address = checkpoints.name_next()
    slices = [write_slice(address, a, make_x(1)[a:b]) for a, b in ((0, 400), (500, N))]
    checkpoints.commit(address, slices, reach(1))
    with pytest.raises(CheckpointError, match="its slices do not cover the vector"):
        checkpoints.restore()


def forge(state, change):
    """Change what is claimed of a state, with a digest that is right."""
    described = json.loads((state / "zarr.json").read_text())
    told = described["attributes"]["mgspmv_state"]
    change(told)
    told["sha256"] = digest_json({key: told[key] for key in ("reached", "slices")})
    (state / "zarr.json").write_text(json.dumps(described))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"n": 10**15}, "its slices have 1000000000000000 rows, but the matrix has 1000"),
        ({"n": 10**30}, "a number has 100 bits, but at most 64 are allowed"),
        ({"n": 999}, "its slices have 999 rows, but the matrix has 1000"),
        ({"dtype": "V1000000000000"}, "its slices have dtype V1000000000000, expected float32 or float64"),
    ],
)
def test_a_state_that_claims_more_than_there_is_is_passed_over(tmp_path, changed, said):
    open_checkpoints(tmp_path, 5, 6)
    forge(find_state(tmp_path, -1), lambda told: told["slices"][0].update(changed))
    with pytest.warns(UserWarning, match=rf"cannot be used: .* is damaged \({said}\); resuming from iteration 5"):
        restored = Checkpoints(tmp_path, IDENTITY["matrix"], N).restore()
    assert restored.x.tobytes() == make_x(5).tobytes()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"changes": []}, "there are 0 changes of 6 iterations"),
        ({"iteration": 7}, "there are 6 changes of 7 iterations"),
        ({"iteration": -1, "changes": []}, "there are 0 changes of -1 iterations"),
    ],
)
def test_a_state_of_other_iterations_than_changes_is_passed_over(tmp_path, changed, said):
    open_checkpoints(tmp_path, 5, 6)
    forge(find_state(tmp_path, -1), lambda told: told["reached"].update(changed))
    with pytest.warns(UserWarning, match=rf"is damaged \({said}\); resuming from iteration 5"):
        Checkpoints(tmp_path).restore()


def test_other_things_are_left_alone(tmp_path):
    zarr.open_group(str(tmp_path / "g"), mode="w", attributes={"mine": 1})
    (tmp_path / "f").write_text("mine")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "mine").write_text("mine")
    for name, said in (
        ("g", "is a Zarr group without checkpoints"),
        ("f", "not a Zarr group"),
        ("d", "not a Zarr group"),
    ):
        checkpoints = Checkpoints(tmp_path / name)
        for call in (lambda own=checkpoints: own.prepare(is_shared=False), checkpoints.restore):
            with pytest.raises(StoreExistsError, match=said):
                call()


def test_another_format_is_refused(tmp_path):
    open_checkpoints(tmp_path, 1)
    group = zarr.open_group(tmp_path, mode="r+")
    [(name, described)] = group.attrs.asdict().items()
    assert described == {"format_version": 1}
    group.attrs[name] = {"format_version": 2}
    checkpoints = Checkpoints(tmp_path)
    for call in (lambda: checkpoints.prepare(is_shared=False), checkpoints.restore):
        with pytest.raises(
            CheckpointError, match="holds checkpoints of format version 2, but this program writes version 1"
        ):
            call()


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"checkpoints cannot be written to .*; choose another place"):
        open_checkpoints(tmp_path / "file" / "c")


@pytest.mark.external
def test_object_stores():
    with serve_s3() as system:
        place = "s3://bucket/runs/c.zarr"
        checkpoints = open_checkpoints(place, 1, 2, 3, cuts=(0, 400, N))
        assert Checkpoints(place).restore().x.tobytes() == make_x(3).tobytes()
        system.invalidate_cache()
        names = sorted(path.rpartition("/")[2] for path in system.ls("bucket/runs/c.zarr/states"))
        assert [name[:7] for name in names if name != "zarr.json"] == ["s000002", "s000003"]
        system.pipe(f"bucket/runs/c.zarr/states/{names[1]}/x000000000400/c/0", b"torn")
        with pytest.warns(UserWarning, match="resuming from iteration 2 instead"):
            assert Checkpoints(place).restore().reached.iteration == 2
        keep(checkpoints, 4)


def test_a_call_that_makes_no_progress_is_abandoned(monkeypatch):
    may_go_on, is_marked, looks = threading.Semaphore(0), threading.Semaphore(0), []

    def work(n):
        for _ in range(n):
            may_go_on.acquire()
            beat()
            is_marked.release()
        return n

    def look(calls, step_s):
        """Each time after a mark, until the work is done."""
        looks.append(step_s)
        if len(looks) > 10:
            return wait(calls, HANG_S)
        may_go_on.release()
        assert is_marked.acquire(timeout=HANG_S)
        return wait(calls, 0)

    monkeypatch.setattr("mgspmv.checkpoints.HANG_S", 0.4)
    with monkeypatch.context() as patch:
        patch.setattr("mgspmv.checkpoints.wait", look)
        assert call_limited(work, 10) == 10
    assert looks[:10] == [0.4] * 10, "each as long as there may be no mark"
    with pytest.raises(CheckpointError, match=r"no progress for 0.4 s"):
        call_limited(threading.Event().wait, 5.0)


@pytest.mark.parametrize("name", ["zarr.json", "states", "S", "S/x000000000000/c", "S/x000000000000/c/0"])
def test_links_that_lead_elsewhere_are_refused(tmp_path, name):
    place, moved = tmp_path / "run", tmp_path / "moved"
    open_checkpoints(place, 3)
    path = place / name.replace("S", f"states/{list_states(place)[0]}")
    shutil.move(path, moved)
    path.symlink_to(moved)
    for use in (lambda: Checkpoints(place).restore(), lambda: Checkpoints(place).prepare(is_shared=False)):
        with pytest.raises(
            StoreError, match=rf": {path.relative_to(place)} is a symbolic link that leads out of the store"
        ):
            use()
    assert moved.exists()

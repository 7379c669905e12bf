"""Checks of GPUs: with machines that are played, and with those of this machine."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from mgspmv.doctor import device
from mgspmv.doctor.apart import run_apart
from mgspmv.doctor.findings import Finding, run_check
from tests.support.played_devices import GIB, PlayedCuda
from tests.support.waiting import HANG_S

CHECKS = {check.name: check for check in device.CHECKS}
BUILT_ON_CUDA = {"compiler", "headers", "device-memory", "device-health", "host-copies", "nccl"}
OF_SEVERAL = {"peer-access", "peer-bandwidth"}


@pytest.fixture
def machine(monkeypatch):
    """Two GPUs on which all is well."""
    played = PlayedCuda()
    played.installed |= {"dask-cuda": "26.10.0", "distributed-ucxx-cu13": "0.52.0"}
    monkeypatch.setitem(sys.modules, "dask_cuda", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "distributed_ucxx", SimpleNamespace())
    monkeypatch.setattr(device, "pass_bytes", lambda protocol: {"ucxx": 0.002}[protocol])
    monkeypatch.setattr(device, "measure_host_copies", lambda cupy, k: (50e9, 50e9))
    monkeypatch.setattr(device, "measure_peer_copy", lambda cupy, a, b: (300e9, True))
    played.install(monkeypatch)
    return played


def find(name: str) -> Finding:
    """The one finding of a check, which can be sent as JSON."""
    [found] = run_check(CHECKS[name], HANG_S)
    json.dumps(asdict(found), allow_nan=False)
    return found


def test_all_is_well(machine):
    for name, check in CHECKS.items():
        found = run_check(check, HANG_S)
        assert {f.status for f in found} == {"ok"}, found
        assert len(found) == (2 if name == "host-copies" else 1), name


def test_what_well_looks_like(machine):
    assert find("driver").found == "the driver 580.65.06 is for CUDA 13.0, CuPy's runtime is 13.0"
    assert find("devices").found == "NVIDIA H200, 141 GiB (90), NVIDIA H200, 141 GiB (90)"
    assert find("devices").values["gpus"]["CUDA of the driver"] == "13.0"
    assert find("nccl").found.startswith("NCCL 2.27.3: an all-gather between 2 GPUs gives the right sums, in ")
    assert find("peer-access").found == "all 2 GPUs reach each other's memory"
    assert find("compiler").values["nvrtc"] == "13.0"


def test_without_cupy(monkeypatch):
    monkeypatch.setattr(device, "find_spec", lambda _: None)
    for name in sorted(BUILT_ON_CUDA | OF_SEVERAL | {"devices", "driver"}):
        found = find(name)
        assert found.status == "skipped", name
        assert "CuPy is not installed" in found.found, name


def test_without_devices(machine):
    machine.n = 0
    for name in sorted(BUILT_ON_CUDA | OF_SEVERAL):
        found = find(name)
        assert found.status == "skipped", name
        assert "no CUDA-capable device is detected" in found.found, name


def test_with_one_device(machine):
    machine.n = 1
    for name in sorted(OF_SEVERAL):
        assert (find(name).status, find(name).found) == ("skipped", "there is one GPU, and no other"), name


# --- what is installed -----------------------------------------------------------------------------------------------


def test_two_cupys(machine):
    machine.installed["cupy-cuda12x"] = "14.2.0"
    found = find("cupy")
    assert found.status == "wrong"
    assert "`pip uninstall cupy-cuda12x cupy-cuda13x`" in found.remedy


@pytest.mark.parametrize(("known", "status"), [(0, "skipped"), (4, "warning")])
def test_no_cupy(machine, monkeypatch, known, status):
    machine.installed.clear()
    machine.known = known
    monkeypatch.setattr(device, "find_spec", lambda _: None)
    found = find("cupy")
    assert found.status == status
    assert "CuPy is not installed" in found.found


@pytest.mark.parametrize(
    ("check", "module"), [("cupy", "cupy"), ("dask-cuda", "dask_cuda"), ("ucx", "distributed_ucxx")]
)
def test_what_cannot_be_imported(machine, monkeypatch, check, module):
    def fail(name):
        raise ImportError(f"lib{name}.so: cannot open shared object file")

    monkeypatch.setattr(device.importlib, "import_module", fail)
    found = find(check)
    assert found.status == "wrong"
    assert f"cannot be imported: lib{module}.so" in found.found


@pytest.mark.parametrize(
    ("driver", "runtime", "status", "words"),
    [
        (13010, 13000, "ok", ""),
        (14000, 13000, "ok", ""),
        (12080, 13000, "wrong", "580.65.06 or newer"),
        (13000, 13010, "warning", "a driver for CUDA 13.1; the least for CUDA 13 is 580.65.06"),
        (0, 13000, "skipped", ""),
    ],
)
def test_drivers(machine, driver, runtime, status, words):
    machine.driver, machine.runtime_cuda = driver, runtime
    found = find("driver")
    assert found.status == status
    assert words in found.remedy


def test_driver_of_another_wheel(machine):
    machine.installed = {"cupy-cuda12x": "14.2.0"}
    machine.driver, machine.runtime_cuda, machine.driver_number = 11080, 12090, "520.61.05"
    found = find("driver")
    assert found.status == "wrong"
    assert found.found == "the driver 520.61.05 is for CUDA 11.8, and CuPy is one for CUDA 12"
    assert "525.60.13" in found.remedy


def test_driver_without_nvml(machine):
    machine.known = 0
    assert find("driver").found == "the driver is for CUDA 13.0, CuPy's runtime is 13.0"
    assert find("device-health").status == "skipped"


def test_no_dask_cuda(machine):
    del machine.installed["dask-cuda"]
    for n, status in ((1, "skipped"), (2, "warning")):
        machine.n = machine.known = n
        assert find("dask-cuda").status == status


def test_bytes_are_passed_to_this_process_and_back():
    assert 0 < device.pass_bytes("tcp") < device.PASS_S


def test_bytes_that_come_back_changed_are_an_error(monkeypatch):
    monkeypatch.setattr(device.np, "array_equal", lambda a, b: False)
    with pytest.raises(ValueError, match="other bytes came back than were sent"):
        device.pass_bytes("tcp")


def test_bytes_that_do_not_come_back_are_waited_for_as_long_as_is_said(monkeypatch):
    async def hang(*_, **__):
        await asyncio.sleep(60)

    monkeypatch.setattr(device, "PASS_S", 0.1)
    monkeypatch.setattr("distributed.comm.connect", hang)
    with pytest.raises(TimeoutError):
        device.pass_bytes("tcp")


@pytest.mark.parametrize(
    ("error", "said"),
    [(TimeoutError(), "within 10 s"), (OSError("no such device"), "(no such device)")],
)
def test_ucx_that_passes_nothing(machine, monkeypatch, error, said):
    def fail(protocol):
        raise error

    monkeypatch.setattr(device, "pass_bytes", fail)
    found = find("ucx")
    assert found.status == "wrong"
    assert said in found.found
    assert "UCX_LOG_LEVEL=info" in found.remedy


def test_ucx(machine):
    assert find("ucx").found == (
        "distributed-ucxx-cu13 0.52.0; 1,048,576 bytes go to this machine itself and back in 2 ms"
    )
    machine.installed["distributed-ucxx-cu12"] = "0.52.0"
    assert find("ucx").status == "wrong"
    machine.installed.clear()
    assert find("ucx").status == "skipped"


# --- devices ---------------------------------------------------------------------------------------------------------


def test_devices_that_cuda_does_not_give(machine):
    machine.n = 0
    found = find("devices")
    assert found.status == "wrong"
    assert "the driver knows 2 GPUs, and CUDA gives this process none" in found.found
    machine.known = 0
    assert find("devices").status == "skipped"


def test_architectures(machine):
    for arch, status in {"61": "wrong", "103": "ok", "121": "ok", "130": "warning"}.items():
        machine.arch = arch
        assert find("devices").status == status, arch


@pytest.mark.parametrize("name", ["compiler", "headers"])
def test_compilers_that_fail(machine, name):
    machine.compile_error = OSError("libnvrtc.so.13: cannot open shared object file")
    found = find(name)
    assert found.status == "wrong"
    assert "libnvrtc.so.13" in found.found
    assert "[ctk]" in found.remedy


def test_a_device_that_computes_wrongly(machine):
    machine.ones = 2
    assert find("headers").found == "the sum of 1,000 ones on the GPU is 2000"


def test_memory_that_others_hold(machine):
    machine.free = 40 * GIB
    found = find("device-memory")
    assert found.status == "warning"
    assert found.found.startswith("GPU 0 has 42.9 GB of 151 GB free; GPU 1 ")


@pytest.mark.parametrize(
    ("attribute", "value", "status", "words"),
    [
        ("ecc", 3, "wrong", "GPU 0 had 3 errors of memory"),
        ("reasons", 0x40, "warning", "GPU 0 is slowed down by its temperature"),
        ("reasons", 0x88, "warning", "GPU 0 is slowed down by its supply of power"),
        ("reasons", 0x08, "warning", "GPU 0 is slowed down by its hardware"),
        ("persistence", 0, "warning", "persistence is off for GPU 0"),
    ],
)
def test_health(machine, attribute, value, status, words):
    machine.n = 1
    setattr(machine, attribute, value)
    found = find("device-health")
    assert found.status == status
    assert words in found.found


# --- links -----------------------------------------------------------------------------------------------------------


def test_copies_are_measured(monkeypatch):
    played = PlayedCuda()
    played.install(monkeypatch)
    cupy = sys.modules["cupy"]
    assert min(device.measure_host_copies(cupy, 1)) > 0
    rate, arrived = device.measure_peer_copy(cupy, 0, 1)
    assert rate > 0
    assert arrived
    played.damages = True
    assert device.measure_peer_copy(cupy, 0, 1)[1] is False
    assert device.measure_gather(cupy, cupy.cuda.nccl, 2)[0] == [device.GATHERED] * 2


@pytest.mark.parametrize(
    ("up", "expected", "status"),
    [(50e9, 63e9, "ok"), (20e9, 63e9, "warning"), (7e9, None, "ok"), (5e9, None, "warning")],
)
def test_copies_from_the_host(up, expected, status):
    found = device.judge_host_copies(1, up, 60e9, expected)
    assert found.status == status
    assert found.found.startswith(f"GPU 1: {up / 1e9:.3g} GB/s from the host")


def test_links_that_the_driver_tells(machine):
    nvml, handle = sys.modules["pynvml"], b"bus"
    assert device.find_pcie_rate(nvml, handle) == pytest.approx(63e9, rel=0.01)
    assert device.find_peer_rate(nvml, handle, 4) == pytest.approx(18 * 25e9 / 3)
    machine.nvlinks = 0
    assert device.find_peer_rate(nvml, handle, 4) == device.find_pcie_rate(nvml, handle)
    machine.generation = 9
    assert device.find_pcie_rate(nvml, handle) is None


def test_peers_without_access(machine):
    machine.peers = False
    found = find("peer-access")
    assert found.status == "warning"
    assert found.found == "2 of 2 pairs of GPUs do not reach each other's memory: 0 -> 1, 1 -> 0"


@pytest.mark.parametrize(
    ("rate", "arrives", "status", "words"),
    [
        (100e9, True, "warning", "2 of 2 copies between GPUs are slow: 0 -> 1: 100 GB/s of 450 GB/s"),
        (300e9, False, "wrong", "does not arrive as it was sent: 0 -> 1, 1 -> 0"),
    ],
)
def test_copies_between_devices(machine, monkeypatch, rate, arrives, status, words):
    monkeypatch.setattr(device, "measure_peer_copy", lambda cupy, a, b: (rate, arrives))
    found = find("peer-bandwidth")
    assert found.status == status
    assert words in found.found


def test_slow_copies_of_links_that_are_not_known(machine, monkeypatch):
    machine.known = 0
    monkeypatch.setattr(device, "measure_peer_copy", lambda cupy, a, b: (5e9, True))
    assert find("peer-bandwidth").found.endswith("0 -> 1: 5 GB/s; 1 -> 0: 5 GB/s")


@pytest.mark.parametrize(("n", "status"), [(1, "warning"), (2, "wrong")])
def test_no_nccl(machine, monkeypatch, n, status):
    machine.n, machine.has_nccl = n, False
    machine.install(monkeypatch)
    assert find("nccl").status == status


def test_nccl_with_one_device(machine):
    machine.n = 1
    assert find("nccl").found == "NCCL 2.27.3"


def test_nccl_that_does_not_connect(machine):
    machine.nccl_fails = True
    found = find("nccl")
    assert found.status == "wrong"
    assert "NCCL 2.27.3 cannot connect the 2 GPUs of this machine: NCCL_ERROR_SYSTEM_ERROR" in found.found


def test_nccl_that_gives_wrong_sums(machine):
    machine.gathers_wrong = True
    found = find("nccl")
    assert found.status == "wrong"
    assert "wrong sums on GPUs 0, 1" in found.found


# --- real ones -------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_real_device():
    found = {check.name: findings for check, findings in run_apart(device.CHECKS, HANG_S)}
    for name in ("cupy", "driver", "devices", "compiler", "headers"):
        assert [f.status for f in found[name]] in (["ok"], ["warning"]), found[name]
    for finding in found["host-copies"]:
        assert finding.values["to_device_bytes_per_s"] > 1e9
        assert finding.values["to_host_bytes_per_s"] > 1e9


@pytest.mark.gpu
def test_real_devices_reach_each_other():
    count, _ = device.count_devices()
    if count < 2:
        pytest.skip(f"needs two GPUs, and there are {count}")
    found = {check.name: findings for check, findings in run_apart(device.CHECKS, HANG_S)}
    [copies], [nccl] = found["peer-bandwidth"], found["nccl"]
    assert copies.status in ("ok", "warning"), copies
    assert len(copies.values["bytes_per_s"]) == count * (count - 1)
    assert min(copies.values["bytes_per_s"].values()) > 1e9
    assert nccl.status == "ok", nccl
    assert nccl.values["gpus"] == count

"""Checks of the GPUs of a machine, and of what reaches them: driver, CUDA, CuPy, NCCL, dask-cuda, UCX.

They run in a process apart, in which nothing else uses CUDA. All but `check_cupy` begin with whether there is a device.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Callable, Iterator
from functools import partial, wraps
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import numpy as np

from mgspmv.doctor.findings import Finding, Findings, make_check, ok, shorten, skip, warn, wrong

WHEELS = {"cupy-cuda11x": 11, "cupy-cuda12x": 12, "cupy-cuda13x": 13}
"""Distributions of CuPy, and the major version of CUDA that each is for."""
LEAST_DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
"""The oldest drivers for Linux with which programs of a major version of CUDA run (NVIDIA, CUDA Compatibility)."""
COPY_BYTES = 1 << 28
"""Of a timed copy."""
COPIES = 3
"""Of which the quickest counts."""
PASSED_BYTES, PASS_S = 1 << 20, 10.0
"""That go to this process itself and back by UCX, and seconds for that."""
GATHERED = 1 << 12
"""Elements of each GPU that NCCL gathers."""
PART = 0.5
"""Of what a link can do: below it something is in the way."""
LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Of PCIe, by generation, one way."""
NVLINK_BYTES_PER_S = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9}
"""Of a link, by version, one way."""
SLOW_COPY_BYTES_PER_S = 6e9
"""From pinned memory, where the link is not known: about half of what PCIe 3 with 16 lanes does."""
SLOWED = {"its temperature": 0x60, "its supply of power": 0x80, "its hardware": 0x08}
"""Bits of NVML's reasons for lower clocks, the more particular first; others are wished for, or of an idle device."""
FREE_SHARE = 0.5
"""Of a device's memory, below which somebody else uses it."""
GPU_EXTRA = "mgspmv[cuda12] for a driver of CUDA 12, or mgspmv[cuda13] for one of CUDA 13 or later"


def _needs_devices(n: int) -> Callable[[Callable[[Any], Findings]], Callable[[], Findings]]:
    """A check that is given CuPy, and skipped where there are fewer devices."""

    def decorate(check: Callable[[Any], Findings]) -> Callable[[], Findings]:
        @wraps(check)
        def run() -> Findings:
            count, problem = count_devices()
            if count >= n:
                return check(importlib.import_module("cupy"))
            return skip(f"there is no GPU to check: {problem}" if problem else "there is one GPU, and no other")

        return run

    return decorate


def count_devices() -> tuple[int, str | None]:
    """How many devices CUDA gives to this process; why there are none, in words."""
    if find_spec("cupy") is None:
        return 0, "CuPy is not installed"
    try:
        import cupy

        count = int(cupy.cuda.runtime.getDeviceCount())
    except Exception as error:  # CuPy's own, or of a library that does not load
        return 0, f"{type(error).__name__}: {shorten(error)}"
    return count, None if count else "CUDA finds none"


def open_nvml() -> Any:
    """NVIDIA's management library, begun; None where pynvml or the driver is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # its own class of error, of a library that may be missing
        return None
    return pynvml


def count_known_gpus() -> int:
    """GPUs that the driver knows, whether or not this process may use them."""
    nvml = open_nvml()
    return 0 if nvml is None else int(nvml.nvmlDeviceGetCount())


# --- what is installed -----------------------------------------------------------------------------------------------


def check_cupy() -> Findings:
    """Whether one CuPy is installed where there are GPUs, and can be imported."""
    found = {name: own for name in (*WHEELS, "cupy") if (own := _find_version(name)) is not None}
    said = ", ".join(f"{name} {own}" for name, own in found.items())
    if len(found) > 1:
        return wrong(
            f"{said} are installed together",
            "They write the same files, so that parts of both are mixed; kernels fail to load, or worse.",
            f"Remove them all (`pip uninstall {' '.join(found)}`), and install one: {GPU_EXTRA}.",
            versions=found,
        )
    if not found and find_spec("cupy") is None:
        if (n_gpus := count_known_gpus()) == 0:
            return skip("CuPy is not installed, and NVIDIA's driver finds no GPU; everything runs on processors")
        return warn(
            f"CuPy is not installed, and there are {n_gpus} GPUs",
            "Everything runs on processors.",
            f"Install {GPU_EXTRA}.",
            gpus=n_gpus,
        )
    try:
        importlib.import_module("cupy")
    except Exception as error:
        return wrong(
            f"{said or 'CuPy'} cannot be imported: {shorten(error)}",
            "Nothing can be computed on GPUs.",
            f"Install it afresh: {GPU_EXTRA}.",
            versions=found,
        )
    return ok(f"{said or 'CuPy, installed by other means than pip'}", versions=found)


def check_driver() -> Findings:
    """Whether the driver is new enough for the CUDA that CuPy was made for."""
    if find_spec("cupy") is None:
        return skip("CuPy is not installed")
    import cupy

    runtime = cupy.cuda.runtime
    driver, ours = int(runtime.driverGetVersion()), int(runtime.runtimeGetVersion())
    nvml = open_nvml()
    number = None if nvml is None else _text(nvml.nvmlSystemGetDriverVersion())
    wheel = next((WHEELS[name] for name in WHEELS if _find_version(name)), ours // 1000)
    values = {"driver": number, "driver_cuda": _show_cuda(driver), "runtime_cuda": _show_cuda(ours), "wheel": wheel}
    least = LEAST_DRIVERS.get(wheel, LEAST_DRIVERS[max(LEAST_DRIVERS)])
    if not driver:
        return skip("there is no driver of NVIDIA's, or this process does not see it", **values)
    said = f"the driver{f' {number}' if number else ''} is for CUDA {_show_cuda(driver)}"
    if driver // 1000 < wheel:
        return wrong(
            f"{said}, and CuPy is one for CUDA {wheel}",
            "CUDA refuses to start: the driver is older than the runtime.",
            f"Install a driver of version {least} or newer, or the CuPy that suits this one: {GPU_EXTRA}.",
            least_driver=least,
            **values,
        )
    if driver < ours and driver // 1000 == ours // 1000:
        return warn(
            f"{said}, and CuPy's runtime is {_show_cuda(ours)}",
            "Programs of the same major version run, but what is newer in CUDA than the driver is not there.",
            f"Install a driver for CUDA {_show_cuda(ours)}; the least for CUDA {wheel} is {least}.",
            least_driver=least,
            **values,
        )
    return ok(f"{said}, CuPy's runtime is {_show_cuda(ours)}", **values)


def check_dask_cuda() -> Findings:
    """Whether workers can be started for several GPUs."""
    found, n_gpus = _find_version("dask-cuda"), max(count_known_gpus(), count_devices()[0])
    if found is None:
        if n_gpus < 2:
            return skip("dask-cuda is not installed, which one GPU or none does not need")
        return warn(
            f"dask-cuda is not installed, and there are {n_gpus} GPUs",
            "--cluster cuda cannot start a worker for each of them, and one run uses one GPU.",
            f"Install {GPU_EXTRA}.",
            gpus=n_gpus,
        )
    try:
        importlib.import_module("dask_cuda")
    except Exception as error:
        return wrong(
            f"dask-cuda {found} cannot be imported: {shorten(error)}",
            "--cluster cuda and `dask cuda worker` cannot start workers.",
            f"Install it afresh, with the version of Dask that it belongs to: {GPU_EXTRA}.",
            version=found,
        )
    return ok(f"dask-cuda {found}", version=found)


def check_ucx() -> Findings:
    """Whether UCX can be used, where it is installed."""
    names = ("distributed-ucxx-cu12", "distributed-ucxx-cu13")
    found = {name: own for name in names if (own := _find_version(name)) is not None}
    said = ", ".join(f"{name} {own}" for name, own in found.items())
    if not found:
        return skip("distributed-ucxx is not installed; workers talk by TCP")
    if len(found) > 1:
        return wrong(
            f"{said} are installed together",
            "They write the same files, for different versions of CUDA.",
            f"Remove both (`pip uninstall {' '.join(found)}`), and install mgspmv[ucxx12] or mgspmv[ucxx13].",
            versions=found,
        )
    try:
        importlib.import_module("distributed_ucxx")
    except Exception as error:
        return wrong(
            f"{said} cannot be imported: {shorten(error)}",
            "protocol='ucxx' does not work.",
            "Install it afresh, with the version of Dask that it belongs to: mgspmv[ucxx12] or mgspmv[ucxx13]; or use "
            "protocol='tcp', which is the default.",
            versions=found,
        )
    try:
        passed_s = pass_bytes("ucxx")
    except Exception as error:  # of UCX, or of what Dask makes of it
        said_of_it = f"within {PASS_S:g} s" if isinstance(error, TimeoutError) else f"({shorten(error)})"
        return wrong(
            f"{said} is there, and {PASSED_BYTES:,} bytes do not come back from this machine itself {said_of_it}",
            "protocol='ucxx' does not work.",
            "See what UCX tries with UCX_LOG_LEVEL=info, and what UCX_TLS and UCX_NET_DEVICES in the environment leave "
            "it; or use protocol='tcp', which is the default.",
            versions=found,
        )
    how_long = f"{PASSED_BYTES:,} bytes go to this machine itself and back in {1e3 * passed_s:.3g} ms"
    return ok(f"{said}; {how_long}", versions=found, passed_s=passed_s)


def pass_bytes(protocol: str) -> float:
    """Seconds in which some bytes go to a listener in this process and come back, by a protocol of Dask's comms.

    Raises
    ------
    TimeoutError, OSError : they do not
    ValueError : others come back
    """
    return asyncio.run(_pass_bytes(protocol))


async def _pass_bytes(protocol: str) -> float:
    from distributed.comm import connect, listen
    from distributed.protocol import to_serialize

    async def give_back(comm: Any) -> None:
        await comm.write({"back": to_serialize((await comm.read())["sent"])})
        await comm.close()

    sent = np.resize(np.arange(256, dtype=np.uint8), PASSED_BYTES)
    async with asyncio.timeout(PASS_S), listen(f"{protocol}://127.0.0.1", give_back) as listener:
        comm = await connect(listener.contact_address, timeout=PASS_S)
        try:
            began = time.perf_counter()
            await comm.write({"sent": to_serialize(sent)})
            came = (await comm.read())["back"]
            passed_s = time.perf_counter() - began
        finally:
            await comm.close()
    if not np.array_equal(came, sent):
        raise ValueError("other bytes came back than were sent")
    return passed_s


# --- devices ---------------------------------------------------------------------------------------------------------


def check_devices() -> Findings:
    """Whether CUDA gives this process the GPUs that the driver knows, and kernels are compiled for what they are."""
    from mgspmv.kernels.specialise import ARCHS, LEAST_ARCH
    from mgspmv.monitor.versions import find_gpus

    if find_spec("cupy") is None:
        return skip("CuPy is not installed")
    (count, problem), known = count_devices(), count_known_gpus()
    if not count:
        if not known:
            return skip(f"there is no GPU: {problem}")
        return wrong(
            f"the driver knows {known} GPUs, and CUDA gives this process none: {problem}",
            "Nothing can be computed on GPUs.",
            "Look at CUDA_VISIBLE_DEVICES, start the container with --gpus all, and see what `nvidia-smi` says; after "
            "an update of the driver restart the machine.",
            known=known,
        )
    import cupy

    gpus = find_gpus()
    names = [gpus[f"gpu {k}"] for k in range(count)]
    archs = [int(cupy.cuda.Device(k).compute_capability) for k in range(count)]
    values = {"gpus": gpus, "archs": archs, "known": known}
    old = [f"{names[k]} ({arch})" for k, arch in enumerate(archs) if arch < LEAST_ARCH]
    if old:
        return wrong(
            f"{', '.join(old)} is of an architecture older than {LEAST_ARCH}",
            "Our kernels do not run on it.",
            "Leave it out of CUDA_VISIBLE_DEVICES, or use --backend cpu.",
            **values,
        )
    new = [
        f"{names[k]} ({arch})" for k, arch in enumerate(archs) if arch not in ARCHS and arch // 10 > max(ARCHS) // 10
    ]
    if new:
        return warn(
            f"{', '.join(new)} is of an architecture newer than {max(ARCHS)}",
            "Kernels are compiled for it when they are needed, which nobody has tested.",
            "Compare a first result with --backend cpu: in exact both have the same digest.",
            **values,
        )
    return ok(", ".join(f"{name} ({arch})" for name, arch in zip(names, archs, strict=True)), **values)


@_needs_devices(1)
def check_compiler(cupy: Any) -> Findings:
    """Whether NVRTC is there and compiles one of our kernels for the device."""
    from mgspmv.kernels.specialise import read_source, specialise

    own = specialise("spin.cu")
    try:
        from cupy.cuda import compiler, nvrtc

        number = ".".join(map(str, nvrtc.getVersion()))
        began = time.perf_counter()
        compiler.compile_using_nvrtc(read_source(own.source), own.options)
    except Exception as error:  # CuPy's, or the system's of a library that is missing
        return wrong(
            f"NVRTC cannot compile {own.source}: {shorten(error)}",
            "No kernel of ours that is not in the cache can run.",
            f"Install CuPy with CUDA's own libraries, which [ctk] does: {GPU_EXTRA}.",
        )
    elapsed_s = time.perf_counter() - began
    return ok(f"NVRTC {number} compiles a kernel in {1e3 * elapsed_s:.3g} ms", nvrtc=number, elapsed_s=elapsed_s)


@_needs_devices(1)
def check_headers(cupy: Any) -> Findings:
    """Whether CuPy finds CUDA's headers, which its own kernels include, and computes with one rightly."""
    try:
        total = int((cupy.arange(1000, dtype=np.float16) * 0 + 1).sum(dtype=np.float32))
    except Exception as error:
        return wrong(
            f"a kernel of CuPy's cannot be compiled or run: {shorten(error)}",
            "What we leave to CuPy (sorting, sums, layouts of matrices) fails.",
            f"Install CuPy with CUDA's headers, which [ctk] does, or set CUDA_PATH to a toolkit: {GPU_EXTRA}.",
        )
    if total != 1000:
        return wrong(
            f"the sum of 1,000 ones on the GPU is {total}",
            "The GPU, or its driver, computes wrongly.",
            "Restart the machine; if it is so again, have the GPU replaced.",
            total=total,
        )
    return ok("CuPy finds CUDA's headers and computes")


@_needs_devices(1)
def check_device_memory(cupy: Any) -> Findings:
    """How much memory of each device is free."""
    free, used = [], []
    for k in range(cupy.cuda.runtime.getDeviceCount()):
        with cupy.cuda.Device(k):
            now, total = cupy.cuda.runtime.memGetInfo()
        free.append(int(now))
        if now < FREE_SHARE * total:
            used.append(f"GPU {k} has {_show(now)} of {_show(total)} free")
    values = {"free_bytes": free}
    if used:
        return warn(
            "; ".join(used),
            "Other processes hold the rest, and plans count on what is free.",
            "See with `nvidia-smi` which processes these are, and end them.",
            **values,
        )
    return ok("free: " + ", ".join(map(_show, free)), **values)


@_needs_devices(1)
def check_device_health(cupy: Any) -> Findings:
    """What the driver says of errors, throttling, and how devices are kept ready."""
    nvml = open_nvml()
    if nvml is None:
        return skip("pynvml is not installed, or does not start; mgspmv[cuda12] and [cuda13] bring it with dask-cuda")
    found = [finding for k in range(cupy.cuda.runtime.getDeviceCount()) for finding in _judge_health(nvml, cupy, k)]
    return found or ok("no errors of memory, no throttling, persistence is on")


def _judge_health(nvml: Any, cupy: Any, k: int) -> Iterator[Finding]:
    handle = find_handle(nvml, cupy, k)
    errors = _ask(
        nvml.nvmlDeviceGetTotalEccErrors, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    )
    if errors:
        yield wrong(
            f"GPU {k} had {errors} errors of memory that were not corrected since it was started",
            "What is computed on it may be wrong, and programs are ended by such errors.",
            "Restart the machine; if it is so again, have the GPU replaced.",
            gpu=k,
            errors=errors,
        )
    older = "nvmlDeviceGetCurrentClocksThrottleReasons"
    ask_reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or getattr(nvml, older)
    reasons = _ask(ask_reasons, handle) or 0
    why = next((name for name, mask in SLOWED.items() if reasons & mask), None)
    if why:
        yield warn(
            f"GPU {k} is slowed down by {why}",
            "All others wait for it in every iteration.",
            "See to its cooling and its supply of power; `nvidia-smi -q -d PERFORMANCE` says more.",
            gpu=k,
            reasons=reasons,
        )
    if _ask(nvml.nvmlDeviceGetPersistenceMode, handle) == 0:
        yield warn(
            f"persistence is off for GPU {k}",
            "The driver lets go of a GPU that nobody uses, and each program waits seconds for it at its start.",
            "Switch it on: `sudo nvidia-smi -pm 1`, or start nvidia-persistenced.",
            gpu=k,
        )


def find_handle(nvml: Any, cupy: Any, k: int) -> Any:
    """What NVML calls a device of CUDA."""
    return nvml.nvmlDeviceGetHandleByPciBusId(cupy.cuda.Device(k).pci_bus_id.encode())


# --- links -----------------------------------------------------------------------------------------------------------


@_needs_devices(1)
def check_host_copies(cupy: Any) -> Iterator[Finding]:
    """How fast pinned memory is copied to each device and back, beside what PCIe can do there."""
    nvml = open_nvml()
    for k in range(cupy.cuda.runtime.getDeviceCount()):
        expected = None if nvml is None else find_pcie_rate(nvml, find_handle(nvml, cupy, k))
        yield judge_host_copies(k, *measure_host_copies(cupy, k), expected)


def measure_host_copies(cupy: Any, k: int) -> tuple[float, float]:
    """Bytes per second from pinned memory to a device, and back."""
    runtime = cupy.cuda.runtime
    with cupy.cuda.Device(k):
        stream, pinned = cupy.cuda.Stream(non_blocking=True), cupy.cuda.alloc_pinned_memory(COPY_BYTES)
        there = cupy.cuda.alloc(COPY_BYTES)
        up = (there.ptr, pinned.ptr, COPY_BYTES, runtime.memcpyHostToDevice, stream.ptr)
        down = (pinned.ptr, there.ptr, COPY_BYTES, runtime.memcpyDeviceToHost, stream.ptr)
        rates = (COPY_BYTES / _time_best(partial(runtime.memcpyAsync, *way), stream.synchronize) for way in (up, down))
        return next(rates), next(rates)


def find_pcie_rate(nvml: Any, handle: Any) -> float | None:
    """Bytes per second that the slot's lanes and generation can do; None where the driver does not tell.

    The lanes in use, and the generation at most: an idle device takes a lower one.
    """
    lanes = _ask(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle)
    generation = _ask(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)
    rate = LANE_BYTES_PER_S.get(generation or 0)
    return None if rate is None or not lanes else lanes * rate


def judge_host_copies(k: int, up: float, down: float, expected: float | None) -> Finding:
    """What is to be thought of the bytes per second to a device and back.

    Parameters
    ----------
    expected : of its link
    """
    values = {"gpu": k, "to_device_bytes_per_s": up, "to_host_bytes_per_s": down, "link_bytes_per_s": expected}
    least = SLOW_COPY_BYTES_PER_S if expected is None else PART * expected
    beside = "" if expected is None else f" of {_show(expected)}/s that its link can do"
    said = f"GPU {k}: {_show(up)}/s from the host, {_show(down)}/s to it{beside}"
    if min(up, down) >= least:
        return ok(said, **values)
    return warn(
        said,
        "Rows that have no room on the GPU come by that way in every iteration, and take that long.",
        "See with `nvidia-smi -q` whether the card has all lanes of its slot; bind the process to the processor that "
        "the card is at (numactl), and look what else uses the link.",
        **values,
    )


@_needs_devices(2)
def check_peer_access(cupy: Any) -> Findings:
    """Whether each device can reach the memory of each other."""
    runtime = cupy.cuda.runtime
    n = runtime.getDeviceCount()
    apart = [(a, b) for a in range(n) for b in range(n) if a != b and not runtime.deviceCanAccessPeer(a, b)]
    values = {"gpus": n, "without": [list(pair) for pair in apart]}
    if not apart:
        return ok(f"all {n} GPUs reach each other's memory", **values)
    shown = ", ".join(f"{a} -> {b}" for a, b in apart[:6]) + (" ..." if len(apart) > 6 else "")
    return warn(
        f"{len(apart)} of {n * (n - 1)} pairs of GPUs do not reach each other's memory: {shown}",
        "Slices go through NCCL and the host between these, and not straight into the other's memory.",
        "See with `nvidia-smi topo -p2p r` why: switch off ACS and the IOMMU in the firmware, or use GPUs at one "
        "switch.",
        **values,
    )


@_needs_devices(2)
def check_peer_bandwidth(cupy: Any) -> Findings:
    """How fast each device copies to each other, beside what is between them, and whether what is copied arrives."""
    nvml = open_nvml()
    n = cupy.cuda.runtime.getDeviceCount()
    rates: dict[str, float] = {}
    slow, damaged = [], []
    for a in range(n):
        expected = None if nvml is None else find_peer_rate(nvml, find_handle(nvml, cupy, a), n)
        for b in range(n):
            if a == b:
                continue
            rate, arrived = measure_peer_copy(cupy, a, b)
            rates[f"{a}->{b}"] = rate
            if not arrived:
                damaged.append(f"{a} -> {b}")
            if rate < (SLOW_COPY_BYTES_PER_S if expected is None else PART * expected):
                beside = "" if expected is None else f" of {_show(expected)}/s"
                slow.append(f"{a} -> {b}: {_show(rate)}/s{beside}")
    return judge_peer_copies(rates, slow, damaged)


def judge_peer_copies(rates: dict[str, float], slow: list[str], damaged: list[str]) -> Finding:
    """What is to be thought of copies between devices.

    Parameters
    ----------
    rates : bytes per second by pair
    slow, damaged : pairs that are slow, and that change what is sent, in words
    """
    values = {"bytes_per_s": rates}
    if damaged:
        return wrong(
            f"what is copied between GPUs does not arrive as it was sent: {', '.join(damaged[:6])}",
            "Ranks on these GPUs would be wrong.",
            "Switch off ACS in the firmware, or the IOMMU, which come between GPUs; until then say --transport peer.",
            damaged=damaged,
            **values,
        )
    if slow:
        return warn(
            f"{len(slow)} of {len(rates)} copies between GPUs are slow: {'; '.join(slow[:6])}",
            "Every iteration waits for slices between these.",
            "See with `nvidia-smi topo -m` and `nvidia-smi nvlink -s` what is between them, and whether all links are "
            "up.",
            slow=slow,
            **values,
        )
    return ok(f"{_show(min(rates.values()))}/s to {_show(max(rates.values()))}/s between any two GPUs", **values)


def measure_peer_copy(cupy: Any, a: int, b: int) -> tuple[float, bool]:
    """Bytes per second from device a to device b, and whether what was sent arrived."""
    runtime, pattern = cupy.cuda.runtime, 1 + (16 * a + b) % 250
    with cupy.cuda.Device(b):
        target = cupy.zeros(COPY_BYTES, np.uint8)
        cupy.cuda.Device().synchronize()
    with cupy.cuda.Device(a):
        if runtime.deviceCanAccessPeer(a, b):
            try:
                runtime.deviceEnablePeerAccess(b)
            except runtime.CUDARuntimeError as error:
                if "PeerAccessAlreadyEnabled" not in str(error):
                    raise
        source, stream = cupy.full(COPY_BYTES, pattern, np.uint8), cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        way = (target.data.ptr, b, source.data.ptr, a, COPY_BYTES, stream.ptr)
        elapsed_s = _time_best(lambda: runtime.memcpyPeerAsync(*way), stream.synchronize)
    with cupy.cuda.Device(b):
        return COPY_BYTES / elapsed_s, bool((target == pattern).all())


def find_peer_rate(nvml: Any, handle: Any, n_devices: int) -> float | None:
    """Bytes per second one way that a device's links to the others can do; None where the driver does not tell.

    Without a switch its NVLinks are shared out among the others, so that a part of them leads to each.
    """
    rates = [rate for link in range(18) if (rate := _find_link_rate(nvml, handle, link)) is not None]
    if rates:
        return sum(rates) / max(1, n_devices - 1)
    return find_pcie_rate(nvml, handle)


def _find_link_rate(nvml: Any, handle: Any, link: int) -> float | None:
    if not _ask(nvml.nvmlDeviceGetNvLinkState, handle, link):
        return None
    return NVLINK_BYTES_PER_S.get(_ask(nvml.nvmlDeviceGetNvLinkVersion, handle, link) or 0)


@_needs_devices(1)
def check_nccl(cupy: Any) -> Findings:
    """Whether NCCL is there, and an all-gather between all devices of this machine gives the right sums."""
    from mgspmv.exchange.nccl import find_nccl_problem

    n = cupy.cuda.runtime.getDeviceCount()
    problem = find_nccl_problem()
    if problem is not None:
        judge = wrong if n > 1 else warn
        return judge(
            problem,
            "Slices go through the hosts, which takes many times as long." if n > 1 else "One GPU does not need it.",
            f"Install {GPU_EXTRA}.",
        )
    from cupy.cuda import nccl

    number = _show_nccl(int(nccl.get_version()))
    if n == 1:
        return ok(f"NCCL {number}", version=number)
    try:
        sums, elapsed_s = measure_gather(cupy, nccl, n)
    except nccl.NcclError as error:
        return wrong(
            f"NCCL {number} cannot connect the {n} GPUs of this machine: {shorten(error)}",
            "A run on them ends with the same error, or takes the way through the hosts.",
            "NCCL_DEBUG=INFO says more. See what is said of /dev/shm, and of peer access; NCCL_P2P_DISABLE=1 goes "
            "around the latter.",
            version=number,
        )
    wanted = sum(range(n)) * GATHERED
    bad = [k for k, total in enumerate(sums) if total != wanted]
    if bad:
        return wrong(
            f"an all-gather by NCCL {number} gives wrong sums on GPUs {', '.join(map(str, bad))}",
            "Ranks on these GPUs would be wrong.",
            "Switch off ACS in the firmware, or the IOMMU, which come between GPUs; until then set NCCL_P2P_DISABLE=1.",
            version=number,
            gpus=bad,
        )
    said = f"NCCL {number}: an all-gather between {n} GPUs gives the right sums, in {1e3 * elapsed_s:.3g} ms"
    return ok(said, version=number, gpus=n, elapsed_s=elapsed_s)


def measure_gather(cupy: Any, nccl: Any, n: int) -> tuple[list[int], float]:
    """Sums on each device of what all gathered, device k having given so many times k; seconds."""
    communicators = nccl.NcclCommunicator.initAll(list(range(n)))
    own, gathered, streams = [], [], []
    for k in range(n):
        with cupy.cuda.Device(k):
            own.append(cupy.full(GATHERED, k, np.int64))
            gathered.append(cupy.zeros(n * GATHERED, np.int64))
            streams.append(cupy.cuda.Stream(non_blocking=True))
            cupy.cuda.Device().synchronize()

    def gather() -> None:
        nccl.groupStart()
        for k in range(n):
            with cupy.cuda.Device(k):
                given, taken, stream = own[k].data.ptr, gathered[k].data.ptr, streams[k].ptr
                communicators[k].allGather(given, taken, GATHERED, nccl.NCCL_INT64, stream)
        nccl.groupEnd()

    def wait() -> None:
        for k in range(n):
            with cupy.cuda.Device(k):
                streams[k].synchronize()

    elapsed_s = _time_best(gather, wait)
    sums = []
    for k in range(n):
        with cupy.cuda.Device(k):
            sums.append(int(gathered[k].sum()))
    return sums, elapsed_s


# --- small things ----------------------------------------------------------------------------------------------------


def _time_best(run: Callable[[], object], wait: Callable[[], object]) -> float:
    seconds = []
    for _ in range(1 + COPIES):  # the first one makes ready
        began = time.perf_counter()
        run()
        wait()
        seconds.append(time.perf_counter() - began)
    return max(min(seconds[1:]), 1e-9)


def _ask(question: Callable[..., Any], *arguments: Any) -> Any:
    """What NVML answers; None for what this device or driver does not tell."""
    try:
        return question(*arguments)
    except Exception:  # NVML has a class of error for each reason
        return None


def _find_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _show_cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _show_nccl(number: int) -> str:
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def _show(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.3g} GB"


CHECKS = tuple(
    make_check("device", function)
    for function in (
        check_cupy,
        check_driver,
        check_devices,
        check_compiler,
        check_headers,
        check_device_memory,
        check_device_health,
        check_host_copies,
        check_peer_access,
        check_peer_bandwidth,
        check_nccl,
        check_dask_cuda,
        check_ucx,
    )
)
"""In the order in which they are told."""

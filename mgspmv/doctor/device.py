"""Checks of the GPUs of this machine, each in a process that may hang or break down without harm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

import numpy as np

from mgspmv.doctor.findings import Finding, Findings, hang, ok, run_check, shorten, show_bytes, skip, warn, wrong

GPU_EXTRA = "mgspmv[cuda12] for a driver of CUDA 12, or mgspmv[cuda13] for one of CUDA 13 or later"
FREE_SHARE = 0.5
"""Of a device's memory, below which another process uses it."""
GATHERED = 1 << 12
"""Elements of each GPU that NCCL gathers."""
_PROGRAM = "from mgspmv.doctor.device import main; main()"


def run_apart(name: str, limit_s: float) -> list[Finding]:
    """Run a check in a process: what CUDA and NCCL do cannot be stopped otherwise, and may end the process."""
    if find_spec("cupy") is None:
        n_gpus = _count_gpus()
        if not n_gpus or name != "gpus":
            return [skip("CuPy is not installed; everything runs on processors")]
        return [warn(f"CuPy is not installed, and there are {n_gpus} GPUs", f"Install {GPU_EXTRA}.", gpus=n_gpus)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", _PROGRAM, name, str(limit_s)]
    try:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return [hang(limit_s)]
    if done.returncode == 0:
        return [Finding(**told) for told in json.loads(done.stdout.splitlines()[-1])]
    last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    how = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}"
    remedy = f"Install driver and libraries afresh, of versions that belong together: {GPU_EXTRA}. See `dmesg`."
    return [wrong(f"the process that checked it ended by {how}: {shorten(last)}", remedy, exit_code=done.returncode)]


def main() -> None:
    """Run the check that the process is given, and write what it finds as the last line."""
    name, limit_s = sys.argv[1], float(sys.argv[2])
    found = run_check(name, CHECKS[name], limit_s)
    print(json.dumps([asdict(finding) for finding in found]), flush=True)
    os._exit(0)  # what libraries do when a process ends may hang too


def _count_gpus() -> int:
    """GPUs that the driver knows, whether or not this process may use them."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except Exception:  # its own class of error, of a library that may be missing
        return 0


# --- the checks ------------------------------------------------------------------------------------------------------


def check_gpus() -> Iterator[Finding]:
    """Check driver and memory, and compile and run one of our kernels on each GPU."""
    import cupy

    from mgspmv.kernels.device import find_device_problem
    from mgspmv.monitor.versions import find_gpus

    if (problem := find_device_problem()) is not None:
        known = _count_gpus()
        if not known:
            yield skip(f"there is no GPU: {problem}")
            return
        remedy = (
            "Look at CUDA_VISIBLE_DEVICES and nvidia-smi, and start containers with --gpus all. A driver older than "
            f"CuPy's CUDA is refused too: update it, or install {GPU_EXTRA}."
        )
        yield wrong(f"the driver knows {known} GPUs, and CUDA gives this process none: {problem}", remedy)
        return
    named = find_gpus()
    for k in range(cupy.cuda.runtime.getDeviceCount()):
        with cupy.cuda.Device(k):
            free, total = cupy.cuda.runtime.memGetInfo()
            problem = find_kernel_problem()
        said = f"GPU {k}, {named[f'gpu {k}']}, driver for CUDA {named['CUDA of the driver']}"
        values = {"gpu": named[f"gpu {k}"], "free_bytes": free, "total_bytes": total}
        if problem is not None:
            remedy = f"Restart the machine; then install driver and libraries afresh: {GPU_EXTRA}."
            yield wrong(f"{said}: {problem}", remedy, **values)
        elif free < FREE_SHARE * total:
            remedy = "See with nvidia-smi which processes use it, and end them."
            yield warn(f"{said}: {show_bytes(free)} of {show_bytes(total)} are free", remedy, **values)
        else:
            yield ok(f"{said}: a product is right, {show_bytes(free)} are free", **values)


def find_kernel_problem() -> str | None:
    """Multiply a small matrix on the current GPU and on a processor; what is wrong, or None."""
    import cupy

    from mgspmv.kernels.select import bind_kernel
    from mgspmv.model import CsrBlock

    rng = np.random.default_rng(1)
    n, per_row = 1000, 8
    indices = np.sort(rng.integers(0, n, (n, per_row)), axis=1).astype(np.int32).ravel()
    data = rng.integers(1, 9, n * per_row).astype(np.float64)
    block = CsrBlock(0, n, np.arange(0, n * per_row + 1, per_row, dtype=np.int64), indices, data)
    x, wanted = rng.integers(1, 9, n).astype(np.float64), np.zeros(n)
    bind_kernel(block, "float64").multiply(x, wanted)
    try:
        y = cupy.zeros(n)
        bind_kernel(block, "float64", backend="cuda").multiply(cupy.asarray(x), y)
        found = y.get()
    except Exception as error:  # CuPy's own, or the system's of a library that is missing
        return f"our kernel does not run: {type(error).__name__}: {shorten(error)}"
    n_bad = int((found != wanted).sum())
    return f"{n_bad} of {n} entries of a product are wrong" if n_bad else None


def check_compiler() -> Findings:
    """Compile one of our kernels by NVRTC anew, and run one of CuPy's, which includes CUDA's headers."""
    import cupy
    from cupy.cuda import compiler, nvrtc

    from mgspmv.kernels.specialise import read_source, specialise

    remedy = f"Install CuPy with CUDA's own libraries, or set CUDA_PATH to a toolkit: {GPU_EXTRA}."
    own = specialise("spin.cu")
    try:
        number = ".".join(map(str, nvrtc.getVersion()))
        if not cupy.cuda.runtime.getDeviceCount():
            return skip(f"NVRTC {number}; there is no GPU to compile for")
        compiler.compile_using_nvrtc(read_source(own.source), own.options)
        total = int((cupy.arange(1000, dtype=np.float16) * 0 + 1).sum(dtype=np.float32))
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return skip(f"there is no GPU: {shorten(error)}")
    except Exception as error:
        return wrong(f"a kernel cannot be compiled: {type(error).__name__}: {shorten(error)}", remedy)
    if total != 1000:
        return wrong(f"the sum of 1,000 ones on the GPU is {total}", "Take the GPU out of use, or its driver.")
    return ok(f"NVRTC {number} compiles kernels, and finds CUDA's headers", nvrtc=number)


def check_nccl() -> Findings:
    """Gather by NCCL between all GPUs of this machine, and compare the sums."""
    import cupy

    from mgspmv.exchange.nccl import find_nccl_problem
    from mgspmv.kernels.device import find_device_problem

    if (problem := find_device_problem()) is not None:
        return skip(f"there is no GPU: {problem}")
    n = int(cupy.cuda.runtime.getDeviceCount())
    if (problem := find_nccl_problem()) is not None:
        return wrong(problem, f"Install {GPU_EXTRA}.") if n > 1 else skip(f"{problem}; one GPU does not need it")
    from cupy.cuda import nccl

    if n == 1:
        return ok(f"NCCL {nccl.get_version()}; there is one GPU")
    remedy = "NCCL_DEBUG=INFO says more. Switch off ACS or the IOMMU, until then set NCCL_P2P_DISABLE=1; see `limits`."
    try:
        sums = _gather(cupy, nccl, n)
    except nccl.NcclError as error:
        return wrong(f"NCCL cannot connect the {n} GPUs of this machine: {shorten(error)}", remedy)
    bad = [k for k, total in enumerate(sums) if total != sum(range(n)) * GATHERED]
    if bad:
        return wrong(f"an all-gather by NCCL gives wrong sums on GPUs {', '.join(map(str, bad))}", remedy, gpus=bad)
    return ok(f"an all-gather by NCCL {nccl.get_version()} between {n} GPUs gives the right sums", gpus=n)


def _gather(cupy: Any, nccl: Any, n: int) -> list[int]:
    """Sums on each device of what all gathered, device k having given so many times k."""
    communicators = nccl.NcclCommunicator.initAll(list(range(n)))
    own, gathered = [], []
    for k in range(n):
        with cupy.cuda.Device(k):
            own.append(cupy.full(GATHERED, k, np.int64))
            gathered.append(cupy.zeros(n * GATHERED, np.int64))
            cupy.cuda.Device().synchronize()
    nccl.groupStart()
    for k in range(n):
        with cupy.cuda.Device(k):
            stream = cupy.cuda.Stream.null.ptr
            communicators[k].allGather(own[k].data.ptr, gathered[k].data.ptr, GATHERED, nccl.NCCL_INT64, stream)
    nccl.groupEnd()
    sums = []
    for k in range(n):
        with cupy.cuda.Device(k):
            cupy.cuda.Device().synchronize()
            sums.append(int(gathered[k].sum()))
    return sums


CHECKS: dict[str, Callable[[], Findings]] = {"gpus": check_gpus, "compiler": check_compiler, "nccl": check_nccl}
"""By name, in the order in which they are made."""

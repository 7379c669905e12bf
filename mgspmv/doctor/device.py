"""Check of the GPUs of this machine, in a separate process that may hang or crash."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec

import numpy as np

from mgspmv.display.numbers import format_bytes
from mgspmv.doctor.findings import Finding, Skipped, hang, ok, shorten, warn, wrong

GPU_EXTRA = "mgspmv[cuda12] for a driver of CUDA 12, or mgspmv[cuda13] for one of CUDA 13 or later"
FREE_SHARE = 0.5
"""Share of a device's memory; less free memory means that another process uses it."""
_PROGRAM = "from mgspmv.doctor.device import main; main()"


def check_gpus_apart(limit_s: float) -> list[Finding]:
    """Run `check_gpus` in a separate process: calls of CUDA cannot be stopped otherwise, and may crash."""
    if find_spec("cupy") is None:
        n_gpus = _count_gpus()
        if not n_gpus:
            raise Skipped("CuPy is not installed; everything runs on CPUs")
        return [warn(f"CuPy is not installed, but there are {n_gpus} GPUs", f"Install {GPU_EXTRA}.", gpus=n_gpus)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", _PROGRAM]
    try:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return [hang(limit_s)]
    if done.returncode == 0:
        return [Finding(**told) for told in json.loads(done.stdout.splitlines()[-1])]
    last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    how = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}"
    remedy = f"Reinstall driver and libraries in compatible versions: {GPU_EXTRA}. See `dmesg`."
    return [wrong(f"the process of the check ended with {how}: {shorten(last)}", remedy, exit_code=done.returncode)]


def main() -> None:
    """Check the GPUs, and print the findings as JSON in the last line."""
    print(json.dumps([asdict(finding) for finding in check_gpus()]), flush=True)
    os._exit(0)  # exit handlers of libraries may hang


def _count_gpus() -> int:
    """Count the GPUs that the driver knows, whether or not this process may use them."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except Exception:  # pynvml has its own class of error, and may be missing
        return 0


def check_gpus() -> Iterator[Finding]:
    """Check driver and memory, and compile and run a kernel on each GPU."""
    import cupy

    from mgspmv.kernels.device import find_device_problem
    from mgspmv.version import find_gpus

    if (problem := find_device_problem()) is not None:
        known = _count_gpus()
        if not known:
            yield Finding("skipped", f"there is no GPU: {problem}")
            return
        remedy = (
            "Check CUDA_VISIBLE_DEVICES and nvidia-smi, and start containers with --gpus all. If the driver is older "
            f"than CuPy's CUDA, update it, or install {GPU_EXTRA}."
        )
        yield wrong(f"the driver reports {known} GPUs, but CUDA finds none in this process: {problem}", remedy)
        return
    named = find_gpus()
    for k in range(cupy.cuda.runtime.getDeviceCount()):
        with cupy.cuda.Device(k):
            free, total = cupy.cuda.runtime.memGetInfo()
            problem = find_kernel_problem()
        said = f"GPU {k}, {named[f'gpu {k}']}, driver for CUDA {named['CUDA of the driver']}"
        values = {"gpu": named[f"gpu {k}"], "free_bytes": free, "total_bytes": total}
        if problem is not None:
            remedy = f"Restart the machine; then reinstall driver and libraries: {GPU_EXTRA}."
            yield wrong(f"{said}: {problem}", remedy, **values)
        elif free < FREE_SHARE * total:
            remedy = "Find the processes that use it with nvidia-smi, and end them."
            yield warn(f"{said}: {format_bytes(free)} of {format_bytes(total)} are free", remedy, **values)
        else:
            yield ok(f"{said}: a test product is correct, {format_bytes(free)} are free", **values)


def find_kernel_problem() -> str | None:
    """Compare a small product on the current GPU with the CPU, and a sum of ones; return the problem, or None."""
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
        total = float(cupy.ones(n, np.float16).sum(dtype=np.float32))  # this kernel includes CUDA's headers
    except Exception as error:  # of CuPy, or OSError for a missing library
        return f"kernels do not run: {type(error).__name__}: {shorten(error)}"
    if total != n:
        return f"the sum of {n} ones is {total:g}"
    n_bad = int((found != wanted).sum())
    return f"{n_bad} of {n} entries of a product are wrong" if n_bad else None

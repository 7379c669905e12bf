"""Commands for products: `plan` and `spmv`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

from mgspmv.cli.options import argument, option
from mgspmv.cli.output import Answer, note_checkpoint, tabulate, tabulate_fields
from mgspmv.cli.placement import ComputingOptions, PlacementOptions, open_client
from mgspmv.display.numbers import format_bytes, format_seconds
from mgspmv.errors import CapacityError
from mgspmv.kernels.catalogue import SPARSE_KERNELS

if TYPE_CHECKING:
    pass

_KERNELS = ", ".join(kernel.name for kernel in SPARSE_KERNELS if kernel.backends)


def plan(
    store: str,
    *,
    workers: Annotated[int | None, option("Number of workers; default 1, or those of the cluster.")] = None,
    device_memory: str | None = None,
    host_memory: str | None = None,
    precision: str = "exact",
    stop: Annotated[str, option("Stop criterion of PageRank; topk takes memory.", "change|topk:K")] = "change",
    checkpoint: Annotated[bool, option("Include memory for checkpoints of PageRank.")] = False,
    backend: str = "auto",
    cluster: str | None = None,
    cluster_option: list[str] | None = None,
    scheduler: str | None = None,
    tls: str | None = None,
    timeout: float = 30.0,
) -> Answer:
    """Predict the memory and traffic of a run, without loading the matrix."""
    import mgspmv as mg

    place = PlacementOptions(cluster, workers if cluster else None, None, cluster_option, scheduler, tls, timeout)
    options: dict[str, Any] = {"device_memory": device_memory, "host_memory": host_memory, "precision": precision}
    options |= {"stop": stop, "checkpoint": checkpoint, "backend": place.choose_backend(backend), "timeout": timeout}
    with mg.open(store) as matrix, open_client(place) as client:
        plan = matrix.plan(1 if workers is None else workers, **options, client=client)
    has_device = any(w.has_device for w in plan.workers)
    columns = {
        "worker": [str(k) for k in range(len(plan.workers))],
        "rows": [f"{w.start:,} .. {w.stop:,}" for w in plan.workers],
        "entries": [f"{w.nnz:,}" for w in plan.workers],
    }
    if has_device:
        streamed = [0 if w.streaming is None else w.streaming.streamed_bytes for w in plan.workers]
        columns["held on"] = [w.held for w in plan.workers]
        columns["device memory"] = [format_bytes(w.device_bytes) if w.has_device else "" for w in plan.workers]
        columns["host memory"] = [format_bytes(w.host_bytes if w.has_device else w.memory_bytes) for w in plan.workers]
        columns["streamed per iteration"] = list(map(format_bytes, streamed))
    else:
        columns["memory"] = [format_bytes(w.memory_bytes) for w in plan.workers]
    columns["received per iteration"] = [format_bytes(w.exchange_bytes) for w in plan.workers]
    watch_bytes, copy_bytes = (max(getattr(w, name) for w in plan.workers) for name in ("watch_bytes", "copy_bytes"))
    totals = {
        "operation": plan.operation,
        "precision": plan.precision,
        "memory of a worker": None if has_device else format_bytes(plan.memory_bytes),
        f"host memory of a worker for --stop {stop}": format_bytes(watch_bytes) if watch_bytes else None,
        "host memory of a worker for --checkpoint": format_bytes(copy_bytes) if copy_bytes else None,
        "received in all, per iteration": format_bytes(plan.exchange_bytes),
        "workers without rows": f"{plan.n_idle:,}" if plan.n_idle else None,
    }
    if client or device_memory or host_memory or not plan.fits:
        least, enough = plan.least_device_memory, plan.enough_workers
        totals["fits"] = ("yes, with rows that are streamed" if plan.streams else "yes") if plan.fits else "no"
        totals["least device memory, with rows streamed"] = None if least is None else format_bytes(1.005 * least)
        totals["workers that hold all rows"] = None if enough is None else f"{enough:,}"
    error = None if plan.shortage is None else CapacityError(plan.shortage)
    table = tabulate(tuple(columns), list(zip(*columns.values(), strict=True)))
    return Answer(plan.to_dict(), [table, tabulate_fields(totals)], error)


def spmv(
    store: str,
    x: Annotated[str, argument("X.npy", "Array of shape (n_cols,) or (n_cols, k).")],
    *,
    output: Annotated[str, option("File for the product.", "Y.npy", "--output", "-o")],
    alpha: Annotated[float, option("Factor of A @ x.")] = 1.0,
    beta: Annotated[float, option("Factor of y.")] = 0.0,
    y: Annotated[str | None, option("Array y, needed unless beta is 0.", "FILE.npy")] = None,
    kernel: Annotated[str, option(f"Kernel: auto, {_KERNELS}.", "NAME")] = "auto",
    precision: str | None = None,
    place: ComputingOptions,
    overwrite: bool = False,
) -> Answer:
    """Compute alpha * A @ x + beta * y."""
    import numpy as np

    import mgspmv as mg
    from mgspmv.files import write_beside
    from mgspmv.ingest.vertex_vectors import read_vector
    from mgspmv.saving import check_target

    check_target(output, overwrite=overwrite, suffixes=(".npy",))
    note_checkpoint(f"{output} is unchanged")
    began = time.perf_counter()
    with mg.open(store) as matrix:
        options: dict[str, Any] = {"alpha": alpha, "beta": beta, "precision": precision}
        options["y"] = None if y is None else read_vector(y, max_ndim=2)
        factor = read_vector(x, max_ndim=2)
        with open_client(place) as client:
            product = mg.spmv(place.place(matrix, client, kernel=kernel), factor, **options)
    with write_beside(output) as part, open(part, "wb") as file:
        np.save(file, product)
    elapsed_s = time.perf_counter() - began
    payload = {"output": output, "shape": list(product.shape), "dtype": product.dtype.name, "seconds": elapsed_s}
    return Answer(payload, [f"{output}: {product.dtype.name} of shape {product.shape} in {format_seconds(elapsed_s)}"])

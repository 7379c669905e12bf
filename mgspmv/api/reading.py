"""Sources read into the memory of this process, without a store."""

from __future__ import annotations

from typing import Any

from mgspmv.api.matrix import Matrix
from mgspmv.ingest.budget import find_budget
from mgspmv.ingest.device_sorting import DeviceSorter
from mgspmv.ingest.external_sort import EntrySorter
from mgspmv.ingest.in_memory import load_source
from mgspmv.ingest.open import open_source
from mgspmv.kernels.context import begin_sorting
from mgspmv.kernels.device import current_device, free_device_memory, has_device
from mgspmv.kernels.staging import Staging
from mgspmv.model import IngestOptions, Kind
from mgspmv.monitor.progress import ProgressOption, make_report, watched
from mgspmv.solvers.options import BackendChoice, check_threads
from mgspmv.store.held import PLACE


@watched
def load(
    source: Any,
    *,
    kind: Kind | None = None,
    weights: bool | str | None = None,
    transpose: bool = False,
    threads: int | None = None,
    backend: BackendChoice = "auto",
    progress: ProgressOption = None,
) -> Matrix:
    """Read a matrix or graph into memory, without a store; parameters and errors as for `ingest`.

    Parameters
    ----------
    backend : `cuda` sorts a graph on the current device, where it stays if it fits; `auto` does if there is a device
    """
    options, report = IngestOptions(kind, weights=weights, transpose=transpose), make_report(progress)
    check_threads(threads)
    room = find_budget(PLACE, None, threads)
    reading = name_reading(None, weights, {})
    opened = open_source(source, kind=kind, threads=room.threads, id_room=room.for_ids, **reading)
    return Matrix(load_source(opened, options, report, room, None if backend == "cpu" else sort_on_device))


def sort_on_device(host: EntrySorter) -> DeviceSorter | None:
    """Make a sorter on the current device, which hands what does not suit it over to one on the host; None without a
    device."""
    if not has_device():
        return None
    begin_sorting(current_device())
    return DeviceSorter(host, Staging(), free_device_memory())


def name_reading(format: str | None, weights: bool | str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options for reading a source by name."""
    return {"format": format, **({} if weights is None else {"weights": weights}), **options}

"""Arcs in arrays on the current CUDA device, which are read without a copy on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mgspmv.ingest.column_names import ColumnChoice
from mgspmv.ingest.source import Layout, Source
from mgspmv.kernels.device import find_device_problem
from mgspmv.model import CooBatch

_INTEGERS = ("int32", "int64")
_VALUES = ("int64", "float32", "float64")
_NAMES = ("src", "dst", "weights")


class DeviceArraySource(Source):
    """Arcs src[k] -> dst[k] as a `Source`, whose ids are left to be numbered.

    Parameters
    ----------
    arrays : sources, targets and, optionally, weights; CuPy's, of the types that `open_device_arrays` takes
    form : form of the arcs that the user passed
    """

    default_kind = "graph"

    def __init__(self, arrays: tuple[Any, ...], form: str) -> None:
        self._arrays, self.name = arrays, f"{len(arrays[0])} arcs in {form}"

    @property
    def n_stated(self) -> int:
        return len(self._arrays[0])

    def batches(self) -> Iterator[CooBatch]:
        rows, cols, *values = self._arrays
        yield CooBatch(rows, cols, values[0] if values else None)

    def layout(self) -> Layout:
        names, n = list(_NAMES[: len(self._arrays)]), len(self._arrays[0])
        taken = ColumnChoice(*range(len(names))).describe(names) | {"n_rows": n}
        header = {"columns": names, "rows": n}
        return Layout(
            (0, 0), are_ids=True, provenance={"format": "arrays", "name": self.name, "header": header, "taken": taken}
        )


def open_device_arrays(source: Any) -> DeviceArraySource | None:
    """Open a tuple (src, dst[, weights]) of arrays on the current device, or an edge index of shape (2, E) there.

    None for other objects, and for arrays of other lengths, types or devices, which are read by way of the host, or
    refused there. Kernels that write the arrays are waited for.
    """
    are_apart = isinstance(source, tuple)
    given = source if are_apart else (source,)
    if not all(hasattr(array, "__cuda_array_interface__") for array in given) or find_device_problem() is not None:
        return None
    import cupy

    device = cupy.cuda.Device()
    arrays = tuple(map(cupy.asarray, given))
    if any(array.device != device for array in arrays):
        return None
    if not are_apart:
        if arrays[0].ndim != 2 or len(arrays[0]) != 2 or arrays[0].shape[1] == 2:
            return None
        arrays = tuple(map(cupy.ascontiguousarray, arrays[0]))
    types = [array.dtype.name for array in arrays]
    if len(arrays) not in (2, 3) or any(array.ndim != 1 or len(array) != len(arrays[0]) for array in arrays):
        return None
    if any(each not in _INTEGERS for each in types[:2]) or any(each not in _VALUES for each in types[2:]):
        return None
    device.synchronize()
    contiguous = tuple(map(cupy.ascontiguousarray, arrays))
    return DeviceArraySource(contiguous, "arrays" if are_apart else "an edge index")

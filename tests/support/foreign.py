"""Stand-ins for arrays and tables of libraries that CI does not have: CuPy, Numba, PyTorch, cuDF and DuckDB."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

CPU, CUDA = 1, 2
"""Types of devices in DLPack."""


class Tensor:
    """Array with nothing but DLPack, on the host or, so it says, on a CUDA device."""

    def __init__(self, array: Any, device: int = CPU) -> None:
        self.array, self._device = np.asarray(array), device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0

    def __dlpack__(self, **options: Any) -> Any:
        if self._device != CPU:
            raise BufferError("device memory")
        return self.array.__dlpack__(**options)


class GradientTensor(Tensor):
    """Tensor that its library does not export."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")


class DeviceArray:
    """Array with nothing but `__cuda_array_interface__`, as those of Numba."""

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.array.shape, "typestr": self.array.dtype.str, "data": (1, True), "version": 3}


def make_cupy() -> ModuleType:
    """Make a module that copies the arrays above to the host, as CuPy does from devices."""
    cupy: Any = ModuleType("cupy")
    cupy.from_dlpack = lambda tensor: DeviceArray(tensor.array)
    cupy.asnumpy = lambda array: array.array
    return cupy  # type: ignore[no-any-return]


class Relation:
    """Table with nothing but names and the Arrow C interface, as a relation of DuckDB."""

    def __init__(self, table: pa.Table) -> None:
        self._table, self.columns = table, table.column_names

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


class _Slices:
    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def __getitem__(self, rows: slice) -> Any:
        return type(self._frame)(self._frame.rows.slice(rows.start, rows.stop - rows.start))


class DataFrame:
    """Table, as of cuDF: it becomes a table of Arrow in no way but `to_arrow`."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows, self.columns, self.iloc = rows, rows.column_names, _Slices(self)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, names: list[str]) -> DataFrame:
        return DataFrame(self.rows.select(names))

    def to_arrow(self, *, preserve_index: bool) -> pa.Table:
        assert not preserve_index
        return self.rows


DataFrame.__module__ = "cudf.core.dataframe"


class SparseMatrix:
    """Sparse matrix, as of CuPy: `get` copies it to the host."""

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix

    def get(self) -> Any:
        return self._matrix


SparseMatrix.__module__ = "cupyx.scipy.sparse._csr"

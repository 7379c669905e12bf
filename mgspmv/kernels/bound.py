"""What a kernel bound to a block can do, on whatever backend."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from mgspmv.model import CsrBlock, Precision, RowCheck, StepSums


class BoundKernel(Protocol):
    """A kernel bound to one block. `CpuBlock` says what each method computes; vectors are where the block is."""

    block: CsrBlock
    precision: Precision

    @property
    def z_dtype(self) -> np.dtype[Any]:
        """Dtype of the vector that a step multiplies."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix in the format of this kernel."""
        ...

    def multiply(self, x: Any, y: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        """y = alpha A x + beta y, in place; y is not read when beta is 0."""
        ...

    def scale(self, x: Any, weight: Any, z: Any) -> StepSums:
        """z = x / weight (0 where weight is 0); the sums that belong to x."""
        ...

    def check_rows(self, x: Any, weight: Any, z: Any) -> RowCheck:
        """What x sums to, and in how many rows z is not what `scale` makes of it."""
        ...

    def step(
        self,
        z: Any,
        x: Any,
        z_next: Any,
        weight: Any,
        alpha: float,
        mass: float,
        dangling: Any,
        personalization: Any,
        *,
        is_relative: bool = False,
    ) -> StepSums:
        """One PageRank step, in place."""
        ...

    def residual(self, z: Any, x: Any, alpha: float, mass: float, dangling: Any, personalization: Any) -> float:
        """Sum over the rows of how far a step would move x, with a bound on its own rounding added."""
        ...

    def compile(self, *, is_relative: bool = False) -> None:
        """Make the kernels of a PageRank run ready, so that no step is timed with it."""
        ...

    def with_precision(self, precision: Precision) -> BoundKernel:
        """The same block with steps in another precision."""
        ...

    def zeros(self, n: int, dtype: Any) -> Any:
        """(n,) zeros where the block is."""
        ...

    def put(self, vector: np.ndarray) -> Any:
        """The vector where the block is; it may be the same one."""
        ...

    def get(self, vector: Any) -> np.ndarray:
        """The vector on the host; it may be the same one."""
        ...

    def describe(self) -> str:
        """What computes."""
        ...

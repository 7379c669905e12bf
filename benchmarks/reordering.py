"""What `mgspmv reorder` does for products: matrices as made, shuffled, and shuffled and then reordered.

    python -m benchmarks.reordering            # on a GPU where there is one
    python -m benchmarks.reordering --size 1000000 --backend cpu

Makes the stores, then runs `benchmarks.spmv` on all of them with the kernels over rows, which checks before it times.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.sparse

import mgspmv as mg
from benchmarks import spmv
from benchmarks.matrices import RECIPES, find_real
from benchmarks.program import make_parser, run_program

MATRICES = ("grid2d5", "grid3d7", "grid3d27", "fem")
KERNELS = ("csr-scalar", "csr-cached", "csr-vector", "csr-split")


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the stores, print what reordering took, and run the benchmark; 1 when a product was wrong."""
    parser = make_parser(__doc__)
    parser.add_argument("--size", type=int, default=20_000_000, help="nonzeros of each matrix, about")
    parser.add_argument("--backend", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--rounds", default="20")
    parser.add_argument("--json", help="file for all that was found")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        print("| matrix | rows | nonzeros | bandwidth shuffled | reordered | seconds to reorder |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        stores = [str(store) for name in MATRICES for store in make_stores(Path(folder), name, options.size)]
        if (real := find_real("mdual")) is not None:
            mg.ingest(real, Path(folder) / "mdual")
            stores += [str(Path(folder) / "mdual"), str(reorder(Path(folder) / "mdual"))]
        print()
        kernels = [word for kernel in KERNELS for word in ("--kernel", kernel)]
        found = ["--json", options.json] if options.json else []
        shape = ["--values", "--rounds", options.rounds, "--backend", options.backend]
        return spmv.main([*stores, *kernels, *shape, *found])


def make_stores(folder: Path, name: str, size: int) -> list[Path]:
    """A matrix of the benchmark as it is made, shuffled, and reordered after that."""
    rng = np.random.default_rng(0)
    block = RECIPES[name].make(np, size)
    values = rng.random(block.nnz).astype(np.float32)
    made = scipy.sparse.csr_array((values, block.indices, block.indptr), shape=(block.n_rows, block.n_cols))
    order = rng.permutation(block.n_rows)
    stores = [folder / name, folder / f"{name}-shuffled"]
    for store, matrix in zip(stores, (made, made[order][:, order]), strict=True):
        mg.ingest(matrix, store, kind="matrix")
    return [*stores, reorder(stores[1])]


def reorder(store: Path) -> Path:
    """Reorder into a store beside it, and print what that took."""
    target = store.with_name(f"{store.name}-rcm")
    began = time.perf_counter()
    info = mg.reorder(store, target).info
    elapsed_s = time.perf_counter() - began
    change = info.provenance["reordering"]
    sizes = f"{info.shape[0]:,} | {info.nnz:,} | {change['bandwidth_before']:,} | {change['bandwidth_after']:,}"
    print(f"| {store.name} | {sizes} | {elapsed_s:.1f} |", flush=True)
    return target


if __name__ == "__main__":
    run_program(main)

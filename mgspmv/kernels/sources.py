"""CUDA sources: packed into an installed wheel, or in the checkout that an editable install points to."""

from __future__ import annotations

from pathlib import Path

from mgspmv.errors import MgspmvError

_PACKAGE = Path(__file__).parents[1]
_SUFFIXES = (".cu", ".cuh")


def find_cuda_sources(package: Path = _PACKAGE) -> dict[str, Path]:
    """Find the CUDA C++ sources that belong to this installation.

    Parameters
    ----------
    package : folder of the package `mgspmv`; another one only to inspect another installation

    Returns
    -------
    File name to path of every `.cu` and `.cuh` file, in order of names: those of `mgspmv/_cuda`, where a wheel has
    them, else those of the checkout's `kernels`.

    Raises
    ------
    MgspmvError : neither folder holds a source
    """
    for folder in _source_folders(package):
        found = {path.name: path for path in sorted(folder.glob("*")) if path.suffix in _SUFFIXES}
        if found:
            return found
    raise MgspmvError(
        f"this installation has no CUDA sources: expected .cu files in {package / '_cuda'}, or in the folder "
        "kernels of a checkout; use backend='cpu', or install a build of mgspmv with CUDA kernels"
    )


def _source_folders(package: Path) -> list[Path]:
    packed, checkout = package / "_cuda", package.parent
    # In site-packages, a folder `kernels` would belong to another project, so only that of a checkout is used.
    return [packed, checkout / "kernels"] if (checkout / "pyproject.toml").is_file() else [packed]

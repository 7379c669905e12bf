from __future__ import annotations

from pathlib import Path

import pytest

from mgspmv.errors import MgspmvError
from mgspmv.kernels.sources import find_cuda_sources


def write_files(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("// " + name)


def make_package(root: Path) -> Path:
    write_files(root / "mgspmv", "__init__.py")
    return root / "mgspmv"


def test_wheel_has_its_sources_inside_the_package(tmp_path: Path) -> None:
    package = make_package(tmp_path)
    write_files(package / "_cuda", "warp.cuh", "spmv.cu")
    assert find_cuda_sources(package) == {
        "spmv.cu": package / "_cuda" / "spmv.cu",
        "warp.cuh": package / "_cuda" / "warp.cuh",
    }


def test_kernels_of_another_project_in_site_packages_are_not_ours(tmp_path: Path) -> None:
    package = make_package(tmp_path)
    write_files(tmp_path / "kernels", "flash_attention.cu")
    with pytest.raises(MgspmvError, match="no CUDA sources"):
        find_cuda_sources(package)


def test_checkout_without_sources_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    package = make_package(tmp_path)
    write_files(tmp_path, "pyproject.toml")
    write_files(tmp_path / "kernels", "README.md")
    with pytest.raises(MgspmvError, match=r"expected \.cu files in .*_cuda.*use backend=.cpu."):
        find_cuda_sources(package)


def test_default_is_this_installation() -> None:
    checkout = Path(__file__).parents[2] / "kernels"
    expected = {path.name for path in checkout.iterdir() if path.suffix in {".cu", ".cuh"}}
    if expected:
        assert set(find_cuda_sources()) == expected
    else:
        with pytest.raises(MgspmvError, match="no CUDA sources"):
            find_cuda_sources()

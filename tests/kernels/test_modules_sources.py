"""Every CUDA kernel and specialisation compiles, with no GPU, for every architecture; where the sources are."""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from mgspmv.errors import MgspmvError
from mgspmv.kernels.modules import LEAST_ARCH, find_cuda_sources, read_source, specialize
from tests.support.specialisations import list_specialisations

ARCHS = (70, 75, 80, 86, 89, 90, 100, 120)
SHARED_LIMIT = 48 << 10
"""Bytes of static shared memory that every architecture gives a thread block."""
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


def compile_for(arch: int, specialisation, source: str | None = None, **options) -> bytes:
    """Compile to machine code; `source` instead of that of the specialisation."""
    core = pytest.importorskip("cuda.core", reason="the extra nvrtc is not installed")
    given = {"define_macro": list(specialisation.defines) or None, **options}
    asked = core.ProgramOptions(std="c++17", arch=f"sm_{arch}", fma=False, **given)
    source = read_source(specialisation.source) if source is None else source
    return core.Program(source, "c++", asked).compile("cubin").code


def read_shared_bytes(cubin: bytes) -> int:
    """Largest static shared memory of the kernels in an ELF file: the sections `.nv.shared.*`."""
    (sections,), (size, n, names) = struct.unpack_from("<Q", cubin, 0x28), struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, sections + i * size) for i in range(n)]
    table = headers[names][4]
    found = [0]
    for name, _, _, _, _, nbytes in headers:
        end = cubin.index(b"\0", table + name)
        if cubin[table + name : end].startswith(b".nv.shared."):
            found.append(nbytes)
    return max(found)


def sort_by_source() -> dict[str, list]:
    by_source: dict[str, list] = {}
    for specialisation in list_specialisations():
        by_source.setdefault(specialisation.source, []).append(specialisation)
    return by_source


def choose_for(arch: int) -> list:
    """A share of the specialisations for each architecture, of every source one or more.

    What is wrong with a type is found by the compiler's front end, which is the same for all.
    """
    place, n = ARCHS.index(arch), len(ARCHS)
    shares = (own[place::n] if len(own) >= n else [own[place % len(own)]] for own in sort_by_source().values())
    return [specialisation for share in shares for specialisation in share]


def choose_one_each() -> dict[int, list]:
    """Each source once: of its specialisations one, for one architecture."""
    chosen: dict[int, list] = {arch: [] for arch in ARCHS}
    for k, own in enumerate(sort_by_source().values()):
        chosen[ARCHS[k % len(ARCHS)]].append(own[k % len(own)])
    return chosen


def choose_each_value() -> list:
    """Of each source as many as it takes for each value of each macro to occur."""
    chosen = []
    for own in sort_by_source().values():
        left = {define for specialisation in own for define in specialisation.defines}
        while left:
            best = max(own, key=lambda specialisation: len(left.intersection(specialisation.defines)))
            chosen.append(best)
            left.difference_update(best.defines)
    return chosen


def choose_few(arch: int) -> list:
    """Of those two of each source, or one."""
    ends: dict[str, dict] = {}
    for specialisation in choose_for(arch):
        first, *_ = [*ends.get(specialisation.source, {}), specialisation]
        ends[specialisation.source] = dict.fromkeys((first, specialisation))
    return [specialisation for own in ends.values() for specialisation in own]


def check_front_end(specialisations: list) -> None:
    """In a tenth of the time that a compiler takes with its optimiser; what it makes then has no kernel in it."""
    for specialisation in specialisations:
        compile_for(LEAST_ARCH, specialisation, fdevice_syntax_only=True)


def test_each_value_of_each_macro_passes_the_front_end():
    check_front_end(choose_each_value())


def check_compiled(arch: int, specialisations: list) -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="the extra nvrtc is not installed")
    pytest.importorskip("cuda.core")  # here: several threads must not be the first to import it
    if arch not in nvrtc.nvrtcGetSupportedArchs()[1]:
        pytest.skip(f"NVRTC {nvrtc.nvrtcVersion()[1:]} compiles nothing for {arch}; the extra nvrtc brings 12.9")
    with ThreadPoolExecutor(2) as pool:
        compiled = pool.map(lambda s: compile_for(arch, s), specialisations)
        for specialisation, cubin in zip(specialisations, compiled, strict=True):
            assert len(cubin) > 1000, specialisation
            assert read_shared_bytes(cubin) <= SHARED_LIMIT, specialisation


@pytest.mark.parametrize("arch", ARCHS)
def test_every_source_compiles_for_an_architecture(arch):
    check_compiled(arch, choose_one_each()[arch])


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_every_source_compiles_for_every_architecture(arch):
    check_compiled(arch, choose_few(arch))


@pytest.mark.weekly
@pytest.mark.parametrize("arch", ARCHS)
def test_every_specialisation_compiles(arch):
    check_compiled(arch, choose_for(arch))


@pytest.mark.parametrize("options", [{}, {"fdevice_syntax_only": True}], ids=["whole", "front end"])
def test_a_broken_kernel_does_not_compile(options):
    source = read_source("csr_scalar.cu").replace("store_row(y,", "store_rows(y,")
    types = {"VALUE": FLOAT32, "PATTERN": 0, "INDEX": "int", "OFFSET": "int"}
    with pytest.raises(Exception, match="store_rows"):
        compile_for(90, specialize("csr_scalar.cu", **types), source, **options)


def test_shared_memory_is_read_off_the_machine_code():
    types = {"PATTERN": 0, "INDEX": "int", "OFFSET": "int"}
    assert read_shared_bytes(compile_for(90, specialize("csr_scalar.cu", VALUE=FLOAT32, **types))) < 2048
    assert read_shared_bytes(compile_for(90, specialize("csr_cached.cu", VALUE=FLOAT64, **types))) >= 8 * 1024


def test_every_source_is_compiled():
    sources = {name for name in find_cuda_sources() if name.endswith(".cu")}
    assert {s.source for s in list_specialisations()} == sources


def test_sources_have_their_includes_in_them_once():
    for name in find_cuda_sources():
        text = read_source(name)
        assert "#include" not in text
        assert text.count("typedef long long int64;") <= 1


def test_options():
    made = specialize("csr_scalar.cu", VALUE=FLOAT32, PATTERN=0, INDEX=np.dtype(np.int64), OFFSET=np.dtype(np.int32))
    flags = ("-DINDEX=int64", "-DOFFSET=int", "-DPATTERN=0", "-DVALUE=float")
    assert made.options == ("-std=c++17", "--fmad=false", *flags)


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

"""The project's own promises: what a wheel carries, what an import costs, what the Makefile says when it must stop."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mgspmv

ROOT = Path(__file__).parents[2]
PACKED = ("pyproject.toml", "README.md", "LICENSE", ".gitignore", "mgspmv", "kernels", "pipelines")
HEAVY = ("bokeh", "cupy", "dask", "distributed", "networkx", "numba", "pandas", "pyarrow", "scipy", "zarr")


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


# What is packed


def copy_tree(folder: Path) -> Path:
    """Copy what is packed, without any CUDA source."""
    folder.mkdir()
    for name in PACKED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.cu", "*.cuh"))
        else:
            shutil.copy(source, folder / name)
    return folder


def build(target: str, tree: Path, out: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(out)]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    [built] = out.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def sdist_with_probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sdist of the tree with one CUDA source and one header added."""
    folder = tmp_path_factory.mktemp("sdist")
    tree = copy_tree(folder / "tree")
    (tree / "kernels" / "probe.cu").write_text("// probe")
    (tree / "kernels" / "probe.cuh").write_text("// header")
    return build("sdist", tree, folder / "out")


@pytest.fixture(scope="module")
def unpacked_sdist(sdist_with_probe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    shutil.unpack_archive(sdist_with_probe, folder)
    [tree] = folder.iterdir()
    return tree


@pytest.fixture(scope="module")
def wheel_with_probe(unpacked_sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel built from the sdist, as installers build it."""
    return build("wheel", unpacked_sdist, tmp_path_factory.mktemp("wheel"))


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.slow
def test_sdist_has_the_pipelines_that_users_copy(unpacked_sdist: Path) -> None:
    names = {path.name for path in (unpacked_sdist / "pipelines").iterdir()}
    assert {"quickstart.toml", "nightly-update.toml", "mgspmv.schema.json"} <= names


@pytest.mark.slow
def test_wheel_has_the_cuda_sources_and_nothing_else_of_that_folder(wheel_with_probe: Path) -> None:
    packed = {name for name in names_in(wheel_with_probe) if "_cuda" in name or "kernels/README" in name}
    assert packed == {"mgspmv/_cuda/probe.cu", "mgspmv/_cuda/probe.cuh"}


@pytest.mark.slow
def test_wheel_has_every_module_and_the_typing_mark(wheel_with_probe: Path) -> None:
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "mgspmv").rglob("*.py")}
    assert modules | {"mgspmv/py.typed", "mgspmv/report/page.html.jinja"} <= names_in(wheel_with_probe)


@pytest.mark.slow
def test_wheel_has_only_the_package(wheel_with_probe: Path) -> None:
    tops = {name.split("/")[0] for name in names_in(wheel_with_probe)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"mgspmv"}


@pytest.mark.slow
def test_unpacked_wheel_finds_its_sources(wheel_with_probe: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(wheel_with_probe, tmp_path, "zip")
    code = "from mgspmv.kernels.modules import find_cuda_sources as f; print(*f().values(), sep='\\n')"
    found = run_python(code, cwd=tmp_path, PYTHONPATH=str(tmp_path)).split()
    assert found == [str(tmp_path / "mgspmv" / "_cuda" / name) for name in ("probe.cu", "probe.cuh")]


@pytest.mark.slow
def test_wheel_can_be_built_with_no_cuda_sources(tmp_path: Path) -> None:
    wheel = build("wheel", copy_tree(tmp_path / "tree"), tmp_path / "out")
    assert not [name for name in names_in(wheel) if "_cuda" in name]


# What an import costs


def run_python(code: str, *, cwd: Path = ROOT, **environment: str) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=cwd, env=os.environ | environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert run_python(f"import sys, mgspmv; print(*[name for name in {HEAVY} if name in sys.modules])") == ""


UNUSED = (
    *("asyncio", "bokeh", "dask", "distributed", "fsspec", "jinja2", "matplotlib", "networkx", "numba"),
    *("numcodecs", "numpy.ma", "pandas", "pyarrow.compute", "scipy", "yaml", "zarr"),
)
"""Libraries that ranking a small graph on the CPU does not use, without a store."""
FIND_UNUSED = (
    "import atexit, sys; sys.modules['cupy'] = None\n"  # an import of it fails, and the CPU computes
    f"atexit.register(lambda: print([name for name in {UNUSED} if name in sys.modules]))\n"
)


@pytest.mark.parametrize(
    "code",
    [
        "import numpy as np, mgspmv as mg; mg.pagerank((np.array([0, 1]), np.array([1, 0])))",
        "import mgspmv as mg; mg.pagerank('edges.parquet').save('ranks.parquet'); mg.load_solution('ranks.parquet')",
        "from mgspmv.cli import main; main(['pagerank', 'edges.parquet', '-o', 'ranks.parquet', '--backend', 'cpu'])",
    ],
)
def test_ranking_edges_loads_no_library_that_it_does_not_use(code: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"src": [0, 1, 2], "dst": [1, 2, 0]}), tmp_path / "edges.parquet")
    assert run_python(FIND_UNUSED + code, cwd=tmp_path).splitlines()[-1] == "[]"


@pytest.mark.slow
def test_a_worker_that_multiplies_loads_no_reader() -> None:
    loaded = run_python("import sys, mgspmv.cluster.agent; print(*sys.modules)").split()
    assert "zarr" in loaded
    readers = {name for name in loaded if name in ("pyarrow", "pandas", "polars") or name.startswith("mgspmv.ingest.")}
    assert readers == set()


# What others promise


INTERNAL = ("zarr.core", "numba.core", "distributed.batched", "distributed.dashboard", "dask_jobqueue.core", "unittest")
"""Modules that their projects do not document, or that are for tests."""
EVENTS = "numba.core.event"
"""Documented by Numba, in the folder of what is not."""
DOCUMENTED = {"_exit", "_current_frames", "_cat_file", "_pipe_file", "_fetch_range"}
"""Names with an underscore that Python and fsspec (asynchronous file systems) document."""


def list_own_names(trees: Iterable[ast.Module]) -> set[str]:
    """Names with an underscore that the package itself defines or assigns."""
    names = set()
    for node in chain.from_iterable(map(ast.walk, trees)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
    return names


def find_private(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """Modules, functions and attributes of other projects that are private there."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=aliases, level=0):
                imported = [module] if module.startswith("mgspmv") else [f"{module}.{alias.name}" for alias in aliases]
            case ast.Import(names=aliases):
                imported = [alias.name for alias in aliases]
            case ast.Attribute(attr=name) if name.startswith("_") and not name.endswith("__") and name not in own:
                yield f"line {node.lineno}: .{name}"
                continue
            case _:
                continue
        for name in imported:
            parts = name.split(".")
            if name.startswith("mgspmv") or parts[0] == "__future__" or name == EVENTS:
                continue
            is_private = any(part.startswith("_") and not part.endswith("__") for part in parts)
            if is_private or any(name == module or name.startswith(f"{module}.") for module in INTERNAL):
                yield f"line {node.lineno}: {name}"


def test_nothing_that_is_private_in_other_projects_is_used() -> None:
    trees = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "mgspmv").rglob("*.py"))}
    own = list_own_names(trees.values()) | DOCUMENTED
    del trees[ROOT / "mgspmv/monitor/page.py"]  # a page of Dask's dashboard, to which Dask documents no way
    found = [f"{path.relative_to(ROOT)}, {what}" for path, tree in trees.items() for what in find_private(tree, own)]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "import zarr.core.sync",
        "from zarr.core import sync",
        "from zarr import _storage",
        "x._cache_file",
        "import unittest.mock",
    ],
)
def test_what_is_private_is_found(code: str) -> None:
    assert list(find_private(ast.parse(code), {"_own"}))
    assert list(find_private(ast.parse("self._own; import zarr.storage; from zarr import open"), {"_own"})) == []


# What pyproject.toml promises


def test_version_is_the_one_of_pyproject(pyproject: dict[str, Any]) -> None:
    assert mgspmv.__version__ == pyproject["project"]["version"]


def test_changelog_has_an_entry_of_this_version(pyproject: dict[str, Any]) -> None:
    entries = re.findall(r"^## \[(.+?)\] - (?:Unreleased|\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert pyproject["project"]["version"] in entries


def test_promised_extras_exist(pyproject: dict[str, Any]) -> None:
    promised = {"cuda12", "cuda13", "ucxx12", "ucxx13", "nvrtc", "test", "dev"}
    assert promised <= set(pyproject["project"]["optional-dependencies"])


def test_import_contracts_leave_no_module_out(pyproject: dict[str, Any]) -> None:
    contracts = pyproject["tool"]["importlinter"]["contracts"]
    layers = [contract for contract in contracts if contract["type"] == "layers"]
    assert [contract["containers"] for contract in layers] == [["mgspmv"], ["mgspmv.store"]]
    assert all(contract["exhaustive"] for contract in layers)
    [acyclic] = [contract for contract in contracts if contract["type"] == "acyclic_siblings"]
    assert acyclic["ancestors"] == ["mgspmv", "mgspmv.**"]
    assert len(contracts) == len(layers) + 1
    assert not [
        name for contract in contracts for name in contract if name.startswith(("ignore", "skip", "exhaustive_"))
    ]


# What CI has


@pytest.mark.slow
def test_a_missing_program_skips_a_test_and_fails_it_in_ci(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.external('no-such-program')\ndef test_it():\n    pass\n"
    )
    options = ["-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml"), "-m", "external", "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", "-q", *options, str(tmp_path)]
    elsewhere = {name: value for name, value in os.environ.items() if name != "CI"}
    for environment, ended in ((elsewhere, "1 skipped"), (elsewhere | {"CI": "true"}, "1 error")):
        said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True).stdout
        assert "needs no-such-program; on Debian and Ubuntu, sudo .ci/programs installs all such programs" in said
        assert ended in said.splitlines()[-1]


COME_WITH = {
    "ip": {"tc"},
    "promtool": {"prometheus"},
    "slurmctld": {"sbatch", "scancel", "scontrol", "slurmd", "squeue"},
    "sshd": {"ssh", "ssh-keygen"},
    "zstd": {"pzstd"},
}
"""Programs that Debian's package of another one brings, itself or by what it depends on."""
ON_EVERY_SYSTEM = {"gzip", "mount"}


def find_programs(owner: Any) -> Iterator[str]:
    """Programs of the `external` markers in a module, of its classes and tests, and of their parameters."""
    marks = getattr(owner, "pytestmark", [])
    for mark in marks if isinstance(marks, list) else [marks]:
        yield from mark.args if mark.name == "external" else ()
        for case in mark.args[1] if mark.name == "parametrize" else ():
            yield from (name for own in getattr(case, "marks", ()) if own.name == "external" for name in own.args)
    for name, member in list(vars(owner).items()):
        if isinstance(member, pytest.MarkDecorator) and member.name == "external":
            yield from member.args
        elif name.lower().startswith("test") and hasattr(member, "__dict__"):
            yield from find_programs(member)


def test_programs_of_tests_are_in_ci() -> None:
    text = (ROOT / ".ci/programs").read_text()
    installed = {name.strip('"') for name in re.findall(r"\b(?:want|has) (\S+)", text)}
    wanted = set()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if "mark.external(" in path.read_text():
            wanted |= set(find_programs(import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))))
    assert {"promtool", "slurmctld", "sshd"} <= wanted
    brought = ON_EVERY_SYSTEM.union(*(COME_WITH[name] for name in installed & COME_WITH.keys()))
    assert sorted(wanted - installed - brought) == []


# What the Makefile says


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def run_make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    clean = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHON"}
    }
    return subprocess.run(["make", *arguments], cwd=folder, env=clean, capture_output=True, text=True)


def write_python(folder: Path, *, version: str, accepts: str) -> str:
    """Write a stand-in for an interpreter, which succeeds only on code that matches the shell pattern `accepts`."""
    path = folder / "some-python"
    path.write_text(f'#!/bin/sh\ncase "$*" in -V) echo "Python {version}" ;; {accepts}) ;; *) exit 1 ;; esac\n')
    path.chmod(0o755)
    return f"PYTHON={path}"


@needs_make
def test_make_alone_lists_the_targets(tmp_path: Path) -> None:
    shown = re.findall(r"^  make (\w+)", run_make(tmp_path).stdout, re.M)
    assert {"quickstart", "test", "check", "bench", "clean"} <= set(shown)


@needs_make
def test_make_without_python_says_so(tmp_path: Path) -> None:
    done = run_make(tmp_path, "test", "PYTHON=no-such-python")
    assert done.returncode != 0
    assert "needs Python 3.11 or newer, and there is no 'no-such-python'; name one: make test PYTHON=" in done.stderr


@needs_make
def test_make_with_an_old_python_says_so(tmp_path: Path) -> None:
    done = run_make(tmp_path, "quickstart", write_python(tmp_path, version="3.9.2", accepts="nothing"))
    assert done.returncode != 0
    assert "is Python 3.9.2; name a newer one: make quickstart PYTHON=" in done.stderr


@needs_make
def test_make_without_ensurepip_says_what_to_install(tmp_path: Path) -> None:
    done = run_make(tmp_path, "test", write_python(tmp_path, version="3.12.1", accepts="*version_info*"))
    assert done.returncode != 0
    assert "venv and ensurepip are missing; install them (Debian, Ubuntu: apt install python3-venv)" in done.stderr
    assert not (tmp_path / ".venv").exists()

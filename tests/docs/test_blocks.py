"""Every fenced block of the documentation does what it says: pages are run in order, each in a folder of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from distributed import Client

from tests.support.clusters import start_cluster
from tests.support.pages import ROOT, PageError, list_pages, read_page
from tests.support.running import GPU_WORKERS, ONE_GPU, Runner, Scene, check_scene, find_all_commands, run_examples
from tests.support.scenes import SCENES

pytestmark = pytest.mark.docs
PAGES = list_pages()


def list_with(signs: tuple[str, ...]) -> list[str]:
    """Pages that have commands with one of these signs."""
    return [name for name in PAGES if any(command.has(signs) for command in find_all_commands(read_page(name)))]


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """Of a cluster of two workers in this process, which shells reach as well, for those that pages start by hand."""
    with start_cluster(2, processes=False, protocol="tcp://", threads_per_worker=2) as cluster:
        yield cluster.scheduler_address


def run_page(name: str, folder: Path, address: str, has: tuple[str, ...] = ()) -> None:
    page, scene, wrong = read_page(name), SCENES.get(name, Scene()), ""
    inside = folder / "page"
    inside.mkdir()
    with pytest.MonkeyPatch.context() as patch, Client(address, set_as_default=False) as client:
        patch.chdir(inside)
        patch.setattr(nx.config.backend_priority, "algos", [])
        with Runner(page, scene, folder, address, has) as runner:
            names = scene.fill(client)
            try:
                runner.run(names)
            except PageError as error:
                wrong = str(error)
    if wrong:
        pytest.fail(wrong, pytrace=False)


@pytest.mark.parametrize("name", [name for name in PAGES if read_page(name).blocks])
def test_blocks_of(name: str, tmp_path: Path, scheduler: str) -> None:
    run_page(name, tmp_path, scheduler)


@pytest.mark.gpu
@pytest.mark.parametrize("name", list_with(ONE_GPU))
def test_blocks_on_a_gpu_of(name: str, tmp_path: Path) -> None:
    """What needs a GPU runs on one, and so does all else that takes one where there is one."""
    with start_cluster(1) as cluster:
        run_page(name, tmp_path, cluster.scheduler_address, ONE_GPU)


@pytest.mark.gpu
@pytest.mark.parametrize("name", list_with(GPU_WORKERS))
def test_blocks_on_all_gpus_of(name: str, tmp_path: Path) -> None:
    pytest.importorskip("dask_cuda", reason="dask-cuda is not installed, which starts a worker for each GPU")
    from mgspmv.cluster.connect import start_cuda

    with start_cuda() as cluster:
        run_page(name, tmp_path, cluster.scheduler_address, ONE_GPU + GPU_WORKERS)


def test_scenes_name_what_is_on_their_pages() -> None:
    for name, scene in SCENES.items():
        check_scene(read_page(name), scene)


def list_docstrings() -> Iterator[tuple[str, str]]:
    """All of the package that have examples, with where they are."""
    for path in sorted((ROOT / "mgspmv").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ">>>" in (
                ast.get_docstring(node) or ""
            ):
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", ast.get_docstring(node) or ""


def test_examples_in_docstrings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (where, text) in enumerate(list_docstrings()):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        assert run_examples(where, text) > 0


def test_the_example_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mgspmv

    monkeypatch.chdir(tmp_path)
    Path("web.mtx.gz").write_text("%%MatrixMarket matrix coordinate pattern general\n3 3 3\n1 2\n2 3\n3 1\n")
    code = (mgspmv.__doc__ or "").partition("\n\n")[2]
    names: dict[str, Any] = {}
    exec(f"{code.rstrip()}\n", names)
    assert names["ranks"].iterations > 0

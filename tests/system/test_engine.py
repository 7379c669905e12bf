"""The engine: options and messages are typed, few modules are loaded, and few calls lead to a kernel."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import mgspmv

PACKAGE = Path(mgspmv.__file__).parent
KERNELS = PACKAGE / "kernels"
FOLDERS = ("api", "cluster", "exchange", "solvers")
BAGS = {
    "api/arguments.py": 2,  # options of a solution, a JSON document; and of a source, which users give by name
    "api/batch_ranking.py": 1,  # likewise
    "api/ranking.py": 2,  # identity of a run, likewise
    "api/derived.py": 1,  # provenance, likewise
    "api/reading.py": 5,  # options of a source, and provenance
    "api/stores.py": 2,  # provenance
    "cluster/ingest_steps.py": 2,  # provenance
    "cluster/connect.py": 2,  # arguments of Dask's classes
    "cluster/managers.py": 10,
    "cluster/security.py": 3,  # settings of Dask, and what Tornado expects
    "cluster/agent.py": 1,  # objects by key
    "cluster/dask_cluster.py": 3,  # descriptions of workers by Dask's scheduler
    "cluster/scheduler_client.py": 6,
    "cluster/worker_metrics.py": 1,  # a message on a topic of Dask
}
"""Dicts of anything that are documents or belong to a library, by file; a new one needs a dataclass instead."""
PASSED_ON = {
    "api/arguments.py": 1,  # options of a source, which users give by name
    "api/reading.py": 1,
    "api/stores.py": 3,
    "cluster/connect.py": 3,  # arguments of Dask's classes
    "cluster/managers.py": 1,
    "cluster/security.py": 1,  # signatures of Python and of Dask
    "cluster/agent.py": 1,
}
"""Functions that take any keyword arguments, by file."""


def list_trees():
    for folder in FOLDERS:
        for path in sorted((PACKAGE / folder).glob("*.py")):
            yield f"{folder}/{path.name}", ast.parse(path.read_text(encoding="utf-8"))


def is_bag(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and ast.unparse(node) == "dict[str, Any]"


def test_options_and_messages_are_typed():
    found = Counter(name for name, tree in list_trees() for node in ast.walk(tree) if is_bag(node))
    assert {name: n for name, n in found.items() if n > BAGS.get(name, 0)} == {}
    assert {name: n for name, n in BAGS.items() if n > found[name]} == {}, "lower the number"


def test_options_are_not_passed_through_layers():
    found = Counter()
    for name, tree in list_trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (rest := node.args.kwarg) is not None:
                found[name] += ast.unparse(rest.annotation) == "Any"
    assert {name: n for name, n in found.items() if n > PASSED_ON.get(name, 0)} == {}
    assert {name: n for name, n in PASSED_ON.items() if n > found[name]} == {}, "lower the number"


def list_modules(code: str) -> list[str]:
    """Modules of the package that a new process has loaded after some code."""
    code += "\nimport sys; print(*(m for m in sys.modules if m.partition('.')[0] == 'mgspmv'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_few_modules_are_loaded_to_rank(tmp_path):
    mgspmv.ingest(([0, 1, 2], [1, 2, 0]), tmp_path / "a.zarr")
    assert len(list_modules("import mgspmv.solvers.pagerank")) <= 60
    assert len(list_modules(f"import mgspmv as mg; mg.pagerank(mg.open({str(tmp_path / 'a.zarr')!r}).on('cpu'))")) <= 60


def test_few_calls_lead_to_a_kernel():
    A, depths = mgspmv.ingest(([0, 1, 2], [1, 2, 0])).on("cpu"), []

    def look(frame, event, arg):
        if event == "call" and frame.f_code.co_name == "step" and Path(frame.f_code.co_filename).parent == KERNELS:
            stack = [frame]
            while stack[-1].f_back is not None:
                stack.append(stack[-1].f_back)
            depths.append(sum(Path(own.f_code.co_filename).is_relative_to(PACKAGE) for own in stack))

    sys.setprofile(look)
    try:
        mgspmv.pagerank(A)
    finally:
        sys.setprofile(None)
    assert 1 < max(depths) <= 15

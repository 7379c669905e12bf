"""The same mistakes at the command line, where messages name options, and in Python, where they name arguments."""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import typer

import mgspmv as mg
from mgspmv.api.centrality import Running
from mgspmv.cli import app
from mgspmv.errors import MgspmvError
from mgspmv.ingest.generate import GENERATORS
from mgspmv.ingest.open import EDGE_LIST_OPTIONS
from tests.support.commands import invoke, invoke_json
from tests.support.placed import call_placed

FILES = {
    "g.txt": "1 2\n2 3\n3 1\n",
    "negative.txt": "1 2 0.5\n2 3 2\n3 1 -1\n",
    "path.txt": "0 1\n1 2\n",
    "four.txt": "1 2 3 4\n5 6 7 8\n",
    "float.txt": "1.5 2\n",
    "unclear.txt": "a,b\n",
    "zeros.txt": "007 1\n7 2\n",
    "bipartite.txt": "% bip unweighted\n1 1\n",
    "twice.txt": "1 2\n1 2\n",
    "loop.txt": "1 1\n",
    "far.txt": "1 999999999\n",
    "ids.txt": "1\n2\n",
    "two.mtx": "%%MatrixMarket matrix coordinate real general\n2 3 1\n1 1 1\n",
    "empty.txt": "",
    "taken.mtx": "",
}
COMMANDS = typer.main.get_command(app).commands
OPTION = r"--[a-z][\w-]*"
OTHERS = {"the transpose": "transpose", "ingest ": "ingest"}
"""Commands that messages advise, by words of these."""

INGEST = "ingest g.txt h.zarr"
VALUES = {"columns": ("a", "b"), "x": np.ones(3)}
"""Of arguments in Python, where these are no strings or numbers of the command line."""
ROWS = {
    # the command; what its message names; what that of Python names
    "columns": ("ingest four.txt h.zarr", "--columns", "columns"),
    "ids": ("ingest float.txt h.zarr", "--ids", "ids"),
    "weights": ("ingest g.txt h.zarr --weights", "--no-weights", "weights"),
    "names": ("ingest two.mtx h.zarr --columns a,b", "--columns", "columns"),
    "no edges": ("ingest empty.txt h.zarr", "--n-vertices --vertices", "n_vertices vertices"),
    "a header or an edge": ("ingest unclear.txt h.zarr", "--header --no-header", "header"),
    "zeros": ("ingest zeros.txt h.zarr", "--ids", "ids"),
    "a bipartite graph": ("ingest bipartite.txt h.zarr", "--comment", "comment"),
    "few vertices": ("ingest g.txt h.zarr --n-vertices -1", "--n-vertices", "n_vertices"),
    "two lists": (f"{INGEST} --n-vertices 5 --vertices ids.txt", "--n-vertices --vertices", "n_vertices vertices"),
    "a number of names": (f"{INGEST} --n-vertices 5 --ids string", "--n-vertices --vertices", "n_vertices vertices"),
    "duplicates": ("ingest twice.txt h.zarr --duplicates error", "--duplicates", "duplicates"),
    "loops": ("ingest loop.txt h.zarr --self-loops error", "--self-loops", "self_loops"),
    "kind": ("ingest two.mtx h.zarr --kind graph", "--kind", "kind"),
    "another kind": ("ingest g.txt h.zarr --kind grpah", "--kind", "kind"),
    "a store": ("ingest g.txt g.zarr", "--overwrite", "overwrite"),
    "memory": ("ingest g.txt h.zarr --memory 1", "--memory", "memory"),
    "no change": ("update g.zarr", "--insert --delete", "insert delete"),
    "weights of a pattern": ("update g.zarr --insert negative.txt", "--no-weights", "weights"),
    "a far vertex": ("update path.zarr --insert far.txt", "--n-vertices", "n_vertices"),
    "no part": (
        "subgraph g.zarr h.zarr",
        "--vertices --min-weight --max-weight --edges --without-edges",
        "vertices min_weight max_weight edges without_edges",
    ),
    "bounds": ("subgraph g.zarr h.zarr --min-weight 1", "--min-weight", "min_weight"),
    "no edges to turn": (
        "subgraph g.zarr h.zarr --symmetrize --vertices ids.txt",
        "--symmetrize --edges --without-edges",
        "symmetrize edges without_edges",
    ),
    "vertices of a matrix": ("subgraph two.zarr h.zarr --vertices ids.txt", "--vertices --kind", "vertices kind"),
    "tol": ("pagerank g.zarr --tol -1", "--tol --norm", "tol norm"),
    "a small tol": ("pagerank g.zarr --tol 1e-30", "--tol --norm --precision", "tol norm precision"),
    "alpha": ("pagerank g.zarr --alpha 2", "--alpha", "alpha"),
    "no tol": ("pagerank g.zarr --norm fixed --tol 1", "--norm --max-iter --tol", "norm max_iter tol"),
    "few iterations": ("pagerank path.zarr --max-iter 1", "--max-iter --tol", "max_iter tol"),
    "stop": ("pagerank g.zarr --stop topk:5", "--stop", "stop"),
    "no cluster": ("pagerank g.zarr --transport peer", "--transport --cluster --scheduler", "transport where"),
    "negative weights": ("pagerank negative.zarr", "--no-weight", "weight"),
    "dangling": ("pagerank path.zarr --dangling error", "--dangling", "dangling"),
    "memory of devices": (
        "pagerank g.zarr --device-memory 1GB --backend cpu",
        "--device-memory --host-memory --backend",
        "device_memory host_memory backend",
    ),
    "alpha of a batch": ("pagerank-batch g.zarr --alpha 3", "--alpha", "alpha"),
    "no transpose": ("hits g.zarr", "", ""),
    "a large alpha": ("katz g.zarr --alpha 1 --max-iter 2", "--alpha --max-iter --tol", "alpha max_iter tol"),
    "no chain": ("stationary g.zarr", "--kind", "kind"),
    "two formats": ("export g.zarr h.zarr", "--format", "format"),
    "a file": ("export g.zarr taken.mtx", "--overwrite", "overwrite"),
    "no vertices": ("export two.zarr h.mtx --vertices v.txt", "--vertices", "vertices"),
    "another store": ("reorder g.zarr path.zarr", "--overwrite", "overwrite"),
    "method": ("reorder g.zarr h.zarr --method best", "--method", "method"),
    "no y": ("spmv g.zarr x.npy -o y.npy --beta 2", "--beta --y", "beta y"),
    "scale": ("generate rmat h.zarr --scale 99", "--scale", "scale"),
    "quadrants": ("generate rmat h.zarr --scale 4 --a 2", "--a --b --c", "a b c"),
    "no edges to make": ("generate uniform h.zarr --n-vertices 5", "--n-edges", "n_edges"),
    "keep": ("versions g.zarr --keep 0", "--keep", "keep"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    place = tmp_path_factory.mktemp("made")
    for name, text in FILES.items():
        (place / name).write_text(text)
    np.save(place / "x.npy", VALUES["x"])
    for name in ("g.txt", "negative.txt", "two.mtx"):
        mg.ingest(place / name, place / f"{Path(name).stem}.zarr")
    mg.ingest(place / "path.txt", place / "path.zarr", n_vertices=3)
    return place


@pytest.fixture(autouse=True)
def stores(made, folder):
    shutil.copytree(made, folder, dirs_exist_ok=True)


def find_named(message: str, pattern: str) -> set[str]:
    """What a message names, outside of quotes."""
    return set(re.findall(pattern, re.sub(r"(?<![\w=])'[^']*'", "", message)))


def fail_in_python(command: str) -> MgspmvError:
    """The error of the function that a command calls, with the same arguments."""
    name, *words = command.split()
    context = COMMANDS[name].make_context(name, words)
    given = {key: VALUES.get(key, value) for key, value in context.params.items() if is_given(context, key)}
    given.pop("output", None)
    if name == "katz":
        given["alpha"] = float(given["alpha"])
    if name == "subgraph" and "vertices" in given:
        given["vertices"] = [1, 2]
    function, store = find_function(name), given.pop("graph" if "graph" in given else "store")
    sources = [given.pop("source")[0]] if name == "ingest" else [given.pop("model")] if name == "generate" else []
    takes_store = {"store", "source", "model"} & {*inspect.signature(function).parameters}
    call = partial(function, *sources, store) if takes_store else partial(call_placed, function, mg.open_matrix(store))
    with pytest.raises(MgspmvError) as caught:
        call(**given)
    return caught.value


def is_given(context: typer.Context, key: str) -> bool:
    return context.get_parameter_source(key).name == "COMMANDLINE"


def find_function(command: str) -> Callable[..., object]:
    return mg.drop_versions if command == "versions" else getattr(mg, command.replace("-", "_"))


@pytest.mark.parametrize("row", ROWS)
def test_commands_name_their_options(row):
    command, options, arguments = ROWS[row]
    name, *given = command.split()
    code = fail_in_python(command).exit_code
    message = invoke_json(name, *given, code=code)["error"]["message"]
    named = find_named(message, OPTION)
    known = {name, *(other for words, other in OTHERS.items() if words in message)}
    taken = {each for other in known for p in COMMANDS[other].params for each in p.opts + p.secondary_opts}
    assert named <= taken
    assert {*re.findall(OPTION, options)} <= named, message
    rest = re.sub(OPTION, "", message)
    assert find_named(rest, r"(?<![\w-])[a-z]\w*=|\w+\.\w+\(|\w\(\)") == set(), message
    assert not [each for each in arguments.split() if "_" in each and each in rest], message
    assert invoke(name, *given, code=code)[1] == f"error: {message}\n"


@pytest.mark.parametrize("row", ROWS)
def test_python_names_arguments(row):
    command, _, arguments = ROWS[row]
    message = str(fail_in_python(command))
    said = message.replace("ended as max_iter", "")  # which is the status
    assert find_named(said, r"(?<![\w-])--") == set(), message
    assert {*arguments.split()} <= find_named(message, r"\w+"), message
    known = list_arguments(command.split()[0]) | (list_arguments("ingest") if "ingest " in message else set())
    said = message.replace("ended as max_iter", "")  # which is the status
    assert find_named(said, r"(?<![\w.])([a-z]\w*)=(?!=)") <= known, message


def list_arguments(command: str) -> set[str]:
    taken = set(inspect.signature(find_function(command)).parameters)
    if "progress" in taken or "running" in taken:  # calls with a matrix
        taken |= set(inspect.signature(mg.Matrix.on).parameters)
    if "edge_list_options" in taken:
        taken |= {*EDGE_LIST_OPTIONS, "columns"}
    if "running" in taken:
        taken |= set(Running.__annotations__)
    if command == "generate":
        taken |= {name for make in GENERATORS.values() for name in inspect.signature(make).parameters}
    return taken

"""The program `mgspmv`, run in this process or in its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import typer

from mgspmv.cli import app

EDGES = [(1, 2), (2, 3), (3, 1), (1, 3), (3, 5)]
"""Of the file edges.txt that commands find."""
SOURCES = {
    "edges.txt": "# arcs\n" + "".join(f"{i} {j}\n" for i, j in EDGES),
    "a.mtx": "%%MatrixMarket matrix coordinate real general\n2 3 3\n1 1 1.5\n2 3 -2\n1 2 4\n",
}
"""The text of files that commands find, by name."""

TINY_RMAT = ["generate", "rmat", "r.zarr", "--scale", "6", "--edge-factor", "4"]

PROGRAM = [sys.executable, "-c", "from mgspmv.cli import main; main()"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}


def invoke(*args: str, code: int | None = 0):
    """Run a command in this process and give its (stdout, stderr); with `code` None it is to fail, however."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr), pytest.raises(SystemExit) as ended:
        app(args, prog_name="mgspmv")
    ended_well = bool(ended.value.code) if code is None else ended.value.code == code
    assert ended_well, stdout.getvalue() + stderr.getvalue()
    return stdout.getvalue(), stderr.getvalue()


def invoke_json(*args: str, code: int = 0):
    stdout, _ = invoke(*args, "--json", code=code)
    return json.loads(stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def start(*args: str, **options) -> subprocess.Popen:
    return subprocess.Popen([*PROGRAM, *args], env=ENVIRONMENT, text=True, **options)


def check_words(words: list[str]) -> None:
    """Fail unless the program has the command, and takes the options; nothing is run.

    Parameters
    ----------
    words : those after the program's name
    """
    command, rest = typer.main.get_command(app), words
    while hasattr(command, "commands"):
        with command.make_context(command.name or "mgspmv", rest) as context:
            _, command, rest = command.resolve_command(context, rest)
    command.make_context(command.name, list(rest))

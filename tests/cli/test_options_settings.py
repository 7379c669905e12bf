"""Settings, given by `--set KEY=VALUE`."""

from __future__ import annotations

import json
from typing import get_args

import pytest
import typer

from mgspmv.cli import app
from mgspmv.cli.options import SETTINGS
from tests.support.commands import TINY_RMAT, invoke, invoke_json

COMMANDS = typer.main.get_command(app).commands


@pytest.mark.parametrize(
    ("command", "given", "said"),
    [
        ("pagerank", "transprt=peer", "--set transprt=peer: unknown key 'transprt'; did you mean 'transport'?"),
        ("pagerank", "host-memory=1", "--set host-memory=1: unknown key 'host-memory'; did you mean 'host_memory'?"),
        ("export", "x=1", "--set x=1: unknown key 'x'; the keys are scratch"),
        ("pagerank", "recover", "--set recover: expected KEY=VALUE, such as --set recover=N"),
        ("pagerank", "transport=", "--set transport=: expected KEY=VALUE, such as --set transport=auto"),
        ("pagerank", "recover=many", "--set recover must be a whole number, not 'many'"),
        ("pagerank", "recover=-1", "--set recover must be 0 or more, not -1"),
        ("pagerank", "timeout=long", "--set timeout must be a number, not 'long'"),
        ("pagerank", "timeout=0", "--set timeout must be a positive number of seconds, not 0"),
        ("pagerank", "transport=mpi", "--set transport must be one of 'auto', 'nccl', 'peer', not 'mpi'"),
        ("pagerank-batch", "width=3", "--set width must be one of 2, 4, 8, 16, 32, 64, not 3"),
    ],
)
def test_wrong_settings_are_one_line(command, given, said):
    target = ["t.mtx"] if command == "export" else []
    assert invoke(command, "g.zarr", *target, "--set", given, code=2) == ("", f"error: {said}\n")


def test_a_flag_is_true_or_false():
    for text, code in (("scramble=false", 0), ("scramble=TRUE", 0), ("scramble=2", 2)):
        _, stderr = invoke(*TINY_RMAT, "--overwrite", "--set", text, code=code)
        assert stderr == ("error: --set scramble must be true or false, not '2'\n" if code else "")
    assert "given twice" in invoke(*TINY_RMAT, "--set", "a=0.3", "--set", "a=0.4", code=2)[1]


def test_settings_are_given_on():
    invoke(*TINY_RMAT, "--set", "dtype=float32", "--weights")
    fixed = invoke_json("pagerank", "r.zarr", "--set", "norm = fixed", "--set", "scaler=max", "--max-iter", "3")
    assert (fixed["iterations"], fixed["options"]["norm"], fixed["top"][0]["rank"]) == (3, "fixed", 1.0)
    assert json.loads(invoke("info", "r.zarr", "--json")[0])["dtype"] == "float32"


def test_an_option_of_the_name_is_refused_with_the_setting():
    _, stderr = invoke("pagerank", "g.zarr", "--kernel", "csr-serial", code=2)
    assert stderr.startswith("error: No such option: --kernel")
    assert "pass --set kernel=VALUE" in stderr


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if not hasattr(command, "commands")])
def test_settings_are_no_options(name):
    command = COMMANDS[name]
    settings = getattr(command.callback, "settings", {})
    assert {p.name for p in command.params} & SETTINGS == set()
    assert all(get_args(parameter.annotation)[1].help for parameter in settings.values())

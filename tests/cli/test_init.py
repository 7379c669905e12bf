"""The program: help, versions, exit codes, and where each byte goes."""

from __future__ import annotations

import importlib
import io
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
import pytest
import typer
import zarr

import mgspmv
import mgspmv.partition
from mgspmv import errors
from mgspmv.cli import app
from mgspmv.errors import CapacityError, MgspmvError
from mgspmv.model import Event
from mgspmv.results import Solution
from tests.support.commands import ENVIRONMENT, PROGRAM, SOURCES, TINY_RMAT, invoke, invoke_json, start
from tests.support.waiting import HANG_S


def test_help_does_not_wait_for_heavy_libraries():
    heavy = ["numba", "zarr", "scipy", "pyarrow", "dask", "distributed", "numpy", "pydantic", "fsspec", "networkx"]
    code = f"import sys, mgspmv.cli; print([name for name in {heavy} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_help_says_the_exit_codes():
    stdout, _ = invoke("--help")
    text = " ".join(stdout.split())
    assert (
        "Exit codes: 0 done, 1 unexpected error or a wrong finding of doctor, 2 wrong usage or a missing package, 3 mal"
        in text
    )
    commands = "ingest generate update versions reorder subgraph export info plan spmv pagerank pagerank-batch top"
    commands += " verify run doctor"
    for command in commands.split():
        assert command in stdout
        assert "--json" in invoke(command, "--help")[0]


def list_examples(group, path=()):
    """Path, command and example of each command."""
    for name, command in group.commands.items():
        yield (*path, name), command, command.epilog or ""
        yield from list_examples(command, (*path, name)) if hasattr(command, "commands") else ()


@pytest.mark.parametrize(("path", "command", "example"), [*list_examples(typer.main.get_command(app))])
def test_each_command_has_an_example_that_parses(path, command, example):
    said, _, line = example.partition(": mgspmv ")
    args = shlex.split(line)
    assert (said, tuple(args[: len(path)])) == ("Example", path)
    assert example in " ".join(invoke(*path, "--help")[0].split())
    command.make_context(path[-1], args[len(path) :])


def test_the_program_has_an_example_that_parses():
    line = re.search(r"^Example: mgspmv (.*)$", invoke("--help")[0], re.MULTILINE)[1]
    typer.main.get_command(app).commands["pagerank"].make_context("pagerank", shlex.split(line)[1:])
    assert line.startswith("pagerank ")


def test_version():
    """That of the program first, then those of what computes."""
    lines = [line.split() for line in invoke("--version")[0].splitlines()]
    assert lines[0] == ["mgspmv", "0.1.0"]
    assert lines[1] == ["python", platform.python_version()]
    assert ["zarr", zarr.__version__] in lines
    stdout, _ = invoke("--version", "--json")
    assert json.loads(stdout)["numpy"] == np.__version__


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """A folder with the stores of edges.txt and a.mtx."""
    folder = tmp_path_factory.mktemp("stores")
    for source, store in (("edges.txt", "g.zarr"), ("a.mtx", "a.zarr")):
        (folder / source).write_text(SOURCES[source])
        invoke("ingest", str(folder / source), str(folder / store))
    return folder


@pytest.mark.parametrize(
    ("args", "code", "type_name", "message"),
    [
        (["info", "g.zarr", "--wat"], 2, "UsageError", "No such option: --wat"),
        (["pagerank", "g.zarr", "--alpha", "x"], 2, "UsageError",
         "Invalid value for '--alpha': expected a number, got 'x'"),
        (["pagerank", "g.zarr", "--top", "0"], 2, "UsageError", "'--top' / '-k': expected at least 1, got"),
        (["cluster", "start", "--port", "65536"], 2, "UsageError", "'--port': expected at most 65535, got"),
        (["ingest", "edges.txt", "h.zarr", "--skip-rows", "1.5"], 2, "UsageError", "expected an integer, got '1.5'"),
        (["ingest", "edges.txt", "h.zarr", "--memory", "foo"], 2, "OptionError",
         "--memory must be a size such as 141GB, 16GiB or 500MB, not 'foo'"),
        (["plan", "g.zarr", "--device-memory", "foo"], 2, "OptionError", "--device-memory must be a size such as "),
        (["ingest", "twice.txt", "h.zarr", "--duplicates", "error"], 3, "SourceError",
         "pass --duplicates sum, first or keep, or clean the source"),
        (["pagerank", "g.zarr", "-o", "r.txt"], 2, "OptionError", "the name must end in .zarr, .parquet, .csv"),
        (["generate", "rmta", "h.zarr"], 2, "OptionError", "did you mean 'rmat'"),
        (["spmv", "a.zarr", "x2.npy", "-o", "y.npy"], 2, "ShapeError", "x has 2 entries but the matrix has 3 columns"),
        (["ingest", "bad.txt", "h.zarr"], 3, "SourceError", "bad.txt, line 2"),
        (["ingest", "none.txt", "h.zarr"], 3, "SourceNotFoundError", "none.txt"),
        (["info", "none.zarr"], 4, "StoreNotFoundError", "there is no matrix store at none.zarr"),
        (["verify", "other.zarr"], 4, "StoreFormatError", "not a matrix store"),
        (["top", "none.zarr"], 4, "StoreNotFoundError", "no ranks found at none.zarr"),
        (["pagerank", "g.zarr", "-o", "there.csv"], 4, "StoreExistsError", "there.csv exists already"),
        (["pagerank", "g.zarr", "--max-iter", "2"], 5, "ConvergenceError", "after 2 iterations"),
        (["plan", "g.zarr", "--host-memory", "10"], 6, "CapacityError", "needs"),
        (["pagerank", "g.zarr", "--backend", "cpu", "--device-memory", "1GB"], 2, "OptionError",
         "--device-memory and --host-memory limit what a run on CUDA"),
        (["spmv", "a.zarr", "x3.npy", "-o", "y.npy", "--backend", "cpu", "--host-memory", "1GB"], 2, "OptionError",
         "--device-memory and --host-memory limit what a run on CUDA"),
    ],
)  # fmt: skip
def test_exit_codes(args, code, type_name, message, stores):
    shutil.copytree(stores, ".", dirs_exist_ok=True)
    np.save("x2.npy", np.ones(2))
    np.save("x3.npy", np.ones(3))
    Path("bad.txt").write_text("1 2\n1 x\n")
    Path("twice.txt").write_text("1 2\n1 2\n")
    Path("there.csv").write_text("")
    zarr.open_group("other.zarr", attributes={"x": 1})
    stdout, stderr = invoke(*args, code=code)
    text = " ".join(stderr.split())
    assert message in text
    assert "Traceback" not in text
    if type_name not in ("ConvergenceError", "CapacityError"):  # which come with an answer
        assert stdout == ""
    error = invoke_json(*args, code=code)["error"]
    assert error["type"] == type_name
    assert message in error["message"]


def test_what_is_not_expected_is_an_error_of_one_line(monkeypatch):
    errors = [RuntimeError("a bug"), RuntimeError("a bug"), CapacityError("needs 3 GB")]

    def fail(*_, **__):
        raise errors.pop(0)

    monkeypatch.setattr(mgspmv, "verify", fail)
    said = "error: RuntimeError: a bug; this error was not expected, --debug shows the traceback\n"
    assert invoke("verify", "g.zarr", code=1) == ("", said)
    assert invoke_json("verify", "g.zarr", code=1) == {"error": {"type": "RuntimeError", "message": "a bug"}}
    assert invoke("verify", "g.zarr", code=6)[1] == "error: needs 3 GB\n"


@pytest.mark.parametrize("args", [("--debug", "info", "none.zarr"), ("info", "none.zarr", "--debug")])
def test_debug_shows_where_an_error_comes_from(args):
    _, stderr = invoke(*args, code=4)
    assert stderr.startswith("Traceback (most recent call last)")
    assert "in open\n" in stderr
    assert stderr.splitlines()[-1].startswith("error: there is no matrix store at none.zarr")
    stdout, _ = invoke(*args, "--json", code=4)
    assert "in open\n" in "".join(json.loads(stdout)["error"]["traceback"])


def test_quiet_says_nothing_but_errors():
    assert invoke(*TINY_RMAT, "--quiet") == ("", "")
    assert invoke("pagerank", "r.zarr", "-q", "-o", "-")[0].startswith("id,rank\n")
    assert json.loads(invoke("--quiet", "info", "r.zarr", "--json")[0])["nnz"] > 0
    stdout, stderr = invoke("pagerank", "r.zarr", "-q", "--max-iter", "1", code=5)
    assert stdout == ""
    assert stderr.startswith("error: PageRank did not converge: L1 change")
    assert stderr.count("\n") == 1


def read_log(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_a_log_has_what_the_command_calls():
    invoke(*TINY_RMAT, "--log", "log.jsonl")
    ranked = invoke_json("--debug", "--log=log.jsonl", "pagerank", "r.zarr", "--max-iter", "2", code=5)
    made, *iterations, failed = read_log("log.jsonl")
    assert (made["call"], failed["call"], failed["level"]) == ("generate", "pagerank", "ERROR")
    assert [line["change"] for line in iterations] == ranked["changes"]
    assert {line["run"] for line in (*iterations, failed)} == {failed["run"]}


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--log", "."], 4, "cannot write the log .: Is a directory; choose a file in an existing folder"),
        (["--log", "none/l"], 4, "cannot write the log none/l: No such file or directory; choose a file in an "),
        (["--log", ""], 4, "cannot write the log : Is a directory"),
        (["--log"], 2, "Option '--log' requires an argument."),
    ],
)
def test_logs_that_cannot_be_written_are_refused_before_the_work(args, code, said):
    stdout, stderr = invoke(*TINY_RMAT, *args, code=code)
    assert stderr.startswith(f"error: {said}")
    assert stderr.count("\n") == 1
    assert stdout == ""
    assert not Path("r.zarr").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["pagerankk"], "No such command 'pagerankk'. Did you mean 'pagerank'"),
        (["pagerank", "g.zarr", "--tole", "1"], "No such option: --tole"),
        (["pagerank"], "Missing argument 'GRAPH'. See `mgspmv pagerank --help`.\n"),
        (["cluster", "start", "--worker", "1"], "No such option: --worker"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_line_with_a_hint(args, said):
    stdout, stderr = invoke(*args, code=2)
    assert stdout == ""
    assert stderr.startswith(f"error: {said}")
    assert stderr.endswith(" --help`.\n")
    assert stderr.count("\n") == 1


def test_errors_are_red_on_terminals_that_have_colours(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    for no_color, said in (("", "\x1b[31m\x1b[1merror:\x1b[0m"), ("1", "error:")):
        monkeypatch.setenv("NO_COLOR", no_color)
        terminal.truncate(terminal.seek(0))
        with pytest.raises(SystemExit), redirect_stderr(terminal):
            app(["info", "none.zarr"], prog_name="mgspmv")
        assert terminal.getvalue().startswith(f"{said} there is no")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("mgspmv pager", ["pagerank", "pagerank-batch"]),
        ("mgspmv pagerank g.zarr --max-i", ["--max-iter"]),
        ("mgspmv pagerank g.zarr --ker", ["--kernel"]),
        ("mgspmv pagerank g.zarr --hel", ["--help", "--help-all"]),
        ("mgspmv cluster --he", ["--help", "--help-all"]),
        ("mgspmv cluster sto", ["stop"]),
    ],
)
def test_a_shell_completes_commands_and_options(words, found, monkeypatch):
    monkeypatch.setenv("_MGSPMV_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    assert invoke()[0].split() == found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("info r.zarr > /dev/full", 4),
        ("info r.zarr --json > /dev/full", 4),
        ("pagerank r.zarr -q -o - > /dev/full", 4),
        ("info r.zarr >&-", 4),
        ("info r.zarr --json >&-", 4),
        ("pagerank r.zarr -q >&-", 0),
        ("info r.zarr --json 2>&-", 0),
        ("info r.zarr --json 2> /dev/full", 0),
        ("info none.zarr >&- 2>&-", 4),
    ],
)
def test_an_answer_that_is_lost_is_an_error_and_a_message_is_none(command, code):
    invoke(*TINY_RMAT)
    shell = f"{shlex.join(PROGRAM)} {command}"
    done = subprocess.run(shell, shell=True, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    lost = {"full": "no space left on device", "&-": "stdout is closed; redirect it to a file"}
    why = next((why for end, why in lost.items() if command.endswith(end) and code and "2>" not in command), None)
    assert done.returncode == code
    assert done.stderr.startswith(f"error: cannot write the answer: {why}" if why else ""), done.stderr
    if code == 0:
        assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupt(folder, number):
    os.mkfifo("pipe.txt")
    arguments = ("ingest", "pipe.txt", "p.zarr", "--format", "edge-list")
    process = start(*arguments, stdout=-1, stderr=-1)
    with open("pipe.txt", "w") as pipe:  # waits until it is read
        pipe.write("1 2\n")
        pipe.flush()
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    assert stderr == "interrupted; p.zarr is unchanged\n"
    assert stdout == ""
    assert not (folder / "p.zarr").exists()


def test_an_interrupt_says_what_is_kept(monkeypatch):
    invoke(*TINY_RMAT)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    rank = mgspmv.pagerank

    def interrupt_third(A, *, progress, **_):
        for k in (1, 2, 3):
            progress(Event("run", 0, k, 0.5**k, (0.1,), (0.0,), (0.0,), (0,), (0,)))
        raise KeyboardInterrupt

    for call, args, said in (
        ("update", ("update", "r.zarr"), "r.zarr is unchanged"),
        ("reorder", ("reorder", "r.zarr", "s.zarr"), "s.zarr is unchanged"),
        ("subgraph", ("subgraph", "r.zarr", "s.zarr"), "s.zarr is unchanged"),
        ("export", ("export", "r.zarr", "r.npz"), "r.npz is unchanged"),
        ("generate", TINY_RMAT, "r.zarr is unchanged"),
        ("pagerank", ("pagerank", "r.zarr"), "nothing is written"),
    ):
        monkeypatch.setattr(mgspmv, call, interrupt)
        assert invoke(*args, code=130)[1] == f"interrupted; {said}\n"
    monkeypatch.setattr(mgspmv, "pagerank", interrupt_third)
    said = "interrupted; after 3 iterations, change 0.125; nothing is written\n"
    assert invoke("pagerank", "r.zarr", "-o", "r.csv", code=130)[1] == said
    monkeypatch.setattr(mgspmv, "pagerank", rank)
    monkeypatch.setattr(Solution, "save", lambda self, path, **_: None if path == "a.csv" else interrupt())
    args = ("pagerank", "r.zarr", "-o", "a.csv", "-o", "b.csv")
    assert invoke(*args, code=130)[1] == "interrupted; a.csv is written\n"
    assert invoke("info", "none.zarr", code=4)[1].startswith("error: there is no matrix store")


def test_exit_codes_in_the_reference_are_those_of_the_errors(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "docs" / "hooks")
    table = importlib.import_module("listings").write_exit_codes()
    rows = re.findall(r"^\| (\d+) \|.*\|(.*)\|$", table, flags=re.MULTILINE)
    named = {name: int(code) for code, names in rows for name in re.findall(r"`(\w+)`", names)}
    assert named == {name: getattr(errors, name).exit_code for name in named}
    assert {int(code) for code, _ in rows} == {0, 130} | {
        kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, MgspmvError)
    }

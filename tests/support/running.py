"""Runs the blocks of a page as a reader would, in order, in one folder."""

from __future__ import annotations

import ast
import doctest
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from io import StringIO
from pathlib import Path
from types import TracebackType
from typing import Any

from distributed import Client

from mgspmv.launching import list_clusters, stop
from mgspmv.pipeline import read_pipeline
from tests.support.commands import PROGRAM, invoke
from tests.support.pages import ROOT, Block, Page
from tests.support.usage import UsageError, check_line

ADDRESS = "tcp://10.0.0.1:8786"
"""What pages write for a scheduler that runs."""

ONE_GPU = ("--backend cuda", '.on("cuda"', "cupy", "client, device_memory=")
"""What a command has that needs a GPU."""
GPU_WORKERS = ("--cluster cuda", "dask cuda worker", "dask_cuda", "LocalCUDACluster")
"""What one has that needs dask-cuda besides."""

NOT_RUN = ("make ", "pip ", "pytest ", "mypy", "ruff ", "python -m benchmarks.", "python -m tests.")
"""What makes, checks or times the checkout that it is run in: such commands are looked at, see `usage.check_line`."""
ELSEWHERE = re.compile(
    r"(kubectl|docker|useradd|python3 -m venv|install|systemctl|uv|systemd-run|nohup|sbatch|qsub|curl) "
    r"|dask (scheduler|worker|cuda worker)\b|DASK_CONFIG="
    r"|.*--cluster (ssh|slurm|pbs|kubernetes)\b|.*(https|s3|gs|az)://|.*tls://10\.",
    re.DOTALL,
)
"""What needs another machine, a program or a network, and is looked at, too: tests of their own run it."""

BASH_S = 300.0
"""Seconds for the commands of a block."""
NOT_KNOWN = "..."
"""What a block prints of which not all was run."""

_STRICT = "set -E -o pipefail; trap 'code=$?; [ $code = 141 ] || exit $code' ERR\n"
"""As `bash -e`, with pipes that fail where one of their commands does, but not where `head` has read enough."""

_OPERATORS = set("|&;<>()$`*?[]{}~#!\\\n")


@dataclass(frozen=True)
class Scene:
    """What blocks of a page find there, and which of them are run otherwise than they stand there.

    Whatever is named here is to be on the page.
    """

    fill: Callable[[Any], dict[str, Any]] = lambda client: {}
    """Writes files into the current folder and gives the names that Python's blocks take as given; gets a client."""
    smaller: Mapping[str, str] = field(default_factory=dict)
    """Text of commands, and what is run in place of it."""
    afresh: Mapping[str, str] = field(default_factory=dict)
    """Text of commands that make again what is there, and the path that is removed before them."""


@dataclass(frozen=True)
class Command:
    """A command of a shell or a statement of Python."""

    block: Block
    line: int
    """On the page."""
    text: str

    def has(self, signs: tuple[str, ...]) -> bool:
        return any(sign in self.text for sign in signs)


def find_commands(block: Block) -> list[Command]:
    """What a block of the shell or of Python has one after the other.

    Raises
    ------
    PageError : it cannot be parsed
    """
    return [*(_split_shell if block.language == "sh" else _split_python)(block)]


@cache
def find_all_commands(page: Page) -> list[Command]:
    return [command for block in page.blocks if block.language in ("sh", "python") for command in find_commands(block)]


def _split_shell(block: Block) -> Iterator[Command]:
    """By lines; those that bash takes for unfinished are put together."""
    lines = block.text.splitlines()
    while lines:
        line = block.line + len(block.text.splitlines()) - len(lines)
        taken = 1
        while _is_unfinished("\n".join(lines[:taken])):
            taken += 1
            if taken > len(lines):
                raise block.fail("bash does not understand what begins here", line)
        text = "\n".join(lines[:taken])
        del lines[:taken]
        if (text := _drop_comment(text).strip()) != "":
            yield Command(block, line, text)


def _is_unfinished(text: str) -> bool:
    if text.rstrip().endswith("\\"):
        return True
    if not _OPERATORS - {"#"} & set(text) and text.count("'") % 2 == 0 and text.count('"') % 2 == 0:
        return False
    parsed = subprocess.run(["bash", "-n", "-c", text], capture_output=True, text=True)
    return parsed.returncode != 0 or parsed.stderr != ""


def _drop_comment(text: str) -> str:
    """Without a comment at the end of one line."""
    return text if "\n" in text else re.sub(r"(^|\s)#\s.*$", "", text)


def _split_python(block: Block) -> Iterator[Command]:
    try:
        statements = ast.parse(block.text).body
    except SyntaxError as error:
        raise block.fail(f"no Python: {error}", block.line + (error.lineno or 1) - 1) from error
    for statement in statements:
        yield Command(block, block.line + statement.lineno - 1, ast.get_source_segment(block.text, statement) or "")


def check_scene(page: Page, scene: Scene) -> None:
    """Fail where a scene names what is not on the page, or no longer."""
    texts = [command.text for command in find_all_commands(page)]
    unused = [part for part in (*scene.smaller, *scene.afresh) if not any(part in text for text in texts)]
    if unused:
        raise AssertionError(f"{page.name}: the scene names what is not on the page: {unused}")


class Runner(AbstractContextManager["Runner"]):
    """Runs blocks in the current folder, with the names that earlier ones made; ends what they started.

    Parameters
    ----------
    address : of a scheduler that runs, for `ADDRESS`
    has : signs of commands that can be run, of `ONE_GPU` and `GPU_WORKERS`
    folder : for programs and what they print, which is not the current one
    """

    def __init__(self, page: Page, scene: Scene, folder: Path, address: str, has: tuple[str, ...] = ()) -> None:
        self._page, self._scene, self._address = page, scene, address
        self._lacks = tuple(sign for sign in (*ONE_GPU, *GPU_WORKERS) if sign not in has)
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._bin = _write_programs(folder / "bin")
        self._printed: str | None = None
        self._logger = logging.getLogger("mgspmv")
        self._logs = self._logger.level, [*self._logger.handlers]

    def __exit__(self, kind: type | None, value: BaseException | None, where: TracebackType | None) -> None:
        for made in self._names.values():
            if isinstance(made, Client):
                made.close()
        level, handlers = self._logs
        self._logger.setLevel(level)
        for handler in [own for own in self._logger.handlers if own not in handlers]:
            self._logger.removeHandler(handler)
            handler.close()
        for cluster in list_clusters():
            stop(cluster, 20)

    def run(self, names: Mapping[str, Any]) -> None:
        """Run all blocks of the page; `names` is what those of Python take as given.

        Raises
        ------
        PageError : of the first that does not do what it says, or that nothing is known to do with
        """
        self._names |= names
        blocks = self._page.blocks
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            if block.title is not None:
                _write(block, self._address)
            elif block.language == "sh" and following is not None and _is_error(following):
                self._printed = self._run_failing(block)
            elif block.language in ("sh", "python"):
                self._printed = self._run_commands(block)
            elif block.language == "text":
                _compare(block, self._printed)
            elif block.language == "toml":
                _check_definition(block)
            elif block.language != "measured":
                raise block.fail(
                    f"nothing is known to do with ```{block.language}: say sh, python, toml or text, give it a title "
                    "if it is a file, or indent it if it is neither run nor printed"
                )

    def _run_commands(self, block: Block) -> str:
        """What they printed; anything where some were not run."""
        commands = find_commands(block)
        chosen = [command for command in commands if self._can_run(command)]
        if block.language == "python":
            parts = [self._run_statement(command) for command in chosen]
        elif all(_is_plain(self._change(command.text)) for command in chosen):
            parts = [self._run_command(command) for command in chosen]
        else:
            parts = [self._run_bash(block, chosen)]
        return "".join(parts) if len(chosen) == len(commands) else NOT_KNOWN

    def _run_failing(self, block: Block) -> str:
        """The message of a command of mgspmv that fails, as the block below it says."""
        commands = find_commands(block)
        if len(commands) != 1 or not _is_plain(commands[0].text):
            raise block.fail("an error is of one command of mgspmv, in a block of its own")
        try:
            return invoke(*shlex.split(self._prepare(commands[0]))[1:], code=None)[1]
        except AssertionError as error:
            raise block.fail(f"{commands[0].text}\ndid not fail\n{error}") from error

    def _can_run(self, command: Command) -> bool:
        """Whether it is run here; what is not is at least checked to be something that could be run.

        Raises
        ------
        PageError : it could not
        """
        is_elsewhere = f"{command.text} ".startswith(NOT_RUN) or ELSEWHERE.match(self._change(command.text))
        if not (is_elsewhere or command.has(self._lacks)):
            return True
        if command.block.language == "sh":
            try:
                check_line(command.text)
            except UsageError as error:
                raise command.block.fail(f"{command.text}: {error}", command.line) from error
        return False

    def _change(self, text: str) -> str:
        """As it is run here: smaller, and with the address of the cluster that there is."""
        for old, new in self._scene.smaller.items():
            text = text.replace(old, new)
        return text.replace(ADDRESS, self._address)

    def _prepare(self, command: Command) -> str:
        """As it is run here, after what it makes was removed if it was there."""
        for text, path in self._scene.afresh.items():
            if text in command.text and Path(path).exists():
                shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink()
        return self._change(command.text)

    def _run_statement(self, command: Command) -> str:
        tree = ast.parse(self._prepare(command))
        ast.increment_lineno(tree, command.line - 1)
        printed = StringIO()
        try:
            with redirect_stdout(printed):
                exec(compile(tree, str(ROOT / command.block.page), "exec"), self._names)
        except (Exception, SystemExit) as error:
            said = "".join(traceback.format_exception(error.with_traceback(error.__traceback__.tb_next)))
            raise command.block.fail(f"{command.text}\n{said}", command.line) from error
        return printed.getvalue()

    def _run_command(self, command: Command) -> str:
        """A command of mgspmv in this process, which saves a second for starting it."""
        try:
            return invoke(*shlex.split(self._prepare(command))[1:])[0]
        except AssertionError as error:
            raise command.block.fail(f"{command.text}\n{error}", command.line) from error

    def _run_bash(self, block: Block, commands: list[Command]) -> str:
        script = "\n".join(self._prepare(command) for command in commands)
        done = subprocess.run(
            ["bash", "-c", f"{_STRICT}{script}\ntrue"],
            env=self._make_environment(),
            capture_output=True,
            text=True,
            timeout=BASH_S,
        )
        if done.returncode != 0:
            raise block.fail(f"exit code {done.returncode}\n{script}\n{done.stdout}{done.stderr}")
        return done.stdout

    def _make_environment(self) -> dict[str, str]:
        """Of programs that are started: they are this checkout's."""
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        programs = [str(self._bin), os.environ["PATH"]]
        return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PATH": os.pathsep.join(programs)}


def _is_error(block: Block) -> bool:
    """Whether it is the message of a command that fails."""
    return block.language == "text" and block.title is None and block.text.startswith("error: ")


def _is_plain(text: str) -> bool:
    """Whether it is a command of mgspmv, and bash would make nothing else of it than its words."""
    unquoted = re.sub(r"'[^']*'", "", text)
    return text.startswith("mgspmv ") and not _OPERATORS & set(unquoted)


def _write(block: Block, address: str) -> None:
    assert block.title is not None
    path = Path(block.title)
    if path.is_absolute() or ".." in path.parts:
        raise block.fail(f"{path} is not in the folder of the page")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text.replace(ADDRESS, address), encoding="utf-8")


def _check_definition(block: Block) -> None:
    path = Path("a-definition.toml")
    path.write_text(block.text, encoding="utf-8")
    try:
        read_pipeline(path)
    except Exception as error:
        raise block.fail(f"no definition: {error}") from error
    finally:
        path.unlink()


def _compare(block: Block, printed: str | None) -> None:
    if printed is None:
        raise block.fail("nothing was run before that this could be the output of")
    want, got = (_collapse(text) for text in (block.text, printed))
    if printed != NOT_KNOWN and not doctest.OutputChecker().check_output(want, got, doctest.ELLIPSIS):
        raise block.fail(f"wanted\n{want}\ngot\n{got}")


def _collapse(text: str) -> str:
    """Without blank lines, and with one blank where there are several."""
    return "".join(f"{' '.join(line.split())}\n" for line in text.splitlines() if line.strip())


def _write_programs(folder: Path) -> Path:
    """A folder for the PATH, with this checkout's programs."""
    folder.mkdir(parents=True, exist_ok=True)
    programs = {"mgspmv": PROGRAM, "dask": [sys.executable, "-m", "dask"], "python": [sys.executable]}
    for name, words in programs.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def run_examples(name: str, text: str) -> int:
    """Run all `>>>` of a docstring; how many there were.

    Raises
    ------
    AssertionError : of what printed something else, or raised
    """
    test = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
    said = StringIO()
    with redirect_stderr(said):
        failed, tried = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.write)
    assert not failed, said.getvalue()
    return tried

"""A Dockerfile read, and its steps executed without Docker: in a folder in place of `/`, with Python of here.

What needs root or the distribution's packages (`SYSTEM`) is left out. The rest are the same commands, with the folders
that they name (`FOLDERS`) below the one that is given.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

SYSTEM = ("apt-get", "groupadd")
"""First words of steps that are left out."""
FOLDERS = ("/opt/mgspmv", "/build", "/data", "/scratch", "/var/lib/mgspmv", "/var/cache/mgspmv")

_PATH = re.compile(rf"(?<![\w.])(?={'|'.join(FOLDERS)})")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class Instruction:
    name: str
    """`RUN` and the like."""
    text: str
    """What is behind it, in one line."""


def read_dockerfile(text: str) -> list[Instruction]:
    lines = "\n".join(line for line in text.splitlines() if line and not line.startswith("#"))
    joined = re.sub(r"\s*\\\n\s*", " ", lines).splitlines()
    return [Instruction(*line.split(maxsplit=1)) for line in joined]


def read_allowed(text: str) -> list[str]:
    """Paths that a .dockerignore leaves of which the first line takes all away."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*", "what is not named here must stay out"
    return [line[1:] for line in lines if line.startswith("!")]


@dataclass
class Image:
    """What steps made."""

    root: Path
    arguments: dict[str, str]
    """Of the build."""
    environment: dict[str, str]
    folder: Path
    """Which is the current one."""
    left_out: list[str] = field(default_factory=list)
    """Steps of `SYSTEM`."""
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)

    def locate(self, text: str) -> str:
        """With folders where they are here."""
        return _PATH.sub(str(self.root), text)

    def expand(self, text: str) -> str:
        return _VARIABLE.sub(lambda found: (self.arguments | self.environment)[found[1]], text)

    def run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        """A command in the image."""
        return subprocess.run(words, cwd=self.folder, env=self.environment, capture_output=True, text=True)


def execute(instructions: list[Instruction], context: Path, root: Path, arguments: dict[str, str]) -> Image:
    """What the steps make; raises where one fails.

    Parameters
    ----------
    context : folder of which files are copied
    root : folder in place of `/`
    arguments : in place of those that the file has
    """
    programs = root / "usr" / "bin"
    programs.mkdir(parents=True)
    (programs / "python3").symlink_to(Path(sys._base_executable).resolve())  # of no virtual environment
    for name in FOLDERS:
        (root / name[1:]).mkdir(parents=True)
    given = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV", "MGSPMV"))}
    path = f"{programs}{os.pathsep}{os.defpath}"
    image = Image(root, dict(arguments), given | {"PATH": path}, root)
    for instruction in instructions:
        _execute(instruction, context, image)
    return image


def _execute(instruction: Instruction, context: Path, image: Image) -> None:
    text = instruction.text
    match instruction.name:
        case "ARG":
            name, _, value = text.partition("=")
            image.arguments.setdefault(name, value)
        case "WORKDIR":
            image.folder = Path(image.locate(text))
        case "ENV":
            for name, value in re.findall(r"(\w+)=(\S+)", text):
                image.environment[name] = image.locate(image.expand(value))
        case "COPY":
            _copy(text.split(), context, image)
        case "RUN":
            _run(re.sub(r"--mount=\S+ ", "", text), image)
        case "ENTRYPOINT":
            image.entrypoint, image.command = json.loads(text), []
        case "CMD":
            image.command = json.loads(text)
        case "HEALTHCHECK":
            image.healthcheck = json.loads(text.partition(" CMD ")[2])
        case "FROM" | "LABEL" | "USER":
            pass
        case _:
            raise AssertionError(f"{instruction} is an instruction of which nothing is known here")


def _copy(words: list[str], context: Path, image: Image) -> None:
    *names, target = words
    if names[0].startswith("--from="):
        assert names[1:] == [target], "stages are in one folder here, so that nothing is elsewhere in the next one"
        return
    into = image.folder / target
    for name in names:
        if (context / name).is_dir():
            shutil.copytree(context / name, into)
        else:
            into.mkdir(exist_ok=True)
            shutil.copy(context / name, into)


def _run(command: str, image: Image) -> None:
    if command.startswith(SYSTEM):
        image.left_out.append(command)
        return
    arguments = "".join(f"{name}={shlex.quote(value)}; " for name, value in image.arguments.items())
    done = image.run(["sh", "-euc", arguments + image.locate(command)])
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def make_context(source: Path, allowed: list[str], folder: Path) -> Path:
    """A copy of what is left of the repository."""
    for name in allowed:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source / name, folder / name)
    return folder

"""The page about nightly runs shows the pipeline of the repository, and a cron line that cron would run."""

from __future__ import annotations

import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.support.commands import check_words
from tests.support.pages import ROOT, read_page

pytestmark = pytest.mark.docs
FILES = {block.title: block.text for block in read_page("docs/nightly.md").blocks if block.title}
PROGRAM = "/opt/mgspmv/bin/mgspmv"


def test_the_pipeline_is_that_of_the_repository() -> None:
    assert tomllib.loads(FILES["nightly.toml"]) == tomllib.loads((ROOT / "pipelines/nightly-gpus.toml").read_text())


def test_the_cron_line_is_a_command_of_ours(tmp_path: Path) -> None:
    *times, user, command = FILES["cron.d/mgspmv"].rstrip().split(None, 6)
    assert (times, user) == (["0", "2", "*", "*", "*"], "mgspmv")
    assert "%" not in command.replace(r"\%", "")  # cron takes a bare % for the end of the line
    command = command.replace(r"\%", "%")
    check_words(shlex.split(command.partition(PROGRAM)[2]))
    stub = tmp_path / "mgspmv"
    stub.write_text('#!/bin/sh\necho "$DAY $FOLDER $*"\n')
    stub.chmod(0o755)
    done = subprocess.run(["/bin/sh", "-c", command.replace(PROGRAM, str(stub))], capture_output=True, text=True)
    day, rest = done.stdout.split(" ", 1)
    assert len(day) == len("2026-11-26")
    assert rest == "/data/nightly run /etc/mgspmv/nightly.toml --quiet\n"

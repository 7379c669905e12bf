"""Scripts that are deployed: without a flaw by shellcheck, which finds those that are put into them."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.support.waiting import HANG_S

DEPLOY = Path(__file__).parents[2] / "deploy"
SHELLCHECK = Path(sysconfig.get_path("scripts")) / "shellcheck"
SCRIPTS = {
    str(path.relative_to(DEPLOY)): path.read_text()
    for path in sorted(DEPLOY.rglob("*"))
    if path.is_file() and path.read_bytes().startswith(b"#!")
}
FLAWS = {
    "no quotes": ('heed mgspmv "$@"', "heed mgspmv $@", "SC2068"),
    "no end": ("heed mgspmv", "if true; then heed mgspmv", "SC1046"),
    "no such variable": ("export DASK_CONFIG=$MGSPMV_CERTIFICATES", "export DASK_CONFIG=$certificates", "SC2154"),
    "no space": ('if [ "$1" = run ]', 'if ["$1" = run ]', "SC1035"),
}
"""What is right, what is wrong, and shellcheck's number of that."""


def check(text: str) -> str:
    done = subprocess.run([SHELLCHECK, "-"], input=text, capture_output=True, text=True, timeout=HANG_S)
    assert done.stderr == ""
    return done.stdout


def test_all_are_found():
    assert list(SCRIPTS) == ["pbs/mgspmv.pbs", "slurm/mgspmv.sbatch"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_they_have_no_flaws(name):
    assert check(SCRIPTS[name]) == ""


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize(("right", "wrong", "number"), FLAWS.values(), ids=FLAWS)
def test_what_is_broken_is_found(right, wrong, number, name):
    assert SCRIPTS[name].count(right) == 1
    assert number in check(SCRIPTS[name].replace(right, wrong))

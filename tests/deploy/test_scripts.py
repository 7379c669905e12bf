"""Batch scripts have no flaws by shellcheck."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.validators import run_program

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.mark.external
def test_scripts_have_no_flaws(tmp_path):
    scripts = [path for path in DEPLOY.rglob("*") if path.is_file() and path.read_bytes().startswith(b"#!")]
    assert {path.name for path in scripts} == {"mgspmv.pbs", "mgspmv.sbatch"}
    for path in scripts:
        checked = run_program("shellcheck", path)
        assert (checked.returncode, checked.stdout) == (0, "")
    broken = tmp_path / "broken"
    broken.write_text(path.read_text().replace('heed mgspmv "$@"', "heed mgspmv $@"))
    assert "SC2068" in run_program("shellcheck", broken).stdout

"""Times of two versions beside each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import calls, ratios


def write(path: Path, iteration_s: float, **more: object) -> Path:
    record = {"graph": "g", "contender": "exact", "iteration_s": iteration_s, **more}
    product = {"matrix": "m", "kernel": "ell", "dtype": "float32", "times": {"warm": {"median_s": 1.0}}}
    path.write_text(json.dumps({"records": [record, product]}))
    return path


@pytest.mark.parametrize(("after", "code"), [(1.0, 0), (0.5, 0), (1.1, 1)])
def test_a_slower_version_is_found(tmp_path, capsys, after, code):
    before = [write(tmp_path / f"{s}.json", s) for s in (0.9, 1.0, 1.4)]
    arguments = ["--before", *map(str, before), "--after", str(write(tmp_path / "after.json", after))]
    assert ratios.main(arguments) == code
    said = capsys.readouterr().out
    assert f"| g | exact | iteration | 1000 | {after * 1e3:.4g} | {1 / after:.3f} |" in said
    assert "| m | ell, float32 | warm | 1000 | 1000 | 1.000 |" in said


def test_wrong_results_have_no_ratio(tmp_path):
    before = write(tmp_path / "before.json", 1.0)
    with pytest.raises(SystemExit, match="was wrong"):
        ratios.main(["--before", str(before), "--after", str(write(tmp_path / "after.json", 1.0, is_wrong=True))])


def test_calls_of_this_version(tmp_path):
    found = tmp_path / "found.json"
    assert calls.main(["--scale", "8", "--rounds", "1", "--backend", "cpu", "--json", str(found)]) == 0
    assert ratios.main(["--before", str(found), "--after", str(found)]) == 0


@pytest.mark.parametrize("text", [None, "{", "{}", "[]"])
def test_files_of_others_are_refused(tmp_path, capsys, text):
    other = tmp_path / "other.json"
    if text is not None:
        other.write_text(text)
    with pytest.raises(SystemExit):
        ratios.main(["--before", str(other), "--after", str(other)])
    assert "expected a file that --json of a benchmark wrote" in capsys.readouterr().err

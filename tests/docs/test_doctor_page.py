"""The page about `mgspmv doctor` has every check, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from mgspmv.doctor import device, host, storage
from mgspmv.doctor.cluster import SKEW_S, WRONG_SKEW_S, Reached, make_cluster_checks
from mgspmv.doctor.device import LEAST_DRIVERS

PAGE = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()


def list_rows(heading: str) -> list[str]:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([\w-]+)` \| .+ \| .+ \|$", section, re.MULTILINE)


def test_every_check_has_a_row():
    of_machine = [check.name for check in (*host.CHECKS, *storage.CHECKS, *storage.make_store_checks(["x"]))]
    of_cluster = [check.name for check in make_cluster_checks(Reached(None, 1))]
    assert list_rows("The machine") == of_machine
    assert list_rows("GPUs") == [check.name for check in device.CHECKS]
    assert list_rows("A cluster") == ["scheduler", *of_cluster]


def test_numbers_are_those_of_the_checks():
    assert f"CUDA 12 needs driver {LEAST_DRIVERS[12]}, CUDA 13 driver {LEAST_DRIVERS[13]}" in PAGE
    assert f"warning above {SKEW_S:g} s, wrong above {WRONG_SKEW_S:g} s" in PAGE
    assert f"warning below {host.MANY_FILES:,}, wrong below {host.FEW_FILES}" in PAGE
    assert f"warning above {storage.SLOW_LATENCY_S:g} s, or below {storage.SLOW_BYTES_PER_S / 1e6:g} MB/s" in PAGE

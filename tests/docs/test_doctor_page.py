"""The page about `mgspmv doctor` lists every check, and no other."""

from __future__ import annotations

import re

import pytest

from mgspmv.doctor import device, host, storage
from mgspmv.doctor.cluster import Reached, make_cluster_checks
from tests.support.pages import find_section, read_page

pytestmark = pytest.mark.docs


def list_rows(heading: str) -> list[str]:
    section = find_section(read_page("docs/doctor.md"), heading)
    return re.findall(r"^\| `([\w-]+)` \| .+ \| .+ \|$", section, re.MULTILINE)


def test_every_check_has_a_row() -> None:
    machine = [*host.CHECKS, *storage.CHECKS, *storage.make_store_checks(["x"])]
    cluster = make_cluster_checks(Reached(None, 1))
    assert list_rows("The machine") == [check.name for check in machine]
    assert list_rows("GPUs") == [check.name for check in device.CHECKS]
    assert list_rows("A cluster") == ["scheduler", *(check.name for check in cluster)]

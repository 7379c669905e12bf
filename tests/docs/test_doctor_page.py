"""The page about `mgspmv doctor` lists every check, and no other."""

from __future__ import annotations

import re

import pytest

from mgspmv import doctor
from mgspmv.cluster.dask_cluster import Cluster
from mgspmv.doctor.cluster import make_checks
from tests.support.pages import find_section, read_page

pytestmark = pytest.mark.docs


def test_every_check_has_a_row(in_process) -> None:
    section = find_section(read_page("docs/doctor.md"), "The checks")
    rows = re.findall(r"^- `([\w-]+)`: .+$", section, re.MULTILINE)
    assert rows == [*doctor.CHECKS, "store", *make_checks(Cluster(in_process(1), 60), ["x"], 60)]

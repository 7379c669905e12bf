"""What the parts of mgspmv hand to each other, and what this process may take."""

from __future__ import annotations

import pytest

from mgspmv import model


@pytest.mark.parametrize(("of_groups", "wanted"), [(None, 10**6), (10**5, 10**5), (10**7, 10**6), (0, 0)])
def test_free_memory_is_the_least_of_the_machine_and_of_control_groups(monkeypatch, of_groups, wanted):
    monkeypatch.setattr(model, "find_free_memory", lambda: of_groups)
    monkeypatch.setattr(model, "find_available_memory", lambda: 10**6)
    assert model.free_memory() == wanted

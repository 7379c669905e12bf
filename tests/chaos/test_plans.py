"""Plans are those of their seeds, and together have all faults."""

from __future__ import annotations

import os
import socket

import pytest

from tests.support.chaos.disks import why_no_disks
from tests.support.chaos.faults import PHASES, Fault
from tests.support.chaos.plans import KINDS, draw
from tests.support.chaos.programs import why_no_clock
from tests.support.hosts import why_not_split

SEEDS = range(200)


def test_a_seed_says_everything():
    assert [draw(seed) for seed in SEEDS] == [draw(seed) for seed in SEEDS]
    assert len({draw(seed).faults for seed in SEEDS}) == len(SEEDS)


def test_all_faults_are_drawn_at_all_moments():
    faults = [fault for seed in SEEDS for fault in draw(seed).faults]
    assert {type(fault) for fault in faults} == set(Fault.__subclasses__())
    assert {fault.moment.phase for fault in faults} == set(PHASES)
    assert {len(draw(seed).faults) for seed in SEEDS} == {1, 2, 3}
    for kind in KINDS:
        assert any(str(fault).startswith(kind) for fault in faults), kind
    for fault in faults:
        assert sum(str(fault).startswith(kind) for kind in KINDS) == 1, fault


@pytest.mark.skipif("CI" not in os.environ or os.geteuid() != 0, reason="elsewhere what cannot be had is left out")
def test_root_has_all_that_faults_need_in_ci():
    assert (why_not_split(), why_no_disks(), why_no_clock()) == ("", "", "")
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()


def test_who_is_to_say_what_happened_goes_on_in_the_end():
    faults = [fault for seed in SEEDS for fault in draw(seed).faults]
    assert all(f.heal_s for f in faults if str(f).startswith(("stop driver", "cut off driver", "slow")))

"""Plans depend on their seeds alone, and together they have all faults."""

from __future__ import annotations

from tests.support.chaos.faults import PHASES, Fault
from tests.support.chaos.plans import KINDS, draw

SEEDS = range(200)


def test_seeds_draw_all_faults_at_all_moments():
    assert [draw(seed) for seed in SEEDS] == [draw(seed) for seed in SEEDS]
    faults = [fault for seed in SEEDS for fault in draw(seed).faults]
    assert {type(fault) for fault in faults} == set(Fault.__subclasses__())
    assert {fault.moment.phase for fault in faults} == set(PHASES)
    assert {kind for kind in KINDS if any(str(fault).startswith(kind) for fault in faults)} == set(KINDS)
    assert all(f.heal_s for f in faults if str(f).startswith(("stop driver", "cut off driver", "slow")))

"""Plans are those of their seeds, and together have all faults."""

from __future__ import annotations

from faults import PHASES, Fault
from plans import KINDS, draw

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


def test_who_is_to_say_what_happened_goes_on_in_the_end():
    faults = [fault for seed in SEEDS for fault in draw(seed).faults]
    assert all(f.heal_s for f in faults if str(f).startswith(("stop driver", "cut off driver", "slow")))

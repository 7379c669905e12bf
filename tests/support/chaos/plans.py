"""What happens in a run, all of it from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.support.chaos.faults import (
    PHASES,
    Add,
    Cut,
    Fault,
    Fill,
    FlipMatrix,
    FlipState,
    Forbid,
    Interrupt,
    Jump,
    Kill,
    Moment,
    Retire,
    Slow,
    Starve,
    Stop,
)
from tests.support.chaos.fleet import N_WORKERS, Shape

WORKERS = tuple(f"w{k}" for k in range(N_WORKERS))


@dataclass(frozen=True)
class Plan:
    """What happens in a run; a seed says all of it."""

    seed: int
    drive: str
    has_nannies: bool
    faults: tuple[Fault, ...]
    goes_on: str
    """Where what did not come to its end goes on: `here`, in the process of the program; `afresh`, on a new cluster; or
    `again`, on what is left of the one."""

    @property
    def shape(self) -> Shape:
        return Shape(N_WORKERS, self.has_nannies)

    def hasten(self) -> Plan:
        """The same with all faults earlier, for a machine on which the run has ended before they strike."""
        moments = [replace(fault.moment, part=fault.moment.part / 2) for fault in self.faults]
        faults = (replace(fault, moment=own) for fault, own in zip(self.faults, moments, strict=True))
        return replace(self, faults=tuple(faults))

    def why_not(self) -> str:
        """Why it cannot be run here; empty where it can."""
        return "; ".join(dict.fromkeys(filter(None, (fault.why_not() for fault in self.faults))))


def draw(seed: int) -> Plan:
    """What happens in the run of a seed."""
    rng = random.Random(seed)
    drive = "scheduler" if rng.random() < 0.2 else "superstep"
    has_nannies = rng.random() < 0.3
    faults = _draw_faults(rng, rng.choice((1, 1, 2, 2, 3)))
    goes_on = rng.choice(("here", "afresh", "again"))
    return Plan(seed, drive, has_nannies, faults, goes_on)


def _draw_faults(rng: random.Random, n: int) -> tuple[Fault, ...]:
    """Of which one damages a checkpoint at most: two may leave none."""
    faults: list[Fault] = []
    while len(faults) < n:
        fault = _draw_fault(rng)
        if not (isinstance(fault, FlipState) and any(isinstance(other, FlipState) for other in faults)):
            faults.append(fault)
    return tuple(faults)


def _draw_fault(rng: random.Random) -> Fault:
    weights, kinds = zip(*DRAWS, strict=True)
    moment = Moment(rng.choices(list(PHASES), (1, 3, 2, 9, 4, 1))[0], round(rng.random(), 2))
    lasting = None if rng.random() < 0.5 else round(rng.uniform(0.3, 9.0), 1)
    fault = rng.choices(kinds, weights)[0](rng, moment)
    if isinstance(fault, Stop | Cut | Slow) and _has_no_successor(fault):
        lasting = lasting or 9.0
    return replace(fault, heal_s=lasting) if isinstance(fault, LASTING) else fault


LASTING = (Stop, Starve, Cut, Slow, Fill, Forbid, Jump)
"""Those that heal in half of the runs."""


def _has_no_successor(fault: Stop | Cut | Slow) -> bool:
    """Whether nobody is left to say what happened while it lasts."""
    return fault.target == "driver" or isinstance(fault, Slow)


def _pick(rng: random.Random, *others: str) -> str:
    """A worker, mostly."""
    return rng.choice(others) if others and rng.random() < 0.3 else rng.choice(WORKERS)


DRAWS: tuple[tuple[int, Callable[[random.Random, Moment], Fault]], ...] = (
    (8, lambda rng, moment: Kill(moment, _pick(rng))),
    (2, lambda rng, moment: Kill(moment, "scheduler")),
    (3, lambda rng, moment: Kill(moment, "driver")),
    (1, lambda rng, moment: Interrupt(moment)),
    (6, lambda rng, moment: Stop(moment, _pick(rng, "scheduler", "driver"))),
    (2, lambda rng, moment: Starve(moment, _pick(rng))),
    (6, lambda rng, moment: Cut(moment, _pick(rng, "scheduler", "driver"))),
    (3, lambda rng, moment: Slow(moment, _pick(rng, "scheduler", "driver"), rng.choice((64, 256, 1024)))),
    (3, lambda rng, moment: Fill(moment)),
    (2, lambda rng, moment: Forbid(moment)),
    (1, lambda rng, moment: Forbid(moment, is_matrix=True)),
    (3, lambda rng, moment: FlipMatrix(replace(moment, phase="join"), rng.random(), rng.random(), rng.randrange(8))),
    (3, lambda rng, moment: FlipState(moment, rng.random(), rng.random(), rng.randrange(8))),
    (3, lambda rng, moment: Jump(moment, _pick(rng, "scheduler"), rng.choice((-3600, 3600)))),
    (3, lambda rng, moment: Retire(moment, _pick(rng))),
    (3, lambda rng, moment: Add(moment)),
)
"""Weights, and what makes a fault of a moment."""

KINDS = (
    "kill w", "kill scheduler", "kill driver", "interrupt driver", "stop w", "stop scheduler", "stop driver", "starve",
    "cut off w", "cut off scheduler", "cut off driver", "slow link", "full disk", "read-only",
    "flip a bit of the matrix", "flip a bit of the checkpoint", "clock", "retire", "add a worker",
)  # fmt: skip
"""What descriptions of faults begin with."""

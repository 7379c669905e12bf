"""Runs that faults strike: each fault at least once, at the moments of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.support.chaos.faults import Cut, Fault, Interrupt, Kill, Moment, Retire, Stop
from tests.support.chaos.fleet import N_WORKERS, Shape


@dataclass(frozen=True)
class Plan:
    """What happens in a run."""

    faults: tuple[Fault, ...]
    executor: str = "supersteps"
    has_nannies: bool = False
    goes_on: str = "here"
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


JOIN, LOAD, START, ITERATE = Moment("join", 0.5), Moment("load", 0.5), Moment("start", 0.3), Moment("iterate", 0.4)
WRITE, BOUND = Moment("checkpoint", 0.5), Moment("residual", 0.5)

PLANS = {
    "a worker is killed": Plan((Kill(ITERATE, "w1"),)),
    "a worker is killed below its nanny, and another in a checkpoint": Plan(
        (Kill(ITERATE, "w1"), Kill(WRITE, "w2")), has_nannies=True
    ),
    "a worker is killed in a round of tasks": Plan((Kill(ITERATE, "w3"),), executor="tasks"),
    "a worker is killed while rows are loaded": Plan((Kill(LOAD, "w0"),)),
    "the scheduler is killed": Plan((Kill(ITERATE, "scheduler"),), goes_on="afresh"),
    "the program is killed": Plan((Kill(ITERATE, "driver"),), goes_on="again"),
    "the program is interrupted": Plan((Interrupt(ITERATE),), goes_on="again"),
    "a worker is stopped": Plan((Stop(ITERATE, "w2"),)),
    "a worker is stopped for a while": Plan((Stop(JOIN, "w0", heal_s=2.0), Stop(START, "w1", heal_s=2.0))),
    "the scheduler is stopped for a while": Plan((Stop(ITERATE, "scheduler", heal_s=9.0),), goes_on="again"),
    "a worker is cut off": Plan((Cut(ITERATE, "w1"),)),
    "a worker is cut off in the end": Plan((Cut(BOUND, "w3"),)),
    "the program is cut off for a while": Plan((Cut(ITERATE, "driver", heal_s=9.0),), goes_on="again"),
    "a worker is retired": Plan((Retire(ITERATE, "w3"),)),
}

"""What is wrong with a machine, its GPUs, its disks, or a cluster, and what to do.

Each check is a function that gives findings. None raises, each ends within a time-out, and what could not be checked
says why.
"""

from __future__ import annotations

from mgspmv.doctor.checks import examine
from mgspmv.doctor.findings import Finding

__all__ = ["Finding", "examine"]

"""Where Prometheus finds the workers of a cluster, whose servers take any port that is free: on the scheduler's server,
as `http_sd_configs` of Prometheus asks for it."""

from __future__ import annotations

import json
from typing import Any

from distributed import Scheduler
from tornado.web import RequestHandler

PATH = "mgspmv/targets"
"""Below the address of the dashboard, and its prefix."""


class TargetsHandler(RequestHandler):
    """Answers with the addresses of the servers of all workers that are there."""

    def initialize(self, scheduler: Scheduler) -> None:
        """Take what routes give to handlers."""
        self._scheduler = scheduler

    def get(self) -> None:
        """Answer in JSON."""
        self.set_header("Content-Type", "application/json")
        self.write(json.dumps(list_targets(self._scheduler)))


def list_targets(scheduler: Scheduler) -> list[dict[str, Any]]:
    """The address of each worker's server, and the worker's name as a label."""
    served = [(ws, ws.services.get("dashboard")) for ws in scheduler.workers.values()]
    return [
        {"targets": [_join_address(ws.host, port)], "labels": {"worker": str(ws.name)}} for ws, port in served if port
    ]


def add_targets(scheduler: Scheduler) -> bool:
    """Let the scheduler's server tell of the workers; whether it has one."""
    served = getattr(scheduler, "http_application", None)
    if served is None:
        return False
    served.add_handlers(".*", [(rf"/(?:.*/)?{PATH}", TargetsHandler, {"scheduler": scheduler})])
    return True


def _join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

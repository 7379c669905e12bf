"""Run the program `mgspmv` in this process, and write where its main thread was, stage by stage.

    python -m benchmarks.stages FILE pagerank web.zarr --cluster local -o ranks.zarr

A thread looks at the stack of the main thread every few milliseconds. FILE gets a JSON object of seconds by stage, in
their order: the outermost function of `STAGES` on the stack names it; `import` is a module being loaded, `other` the
rest.
"""

from __future__ import annotations

import atexit
import json
import sys
import threading
import time
from pathlib import Path
from types import FrameType

LOOK_S = 0.004
STAGES = {
    "begin_server": "begin workers",
    "start_cluster": "start workers",
    "connect_client": "connect client",
    "join": "join",
    "plan_rows": "plan",
    "_load": "load",
    "make_inputs": "inputs",
    "__enter__": "begin run",
    "start": "connect and load rows",
    "advance": "iterate",
    "measure": "residual",
    "collect": "collect",
    "check_order": "check order",
    "top": "top",
    "save_result": "write",
    "store_source": "store",
    "_shutdown": "end",
}
"""Stage of each function, by name; those of libraries are passed over, except for the last."""
OWN = ("mgspmv", "threading.py")


class Sampler(threading.Thread):
    """Thread that looks at the stack of the main thread."""

    def __init__(self, path: Path) -> None:
        super().__init__(name="benchmark-stages", daemon=True)
        self._path, self._seconds = path, dict[str, float]()
        self._last, self._is_ended = time.perf_counter(), threading.Event()
        atexit.register(self.end)

    def run(self) -> None:
        main = threading.main_thread().ident
        while not self._is_ended.wait(LOOK_S):
            now, frame = time.perf_counter(), sys._current_frames().get(main or 0)
            stage = find_stage(frame)
            self._seconds[stage] = self._seconds.get(stage, 0.0) + now - self._last
            self._last = now

    def end(self) -> None:
        self._is_ended.set()
        self._path.write_text(json.dumps(self._seconds))


def find_stage(frame: FrameType | None) -> str:
    """Stage of a stack, given its innermost frame."""
    found = "other"
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib"):
            found = "import"
        elif code.co_name in STAGES and any(own in code.co_filename for own in OWN):
            found = STAGES[code.co_name]
        frame = frame.f_back
    return found


if __name__ == "__main__":
    Sampler(Path(sys.argv[1])).start()
    sys.argv = ["mgspmv", *sys.argv[2:]]
    from mgspmv.cli import main

    main()

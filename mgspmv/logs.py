"""Logs through Python's `logging`: calls, runs, workers and steps, with fields for programs that read them.

    mgspmv.calls      INFO a call ended, ERROR it failed: call, elapsed_s, run. WARNING a store could not be written
                      after the call had ended: call, url, error_type
    mgspmv.runs       DEBUG an iteration of a run, in the calling process: run, iteration, change, and for each worker
                      product_s, exchange_s, wait_s, exchanged_bytes. INFO a checkpoint was made, WARNING it could not
                      be: run, iteration, elapsed_s, n_bytes. WARNING it resumed after a worker was lost: run, epoch,
                      kind, iteration, resumed_after, elapsed_s, worker, workers_before, workers_after
    mgspmv.workers    INFO a worker's part of a run ended: run, worker. ERROR a task hangs: worker, phase, stacks
    mgspmv.pipeline   INFO a step was made, kept or skipped, ERROR it failed: step, state, elapsed_s

Nothing is logged until a program gives one of them, or `mgspmv`, a handler and a level. Fields are attributes of the
records, as `extra` sets them, so that any formatter can use them; `JsonFormatter` writes all of them.

Several processes may write to one file: each line is appended by a single write.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mgspmv.errors import StoreError, describe_os_error, hide_secrets, is_operators
from mgspmv.validation import to_json

if TYPE_CHECKING:
    from mgspmv.model import Event, Recovery

logging.getLogger("mgspmv").addHandler(logging.NullHandler())  # or Python would print errors that are also raised

CALLS, RUNS, WORKERS, PIPELINE = (
    logging.getLogger(f"mgspmv.{name}") for name in ("calls", "runs", "workers", "pipeline")
)

_PLAIN = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})
"""Attributes of every log record, which are not fields."""
_RUN: ContextVar[str] = ContextVar("_RUN", default="")
"""Id of the run in the current call."""


class JsonFormatter(logging.Formatter):
    """Formatter of a record as one line of JSON: `time` (ISO 8601, UTC), `level`, `logger`, `message`, its fields, and
    `error` with the traceback of an exception that is logged with it.

    Examples
    --------
    >>> import logging
    >>> from mgspmv.logs import JsonFormatter
    >>> JsonFormatter().format(logging.makeLogRecord({"name": "mgspmv", "levelname": "INFO", "msg": "done"}))
    '{"time": "...", "level": "INFO", "logger": "mgspmv", "message": "done"}'
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its end; values that JSON cannot represent become strings."""
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = {name: value for name, value in vars(record).items() if name not in _PLAIN}
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return hide_secrets(json.dumps(to_json(told | fields), default=str, ensure_ascii=False))


class LogFile(logging.FileHandler):
    """Handler that appends lines of JSON to a file; the first line that cannot be written causes a warning.

    Raises
    ------
    StoreError : it cannot be opened
    """

    def __init__(self, path: str) -> None:
        try:
            super().__init__(path, encoding="utf-8")
        except OSError as error:
            reason = describe_os_error(error, path)
            advice = "" if is_operators(error) else "; choose a file in an existing folder"
            raise StoreError(f"cannot write the log {path}: {reason}{advice}") from error
        self.setFormatter(JsonFormatter())
        self._has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Warn of the first failed write; the logged operation is not affected."""
        if not self._has_failed:
            self._has_failed = True
            error = sys.exc_info()[1]
            reason = describe_os_error(error) if isinstance(error, OSError) else error
            warnings.warn(f"the log {self.baseFilename} is missing lines: {reason}; the run continues", stacklevel=2)

    def close(self) -> None:
        """Close the file, ignoring data that cannot be written to it."""
        with suppress(OSError):
            super().close()


@contextmanager
def write_log(path: str, level: str) -> Iterator[None]:
    """Append logs made by this process within the context to a file.

    Parameters
    ----------
    level : `info`, or `debug`, which includes iterations

    Raises
    ------
    StoreError : it cannot be written
    """
    handler, logger = LogFile(path), logging.getLogger("mgspmv")
    level_before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level_before)
        handler.close()


def name_run() -> str:
    """Return a new id of a run, and use it in the log records of the call."""
    run = uuid.uuid4().hex[:12]
    _RUN.set(run)
    return run


@contextmanager
def log_call(call: str) -> Iterator[None]:
    """Log the end of a call, with the id of its run, if it made one."""
    before, began = _RUN.set(""), time.perf_counter()

    def describe() -> dict[str, Any]:
        elapsed_s = time.perf_counter() - began
        return {"call": call, "elapsed_s": elapsed_s} | ({"run": _RUN.get()} if _RUN.get() else {})

    try:
        yield
        fields = describe()
        CALLS.info("%s ended after %.3g s", call, fields["elapsed_s"], extra=fields)
    except BaseException as error:
        fields = describe() | {"error_type": type(error).__name__}
        said = str(error) or type(error).__name__  # stored records would keep all that an error refers to
        CALLS.error("%s failed: %s", call, said, extra=fields)
        raise
    finally:
        _RUN.reset(before)


def log_unwritten(url: str, error: BaseException) -> None:
    """Log that a store could not be written after `ingest` had ended."""
    fields = {"call": "ingest", "url": hide_secrets(url), "error_type": type(error).__name__}
    CALLS.warning("%s was not written: %s", fields["url"], error, extra=fields)


def log_iteration(event: Event) -> None:
    """Log an iteration, in the calling process."""
    if RUNS.isEnabledFor(logging.DEBUG):
        names = ("run", "iteration", "change", "product_s", "exchange_s", "wait_s", "exchanged_bytes")
        fields = {name: getattr(event, name) for name in names}
        RUNS.debug("iteration %d: change %.3g", event.iteration, event.change, extra=fields)


def log_checkpoint(kept: Any) -> None:
    """Log a checkpoint that was made, or why it could not be; see `mgspmv.checkpoints.CheckpointReport`."""
    fields = {"run": _RUN.get(), "iteration": kept.iteration, "elapsed_s": kept.seconds, "n_bytes": kept.n_bytes}
    if kept.error is None:
        RUNS.info("checkpoint of iteration %d: %.3g s", kept.iteration, kept.seconds, extra=fields)
    else:
        RUNS.warning("no checkpoint of iteration %d: %s", kept.iteration, kept.error, extra=fields)


def log_recovery(recovery: Recovery, epoch: int) -> None:
    """Log the recovery of a run with other workers."""
    fields = {"run": _RUN.get(), "epoch": epoch, "iteration": recovery.iteration, "elapsed_s": recovery.seconds}
    fields |= {"kind": recovery.kind, "resumed_after": recovery.resumed_after, "worker": recovery.worker}
    fields |= {"workers_before": recovery.workers_before, "workers_after": recovery.workers_after}
    told = (recovery.resumed_after, recovery.workers_after, recovery.workers_before, recovery.seconds)
    said = "%s; resumed from iteration %d with %d workers (%d before) after %.3g s"
    RUNS.warning(said, recovery.error, *told, extra=fields)

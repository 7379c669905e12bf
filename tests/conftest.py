"""Fixtures and marks shared by all tests."""

from __future__ import annotations

import gc
import inspect
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from mgspmv import *  # noqa: F403  # else what is imported while a test has changed a constant keeps its own of it
from mgspmv.cluster import forking
from tests.support.reference_data import shared_data

# A shell starts what it puts in the background with SIGINT ignored, and nohup what it starts with SIGHUP. Children
# inherit that, but no handlers.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


if os.environ.get("MGSPMV_PLAIN_MEMORY"):  # each array is taken from the driver, whose bounds memory checkers know
    import cupy

    cupy.cuda.set_allocator(None)

FUZZ = "fuzz_seconds"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the budget of fuzz targets."""
    parser.addoption(
        "--fuzz", dest=FUZZ, type=float, default=0.0, metavar="SECONDS", help="run each fuzz target for so long"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose external programs are missing, and fail it in CI, which has installed them."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    wanted = [name for mark in item.iter_markers("external") for name in mark.args]
    missing = [name for name in wanted if shutil.which(name, path=path) is None]
    if missing:
        report = pytest.fail if "CI" in os.environ else pytest.skip
        report(f"needs {', '.join(missing)}; on Debian and Ubuntu, sudo .ci/programs installs all such programs")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Repeat a fuzz target, with other examples each time, until its budget is spent."""
    budget_s = pyfuncitem.config.getoption(FUZZ) if pyfuncitem.get_closest_marker("fuzz") else 0.0
    end = time.monotonic() + budget_s
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    result = yield
    while time.monotonic() < end:
        pyfuncitem.obj(**arguments)
    return result


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a CUDA device where there is none."""
    on_device = [item for item in items if item.get_closest_marker("gpu")]
    if not on_device:
        return
    from mgspmv.kernels.device import has_device

    if not has_device():
        for item in on_device:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among the tests themselves, a million objects, while they are collected: half of its time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        _forget()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Forget after each file what it left behind."""
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path != item.path:
            _forget()


def _forget() -> None:
    """Collect garbage, and leave what lives on to the permanent generation.

    Looking through all of it again whenever a test, or a worker that has little memory, collects garbage stopped
    whole processes for seconds in the end.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose how many examples Hypothesis makes, and print each failure when it happens.

    A run that is broken off prints no summary. Outside fuzzing the examples are the same in every run. Neither an
    example nor making it has a deadline. Examples may share the fixtures of their test.
    """
    is_fuzzing = config.getoption(FUZZ) > 0
    settings.register_profile(
        "tests",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        derandomize=not is_fuzzing,
        max_examples=100 if is_fuzzing else 40,
    )
    settings.load_profile("tests")
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        config.pluginmanager.register(_Failures(terminal))


class _Failures:
    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.write_line(f"\n{report.when} of {report.nodeid} failed: {report.longreprtext[-2000:]}")


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled kernels and runs that the user keeps are not for tests, and those of tests not for the user.

    Workers are forked although pytest names each test in the environment.
    """
    find_environment = forking._find_environment
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MGSPMV_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("MGSPMV_STATE", str(tmp_path_factory.mktemp("state")))
        patch.setattr(forking, "_find_environment", lambda: find_environment() | {"PYTEST_CURRENT_TEST": ""})
        yield


@pytest.fixture(scope="session")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """`ingested(name, **options)` opens the store of a reference file, which is made once in a session."""
    import mgspmv as mg

    stores: dict[str, Path] = {}

    def open_ingested(name: str, **options: Any) -> Any:
        key = f"{name} {sorted(options.items())}"
        if key not in stores:
            stores[key] = tmp_path_factory.mktemp("ingested") / "store.zarr"
            mg.ingest(shared_data(name), stores[key], **options)
        return mg.open_matrix(stores[key])

    return open_ingested


# --- clusters, started when they are first asked for -----------------------------------------------------------------


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A cluster of 4 worker processes."""
    from tests.support.clusters import start_cluster

    with start_cluster(4) as started:
        yield started


@pytest.fixture(scope="session")
def _client(cluster: Any) -> Iterator[Any]:
    from distributed import Client

    with Client(cluster, set_as_default=False) as client:
        yield client


@pytest.fixture
def client(_client: Any) -> Iterator[Any]:
    """Of the cluster of 4 worker processes, on which a test must leave nothing."""
    from tests.support.clusters import check_left, find_left

    before = find_left(_client)
    yield _client
    check_left(_client, before)


@pytest.fixture(scope="session")
def _in_process() -> Iterator[Callable[[int], Any]]:
    from distributed import Client

    from tests.support.clusters import start_cluster

    started: dict[int, Any] = {}

    def get_client(n_workers: int) -> Any:
        if n_workers not in started:
            started[n_workers] = Client(start_cluster(n_workers, processes=False), set_as_default=False)
        return started[n_workers]

    yield get_client
    for client in started.values():
        cluster = client.cluster
        client.close()
        cluster.close()


@pytest.fixture
def in_process(_in_process: Callable[[int], Any]) -> Iterator[Callable[[int], Any]]:
    """`in_process(n)` is a client of n workers in this process, on which a test must leave nothing."""
    from tests.support.clusters import check_left, find_left

    before: dict[int, set[str]] = {}

    def get_client(n_workers: int) -> Any:
        client = _in_process(n_workers)
        before.setdefault(n_workers, find_left(client))
        return client

    yield get_client
    for n_workers, left in before.items():
        check_left(_in_process(n_workers), left)


@pytest.fixture(autouse=True)
def small_inputs() -> None:
    """Begin each test as a process does: what was ingested before does not decide whether functions are compiled."""
    later = sys.modules.get("mgspmv.kernels.compiled")
    if later is None:
        return
    later.CompiledLater.pays = False
    for name in ("block_sorting", "build", "columns", "numbering"):
        for own in vars(sys.modules.get(f"mgspmv.ingest.{name}", object)).values():
            if isinstance(own, later.CompiledLater):
                own._n_items = 0

"""Where Prometheus finds workers, as it asks for it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from distributed import Client

from mgspmv.monitor.plugin import RunsPlugin
from mgspmv.monitor.targets import add_targets, list_targets
from tests.support.clusters import start_cluster
from tests.support.scraping import fetch, list_workers, scrape


def make_worker(name, host, **services):
    return SimpleNamespace(name=name, host=host, services=services)


def test_each_worker_is_a_target_with_its_name():
    workers = [
        make_worker("a", "10.0.0.2", dashboard=40001),
        make_worker(7, "fe80::1", dashboard=40002, nanny=3),
        make_worker("without a server", "10.0.0.3"),
    ]
    scheduler = SimpleNamespace(workers=dict(enumerate(workers)))
    assert list_targets(scheduler) == [
        {"targets": ["10.0.0.2:40001"], "labels": {"worker": "a"}},
        {"targets": ["[fe80::1]:40002"], "labels": {"worker": "7"}},
    ]


def test_a_scheduler_without_a_server_tells_of_nobody():
    assert not add_targets(SimpleNamespace())


@pytest.mark.parametrize("prefix", ["", "behind"])
def test_the_scheduler_tells_of_workers_as_they_come_and_go(prefix):
    options = {"processes": False, "dashboard_address": "127.0.0.1:0", "scheduler_kwargs": {"http_prefix": prefix}}
    with start_cluster(2, **options) as cluster, Client(cluster, set_as_default=False) as client:
        client.register_plugin(RunsPlugin())
        address, path = (
            f"127.0.0.1:{cluster.scheduler.http_server.port}",
            f"/{prefix}/mgspmv/targets".replace("//", "/"),
        )
        told = {each["labels"]["worker"]: each["targets"] for each in json.loads(fetch(address, path))}
        assert told == {name: [server] for name, server in list_workers(client).items()}
        assert len(told) == 2
        for [server] in told.values():
            assert scrape(server).families
        client.retire_workers([next(iter(cluster.scheduler.workers))])
        assert len(json.loads(fetch(address, path))) == 1

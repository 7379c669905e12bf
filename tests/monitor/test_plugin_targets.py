"""Where Prometheus finds workers, as it asks for it."""

from __future__ import annotations

import json

import pytest
from distributed import Client

from mgspmv.monitor.plugin import RunsPlugin
from tests.support.clusters import start_cluster
from tests.support.scraping import fetch, list_workers, scrape


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

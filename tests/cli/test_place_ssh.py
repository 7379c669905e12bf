"""`--cluster ssh`: workers on hosts that an SSH server of the tests' own lets in, and nothing of them that stays.

Each host is a network namespace with its own address and SSH server. Without root all are this machine, on other ports.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from distributed.comm import get_address_host

import mgspmv.doctor.checks
from mgspmv.distribute import ssh
from mgspmv.distribute.host_workers import Asked
from mgspmv.distribute.ssh import Host, read_hosts, start_ssh
from mgspmv.distribute.tls import make_certificates, use_tls
from mgspmv.errors import ClusterError, MissingDependencyError, OptionError, VersionMismatchError
from tests.support.commands import ENVIRONMENT, TINY_RMAT, invoke, invoke_json, start
from tests.support.hosts import Network, why_not_split
from tests.support.sshd import find_free_port, needs_sshd, serve_ssh
from tests.support.waiting import HANG_S, wait_for

ENDLESS = ("--tol-mode", "fixed", "--max-iter", "100000000")
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


# --- the file of hosts -----------------------------------------------------------------------------------------------


def test_what_lines_say(tmp_path):
    (tmp_path / "hosts.txt").write_text(
        "# two machines\n\ngpu-1\n  me@gpu-2.example.org:2222   threads=3 workers=2  # the large one\n"
        "10.0.0.3 workers=4\n[fe80::1%eth0]:22\r\n[::1]\ngpu-1:23"
    )
    hosts = read_hosts(tmp_path / "hosts.txt")
    assert hosts == [
        Host("gpu-1"),
        Host("gpu-2.example.org", "me", 2222, 2, 3),
        Host("10.0.0.3", workers=4),
        Host("fe80::1%eth0", port=22),
        Host("::1"),
        Host("gpu-1", port=23),
    ]
    assert [str(host) for host in hosts[1:5:3]] == ["gpu-2.example.org:2222", "[::1]"]
    assert hosts[1].destination == ["-p", "2222", "--", "me@gpu-2.example.org"]


WRONG_LINES = [
    ("-oProxyCommand=x", "this is not a host"),
    ("a b", "'b' is neither workers=N nor threads=N"),
    ("a workers=0", "workers must be a number from 1 on, not '0'"),
    ("a workers=", "workers must be a number from 1 on, not ''"),
    ("a threads=two", "threads must be a number from 1 on, not 'two'"),
    ("a workers=1 workers=2", "workers= stands there twice"),
    ("a:0", "a port is from 1 to 65535, not 0"),
    ("a:70000", "a port is from 1 to 65535, not 70000"),
    ("a:", "this is not a host"),
    ("::1", "write IPv6 in brackets"),
    ("@a", "this is not a host"),
    ("a;reboot", "this is not a host"),
    ("me@first:22", "the host is in line 2 already"),
]


def test_lines_that_are_refused(tmp_path):
    path = tmp_path / "hosts.txt"
    for line, message in WRONG_LINES:
        path.write_text(f"# hosts\nfirst:22\n\n{line}  # comment\n")
        with pytest.raises(OptionError) as caught:
            read_hosts(path)
        assert str(caught.value).startswith(f"{path}, line 4: {line!r}: ")
        assert message in str(caught.value)


def test_files_that_are_refused(tmp_path):
    (tmp_path / "empty").write_text("# none yet\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, message in (("missing", "no file of hosts"), ("binary", "no file of hosts"), ("empty", "has no hosts")):
        with pytest.raises(OptionError, match=message):
            read_hosts(tmp_path / name)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--cluster", "ssh"], "--cluster ssh starts workers on the hosts of --hosts FILE; give both or neither"),
        (["--cluster", "local", "--hosts", "h"], "--cluster ssh starts workers on the hosts of --hosts FILE"),
        (["--hosts", "h"], "--cluster ssh starts workers on the hosts of --hosts FILE"),
        (["--cluster", "local", "--remote-python", "p"], "--remote-python is of other machines; add --cluster ssh"),
        (["--cluster", "ssh", "--hosts", "h", "--tls", "temporary"], "do not have certificates that are made here"),
    ],
)
def test_options_that_are_refused(args, message):
    for command in (["pagerank", "g.zarr"], ["plan", "g.zarr"], ["doctor"]):
        assert message in invoke(*command, *args, code=2)[1], command


def test_lines_are_refused_by_commands(monkeypatch):
    monkeypatch.setattr(mgspmv.doctor.checks, "_examine_machine", lambda *_: iter([]))
    Path("h").write_text("a b\n")
    invoke(*TINY_RMAT, "--quiet")
    message = "h, line 1: 'a b': 'b' is neither workers=N nor threads=N"
    assert f"error: {message}" in invoke("pagerank", "r.zarr", "--cluster", "ssh", "--hosts", "h", code=2)[1]
    assert message in str(invoke_json("doctor", "--cluster", "ssh", "--hosts", "h", code=1)["findings"])


def test_pipelines_on_hosts(cluster, client, monkeypatch):
    asked = []

    @contextmanager
    def start(*given):
        asked.append(given)
        yield cluster

    monkeypatch.setattr(ssh, "start_ssh", start)
    Path("h").write_text("gpu-1 workers=3\n")
    invoke(*TINY_RMAT, "--quiet")
    Path("p.toml").write_text(
        '[cluster]\nkind = "ssh"\nhosts = "h"\nworkers = 2\nthreads = 1\nremote_python = "/opt/python"\n'
        '[matrix.web]\nopen = "r.zarr"\n[run.plain]\nmatrix = "web"\n'
    )
    assert f"dashboard: {cluster.dashboard_link}\n" in invoke("run", "p.toml")[1]
    assert asked == [([Host("gpu-1", workers=3)], 2, 1, "/opt/python")]


def test_machines_without_ssh(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match="started by ssh, which is not installed"), start_ssh([Host("a")]):
        pass


# --- hosts of our own ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with Network(is_split=not why_not_split()) as network:
        hosts = [network.add_host(name) for name in ("a", "b", "c")]
        with serve_ssh(tmp_path_factory.mktemp("ssh"), hosts) as fleet:
            yield fleet


@pytest.fixture
def known(fleet, monkeypatch):
    """The fleet, whose hosts and keys `ssh` knows; and nothing that stays on it."""
    fleet.set_config(monkeypatch, fleet.config)
    yield fleet
    assert wait_for(lambda: not fleet.list_left()), fleet.list_left()


@pytest.fixture
def graph():
    invoke("generate", "rmat", "g.zarr", "--scale", "9", "--edge-factor", "8", "--quiet")
    return invoke_json("pagerank", "g.zarr")["digest"]


@needs_sshd
def test_pagerank_on_three_hosts(known, graph):
    options = ("--cluster", "ssh", "--hosts", known.write(), "--workers", "1", "--threads", "1", "--json")
    with start("pagerank", "g.zarr", *options, **PIPES) as process:
        stdout, stderr = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, stderr
    answer = json.loads(stdout)
    assert answer["digest"] == graph
    assert answer["matrix"]["hardware"] == "3 workers of 1 threads"
    assert "dashboard: http://127.0.0.1:" in stderr
    assert ("can run code there; pass --tls to let in nobody" in stderr) == (not why_not_split())
    assert known.list_left() == []


@needs_sshd
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.weekly), signal.SIGKILL])
def test_nothing_stays_when_the_command_is_ended(known, graph, number):
    options = ("--cluster", "ssh", "--hosts", known.write(known.lines[0]), "--workers", "1", "--threads", "1")
    with start("pagerank", "g.zarr", *options, *ENDLESS, **PIPES, start_new_session=True) as process:
        for line in process.stderr:
            if line.startswith("dashboard: "):
                break
        assert sum("host_workers" in line for line in known.list_left()) == 1
        os.killpg(process.pid, number)
        process.communicate(timeout=HANG_S)
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)


@needs_sshd
def test_hosts_that_encrypt(known, tmp_path):
    make_certificates(tmp_path / "certificates")
    [host] = read_hosts(known.write(f"{known.lines[0]} workers=2 threads=3"))
    with use_tls(tmp_path / "certificates"), start_ssh([host], 1, 1) as cluster:
        assert cluster.scheduler_address.startswith("tls://")
        assert cluster.dashboard_link.startswith(f"https://{get_address_host(cluster.scheduler_address)}:")
        joined = {worker.name: worker.nthreads for worker in cluster.scheduler.workers.values()}
        assert joined == {f"{host}/worker-{k}": 3 for k in (0, 1)}
        assert {get_address_host(address) for address in cluster.scheduler.workers} == {host.name}


PLAYED = """#!/bin/sh
[ "$1" = -G ] && { echo "hostname 127.0.0.1"; exit; }
while [ "$1" != -- ]; do shift; done
shift 2
exec sh -c "$*"
"""
"""An ssh whose hosts are all this machine."""


@pytest.mark.gpu
def test_gpus_of_a_host(graph, tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(PLAYED)
    (tmp_path / "bin" / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    Path("hosts.txt").write_text("gpu-1 workers=1\n")
    answer = invoke_json("pagerank", "g.zarr", "--cluster", "ssh", "--hosts", "hosts.txt")
    assert (answer["digest"], answer["matrix"]["transport"]) == (graph, "nccl")
    Path("hosts.txt").write_text("gpu-1 workers=99\n")
    message = invoke("pagerank", "g.zarr", "--cluster", "ssh", "--hosts", "hosts.txt", code=7)[1]
    assert "gpu-1: 99 workers are asked for and " in message


# --- hosts that fail -------------------------------------------------------------------------------------------------


def refuse(hosts, error=ClusterError, python=None) -> str:
    with pytest.raises(error) as caught, start_ssh(hosts, 1, 1, python):
        pytest.fail("it was started")
    assert type(caught.value) is error
    message = str(caught.value)
    assert message.startswith(f"{hosts[0]}: ")
    assert "\n" not in message
    return message


@needs_sshd
@pytest.mark.filterwarnings("ignore:whoever reaches")
def test_hosts_that_ssh_does_not_reach(known, monkeypatch):
    [host, *_] = read_hosts(known.write())
    message = refuse([Host("nowhere.invalid")])
    assert "no host of that name is known here" in message
    closed = Host(host.name, host.user, find_free_port())
    message = refuse([closed])
    assert f"it cannot be reached; `ssh -o BatchMode=yes -p {closed.port} {host.user}@{host.name} true` must" in message
    assert "Connection refused" in message

    known.set_config(monkeypatch, known.config.replace("/own", "/other"))
    message = refuse([host])
    assert "it lets in no key of this user; `ssh -o BatchMode=yes " in message
    assert "Permission denied" in message

    known.set_config(monkeypatch, known.config.replace("/known", "/nobody"))
    assert "its key is not in known_hosts; compare the key with the host's own" in refuse([host])

    changed = (known.folder / "known").read_text().replace(
        (known.folder / "host.pub").read_text().split()[1], (known.folder / "other.pub").read_text().split()[1]
    )  # fmt: skip
    (known.folder / "changed").write_text(changed)
    known.set_config(monkeypatch, known.config.replace("/known", "/changed"))
    assert "its key is not the one that known_hosts has" in refuse([host])


@needs_sshd
@pytest.mark.filterwarnings("ignore:whoever reaches")
def test_hosts_that_cannot_start_workers(known, tmp_path, monkeypatch):
    [host, *_] = read_hosts(known.write())
    assert "/no/python cannot be run there; name its Python by remote_python=" in refuse([host], python="/no/python")

    bare = known.write_program("bare", "unset PYTHONPATH", f'exec {sys.executable} -S "$@"')
    assert f"{bare} there has no mgspmv; install it" in refuse([host], python=bare)

    (tmp_path / "old" / "mgspmv").mkdir(parents=True)
    (tmp_path / "old" / "mgspmv" / "__init__.py").touch()
    old = known.write_program("old", f"export PYTHONPATH={tmp_path}/old", f'exec {sys.executable} -S "$@"')
    assert f"{old} there has " in (message := refuse([host], python=old))
    assert "another version of mgspmv" in message or "no mgspmv" in message

    described = tmp_path / "other" / "mgspmv-9.9.9.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: mgspmv\nVersion: 9.9.9\n")
    other = known.write_program(
        "other", f"export PYTHONPATH={tmp_path}/other:$PYTHONPATH", f'exec {sys.executable} "$@"'
    )
    assert "it has mgspmv 9.9.9 on Python 3." in refuse([host], VersionMismatchError, other)

    failing = known.write_program(
        "failing", "export DASK_DISTRIBUTED__WORKER__PRELOAD=no_such_module", f'exec {sys.executable} "$@"'
    )
    message = refuse([host], python=failing)
    assert "its workers ended with 1 (said: " in message
    assert "No module named 'no_such_module'" in message

    monkeypatch.setattr(ssh, "Asked", lambda **given: Asked(**given | {"certificates": "/nowhere"}))
    assert "/nowhere has no ca.pem; a folder for tls= has" in refuse([host], OptionError)


@needs_sshd
@pytest.mark.filterwarnings("ignore:whoever reaches")
@pytest.mark.skipif(bool(why_not_split()), reason=why_not_split() or "hosts have addresses of their own")
def test_hosts_that_do_not_reach_the_scheduler(known, monkeypatch):
    [host, *_] = read_hosts(known.write())
    monkeypatch.setattr(ssh, "_choose_address", lambda hosts: "127.0.0.1")
    message = refuse([host])
    assert "it does not reach the scheduler at tcp://127.0.0.1:" in message
    assert "let firewalls pass connections" in message

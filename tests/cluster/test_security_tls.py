"""With TLS nobody without a certificate gets in at any port, and nothing on the wire is to be read."""

from __future__ import annotations

import json
import os
import socket
import ssl
import stat
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import dask
import psutil
import pytest
from distributed import Client

import mgspmv as mg
from mgspmv.cluster.connect import connect_client, start_cuda, start_local
from mgspmv.cluster.security import is_tls_required, use_tls
from mgspmv.errors import MgspmvError, OptionError, SchedulerNotFoundError
from tests.support.certificates import make_certificates
from tests.support.waiting import HANG_S, wait_for

pytest.importorskip("cryptography", reason="certificates are made with it")

OWN_DEVICE = Path(__file__).parents[1] / "support" / "chaos" / "own_device.py"
HELLO = b"GET /metrics HTTP/1.0\r\n\r\n"
ETHERNET, IP_BYTES = 14, 65_535


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("own") / "tls")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "a-name-to-be-found.zarr"
    mg.generate("rmat", path, scale=8, seed=1)
    return path


@pytest.fixture(scope="module")
def cluster(certificates):
    """That other tests do not know the certificates of."""
    with use_tls(certificates):
        started = start_local(2, 1)
    with started:
        yield started


@pytest.fixture(scope="module", autouse=True)
def others():
    """Where this process and its children listened before."""
    return find_ports(psutil.Process())


def find_ports(own, others=frozenset()):
    """Where a process and its children listen, but for some."""
    found = [process.net_connections("tcp") for process in (own, *own.children(recursive=True))]
    return {end.laddr for ends in found for end in ends if end.status == "LISTEN"} - others


def make_context(certificates=None):
    """Of who believes whoever answers, and shows a certificate or none."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificates is not None:
        context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    return context


def speak(address, context):
    """What is answered, of an encrypted connection or another one; a refusal is none."""
    with socket.create_connection(address, timeout=HANG_S) as plain:
        try:
            with context.wrap_socket(plain) if context else plain as connection:
                connection.sendall(HELLO)
                return connection.recv(1000)
        except (ssl.SSLError, ConnectionError):
            return b""


@pytest.mark.slow
def test_no_port_answers_who_has_no_certificate(cluster, certificates, others, store, tmp_path):
    foreign = make_certificates(tmp_path / "foreign")
    with use_tls(certificates), Client(cluster, set_as_default=False) as client:
        mg.pagerank(mg.open_matrix(store).on(client))
        ports = find_ports(psutil.Process(), others)
        assert len(ports) == 4 + 4, "scheduler, its pages, two nannies; two workers and their pages"
        assert {port.ip for port in ports} == {"127.0.0.1"}
        pages = 0
        for port in sorted(ports):
            assert speak(port, None) == b"", port
            assert speak(port, make_context()) == b"", port
            assert speak(port, make_context(foreign)) == b"", port
            pages += speak(port, make_context(certificates)).startswith(b"HTTP/1.1 200")
        assert pages == 3, "of the scheduler and two workers: who has a certificate sees them"


@pytest.mark.slow
@pytest.mark.gpu
def test_no_port_of_gpu_workers_answers_who_has_no_certificate(certificates, others, store):
    pytest.importorskip("dask_cuda", reason="dask-cuda is not installed, which starts a worker for each GPU")
    with (
        use_tls(certificates),
        start_cuda(1) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        mg.pagerank(mg.open_matrix(store).on(client))
        pages = 0
        for port in sorted(find_ports(psutil.Process(), others)):
            assert speak(port, None) == b"", port
            assert speak(port, make_context()) == b"", port
            pages += speak(port, make_context(certificates)).startswith(b"HTTP/1.1 200")
        assert pages == 2


@pytest.mark.slow
@pytest.mark.gpu
def test_other_machines_do_not_reach_nccl_of_gpu_workers(certificates, store):
    """Whose workers no command of ours started, and share a GPU as if each had one; NCCL asks for no certificate."""
    preload = {"distributed.worker.preload": [*dask.config.get("distributed.worker.preload", []), str(OWN_DEVICE)]}
    with (
        dask.config.set(preload),
        use_tls(certificates),
        start_local(2, 1) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        before = find_ports(psutil.Process())
        with mg.open_matrix(store).distribute(client, backend="cuda", transport="nccl") as placed:
            assert mg.pagerank(placed).status == "converged"
            ports = find_ports(psutil.Process(), before)
        assert set(client.run(os.getenv, "NCCL_SOCKET_IFNAME").values()) == {"lo"}
    assert ports, "NCCL has some"
    assert {port.ip for port in ports} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "preloaded",
    [
        pytest.param((), id="alone", marks=pytest.mark.weekly),
        pytest.param(("--preload", "mgspmv.monitor.plugin"), id="with the page"),
    ],
)
def test_commands_of_dask_find_them_by_their_configuration(preloaded, certificates, store, tmp_path):
    environment = os.environ | {"DASK_CONFIG": str(certificates / "dask.yaml")}
    file, started = tmp_path / "scheduler.json", []

    def start(module, *options):
        command = [sys.executable, "-m", f"distributed.cli.{module}", "--scheduler-file", str(file), *options]
        said = (tmp_path / f"{module}.txt").open("w")
        started.append(subprocess.Popen(command, env=environment, stdout=said, stderr=said))

    try:
        start("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0", *preloaded)
        assert wait_for(lambda: file.exists() and file.read_text().endswith("}"), HANG_S)
        address = json.loads(file.read_text())["address"]
        start("dask_worker", "--host", "127.0.0.1", "--nthreads", "1", "--memory-limit", "0")
        with use_tls(certificates), Client(address, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=HANG_S)
            assert mg.pagerank(mg.open_matrix(store).on(client)).status == "converged"
            ports = set().union(*(find_ports(psutil.Process(process.pid)) for process in started))
            assert len(ports) >= 2 + 3, "scheduler and its pages; nanny, worker and its pages"
            for port in sorted(ports):
                assert speak(port, None) == b"", port
                assert speak(port, make_context()) == b"", port
            pages = [speak(port, make_context(certificates)) for port in sorted(ports)]
            assert sum(answer.startswith(b"HTTP/1.1 200") for answer in pages) == 2
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(HANG_S)


@pytest.mark.slow
def test_clients_without_a_certificate_get_in_nowhere(cluster, certificates, tmp_path):
    address = cluster.scheduler_address
    assert address.startswith("tls://")
    with pytest.raises(OptionError, match="is neither the address of a scheduler"):
        connect_client(address, 5.0)
    with pytest.raises(SchedulerNotFoundError):
        connect_client(address.replace("tls", "tcp"), 5.0)
    make_certificates(tmp_path / "others")
    with use_tls(tmp_path / "others"), pytest.raises(SchedulerNotFoundError):
        connect_client(address, 5.0)
    with use_tls(certificates):
        with pytest.raises(OptionError, match="is not an encrypted address, and connections must be encrypted"):
            connect_client(address.replace("tls", "tcp"), 5.0)
        connect_client(address, 5.0).close()


@contextmanager
def captured():
    """All that goes over the loopback interface meanwhile."""
    try:
        listening = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    except PermissionError:
        pytest.skip("capturing packets needs CAP_NET_RAW")
    listening.bind(("lo", 0))
    listening.settimeout(0.2)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 26)
    packets, is_over = [], threading.Event()

    def listen():
        while not is_over.is_set():
            try:
                packets.append(listening.recv(ETHERNET + IP_BYTES))
            except TimeoutError:
                continue

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield packets
    finally:
        is_over.set()
        thread.join(HANG_S)
        listening.close()


@pytest.mark.external
@pytest.mark.skipif(sys.platform != "linux", reason="packets are captured as Linux does it")
@pytest.mark.parametrize("where", [None, "temporary"])
def test_nothing_on_the_wire_is_to_be_read(where, store):
    """Without TLS the same capture finds the store's name, which the client sends, and how workers greet each other."""
    before = find_ports(psutil.Process())
    with (
        captured() as packets,
        use_tls(where),
        start_local(2, 1) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        mg.pagerank(mg.open_matrix(store).on(client))
        ports = {end.port for end in find_ports(psutil.Process(), before)}
    wire = b"".join(packet for packet in packets if ports & set(read_ports(packet)))
    assert len(wire) > 10_000
    words = [store.name.encode(), b"compression", b"mgspmv_link", b"identity"]
    assert [word for word in words if word in wire] == ([] if where else words)


def read_ports(packet):
    """Of TCP over IPv4, from and to; none of others."""
    ip = packet[ETHERNET:]
    if len(ip) < 20 or ip[0] >> 4 != 4 or ip[9] != socket.IPPROTO_TCP:
        return ()
    return struct.unpack_from("!HH", ip, 4 * (ip[0] & 15))


def test_temporary_ones_are_gone_afterwards():
    with use_tls("temporary"):
        assert is_tls_required()
        key = Path(dask.config.get("distributed.comm.tls.worker.key"))
        assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
        assert key.read_text().startswith("-----BEGIN PRIVATE KEY")
    assert not key.parent.exists()
    assert not is_tls_required()
    with use_tls(None):
        assert not is_tls_required()


def refuse(folder, **asked):
    with pytest.raises(MgspmvError) as caught, use_tls(folder):
        raise AssertionError("such certificates are taken")
    return str(caught.value)


def test_files_that_are_missing_or_none(certificates, tmp_path):
    for name in ["ca.pem", "cert.pem", "key.pem"]:
        copied = copy(certificates, tmp_path)
        (copied / name).write_text("not a certificate\n")
        assert refuse(copied) == f"{copied / name} is not a PEM file", name
        (copied / name).write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        assert f"the certificates in {copied} are not valid: " in refuse(copied), name
        (copied / name).unlink()
        assert refuse(copied) == (
            f"{copied} has no {name}; a folder for tls= has ca.pem, cert.pem and key.pem; see docs/security.md"
        ), name


def test_keys_that_others_may_read_or_that_ask_for_a_password(certificates, tmp_path):
    copied = copy(certificates, tmp_path)
    (copied / "key.pem").chmod(0o640)
    assert refuse(copied).endswith(f"can be read by other users; run: chmod 600 {copied / 'key.pem'}")
    (copied / "key.pem").chmod(0o600)
    (copied / "key.pem").write_text(
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"
    )
    assert refuse(copied).endswith("is encrypted with a password, which cannot be entered here; decrypt it first")


def test_what_does_not_encrypt_is_not_started(certificates):
    with use_tls(certificates), pytest.raises(OptionError, match="protocol='ucxx' does not encrypt"):
        start_cuda(protocol="ucxx")


def copy(certificates, tmp_path):
    copied = tmp_path / "copied"
    copied.mkdir(exist_ok=True)
    for path in certificates.iterdir():
        target = copied / path.name
        target.write_bytes(path.read_bytes())
        os.chmod(target, path.stat().st_mode)
    return copied

"""Manifests for Kubernetes render, are valid by published schemas and consistent, and their commands run."""

from __future__ import annotations

import copy
import os
import re
import shutil
import socket
import ssl
import subprocess
import sysconfig
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

import mgspmv as mg
from mgspmv.distribute.tls import Certificates, make_certificates
from tests.support.commands import ENVIRONMENT, PROGRAM
from tests.support.manifests import (
    COMPONENTS,
    FOLDER,
    OVERLAYS,
    ROOT,
    Object,
    Pod,
    check_all,
    compose,
    find,
    find_pod,
    list_pods,
    render,
)
from tests.support.sshd import find_free_port
from tests.support.validators import lint
from tests.support.waiting import HANG_S, wait_for

pytestmark = pytest.mark.external
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
IMAGE = f"mgspmv:{VERSION}"
YAML = sorted(FOLDER.rglob("*.yaml"))
MIXED = [
    ("cpu", ("nightly",)),
    ("cpu", ("tls", "job")),
    ("single-node", ("nightly", "tls", "object-store")),
    ("many-nodes", ()),
    ("many-nodes", ("object-store", "workload-identity", "autoscaling")),
    ("many-nodes", ("tls", "object-store", "workload-identity", "autoscaling", "job")),
]
"""Overlays with components."""


@pytest.fixture(scope="module")
def standing(tmp_path_factory) -> list[Object]:
    """A cluster that stays, with all that goes with it."""
    return render(compose(tmp_path_factory.mktemp("standing"), "many-nodes", ("object-store", "autoscaling")))


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> list[Object]:
    """A cluster of one pipeline, with TLS."""
    return render(compose(tmp_path_factory.mktemp("job"), "many-nodes", ("tls", "job")))


# --- valid -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overlay", "components"), MIXED, ids=lambda part: "-".join(part) if part == tuple(part) else part
)
def test_all_is_valid_and_whole(overlay, components, tmp_path):
    check_all(render(compose(tmp_path, overlay, components)), IMAGE)


def test_each_overlay_and_component_is_among_them():
    assert {path.name for path in (FOLDER / "overlays").iterdir()} == {*OVERLAYS} == {name for name, _ in MIXED}
    mixed = {name for _, components in MIXED for name in components}
    assert {path.name for path in (FOLDER / "components").iterdir()} == {*COMPONENTS} == mixed


def test_the_overlay_of_the_page_is_one(tmp_path):
    copied = tmp_path / "kubernetes"
    shutil.copytree(FOLDER, copied)
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    text = page.split('```yaml title="kustomization.yaml"\n')[1].split("```")[0]
    own = copied / "overlays" / "mine"
    own.mkdir()
    (own / "kustomization.yaml").write_text(text)
    (own / "nightly.toml").write_text("# of my own\n")
    objects = render(own)
    check_all(objects, f"registry.example.org/{IMAGE}")
    assert find(objects, "DaskCluster")["spec"]["worker"]["replicas"] == 16
    assert find(objects, "ConfigMap", "mgspmv-pipelines")["data"]["nightly.toml"] == "# of my own\n"


@pytest.mark.parametrize(
    "components", [("job",), ("nightly", "object-store", "workload-identity", "autoscaling")], ids="-".join
)
def test_components_take_image_and_namespace_of_what_is_there(components, tmp_path):
    image = {"name": "mgspmv", "newName": "registry.example.org/mgspmv"}
    patch = {"target": {"kind": "DaskCluster"}, "patch": "- {op: replace, path: /spec/worker/replicas, value: 3}"}
    compose(tmp_path / "mine", "cpu", (), namespace="graphs", images=[image], patches=[patch])
    more = {
        "resources": ["../mine"],
        "components": [os.path.relpath(FOLDER / "components" / name, tmp_path / "more") for name in components],
    }
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "kustomization.yaml").write_text(yaml.safe_dump(more))
    objects = render(tmp_path / "more")
    check_all(objects, f"registry.example.org/{IMAGE}")
    assert find(objects, "Namespace")["metadata"]["name"] == "graphs"


def test_its_yaml_is_valid():
    checked = lint(*YAML)
    assert checked.returncode == 0, checked.stdout


def check_each(*folders: Path) -> None:
    for folder in folders:
        check_all(render(folder), IMAGE)


@pytest.mark.parametrize(
    ("path", "right", "wrong", "said"),
    [
        ("base/kustomization.yaml", "- storage.yaml", "- store.yaml", "store.yaml"),
        ("base/kustomization.yaml", "resources:", "resource:", 'unknown field "resource"'),
        ("overlays/many-nodes/kustomization.yaml", "/spec/worker/replicas", "/spec/workers/replicas", "replicas"),
        ("components/tls/kustomization.yaml", "name: mgspmv-dask", "name: mgspmv-das", "does not exist"),
    ],
)
def test_a_kustomization_that_is_broken_is_found(path, right, wrong, said, tmp_path):
    copied = tmp_path / "kubernetes"
    shutil.copytree(FOLDER, copied)
    text = (copied / path).read_text()
    assert right in text
    (copied / path).write_text(text.replace(right, wrong, 1))
    mixed = {"resources": ["../overlays/many-nodes"], "components": ["../components/tls", "../components/job"]}
    (copied / "mixed").mkdir()
    (copied / "mixed" / "kustomization.yaml").write_text(yaml.safe_dump(mixed))
    with pytest.raises(AssertionError, match=re.escape(said)):
        check_each(copied / "mixed", copied / "overlays" / "cpu")


# --- broken ----------------------------------------------------------------------------------------------------------


GONE = object()
"""In place of a value: there is none."""
SCHEDULER, WORKER = ("spec", "scheduler"), ("spec", "worker")
IN_SCHEDULER, IN_WORKER = ((*part, "spec", "containers", 0) for part in (SCHEDULER, WORKER))
NIGHTLY = ("spec", "jobTemplate", "spec")
PREFERRED = ("affinity", "podAffinity", "preferredDuringSchedulingIgnoredDuringExecution", 0, "podAffinityTerm")
RUNNER = ("spec", "job", "spec")
IN_RUNNER = (*RUNNER, "containers", 0)
OWN, STORE, EGRESS = ("NetworkPolicy", "mgspmv"), ("NetworkPolicy", "mgspmv-object-store"), ("spec", "egress", 1)
POLICY, BUDGET = ("NetworkPolicy", "mgspmv-scheduler"), ("PodDisruptionBudget", "mgspmv-workers")
CLUSTER, CRON, CLAIM = (
    ("DaskCluster", "mgspmv"),
    ("CronJob", "mgspmv-nightly"),
    ("PersistentVolumeClaim", "mgspmv-data"),
)

BROKEN: dict[str, tuple[tuple[str, str], tuple[Any, ...], Any, str]] = {
    # what a server would not take
    "account: field": (("ServiceAccount", "mgspmv"), ("automountServiceAcountToken",), False, "Acount"),
    "config: type": (("ConfigMap", "mgspmv-dask"), ("data", "dask.yaml"), {"distributed": {}}, "is not of type"),
    "claim: modes": (CLAIM, ("spec", "accessModes"), "ReadWriteMany", "is not of type 'array'"),
    "cluster: field": (CLUSTER, ("spec", "workers"), {}, "'workers' was unexpected"),
    "cluster: replicas": (CLUSTER, (*WORKER, "replicas"), "8", "is not of type 'integer'"),
    "cluster: probe": (CLUSTER, (*IN_WORKER, "livenessProbe", "period"), 30, "'period' was unexpected"),
    "autoscaler: maximum": (
        ("DaskAutoscaler", "mgspmv"),
        ("spec", "maximum"),
        GONE,
        "'maximum' is a required property",
    ),
    "job: pod": (("DaskJob", "mgspmv-job"), (*RUNNER, "restart"), "Never", "'restart' was unexpected"),
    "nightly: rules": (CRON, (*NIGHTLY, "podFailurePolicy", "rules"), GONE, "'rules' is a required property"),
    # what it would take, and what would not work
    "namespace: confined": (
        ("Namespace", "mgspmv"),
        ("metadata", "labels", "pod-security.kubernetes.io/enforce"),
        "privileged",
        "pods are not confined",
    ),
    "elsewhere": (BUDGET, ("metadata", "namespace"), "default", "is elsewhere"),
    "config: name": (("ConfigMap", "mgspmv-dask"), ("metadata", "name"), "other", "0 objects are ConfigMap"),
    "pipelines: key": (("ConfigMap", "mgspmv-pipelines"), ("data",), {"rmat.toml": ""}, "no nightly.toml"),
    "claim: storage": (CLAIM, ("spec", "resources", "requests", "storage"), "1TB", "no quantity"),
    "budget: nobody's": (
        BUDGET,
        ("spec", "selector", "matchLabels", "dask.org/component"),
        "workers",
        "0 budgets",
    ),
    "policy: port": (POLICY, ("spec", "ingress", 0, "ports", 0, "port"), "comm", "comm is no port of its pods"),
    "policy: everybody": (POLICY, ("spec", "ingress", 0, "from"), [], "from everywhere"),
    "store: except": (STORE, ("spec", "egress", 0, "to", 0, "ipBlock", "cidr"), "10.0.0.0/8", "not of it"),
    "cluster: target": (CLUSTER, (*SCHEDULER, "service", "ports", 0, "targetPort"), "comm", "a port that is not there"),
    "scheduler: port": (CLUSTER, (*IN_SCHEDULER, "args", 0), "--port=8785", "listens elsewhere"),
    "scheduler: no probe": (CLUSTER, (*IN_SCHEDULER, "livenessProbe"), GONE, "not probed"),
    "scheduler: root": (CLUSTER, (*SCHEDULER, "spec", "securityContext", "runAsNonRoot"), False, "root"),
    "worker: image": (CLUSTER, (*IN_WORKER, "image"), "mgspmv:latest", "an image that is not"),
    "worker: option": (CLUSTER, (*IN_WORKER, "args", 1), "--threads=8", "--threads"),
    "worker: threads": (CLUSTER, (*IN_WORKER, "args", 1), "--nthreads=4", "threads and processors"),
    "worker: memory": (CLUSTER, (*IN_WORKER, "resources", "limits", "memory"), "64GB", "no quantity"),
    "worker: writable": (CLUSTER, (*IN_WORKER, "securityContext", "readOnlyRootFilesystem"), False, "not confined"),
    "worker: scratch": (CLUSTER, (*IN_WORKER, "volumeMounts", 3, "mountPath"), "/scratch", "nowhere to write"),
    "worker: keys for all": (
        CLUSTER,
        (*WORKER, "spec", "volumes", 2, "secret", "defaultMode"),
        0o444,
        "others may read it",
    ),
    "worker: address": (CLUSTER, (*IN_WORKER, "env", 1, "value"), "mgspmv:8786", "mgspmv is no Service"),
    "scheduler: node": (CLUSTER, (*SCHEDULER, "spec", "tolerations"), GONE, "waits for a node that is gone"),
    "autoscaler: fewer": (("DaskAutoscaler", "mgspmv"), ("spec", "maximum"), 4, "not for its workers"),
    "job: file": (("DaskJob", "mgspmv-job"), (*IN_RUNNER, "args", 1), "/etc/mgspmv/pipelines/no.toml", "no no.toml"),
    "nightly: two at once": (CRON, ("spec", "concurrencyPolicy"), "Allow", "two at once"),
    "nightly: tries": (CRON, (*NIGHTLY, "backoffLimit"), 5, "given up too soon"),
}
"""An object, where something in it is wrong, what, and what is said then."""


def break_object(objects: list[Object], which: tuple[str, str], path: tuple[Any, ...], wrong: Any) -> list[Object]:
    objects = copy.deepcopy(objects)
    *inside, last = path
    part: Any = find(objects, *which)
    for key in inside:
        part = part[key]
    if wrong is GONE:
        del part[last]
    else:
        part[last] = wrong
    return objects


@pytest.mark.parametrize(("which", "path", "wrong", "said"), BROKEN.values(), ids=BROKEN)
def test_what_is_broken_is_found(which, path, wrong, said, standing, job):
    objects = job if which[0] == "DaskJob" else standing
    broken = break_object(objects, which, path, wrong)
    with pytest.raises(Exception, match=re.escape(said)):
        check_all(broken, IMAGE)


# --- what it says ----------------------------------------------------------------------------------------------------


def test_workers_have_gpus_but_those_on_processors(standing, tmp_path):
    assert find_pod(standing, "worker").container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    single = find_pod(render(FOLDER / "overlays" / "single-node"), "worker")
    assert single.container["resources"]["limits"]["nvidia.com/gpu"] == "4"
    cpu = find_pod(render(FOLDER / "overlays" / "cpu"), "worker")
    assert "nvidia.com/gpu" not in cpu.container["resources"]["limits"]
    assert "tolerations" not in cpu.spec


def test_with_tls_dask_is_told_what_our_certificates_tell_it(job, tmp_path):
    made = make_certificates(tmp_path / "certificates")
    wanted = (made.folder / "dask.yaml").read_text().replace(str(made.folder), "/etc/mgspmv/certificates")
    assert yaml.safe_load(find(job, "ConfigMap", "mgspmv-dask")["data"]["dask.yaml"]) == yaml.safe_load(wanted)
    probes = [value for pod in list_pods(job) for key, value in pod.container.items() if key.endswith("Probe")]
    assert len(probes) == 6
    assert all("tcpSocket" in probe for probe in probes), "the kubelet has no certificate"


def test_pipelines_are_definitions(standing, tmp_path, monkeypatch):
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "mgspmv-scheduler:8786")
    for name in ("rmat.toml", "nightly.toml"):
        (tmp_path / name).write_text(find(standing, "ConfigMap", "mgspmv-pipelines")["data"][name])
        assert len(mg.plan_pipeline(tmp_path / name).steps) == 2, "a matrix, and its ranks"


# --- what its pods run -----------------------------------------------------------------------------------------------


class Node:
    """Pods as processes of this machine, with mounts in a folder and ports that are free."""

    def __init__(self, objects: list[Object], certificates: Certificates | None, folder: Path) -> None:
        self.objects, self.folder, self.certificates = objects, folder, certificates
        self.ports: dict[str, int] = {}
        for pod in list_pods(objects):
            for port in pod.ports.values():
                self.ports[str(port)] = find_free_port()
        for place in ("data", "tmp"):
            (folder / place).mkdir(parents=True)

    def locate(self, text: str) -> str:
        """With folders, ports and names of here."""
        text = re.sub(r"(?<![\w.])/(etc/mgspmv|data|tmp)(?![\w.])", rf"{self.folder}/\1", text)
        text = re.sub(r"[\w-]+-scheduler(?=:\d)|(?<==)(?=:\d)", "127.0.0.1", text)
        return re.sub(r"\b(878[678])\b", lambda found: str(self.ports[found[1]]), text)

    def start(self, pod: Pod, *more: str) -> subprocess.Popen[bytes]:
        self._mount(pod)
        program, *words = [re.sub(r"\$\((\w+)\)", lambda found: pod.environment[found[1]], word) for word in pod.words]
        command = PROGRAM if program == "mgspmv" else [str(Path(sysconfig.get_path("scripts"), program))]
        given = {name: self.locate(value) for name, value in pod.environment.items()}
        given |= {"MGSPMV_STATE": str(self.folder / "state")}
        said = (self.folder / f"{pod.labels.get('dask.org/component', 'pipeline')}.txt").open("ab")
        return subprocess.Popen(
            [*command, *map(self.locate, words), *more],
            env=os.environ | {"PYTHONPATH": ENVIRONMENT["PYTHONPATH"]} | given,
            cwd=self.folder / "data",
            stdout=said,
            stderr=said,
        )

    def _mount(self, pod: Pod) -> None:
        for place, mount in pod.mounts.items():
            here = Path(self.locate(place))
            if "configMap" in mount:
                data = find(self.objects, "ConfigMap", mount["configMap"]["name"])["data"]
                files = {here: data[mount["subPath"]]} if "subPath" in mount else {here / k: v for k, v in data.items()}
                for path, text in files.items():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(self.locate(text))
            elif "secret" in mount and self.certificates is not None:
                shutil.copytree(self.certificates.folder, here, dirs_exist_ok=True)
                (here / "key.pem").chmod(mount["secret"]["defaultMode"])  # Kubernetes' group may read it

    def is_well(self, pod: Pod, name: str) -> bool:
        """As the kubelet asks."""
        probe = pod.container[f"{name}Probe"]
        [(how, asked)] = [(key, probe[key]) for key in ("httpGet", "tcpSocket") if key in probe]
        port = self.ports[str(pod.ports[asked["port"]])]
        try:
            if how == "tcpSocket":
                socket.create_connection(("127.0.0.1", port), timeout=HANG_S).close()
                return True
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{asked['path']}", timeout=HANG_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def read_said(self) -> str:
        return "".join(f"{path.name}:\n{path.read_text()}" for path in self.folder.glob("*.txt"))


@contextmanager
def run_pod(node: Node, pod: Pod, *more: str) -> Iterator[None]:
    """A server that is well within the time that it is given, and ends when it is told to."""
    process = node.start(pod, *more)
    try:
        assert wait_for(lambda: node.is_well(pod, "startup") or process.poll() is not None, HANG_S)
        assert process.poll() is None, node.read_said()
        yield
        assert all(node.is_well(pod, name) for name in ("readiness", "liveness"))
    finally:
        process.terminate()
        ended = process.wait(HANG_S)
    assert ended == 0, node.read_said()


def connect_unknown(port: str) -> None:
    """As who has no certificate, and believes all. Nothing is sent: the refusal may come before, and would be lost."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", int(port)), timeout=HANG_S) as plain,
        context.wrap_socket(plain) as connection,
    ):
        connection.recv(1)


@pytest.mark.parametrize(
    ("components", "more", "ranks"),
    [
        pytest.param(
            ("job",),
            ["--set=matrix.rmat.parameters.scale=8"],
            "rmat/rmat/pagerank/ranks.zarr",
            id="job",
            marks=pytest.mark.weekly,
        ),
        pytest.param(("nightly", "tls"), [], "nightly/web/ranks/ranks.parquet", id="nightly-tls"),
    ],
)
def test_what_pods_run_is_a_cluster_that_runs_pipelines(components, more, ranks, tmp_path):
    objects = render(compose(tmp_path / "mixed", "cpu", components))
    certificates = make_certificates(tmp_path / "certificates") if "tls" in components else None
    node = Node(objects, certificates, tmp_path / "node")
    (node.folder / "data" / "graph.txt.gz").write_bytes(b"0 1\n1 2\n2 0\n0 2\n")
    with ExitStack() as stack:
        stack.enter_context(run_pod(node, find_pod(objects, "scheduler"), "--host=127.0.0.1"))
        stack.enter_context(run_pod(node, find_pod(objects, "worker"), "--host=127.0.0.1"))
        metrics = f"http://127.0.0.1:{node.ports['8787']}/metrics"
        if certificates is None:
            assert b"mgspmv_" in urllib.request.urlopen(metrics, timeout=HANG_S).read()
        else:
            for port in ("8787", "8788"):
                with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
                    connect_unknown(node.ports[port])
        assert node.start(find_pod(objects, "pipeline"), *more).wait(HANG_S) == 0, node.read_said()
    assert mg.load_solution(node.folder / "data" / ranks).status == "converged"

"""Kubernetes' objects of `deploy/kubernetes/`: rendered by kubectl, what Dask's operator makes of them, and whether all
of that is valid, by the schemas of Kubernetes and of the operator, and fits together."""

from __future__ import annotations

import importlib
import importlib.util
import ipaddress
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import kubernetes_validate
import yaml
from dask_kubernetes.operator.controller import controller as operator

from mgspmv.errors import PipelineError
from tests.support.commands import check_words
from tests.support.validators import run_program

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("cpu", "single-node", "many-nodes")
COMPONENTS = ("nightly", "tls", "object-store", "workload-identity", "autoscaling", "job")
VERSIONS = ("1.31", "1.37")
"""Of Kubernetes: the first that has all that is used here, and the newest of which there is a schema."""
DASK = "kubernetes.dask.org/v1"
INSIDE = ("/tmp", "/var/lib/mgspmv", "/var/cache/mgspmv")
"""What processes of the image write to, beside /data."""
CUDA_WORKER = {"--name", "--nthreads", "--memory-limit", "--device-memory-limit", "--dashboard-address"} | {
    "--local-directory",
    "--death-timeout",
    "--preload",
}
"""Options of `dask cuda worker` that are used here, where dask-cuda is not installed to be asked."""

Object = dict[str, Any]

kubernetes_validate.utils.schema_contents = cache(
    kubernetes_validate.utils.schema_contents
)  # megabytes, for each object

_QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|[KMGT]i?)?")
_SCHEDULE = re.compile(r"[\d*/,-]+( [\d*/,-]+){4}")


# --- rendering -------------------------------------------------------------------------------------------------------


def render(folder: Path) -> list[Object]:
    """The objects that a kustomization makes; fails with what kubectl says where it makes none."""
    done = run_program("kubectl", "kustomize", folder)
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


def compose(folder: Path, overlay: str, components: tuple[str, ...], **more: Any) -> Path:
    """A kustomization of an overlay with components, as docs/kubernetes.md has people write one."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {"resources": [os.path.relpath(FOLDER / "overlays" / overlay, folder)]}
    wanted |= {"components": [os.path.relpath(FOLDER / "components" / name, folder) for name in components]} | more
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
    return folder


def find(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """The one object of a kind, or of a kind and name."""
    found = [each for each in objects if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} objects are {kind} {name or ''}"
    return found[0]


def list_kind(objects: list[Object], kind: str) -> list[Object]:
    return [each for each in objects if each["kind"] == kind]


# --- schemas ---------------------------------------------------------------------------------------------------------


def check_schema(each: Object) -> None:
    """Fail unless an object is valid for Kubernetes or the operator; fields that they do not know are refused.

    Raises
    ------
    jsonschema.ValidationError : it is not
    """
    if each["apiVersion"] == DASK:
        if errors := list(_read_schema(each["kind"]).iter_errors(each)):
            raise errors[0]
        return
    for version in VERSIONS:
        kubernetes_validate.validate(each, version, strict=True)


@cache
def _read_schema(kind: str) -> jsonschema.Draft202012Validator:
    """Of one of the operator's kinds, as its own definitions have it."""
    charts = files("dask_kubernetes") / "operator/deployment/helm/dask-kubernetes-operator/crds"
    definition = yaml.load((charts / f"{kind.lower()}.yaml").read_text(), yaml.CSafeLoader)
    assert definition["spec"]["names"]["kind"] == kind
    [version] = definition["spec"]["versions"]
    schema = _close(version["schema"]["openAPIV3Schema"])
    schema["properties"] |= {"apiVersion": {"const": DASK}, "kind": {"const": kind}, "metadata": {"type": "object"}}
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    return jsonschema.Draft202012Validator(schema)


def _close(schema: Any) -> Any:
    """Without fields that are not named, as a server refuses them that is asked to be strict."""
    if isinstance(schema, list):
        return [_close(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _close(value) for key, value in schema.items() if key not in ("description", "default", "format")}
    if closed.pop("x-kubernetes-int-or-string", False):
        return {"type": ["integer", "string"]}
    if isinstance(closed.get("properties"), dict) and not closed.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed


# --- the operator ----------------------------------------------------------------------------------------------------


def list_made(objects: list[Object]) -> list[Object]:
    """What the operator makes of its kinds: Deployments of scheduler and a worker, the Service, the pod of a job."""
    clusters = [(each["metadata"], each["spec"]) for each in list_kind(objects, "DaskCluster")]
    made: list[Object] = []
    for each in list_kind(objects, "DaskJob"):
        meta, job = each["metadata"], each["spec"]["job"]
        clusters.append((meta, each["spec"]["cluster"]["spec"]))
        name, marks = meta["name"], _mark(meta, job)
        made.append(operator.build_job_pod_spec(name, name, meta["namespace"], job["spec"], *marks))
    for meta, spec in clusters:
        made += _make_cluster(meta, spec)
    return made


def _make_cluster(meta: Object, spec: Object) -> Iterator[Object]:
    name, scheduler, worker = meta["name"], spec["scheduler"], spec["worker"]
    marks = _mark(meta, scheduler)
    yield operator.build_scheduler_deployment_spec(name, scheduler["spec"], *marks)
    yield operator.build_scheduler_service_spec(name, scheduler["service"], *marks)
    group = operator.build_default_worker_group_spec(name, worker, *_mark(meta, worker))
    yield group
    names = (group["metadata"]["name"], meta["namespace"], name, "0123456789")
    yield operator.build_worker_deployment_spec(*names, worker["spec"], *_mark(group["metadata"], worker))


def _mark(meta: Object, part: Object) -> tuple[Object, Object]:
    """Annotations and labels that the operator hands on."""
    plain = SimpleNamespace(annotations=meta.get("annotations", {}), labels=meta.get("labels", {}))
    own = part.get("metadata", {})
    return (
        operator._get_annotations(plain) | own.get("annotations", {}),  # type: ignore[arg-type]
        operator._get_labels(plain) | own.get("labels", {}),  # type: ignore[arg-type]
    )


# --- pods ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pod:
    """A pod that there will be."""

    owner: str
    """Kind of what it is made of."""
    labels: dict[str, str]
    spec: Object

    @property
    def container(self) -> Object:
        """The one that it has."""
        [container] = self.spec["containers"]
        return container

    @property
    def environment(self) -> dict[str, str]:
        """Variables that are given by value."""
        return {each["name"]: each["value"] for each in self.container.get("env", ())}

    @property
    def words(self) -> list[str]:
        """Its command, with that of the image where it has none."""
        return [*self.container.get("command", ["mgspmv"]), *self.container["args"]]

    @property
    def ports(self) -> dict[str, int]:
        """By name."""
        return {each["name"]: each["containerPort"] for each in self.container.get("ports", ())}

    @property
    def mounts(self) -> dict[str, Object]:
        """Volumes by where they are, with `subPath` where only a file of them is."""
        volumes = {each["name"]: each for each in self.spec["volumes"]}
        found = self.container["volumeMounts"]
        assert {each["name"] for each in found} == volumes.keys(), "volumes and mounts are not of each other"
        return {each["mountPath"]: volumes[each["name"]] | each for each in found}

    def is_selected(self, selector: Object) -> bool:
        """Whether a selector of labels takes it."""
        wanted = selector.get("matchLabels")
        assert wanted, f"{selector} takes all"
        assert len(selector) == 1, f"{selector} takes what is not looked at here"
        return wanted.items() <= self.labels.items()


def list_pods(objects: list[Object]) -> list[Pod]:
    """Of each kind of pod one."""
    pods = []
    for each in [*objects, *list_made(objects)]:
        match each["kind"]:
            case "Deployment":
                template = each["spec"]["template"]
            case "CronJob":
                template = each["spec"]["jobTemplate"]["spec"]["template"]
            case "Pod":
                template = each
            case _:
                continue
        pods.append(Pod(each["kind"], template["metadata"]["labels"], template["spec"]))
    return pods


def find_pod(objects: list[Object], component: str) -> Pod:
    """That of scheduler, worker or pipeline."""
    keys = ("dask.org/component", "app.kubernetes.io/component")
    [pod] = [pod for pod in list_pods(objects) if component in {pod.labels.get(key) for key in keys}]
    return pod


# --- fitting together ------------------------------------------------------------------------------------------------


def check_all(objects: list[Object], image: str) -> None:
    """Fail unless all is valid and whole.

    Parameters
    ----------
    image : that all pods must be of

    Raises
    ------
    jsonschema.ValidationError, AssertionError : it is not
    """
    for each in objects:
        check_schema(each)
    for each in list_made(objects):
        check_schema(each)
    for pod in list_pods(objects):
        check_confined(pod, image)
        check_mounts(pod, objects)
        check_probes(pod)
        check_command(pod, objects)
        check_resources(pod)
        check_address(pod, objects)
    check_places(objects)
    check_nodes(objects)
    check_selectors(objects)
    check_schedules(objects)
    check_autoscalers(objects)


def check_places(objects: list[Object]) -> None:
    """All objects are of the namespace, which confines its pods, and there once."""
    [space] = list_kind(objects, "Namespace")
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted", "pods are not confined"
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names), "one of them is there twice"
    for each in objects:
        if each["kind"] != "Namespace":
            assert each["metadata"]["namespace"] == space["metadata"]["name"], f"{each['kind']} is elsewhere"
    for claim in list_kind(objects, "PersistentVolumeClaim"):
        assert _QUANTITY.fullmatch(claim["spec"]["resources"]["requests"]["storage"]), "no quantity"
        assert set(claim["spec"]["accessModes"]) <= {"ReadWriteMany", "ReadWriteOnce"}, "no mode that is known"


def check_confined(pod: Pod, image: str) -> None:
    """As the standard `restricted` wants it, and without a way to Kubernetes."""
    assert pod.container["image"] == image, f"an image that is not {image}"
    assert pod.spec["automountServiceAccountToken"] is False, "a token for Kubernetes"
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.spec.keys(), "shares its node's"
    user = pod.spec["securityContext"]
    assert user["runAsNonRoot"] is True, "root"
    assert user["runAsUser"] == user["runAsGroup"] == user["fsGroup"] == 10001, "not the user of the image"
    assert user["seccompProfile"] == {"type": "RuntimeDefault"}, "all system calls"
    assert pod.container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }, "the container is not confined"


def check_mounts(pod: Pod, objects: list[Object]) -> None:
    """What is named is there, or need not be, and what is written to is mounted."""
    accounts = {each["metadata"]["name"] for each in list_kind(objects, "ServiceAccount")}
    assert pod.spec["serviceAccountName"] in accounts, "no such account"
    for place, mount in pod.mounts.items():
        if "configMap" in mount:
            data = find(objects, "ConfigMap", mount["configMap"]["name"])["data"]
            assert mount.get("subPath") in (None, *data), f"{place} is not in its ConfigMap"
        elif "secret" in mount:
            assert mount["secret"]["optional"] is True, "a Secret that is not made here"
            assert mount["secret"]["defaultMode"] == 0o440, "others may read it"
        elif "persistentVolumeClaim" in mount:
            find(objects, "PersistentVolumeClaim", mount["persistentVolumeClaim"]["claimName"])
        else:
            assert _QUANTITY.fullmatch(mount["emptyDir"]["sizeLimit"]), "no limit"
    assert pod.mounts.keys() >= {*INSIDE}, "nowhere to write to"
    computes = pod.labels.get("dask.org/component") != "scheduler"
    assert ("/data" in pod.mounts) == computes, "who computes reads matrices, and nobody else"
    for given in pod.container.get("envFrom", ()):
        assert given["secretRef"]["optional"] is True, "a Secret that is not made here"


def check_probes(pod: Pod) -> None:
    """Servers are probed, at a port that they have, and all in the same way."""
    probes = [pod.container.get(f"{name}Probe") for name in ("startup", "readiness", "liveness")]
    if not pod.ports:
        assert probes == [None] * 3, "nobody would answer a probe"
        return
    assert all(probes), "not probed"
    for probe in probes:
        [asked] = [probe[key] for key in ("httpGet", "tcpSocket") if key in probe]
        assert asked["port"] in pod.ports, f"{asked['port']} is no port of the container"
        assert asked.get("path", "/health") == "/health", "a page that is not there"


def check_command(pod: Pod, objects: list[Object]) -> None:
    """The command is one, its options are there, and so are ports, names and files that it is given."""
    program, *words = pod.words
    if program == "mgspmv":
        _check_words(tuple(words))
        place, _, name = words[1].rpartition("/")
        assert name in find(objects, "ConfigMap", pod.mounts[place]["configMap"]["name"])["data"], f"no {name}"
    else:
        assert program == "dask", f"{program} is not known"
        _check_dask(words)
        given = dict(word.partition("=")[::2] for word in words if word.startswith("--"))
        listened = {given[key].strip(":") for key in ("--port", "--dashboard-address") if key in given}
        assert listened == {str(port) for port in pod.ports.values()}, "listens elsewhere"
        _check_preloads(words, objects)
    for variable in re.findall(r"\$\((\w+)\)", " ".join(words)):
        assert variable in pod.environment, f"no variable {variable}"
    assert pod.environment["DASK_CONFIG"] in pod.mounts, "a configuration that is not mounted"


def _check_preloads(words: list[str], objects: list[Object]) -> None:
    """`dask cuda worker` is told all that it shall load: it gives its workers a list, so Dask asks no configuration."""
    config = yaml.safe_load(find(objects, "ConfigMap", "mgspmv-dask")["data"]["dask.yaml"])
    wanted = config.get("distributed", {}).get("worker", {}).get("preload", [])
    if words[:2] == ["cuda", "worker"]:
        assert {f"--preload={name}" for name in wanted} <= set(words), "does not load what the configuration names"


@cache
def _check_words(words: tuple[str, ...]) -> None:
    check_words(list(words))


def _check_dask(words: list[str]) -> None:
    if words[:2] == ["cuda", "worker"] and importlib.util.find_spec("dask_cuda") is None:
        unknown = {word.partition("=")[0] for word in words[2:]} - CUDA_WORKER
        assert not unknown, f"dask cuda worker has no {unknown}"
        return
    parts = 2 if words[0] == "cuda" else 1
    module = "dask_cuda.cli" if parts == 2 else f"distributed.cli.dask_{words[0]}"
    command = getattr(importlib.import_module(module), "worker" if parts == 2 else "main")
    command.make_context(words[0], words[parts:])


def check_resources(pod: Pod) -> None:
    """Memory and disk have limits, quantities are some, and there is a processor for each thread."""
    limits, requests = (pod.container["resources"][key] for key in ("limits", "requests"))
    assert {"memory", "ephemeral-storage"} <= limits.keys(), "no limits"
    assert {"memory", "cpu"} <= requests.keys(), "no requests"
    assert all(_QUANTITY.fullmatch(str(value)) for value in (*limits.values(), *requests.values())), "no quantity"
    n_gpus = limits.get("nvidia.com/gpu")
    assert n_gpus == requests.get("nvidia.com/gpu"), "Kubernetes wants the same"
    assert (n_gpus is not None) == (pod.words[:2] == ["dask", "cuda"]), "GPUs are of who computes on them"
    threads = [int(word.partition("=")[2]) for word in pod.words if word.startswith("--nthreads=")]
    assert [str(n * int(n_gpus or 1)) for n in threads] == [limits.get("cpu")] * len(threads), "threads and processors"


def check_address(pod: Pod, objects: list[Object]) -> None:
    """Who needs a scheduler has the name and the port of its Service."""
    if pod.labels.get("dask.org/component") == "scheduler":
        return
    services = [each for each in list_made(objects) if each["kind"] == "Service"]
    ports = {each["metadata"]["name"]: each["spec"]["ports"] for each in services}
    host, _, port = pod.environment["DASK_SCHEDULER_ADDRESS"].partition(":")
    assert host in ports, f"{host} is no Service"
    assert int(port) in {each["port"] for each in ports[host] if each["name"] == "tcp-comm"}, "another port"


def check_nodes(objects: list[Object]) -> None:
    """Who computes may be where the workers are, and would rather be there where the volume is on one node; and a
    scheduler does not wait long for a node that is gone."""
    scheduler, worker, pipelines = _sort_pods(objects)
    waits = {each["key"]: each["tolerationSeconds"] for each in _list_tolerations(scheduler, "NoExecute")}
    gone = {f"node.kubernetes.io/{name}" for name in ("not-ready", "unreachable")}
    assert waits.keys() == gone, "waits for a node that is gone"
    assert all(0 < wait <= 60 for wait in waits.values()), "waits long for a node that is gone"
    [claim] = list_kind(objects, "PersistentVolumeClaim")
    is_on_one = claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    tainted = _list_tolerations(worker, "NoSchedule")
    for pod in [*pipelines, *([scheduler] if is_on_one else [])]:
        assert all(each in _list_tolerations(pod, "NoSchedule") for each in tainted), "may not be where workers are"
    n_workers = _find_cluster(objects)["worker"]["replicas"]
    for pod in [*pipelines, *([worker] if is_on_one and n_workers > 1 else [])]:
        _check_beside(pod, worker)


def _check_beside(pod: Pod, worker: Pod) -> None:
    """It would rather be on a node where there are workers."""
    terms = pod.spec["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert terms, "is anywhere"
    for term in (each["podAffinityTerm"] for each in terms):
        assert term["topologyKey"] == "kubernetes.io/hostname", "beside workers is on their node"
        assert worker.is_selected(term["labelSelector"]), "is beside others than workers"


def _sort_pods(objects: list[Object]) -> tuple[Pod, Pod, list[Pod]]:
    """That of the scheduler, that of a worker, and those of pipelines."""
    pods = list_pods(objects)
    return (
        find_pod(objects, "scheduler"),
        find_pod(objects, "worker"),
        [pod for pod in pods if pod.labels.get("app.kubernetes.io/component") == "pipeline"],
    )


def _list_tolerations(pod: Pod, effect: str) -> list[Object]:
    return [each for each in pod.spec.get("tolerations", ()) if each["effect"] == effect]


def _find_cluster(objects: list[Object]) -> Object:
    """The specification of the cluster: one that stays, or that of a job."""
    found = [each["spec"] for each in list_kind(objects, "DaskCluster")]
    found += [each["spec"]["cluster"]["spec"] for each in list_kind(objects, "DaskJob")]
    [cluster] = found
    return dict(cluster)


def check_selectors(objects: list[Object]) -> None:
    """Who is selected is there, as many as should be, and has the ports that are named."""
    pods = list_pods(objects)
    for service in (each for each in list_made(objects) if each["kind"] == "Service"):
        found = [pod for pod in pods if pod.is_selected({"matchLabels": service["spec"]["selector"]})]
        assert len(found) == 1, f"the Service is of {len(found)} pods"
        [pod] = found
        assert all(each["targetPort"] in pod.ports for each in service["spec"]["ports"]), "a port that is not there"
        assert {each["name"]: each["port"] for each in service["spec"]["ports"]} == pod.ports, "others"
    for policy in list_kind(objects, "NetworkPolicy"):
        _check_policy(policy, pods)
    for pod in pods:
        budgets = [each["spec"] for each in list_kind(objects, "PodDisruptionBudget")]
        found = [each for each in budgets if pod.is_selected(each["selector"])]
        assert len(found) == 1, f"{len(found)} budgets of a pod"
        [budget] = found
        assert len(budget.keys() & {"minAvailable", "maxUnavailable"}) == 1, "one of both"
        if pod.owner == "Deployment":
            assert budget.get("unhealthyPodEvictionPolicy") == "AlwaysAllow", "what is not ready holds a node back"
        else:
            assert "minAvailable" in budget, "only who has a scale may say how many may miss"
            assert budget["minAvailable"] >= 100, "protects a pod only where there is no other"
        for spread in pod.spec.get("topologySpreadConstraints", ()):
            assert pod.is_selected(spread["labelSelector"]), "is spread among others"


def _check_policy(policy: Object, pods: list[Pod]) -> None:
    spec = policy["spec"]
    taken = [pod for pod in pods if pod.is_selected(spec["podSelector"])]
    assert taken, f"{policy['metadata']['name']} is of no pod"
    for rule in spec.get("ingress", ()):
        assert rule["from"], "from everywhere"
        for each in rule["from"]:
            if each.keys() == {"podSelector"}:
                assert all(pod.is_selected(each["podSelector"]) for pod in pods), "shuts some of its own pods out"
            else:
                assert rule["ports"], "all ports for others"
        for port in rule.get("ports", ()):
            assert all(port["port"] in pod.ports for pod in taken), f"{port['port']} is no port of its pods"
    for rule in spec.get("egress", ()):
        assert rule["to"], "to everywhere"
        for block in (each["ipBlock"] for each in rule["to"] if "ipBlock" in each):
            assert rule.get("ports"), "all ports of others"
            assert all("/" in text for text in (block["cidr"], *block.get("except", ()))), "no block of addresses"
            own = ipaddress.ip_network(block["cidr"])
            assert all(ipaddress.ip_network(text).subnet_of(own) for text in block.get("except", ())), "not of it"


def check_schedules(objects: list[Object]) -> None:
    """Pipelines of the night are one at a time, and none is taken for a job of the operator's."""
    for each in list_kind(objects, "CronJob"):
        assert _SCHEDULE.fullmatch(each["spec"]["schedule"]), "no schedule"
        assert each["spec"]["concurrencyPolicy"] == "Forbid", "two at once"
        job = each["spec"]["jobTemplate"]["spec"]
        pod = job["template"]
        assert pod["spec"]["restartPolicy"] == "Never", "by its exit code it is decided whether again"
        assert not [label for label in pod["metadata"]["labels"] if label.startswith("dask.org/")], "the operator's"
        names = {container["name"] for container in pod["spec"]["containers"]}
        rules = [rule["onExitCodes"] for rule in job["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
        assert {rule["containerName"] for rule in rules} <= names, "no such container"
        assert [rule["values"] for rule in rules] == [[PipelineError.exit_code]], "others may be well the next time"
        assert job["activeDeadlineSeconds"] > _wait_in_all(job["backoffLimit"]) > 1800, "is given up too soon"


def _wait_in_all(n_times: int) -> int:
    """Seconds that Kubernetes lets pass between tries: 10, each time twice as many, and at most 6 minutes."""
    return sum(min(10 * 2**i, 360) for i in range(n_times))


def check_autoscalers(objects: list[Object]) -> None:
    """They are of a cluster that is there, for as many workers as it has, and the scheduler answers the operator."""
    for each in list_kind(objects, "DaskAutoscaler"):
        cluster = find(objects, "DaskCluster", each["spec"]["cluster"])
        n_workers = cluster["spec"]["worker"]["replicas"]
        assert 0 < each["spec"]["minimum"] <= n_workers <= each["spec"]["maximum"], "not for its workers"
        config = yaml.safe_load(find(objects, "ConfigMap", "mgspmv-dask")["data"]["dask.yaml"])
        assert "distributed" not in config, "the operator has no certificate"
        n_gpus = cluster["spec"]["worker"]["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu", "1")
        assert n_gpus == "1", "the operator does not know the names of several workers in a pod"

"""Manifests for Kubernetes render, are valid by published schemas, and what they name exists."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

import mgspmv as mg
from tests.support.certificates import make_certificates
from tests.support.commands import check_words
from tests.support.validators import lint, run_program

pytestmark = pytest.mark.external
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
IMAGE = f"mgspmv:{tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['version']}"
VERSIONS = ("1.31", "1.37")
"""Of Kubernetes: the first that has all that is used here, and the newest of which there is a schema."""
DASK = "kubernetes.dask.org/v1"
CUDA_WORKER = {"--name", "--nthreads", "--memory-limit", "--device-memory-limit", "--dashboard-address"} | {
    "--local-directory",
    "--death-timeout",
    "--preload",
}
"""Options of `dask cuda worker` that are used here, where dask-cuda is not installed to be asked."""
MIXED = [
    ("cpu", ("nightly",)),
    ("cpu", ("tls", "job")),
    ("single-node", ("nightly", "tls", "object-store")),
    ("many-nodes", ("object-store", "workload-identity", "autoscaling")),
    ("many-nodes", ("tls", "object-store", "workload-identity", "autoscaling", "job")),
]
"""Overlays with components."""

Object = dict[str, Any]
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)  # megabytes each time


def render(folder: Path) -> list[Object]:
    """The objects that a kustomization makes; fails with what kubectl says where it makes none."""
    done = run_program("kubectl", "kustomize", folder)
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


def compose(folder: Path, overlay: str, components: tuple[str, ...]) -> list[Object]:
    """An overlay with components, as docs/kubernetes.md has people write one."""
    wanted = {"resources": [os.path.relpath(FOLDER / "overlays" / overlay, folder)]}
    wanted["components"] = [os.path.relpath(FOLDER / "components" / name, folder) for name in components]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
    return render(folder)


def find(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """The one object of a kind, or of a kind and name."""
    found = [each for each in objects if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} objects are {kind} {name or ''}"
    return found[0]


def list_clusters(objects: list[Object]) -> list[tuple[str, Object]]:
    """Name and specification of each cluster: of those that stay, and of those of a job."""
    found = [(each["metadata"]["name"], each["spec"]) for each in objects if each["kind"] == "DaskCluster"]
    jobs = [each for each in objects if each["kind"] == "DaskJob"]
    return found + [(each["metadata"]["name"], each["spec"]["cluster"]["spec"]) for each in jobs]


def list_pods(objects: list[Object]) -> dict[str, Object]:
    """Specifications of pods, by what they are for."""
    found: dict[str, Object] = {}
    for _, cluster in list_clusters(objects):
        found |= {"scheduler": cluster["scheduler"]["spec"], "worker": cluster["worker"]["spec"]}
    for each in objects:
        if each["kind"] == "CronJob":
            found["nightly"] = each["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        if each["kind"] == "DaskJob":
            found["job"] = each["spec"]["job"]["spec"]
    return found


def read_container(pod: Object) -> tuple[Object, dict[str, str], dict[str, int], dict[str, Object]]:
    """The only container, its variables, its ports by name, and its volumes by where they are."""
    [container] = pod["containers"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    mounts = {each["mountPath"]: volumes[each["name"]] | each for each in container["volumeMounts"]}
    variables = {each["name"]: each["value"] for each in container.get("env", ())}
    return container, variables, {each["name"]: each["containerPort"] for each in container.get("ports", ())}, mounts


def check_schema(each: Object) -> None:
    """Fail unless an object is valid for Kubernetes or the operator; fields that they do not know are refused.

    Raises
    ------
    jsonschema.ValidationError : it is not
    """
    if each["apiVersion"] == DASK:
        if errors := list(read_schema(each["kind"]).iter_errors(each)):
            raise errors[0]
        return
    for version in VERSIONS:
        kubernetes_validate.validate(each, version, strict=True)


@cache
def read_schema(kind: str) -> jsonschema.Draft202012Validator:
    """Of one of the operator's kinds, as its own definitions have it."""
    charts = files("dask_kubernetes") / "operator/deployment/helm/dask-kubernetes-operator/crds"
    definition = yaml.load((charts / f"{kind.lower()}.yaml").read_text(), yaml.CSafeLoader)
    [version] = definition["spec"]["versions"]
    schema = close(version["schema"]["openAPIV3Schema"])
    schema["properties"] |= {"apiVersion": {"const": DASK}, "kind": {"const": kind}, "metadata": {"type": "object"}}
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    return jsonschema.Draft202012Validator(schema)


def close(schema: Any) -> Any:
    """Without fields that are not named, as a server refuses them that is asked to be strict."""
    if isinstance(schema, list):
        return [close(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: close(value) for key, value in schema.items() if key not in ("description", "default", "format")}
    if closed.pop("x-kubernetes-int-or-string", False):
        return {"type": ["integer", "string"]}
    if isinstance(closed.get("properties"), dict) and not closed.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed


def check_all(objects: list[Object], image: str = IMAGE) -> None:
    """Fail unless all is valid and whole."""
    [space] = [each["metadata"]["name"] for each in objects if each["kind"] == "Namespace"]
    for each in objects:
        check_schema(each)
        assert each["kind"] == "Namespace" or each["metadata"]["namespace"] == space, f"{each['kind']} is elsewhere"
    for name, pod in list_pods(objects).items():
        check_schema({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": space}, "spec": pod})
        check_confined(pod, image)
        check_mounts(name, pod, objects)
        check_command(pod, objects)
        check_resources(pod)
    for _, cluster in list_clusters(objects):
        ports = read_container(cluster["scheduler"]["spec"])[2]
        service = {
            each["name"]: (each["port"], each["targetPort"]) for each in cluster["scheduler"]["service"]["ports"]
        }
        assert service == {name: (port, name) for name, port in ports.items()}, "a port that is not there"


def check_confined(pod: Object, image: str) -> None:
    """As the standard `restricted` wants it, and without a way to Kubernetes."""
    container = pod["containers"][0]
    assert container["image"] == image, f"an image that is not {image}"
    assert pod["automountServiceAccountToken"] is False, "a token for Kubernetes"
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 10001), "root"
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }, "the container is not confined"


def check_mounts(name: str, pod: Object, objects: list[Object]) -> None:
    """What is named is there, Secrets need not be and are not for all, and what is written to is mounted."""
    container, variables, _, mounts = read_container(pod)
    for place, mount in mounts.items():
        if "configMap" in mount:
            data = find(objects, "ConfigMap", mount["configMap"]["name"])["data"]
            assert mount.get("subPath") in (None, *data), f"{place} is not in its ConfigMap"
        elif "secret" in mount:
            assert mount["secret"]["optional"] is True, "a Secret that is not made here"
            assert mount["secret"]["defaultMode"] == 0o440, "others may read it"
        elif "persistentVolumeClaim" in mount:
            find(objects, "PersistentVolumeClaim", mount["persistentVolumeClaim"]["claimName"])
    assert mounts.keys() >= {"/tmp", "/var/lib/mgspmv", "/var/cache/mgspmv"}, "nowhere to write to"
    assert ("/data" in mounts) == (name != "scheduler"), "who computes reads matrices, and nobody else"
    assert variables["DASK_CONFIG"] in mounts, "a configuration that is not mounted"
    assert all(given["secretRef"]["optional"] for given in container.get("envFrom", ())), "a Secret that is not made"


def check_command(pod: Object, objects: list[Object]) -> None:
    """The command is one, its options are there, and so are ports, names and files that it is given."""
    container, variables, ports, mounts = read_container(pod)
    program, *words = [*container.get("command", ["mgspmv"]), *container["args"]]
    probes = [container.get(f"{name}Probe") for name in ("startup", "readiness", "liveness")]
    if program == "mgspmv":
        check_words(words)
        place, _, name = words[1].rpartition("/")
        assert name in find(objects, "ConfigMap", mounts[place]["configMap"]["name"])["data"], f"no {name}"
        assert probes == [None] * 3, "nobody would answer a probe"
    else:
        check_dask(words, find(objects, "ConfigMap", "mgspmv-dask")["data"]["dask.yaml"])
        given = dict(word.partition("=")[::2] for word in words if word.startswith("--"))
        listened = {given[key].strip(":") for key in ("--port", "--dashboard-address") if key in given}
        assert listened == {str(port) for port in ports.values()}, "listens elsewhere"
        assert all(probes), "not probed"
        asked = {probe[key]["port"] for probe in probes for key in ("httpGet", "tcpSocket") if key in probe}
        assert asked <= ports.keys(), "a port that is not there"
    assert set(re.findall(r"\$\((\w+)\)", " ".join(words))) <= variables.keys() | {"DASK_WORKER_NAME"}, "no variable"
    if "scheduler" not in words:
        [name] = [f"{name}-scheduler:8786" for name, _ in list_clusters(objects)]
        assert variables["DASK_SCHEDULER_ADDRESS"] == name, "no such Service"


def check_dask(words: list[str], configuration: str) -> None:
    """`dask cuda worker` is told all that it shall load: it gives its workers a list, so Dask asks no configuration."""
    is_cuda = words[0] == "cuda"
    preloads = ((yaml.safe_load(configuration).get("distributed") or {}).get("worker") or {}).get("preload", [])
    assert not is_cuda or {f"--preload={name}" for name in preloads} <= {*words}, "does not load what is configured"
    if is_cuda and importlib.util.find_spec("dask_cuda") is None:
        unknown = {word.partition("=")[0] for word in words[2:]} - CUDA_WORKER
        assert not unknown, f"dask cuda worker has no {unknown}"
        return
    module = "dask_cuda.cli" if is_cuda else f"distributed.cli.dask_{words[0]}"
    command = getattr(importlib.import_module(module), "worker" if is_cuda else "main")
    command.make_context(words[0], words[2 if is_cuda else 1 :])


def check_resources(pod: Object) -> None:
    """Memory and disk have limits, a worker has GPUs if it computes there, and there is a processor for each thread."""
    container = pod["containers"][0]
    words = [*container.get("command", []), *container["args"]]
    limits, requests = (container["resources"][key] for key in ("limits", "requests"))
    assert {"memory", "ephemeral-storage"} <= limits.keys(), "no limits"
    n_gpus = limits.get("nvidia.com/gpu")
    assert n_gpus == requests.get("nvidia.com/gpu"), "Kubernetes wants the same"
    assert (n_gpus is not None) == (words[:2] == ["dask", "cuda"]), "GPUs are of who computes on them"
    threads = [int(word.partition("=")[2]) for word in words if word.startswith("--nthreads=")]
    assert [str(n * int(n_gpus or 1)) for n in threads] == [limits.get("cpu")] * len(threads), "threads and processors"


@pytest.mark.parametrize(
    ("overlay", "components"), MIXED, ids=lambda part: "-".join(part) if part == tuple(part) else part
)
def test_all_is_valid_and_whole(overlay, components, tmp_path):
    check_all(compose(tmp_path, overlay, components))


def test_each_overlay_and_component_is_among_them():
    assert {path.name for path in (FOLDER / "overlays").iterdir()} == {name for name, _ in MIXED}
    assert {path.name for path in (FOLDER / "components").iterdir()} == {name for _, own in MIXED for name in own}


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


def test_its_yaml_is_valid():
    checked = lint(*sorted(FOLDER.rglob("*.yaml")))
    assert checked.returncode == 0, checked.stdout


def test_each_gpu_has_a_worker_but_in_pods_on_processors():
    for overlay, n_gpus in (("many-nodes", "1"), ("single-node", "4"), ("cpu", None)):
        [container] = list_pods(render(FOLDER / "overlays" / overlay))["worker"]["containers"]
        assert container["resources"]["limits"].get("nvidia.com/gpu") == n_gpus
        assert ("cuda" in container["command"]) == (n_gpus is not None)


def test_with_tls_dask_is_told_what_the_documented_certificates_tell_it(tmp_path):
    objects = compose(tmp_path, "many-nodes", ("tls", "job"))
    made = make_certificates(tmp_path / "certificates")
    wanted = (made / "dask.yaml").read_text().replace(str(made), "/etc/mgspmv/certificates")
    assert yaml.safe_load(find(objects, "ConfigMap", "mgspmv-dask")["data"]["dask.yaml"]) == yaml.safe_load(wanted)
    containers = [pod["containers"][0] for pod in list_pods(objects).values()]
    probes = [value for each in containers for key, value in each.items() if key.endswith("Probe")]
    assert len(probes) == 6
    assert all("tcpSocket" in probe for probe in probes), "the kubelet has no certificate"


def test_pipelines_are_definitions(tmp_path, monkeypatch):
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "mgspmv-scheduler:8786")
    objects = compose(tmp_path, "cpu", ("nightly",))
    for name in ("rmat.toml", "nightly.toml"):
        (tmp_path / name).write_text(find(objects, "ConfigMap", "mgspmv-pipelines")["data"][name])
        assert len(mg.plan_pipeline(tmp_path / name).steps) == 2, "a matrix, and its ranks"

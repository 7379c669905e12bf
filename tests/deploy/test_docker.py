"""Image and compose file: valid by programs of others, safe and whole by ours, and the image's steps executed."""

from __future__ import annotations

import copy
import json
import re
import signal
import subprocess
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from tests.support.commands import check_words
from tests.support.dockerfiles import Image, execute, make_context, read_allowed, read_dockerfile
from tests.support.validators import lint, run_program
from tests.support.waiting import HANG_S, wait_for

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
COMPOSE, ON_PROCESSORS = (DEPLOY / "compose" / name for name in ("compose.yaml", "compose.cpu.yaml"))
SOURCES, DASHBOARDS = (DEPLOY / "compose" / "grafana" / name for name in ("datasources.yaml", "dashboards.yaml"))
YAML = [*sorted((DEPLOY / "compose").rglob("*.yaml")), *sorted((DEPLOY / "monitoring").glob("*.yml"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
STEPS = read_dockerfile(DOCKERFILE.read_text())
ARGUMENTS = dict(step.text.split("=", 1) for step in STEPS if step.name == "ARG")

Services = dict[str, dict[str, Any]]


class Loader(yaml.SafeLoader):
    """Knows the tag by which compose takes away what an earlier file has."""


Loader.add_constructor("!reset", lambda loader, node: loader.construct_sequence(node))


def load(path: Path) -> dict[str, Any]:
    return yaml.load(path.read_text(), Loader)


def break_file(path: Path, right: str, wrong: str, folder: Path) -> Path:
    """A copy in which something is wrong."""
    text = path.read_text()
    assert right in text
    broken = folder / path.name
    broken.write_text(text.replace(right, wrong, 1))
    return broken


# --- valid -----------------------------------------------------------------------------------------------------------


def test_the_dockerfile_is_valid():
    checked = run_program("hadolint", DOCKERFILE)
    assert (checked.returncode, checked.stdout) == (0, "")


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("ENTRYPOINT [", "ENTRYPONT [", "unexpected"),
        ("USER 10001:10001", "USER root", "DL3002"),
        ("WORKDIR /data", "WORKDIR data", "DL3000"),
        ("FROM ${BASE} AS python", "FROM ubuntu AS python", "DL3006"),
        ("--no-install-recommends python3 ", "python3 ", "DL3015"),
        ('"$(echo wheel/*.whl)[${EXTRAS}]"', "$(echo wheel/*.whl)", "SC2046"),
    ],
)
def test_a_broken_dockerfile_is_found(right, wrong, said, tmp_path):
    checked = run_program("hadolint", break_file(DOCKERFILE, right, wrong, tmp_path))
    assert checked.returncode != 0
    assert said in checked.stdout


def check_schema(path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """By the schema of compose files, which has no tags."""
    plain = folder / f"plain-{path.name}"
    plain.write_text(path.read_text().replace("!reset ", ""))
    return run_program("check-jsonschema", "--builtin-schema", "vendor.compose-spec", plain)


@pytest.mark.parametrize("path", [COMPOSE, ON_PROCESSORS], ids=lambda path: path.name)
def test_the_compose_file_is_valid(path, tmp_path):
    checked = check_schema(path, tmp_path)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    ("path", "right", "wrong", "said"),
    [
        (COMPOSE, "cap_drop:", "cap_dropped:", "cap_dropped"),
        (COMPOSE, "condition: service_healthy", "condition: service_healty", "service_healty"),
        (COMPOSE, "capabilities: [gpu]", "capabilities: gpu", "capabilities"),
        (COMPOSE, "interval: 30s", "interval: [30s]", "interval"),
        (COMPOSE, "profiles: [pipeline]", "profile: [pipeline]", "profile"),
        (ON_PROCESSORS, "args:", "arg:", "arg"),
    ],
)
def test_a_broken_compose_file_is_found(path, right, wrong, said, tmp_path):
    checked = check_schema(break_file(path, right, wrong, tmp_path), tmp_path)
    assert checked.returncode != 0
    assert said in checked.stdout


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_yaml_is_valid(path):
    checked = lint(path)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("    access: proxy", "    name: proxy", "duplication of key"),
        ("    access: proxy", "     access: proxy", "syntax error"),
        ("    editable: false", "    editable: no", "truthy value"),
        ("apiVersion: 1", "apiVersion: 1 ", "trailing spaces"),
    ],
)
def test_broken_yaml_is_found(right, wrong, said, tmp_path):
    checked = lint(break_file(SOURCES, right, wrong, tmp_path))
    assert checked.returncode != 0
    assert said in checked.stdout


# --- what compose starts ---------------------------------------------------------------------------------------------


OWN = f"mgspmv:{PROJECT['project']['version']}"
PINNED = re.compile(r".+:(v?\d+\.\d+\.\d+(-[\w.-]+)?|noble-\d{8}(\.\d+)?)")
INSIDE = ("/data", "/scratch", "/var/lib/mgspmv", "/var/cache/mgspmv")


def check_service(name: str, service: dict[str, Any], services: Services) -> None:
    """Fail unless a service is confined, and what it names is there."""
    assert PINNED.fullmatch(service["image"]), "no full version"
    assert service["image"] == OWN or not service["image"].startswith("mgspmv")
    assert int(service["user"].split(":")[0]) > 0, "root"
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert service["restart"] == ("no" if service.get("profiles") else "unless-stopped")
    assert not {"privileged", "cap_add", "devices", "pid", "ipc"} & service.keys()
    assert {"memory", "pids"} <= service["deploy"]["resources"]["limits"].keys(), "no limits"
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), "published to others"
    assert service.get("network_mode") in (None, "service:network")
    assert {*service.get("depends_on", ())} <= services.keys()
    assert "healthcheck" in service or name == "cluster", "nothing says whether it is well"
    for source, target, *mode in (each.rsplit(":", 2 if each.endswith(":ro") else 1) for each in service["volumes"]):
        if source.startswith("."):
            assert mode == ["ro"]
            assert (COMPOSE.parent / source).exists(), f"{source} is not there"
        else:
            assert source.removeprefix("${MGSPMV_DATA:-").strip("}") in load(COMPOSE)["volumes"]
        assert target.startswith("/")
    if service["image"] == OWN and service["volumes"]:
        assert f"scratch:{service['environment']['TMPDIR']}" in service["volumes"], "what is sorted fills memory"


def fill_defaults(text: str) -> str:
    """As compose takes it where no variable is set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


SERVICES: Services = load(COMPOSE)["services"]
BROKEN = {
    "image": ("prometheus", "image", "prom/prometheus:latest"),
    "half a version": ("grafana", "image", "grafana/grafana:12"),
    "another version": ("cluster", "image", "mgspmv:0.0.1"),
    "root": ("cluster", "user", "0:0"),
    "capabilities": ("cluster", "cap_add", ["SYS_ADMIN"]),
    "writable": ("grafana", "read_only", False),
    "published": ("grafana", "ports", ["3000:3000"]),
    "limits": ("pipeline", "deploy", {"resources": {"limits": {}}}),
    "mount": ("grafana", "volumes", ["../monitoring/grafana.json:/etc/grafana/dashboards/mgspmv.json:ro"]),
    "mount to write": ("prometheus", "volumes", ["../monitoring:/etc/prometheus"]),
    "volume": ("grafana", "volumes", ["other:/var/lib/grafana"]),
    "scratch": ("cluster", "environment", {"TMPDIR": "/tmp"}),
    "network": ("cluster", "network_mode", "host"),
    "health": ("prometheus", "healthcheck", None),
}


def check_services(services: Services) -> None:
    for name, service in services.items():
        check_service(name, {"volumes": []} | service, services)


def test_services_are_confined_and_what_they_name_is_there():
    check_services(SERVICES)


@pytest.mark.parametrize(("name", "key", "wrong"), BROKEN.values(), ids=BROKEN)
def test_a_service_that_is_not_is_found(name, key, wrong):
    services = copy.deepcopy(SERVICES)
    if wrong is None:
        del services[name][key]
    else:
        services[name][key] = wrong
    with pytest.raises(AssertionError):
        check_services(services)


@pytest.mark.parametrize("name", ["cluster", "pipeline"])
def test_commands_are_ours(name):
    words = [fill_defaults(word) for word in SERVICES[name]["command"]]
    check_words(words)
    with pytest.raises(Exception, match="no-such"):
        check_words([*words, "--no-such"])


def test_the_cluster_is_that_of_the_image_on_all_gpus():
    cluster = SERVICES["cluster"]
    assert cluster["command"] == find_json("CMD")
    [device] = cluster["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert {mount.rsplit(":", 1)[1] for mount in cluster["volumes"]} == {*INSIDE}


def test_nobody_reaches_the_cluster_but_who_shares_its_network():
    port = SERVICES["cluster"]["command"][-1]
    assert "--host" not in SERVICES["cluster"]["command"]
    assert f"--set=cluster.address=tcp://127.0.0.1:{port}" in SERVICES["pipeline"]["command"]
    inside = {name for name, service in SERVICES.items() if service.get("network_mode") == "service:network"}
    assert inside == {"cluster", "pipeline", "prometheus"}
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published == ["127.0.0.1:9090:9090", "127.0.0.1:3000:3000"]


def test_prometheus_finds_the_scheduler():
    name, address = SERVICES["network"]["extra_hosts"][0].split(":")
    assert address == "127.0.0.1"
    scheduler, workers = load(DEPLOY / "monitoring" / "prometheus.yml")["scrape_configs"]
    assert scheduler["static_configs"] == [{"targets": [f"{name}:8787"]}]
    assert workers["http_sd_configs"][0]["url"] == f"http://{name}:8787/mgspmv/targets"
    folder, target, _ = SERVICES["prometheus"]["volumes"][0].split(":")
    config = next(word for word in SERVICES["prometheus"]["command"] if word.startswith("--config.file="))
    inside = Path(config.split("=")[1]).relative_to(target)
    assert (COMPOSE.parent / folder / inside).resolve() == DEPLOY / "monitoring" / "prometheus.yml"


def test_grafana_finds_prometheus_and_our_dashboard():
    [source] = load(SOURCES)["datasources"]
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "http://network:9090", True)
    [provider] = load(DASHBOARDS)["providers"]
    grafana = SERVICES["grafana"]
    mounts = dict(reversed(mount.removesuffix(":ro").split(":")) for mount in grafana["volumes"])
    place = f"{provider['options']['path']}/mgspmv.json"
    assert mounts[place] == "../monitoring/grafana-dashboard.json"
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == place
    assert mounts["/etc/grafana/provisioning/datasources/mgspmv.yaml"] == "./grafana/datasources.yaml"
    assert mounts["/etc/grafana/provisioning/dashboards/mgspmv.yaml"] == "./grafana/dashboards.yaml"


def test_without_gpus_only_what_is_for_them_is_other():
    other = load(ON_PROCESSORS)["services"]
    assert other.keys() <= SERVICES.keys()
    assert other["cluster"] == {"deploy": {"resources": {"reservations": {"devices": []}}}}
    arguments = other["network"]["build"]["args"]
    assert arguments.keys() <= ARGUMENTS.keys()
    assert PINNED.fullmatch(arguments["BASE"])
    assert "cuda" not in arguments["EXTRAS"]
    said = DOCKERFILE.read_text()
    assert all(f"--build-arg {name}={value}" in said for name, value in arguments.items())


# --- the image -------------------------------------------------------------------------------------------------------


def find_text(name: str) -> str:
    """Of the last instruction of a name."""
    return next(step.text for step in reversed(STEPS) if step.name == name)


def find_json(name: str) -> list[str]:
    found: list[str] = json.loads(find_text(name).partition("[")[1] + find_text(name).partition("[")[2])
    return found


def test_the_image_is_pinned_and_not_of_root():
    assert PINNED.fullmatch(ARGUMENTS["BASE"])
    user = find_text("USER")
    made = next(step.text for step in STEPS if "install --directory" in step.text)
    assert user == SERVICES["cluster"]["user"] == SERVICES["pipeline"]["user"]
    assert f"useradd --uid {user.split(':')[0]} " in made
    assert f"--owner={user.split(':')[0]} " in made
    assert [step.name for step in STEPS[-5:]] == ["USER", "WORKDIR", "HEALTHCHECK", "ENTRYPOINT", "CMD"]
    assert sorted(made.partition("--mode=0750 ")[2].split()) == sorted(INSIDE)


def test_its_command_and_healthcheck_are_ours():
    assert find_json("ENTRYPOINT") == ["mgspmv"]
    check_words(find_json("CMD"))
    program, *words = find_json("HEALTHCHECK")
    assert program == "mgspmv"
    check_words(words)
    assert words == ["cluster", "status", find_json("CMD")[find_json("CMD").index("--name") + 1]]


def test_the_context_has_what_is_copied_and_nothing_else():
    allowed = read_allowed(DOCKERFILE.with_name("Dockerfile.dockerignore").read_text())
    copied = [step.text.split()[:-1] for step in STEPS if step.name == "COPY" and not step.text.startswith("--from")]
    assert sorted(allowed) == sorted(chain(*copied))
    assert all((ROOT / name).exists() for name in allowed)


# --- constraints -----------------------------------------------------------------------------------------------------


CONSTRAINTS = (DEPLOY / "docker" / "constraints.txt").read_text()
UBUNTU = {"python_version": "3.12", "python_full_version": "3.12.3", "platform_machine": "x86_64"}
"""Python of the image."""


def list_wanted() -> list[Requirement]:
    """What the image installs by name."""
    extras = PROJECT["project"]["optional-dependencies"]
    lists = [PROJECT["project"]["dependencies"], PROJECT["build-system"]["requires"]]
    lists += [extras[name] for name in ARGUMENTS["EXTRAS"].split(",")]
    return [Requirement(text) for text in chain(*lists)]


def check_constraints(text: str) -> None:
    """Fail unless each requirement has one version, which it allows."""
    pins: dict[str, str] = {}
    for line in text.splitlines():
        pin = Requirement(line.split("#")[0]) if line.split("#")[0] else None
        if pin is None or (pin.marker is not None and not pin.marker.evaluate(UBUNTU)):
            continue
        [exact] = pin.specifier
        assert exact.operator == "==", f"{line} is no version"
        assert pin.name not in pins, f"{pin.name} has two versions"
        pins[pin.name] = exact.version
    for wanted in list_wanted():
        assert wanted.name in pins, f"{wanted.name} has no version"
        assert wanted.specifier.contains(pins[wanted.name]), f"{wanted} is not {pins[wanted.name]}"


def test_constraints_have_a_version_of_all_that_is_required():
    check_constraints(CONSTRAINTS)
    said = CONSTRAINTS.splitlines()[1].strip("# ")
    assert f"\n{said} --upgrade\n" in (ROOT / "docs" / "launching.md").read_text()
    assert all(f"--extra {name} " in said for name in ARGUMENTS["EXTRAS"].split(","))
    assert (DEPLOY / "docker" / "build.in").read_text().split() == PROJECT["build-system"]["requires"]


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (r"(?m)^bokeh==.*$", "bokeh==3.10.1", "is not 3.10.1"),
        (r"(?m)^dask==.*$", "", "dask has no version"),
        (r"(?m)^(cupy-cuda12x)==\S*", r"\1>=14", "is no version"),
        (r"(?m)^(numpy)==.*$", r"\1==2.3.0", "numpy has two versions"),
    ],
)
def test_other_constraints_are_found(right, wrong, said):
    broken = re.sub(right, wrong, CONSTRAINTS)
    assert broken != CONSTRAINTS
    with pytest.raises(AssertionError, match=said):
        check_constraints(broken)


# --- its steps -------------------------------------------------------------------------------------------------------


def test_steps_are_executed_in_a_folder_of_their_own(tmp_path):
    text = """
# A comment
ARG WORD=one
FROM base AS build
WORKDIR /build
COPY file ./
RUN apt-get update \\
    && false
RUN --mount=type=cache,target=/x echo "${WORD}" > said \\
    && command -v python3 >> said
ENV HOME=/data/home PATH=/opt/mgspmv/bin:${PATH}
"""
    (tmp_path / "file").write_text("here")
    image = execute(read_dockerfile(text), tmp_path, tmp_path / "root", {"WORD": "two"})
    build = tmp_path / "root" / "build"
    assert (build / "file").read_text() == "here"
    assert (build / "said").read_text() == f"two\n{tmp_path}/root/usr/bin/python3\n"
    assert image.left_out == ["apt-get update && false"]
    assert image.environment["HOME"] == f"{tmp_path}/root/data/home"
    assert image.environment["PATH"].startswith(f"{tmp_path}/root/opt/mgspmv/bin:{tmp_path}/root/usr/bin:")


@pytest.mark.parametrize(
    ("step", "said"), [("RUN echo well; echo bad >&2; exit 3", "bad"), ("SHELL x", "nothing is known")]
)
def test_a_step_that_fails_is_told(step, said, tmp_path):
    with pytest.raises(AssertionError, match=said):
        execute(read_dockerfile(step), tmp_path, tmp_path / "root", {})


def list_installed(image: Image) -> set[Path]:
    return {path for path in (image.root / "opt" / "mgspmv").rglob("*") if path.is_file()}


@pytest.mark.weekly
@pytest.mark.timeout(1800)
def test_the_steps_make_a_cluster_that_runs_a_pipeline(tmp_path):
    """On processors, as compose.cpu.yaml asks for it."""
    allowed = read_allowed(DOCKERFILE.with_name("Dockerfile.dockerignore").read_text())
    context = make_context(ROOT, allowed, tmp_path / "context")
    arguments = load(ON_PROCESSORS)["services"]["network"]["build"]["args"]
    image = execute(STEPS, context, tmp_path / "root", arguments)
    assert len(image.left_out) == 3
    installed = list_installed(image)

    pip = [str(tmp_path / "root/build/tools/bin/pip"), "--python", str(tmp_path / "root/opt/mgspmv/bin/python")]
    checked = image.run([*pip, "check"])
    assert checked.returncode == 0, checked.stdout
    names = {each["name"] for each in json.loads(image.run([*pip, "list", "--format=json"]).stdout)}
    assert {"mgspmv", "s3fs", "gcsfs", "adlfs", "cryptography"} <= names
    assert not [name for name in names if name.startswith(("cupy", "nvidia", "hatchling"))]
    shown = image.run([*image.entrypoint, "--help"])
    assert shown.returncode == 0, shown.stderr

    smaller = ["--port", "0", "--workers", "2", "--threads", "1", "--backend", "cpu"]
    command = [*image.entrypoint, *image.command, *smaller]
    assert image.run(image.healthcheck).returncode == 2
    served = subprocess.Popen(command, cwd=image.folder, env=image.environment, stderr=subprocess.PIPE, text=True)
    try:
        assert wait_for(lambda: image.run(image.healthcheck).returncode == 0, HANG_S)
        [cluster] = json.loads(image.run([*image.healthcheck, "--json"]).stdout)["clusters"]
        words = [fill_defaults(word) for word in SERVICES["pipeline"]["command"]]
        words = [word.replace("/pipelines/", f"{ROOT}/pipelines/") for word in words]
        words = [re.sub(r"tcp://.*", cluster["scheduler"], word) for word in words]
        done = image.run([*image.entrypoint, *words, "--set=matrix.rmat.parameters.scale=8"])
        assert done.returncode == 0, done.stderr
        assert len([*image.folder.glob("multi-gpu/rmat/**/ranks.zarr")]) == 3
    finally:
        served.send_signal(signal.SIGTERM)
        _, said = served.communicate(timeout=HANG_S)
    assert served.returncode == 0, said
    assert image.run(image.healthcheck).returncode == 2
    assert list_installed(image) == installed, "it must not write into what is installed"

"""Image and compose file are valid and confined, and what they name exists."""

from __future__ import annotations

import json
import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from tests.support.commands import check_words
from tests.support.validators import lint, run_program

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
COMPOSE, ON_PROCESSORS = (DEPLOY / "compose" / name for name in ("compose.yaml", "compose.cpu.yaml"))
SOURCES, DASHBOARDS = (DEPLOY / "compose" / "grafana" / name for name in ("datasources.yaml", "dashboards.yaml"))
YAML = [*sorted((DEPLOY / "compose").rglob("*.yaml")), *sorted((DEPLOY / "monitoring").glob("*.yml"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
STEPS = [
    line.split(maxsplit=1)
    for line in re.sub(r"\s*\\\n\s*", " ", re.sub(r"(?m)^(#.*)?\n", "", DOCKERFILE.read_text())).splitlines()
]
"""Instructions of the Dockerfile, and what is behind each in one line."""
ARGUMENTS = dict(text.split("=", 1) for name, text in STEPS if name == "ARG")

Services = dict[str, dict[str, Any]]


class Loader(yaml.SafeLoader):
    """Knows the tag by which compose takes away what an earlier file has."""


Loader.add_constructor("!reset", lambda loader, node: loader.construct_sequence(node))


def load(path: Path) -> dict[str, Any]:
    return yaml.load(path.read_text(), Loader)


@pytest.mark.external
def test_the_dockerfile_is_valid():
    checked = run_program("hadolint", DOCKERFILE)
    assert (checked.returncode, checked.stdout) == (0, "")


@pytest.mark.external
def test_compose_files_are_valid(tmp_path):
    def check_schema(path):
        """The schema of compose files knows no tags."""
        plain = tmp_path / f"plain-{path.name}"
        plain.write_text(path.read_text().replace("!reset ", ""))
        return run_program("check-jsonschema", "--builtin-schema", "vendor.compose-spec", plain)

    for path in (COMPOSE, ON_PROCESSORS):
        checked = check_schema(path)
        assert checked.returncode == 0, checked.stdout


@pytest.mark.external
def test_yaml_is_valid():
    checked = lint(*YAML)
    assert checked.returncode == 0, checked.stdout


OWN = f"mgspmv:{PROJECT['project']['version']}"
PINNED = re.compile(r".+:(v?\d+\.\d+\.\d+(-[\w.-]+)?|noble-\d{8}(\.\d+)?)")


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


def test_services_are_confined_and_what_they_name_exists():
    for name, service in SERVICES.items():
        check_service(name, {"volumes": []} | service, SERVICES)


def test_commands_of_compose_and_image_exist():
    for name in ("cluster", "pipeline"):
        check_words([fill_defaults(word) for word in SERVICES[name]["command"]])
    check_words(find_json("CMD"))
    assert find_json("ENTRYPOINT") == ["mgspmv"]
    program, *words = find_json("HEALTHCHECK")
    assert program == "mgspmv"
    check_words(words)
    assert words == ["cluster", "status", find_json("CMD")[find_json("CMD").index("--name") + 1]]
    assert SERVICES["cluster"]["command"] == find_json("CMD")


def test_the_cluster_is_reachable_only_from_its_own_network():
    port = SERVICES["cluster"]["command"][-1]
    assert "--host" not in SERVICES["cluster"]["command"]
    assert f"--set=cluster.address=tcp://127.0.0.1:{port}" in SERVICES["pipeline"]["command"]
    inside = {name for name, service in SERVICES.items() if service.get("network_mode") == "service:network"}
    assert inside == {"cluster", "pipeline", "prometheus"}


def test_grafana_finds_prometheus_and_the_dashboard():
    [source] = load(SOURCES)["datasources"]
    assert source["type"] == "prometheus"
    assert source["access"] == "proxy"
    assert source["url"] == "http://network:9090", "whose network Prometheus is in"
    [provider] = load(DASHBOARDS)["providers"]
    mounted = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]]
    assert provider["type"] == "file"
    assert f"{provider['options']['path']}/mgspmv.json" in mounted


def find_json(name: str) -> list[str]:
    """Words of the last instruction of a name."""
    text = next(text for instruction, text in reversed(STEPS) if instruction == name)
    return list(json.loads(text[text.index("[") :]))


def test_the_context_has_what_is_copied_and_nothing_else():
    text = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text()
    first, *lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert first == "*"
    allowed = [line.removeprefix("!") for line in lines if line.startswith("!")]
    copied = [text.split()[:-1] for name, text in STEPS if name == "COPY" and not text.startswith("--from")]
    assert sorted(allowed) == sorted(chain(*copied))
    assert all((ROOT / name).exists() for name in allowed)


CONSTRAINTS = (DEPLOY / "docker" / "constraints.txt").read_text()
UBUNTU = {"python_version": "3.12", "python_full_version": "3.12.3", "platform_machine": "x86_64"}
"""Python of the image."""


def list_wanted() -> list[Requirement]:
    """What the image installs by name."""
    extras = PROJECT["project"]["optional-dependencies"]
    lists = [PROJECT["project"]["dependencies"], PROJECT["build-system"]["requires"]]
    lists += [extras[name] for name in ARGUMENTS["EXTRAS"].split(",")]
    return [Requirement(text) for text in chain(*lists)]


def test_constraints_have_a_version_of_all_that_is_required():
    """Each requirement has one version, which it allows."""
    pins: dict[str, str] = {}
    for line in CONSTRAINTS.splitlines():
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
    assert (DEPLOY / "docker" / "build.in").read_text().split() == PROJECT["build-system"]["requires"]

"""Files that provision Grafana are valid by closed schemas, since Grafana ignores unknown keys without a message."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

FOLDER = Path(__file__).parents[2] / "deploy" / "compose" / "grafana"
TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
YES_OR_NO: dict[str, Any] = {"type": "boolean"}
NUMBER: dict[str, Any] = {"type": "integer", "minimum": 0}


def close(properties: dict[str, Any], required: Iterable[str]) -> dict[str, Any]:
    """An object that has no other keys."""
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


def close_list(name: str, item: dict[str, Any]) -> dict[str, Any]:
    """A file that is a list of these."""
    items = {"type": "array", "items": item, "minItems": 1}
    return close({"apiVersion": {"const": 1}, name: items}, ("apiVersion", name))


SOURCE = close(
    {
        "name": TEXT,
        "uid": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,40}$"},
        "type": {"const": "prometheus"},
        "access": {"enum": ["proxy", "direct"]},
        "url": {"type": "string", "pattern": "^https?://[^/]+(/.*)?$"},
        "orgId": NUMBER,
        "version": NUMBER,
        "basicAuth": YES_OR_NO,
        "basicAuthUser": TEXT,
        "withCredentials": YES_OR_NO,
        "isDefault": YES_OR_NO,
        "editable": YES_OR_NO,
    },
    ("name", "uid", "type", "access", "url"),
)
PROVIDER = close(
    {
        "name": TEXT,
        "orgId": NUMBER,
        "type": {"const": "file"},
        "folder": {"type": "string"},
        "folderUid": {"type": "string"},
        "disableDeletion": YES_OR_NO,
        "updateIntervalSeconds": NUMBER,
        "allowUiUpdates": YES_OR_NO,
        "options": close({"path": TEXT, "foldersFromFilesStructure": YES_OR_NO}, ("path",)),
    },
    ("name", "type", "options"),
)
SCHEMAS = {
    "datasources.yaml": close_list("datasources", SOURCE),
    "dashboards.yaml": close_list("providers", PROVIDER),
}
"""By file; the keys are those of Grafana's documentation, without `jsonData`, which differs by sort of source."""


def list_faults(name: str, text: str) -> list[str]:
    """Return the places that do not match the schema, and why."""
    found = Draft202012Validator(SCHEMAS[name]).iter_errors(yaml.safe_load(text))
    return [f"{fault.json_path}: {fault.message}" for fault in found]


def test_files_are_valid():
    assert {path.name for path in FOLDER.iterdir()} == SCHEMAS.keys()
    for path in FOLDER.iterdir():
        assert list_faults(path.name, path.read_text()) == []


def test_broken_files_are_found():
    for name, right, wrong, message in (
        ("datasources.yaml", "access:", "acess:", "acess"),
        ("datasources.yaml", "    url: http://", "    url: ", "url"),
        ("dashboards.yaml", "type: file", "type: files", ".type"),
    ):
        text = (FOLDER / name).read_text()
        assert any(message in fault for fault in list_faults(name, text.replace(right, wrong))), message

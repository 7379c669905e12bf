"""What Grafana is given at its start in containers: keys and values that it knows, by a closed schema of each file.

It passes over keys that it does not know, and says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
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
FLAWS = [
    ("datasources.yaml", "access:", "acess:", "acess"),
    ("datasources.yaml", "access: proxy", "access: proxi", "proxi"),
    ("datasources.yaml", "editable:", "editble:", "editble"),
    ("datasources.yaml", "isDefault: true", "isDefault: sure", "sure"),
    ("datasources.yaml", "datasources:", "datasource:", "datasource"),
    ("datasources.yaml", "apiVersion: 1", "apiVersion: 2", "$.apiVersion"),
    ("datasources.yaml", "    url: http://", "    url: ", "url"),
    ("datasources.yaml", "    uid: prometheus\n", "", "uid"),
    ("datasources.yaml", "type: prometheus", "type: prometheuss", ".type"),
    ("dashboards.yaml", "allowUiUpdates:", "allowUiUpdate:", "allowUiUpdate"),
    ("dashboards.yaml", "path:", "paths:", "paths"),
    ("dashboards.yaml", "type: file", "type: files", ".type"),
    ("dashboards.yaml", "options:", "option:", "option"),
]
"""File, what is right, what is wrong, and a word that is said of it."""


def list_faults(name: str, text: str) -> list[str]:
    """What is wrong, and where."""
    found = Draft202012Validator(SCHEMAS[name]).iter_errors(yaml.safe_load(text))
    return [f"{fault.json_path}: {fault.message}" for fault in found]


def test_all_files_have_a_schema():
    assert {path.name for path in FOLDER.iterdir()} == SCHEMAS.keys()
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("name", SCHEMAS)
def test_they_are_valid(name):
    assert list_faults(name, (FOLDER / name).read_text()) == []


@pytest.mark.parametrize(("name", "right", "wrong", "said"), FLAWS)
def test_what_is_broken_is_found(name, right, wrong, said):
    text = (FOLDER / name).read_text()
    assert text.count(right) == 1
    assert any(said in fault for fault in list_faults(name, text.replace(right, wrong)))

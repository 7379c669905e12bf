"""The JSON schema that editors use is that of the models."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mgspmv.pipeline.schema import main, make_schema

ROOT = Path(__file__).parents[2]
PIPELINES = sorted((ROOT / "pipelines").glob("*.toml"))


def test_the_schema_beside_the_definitions_is_current(capsys):
    main()
    printed = capsys.readouterr().out
    assert json.loads(printed) == make_schema()
    assert (ROOT / "pipelines" / "mgspmv.schema.json").read_text() == printed, (
        "run python -m mgspmv.pipeline.schema > pipelines/mgspmv.schema.json"
    )


def test_toml_has_no_null():
    assert '"null"' not in json.dumps(make_schema())


def list_keys(schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each table and key."""
    for model in ({"Pipeline": schema} | schema["$defs"]).items():
        yield from ((model[0], key) for key in model[1]["properties"])


def test_every_key_is_described():
    schema = make_schema()
    models = {"Pipeline": schema} | schema["$defs"]
    assert [(m, k) for m, k in list_keys(schema) if "description" not in models[m]["properties"][k]] == []


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
def test_definitions_to_copy_follow_the_schema(path):
    """As an editor that knows the schema would say; only what is used here of JSON Schema is looked at."""
    assert path.read_text().startswith("#:schema ./mgspmv.schema.json\n")
    schema = make_schema()
    assert list(find_violations(tomllib.loads(path.read_text()), schema, schema, path.stem)) == []


def test_what_does_not_follow_the_schema():
    schema = make_schema()
    definition = {"matrix": {"web": {"path": 3}}, "run": {"alpha": ["x"], "a": {"alhpa": 1}}, "x": 1}
    found = list(find_violations(definition, schema, schema, "p"))
    assert found == ["p.matrix.web.path", "p.run.alpha", "p.run.a.alhpa", "p.x"]


TYPES: dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list}


def find_violations(value: Any, schema: dict[str, Any], root: dict[str, Any], key: str) -> Iterator[str]:
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        if all(list(find_violations(value, option, root, key)) for option in schema["anyOf"]):
            yield key
        return
    if isinstance(value, dict):
        for name, own in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if inner is False:
                yield f"{key}.{name}"
            elif isinstance(inner, dict):
                yield from find_violations(own, inner, root, f"{key}.{name}")
        return
    wanted = schema.get("type", [])
    kinds = [TYPES[kind] for kind in ([wanted] if isinstance(wanted, str) else wanted) if kind in TYPES]
    is_of_kind = not kinds or any(isinstance(value, kind) for kind in kinds)
    inside = [(own, schema["items"]) for own in value] if isinstance(value, list) and is_of_kind else []
    wrong = [list(find_violations(*own, root, key)) for own in inside]
    if not is_of_kind or value not in schema.get("enum", [value]) or any(wrong):
        yield key

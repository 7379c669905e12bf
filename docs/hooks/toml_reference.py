"""The reference of definitions, made of the models that check them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markdown_tables import escape, make_table, show_code, split_default

from mgspmv.pipeline.definition import ReadingSection

SCHEMA = Path(__file__).parents[2] / "pipelines" / "mgspmv.schema.json"
BYTES = ["string", "integer"]
BOUNDS = {"minimum": "of at least", "exclusiveMinimum": "above"}


def write_keys() -> str:
    """A heading for each table, with a table of its keys."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    parts = []
    for heading, model in list_tables("", schema, schema):
        rows = [_describe(key, value, key in model.get("required", ())) for key, value in _order(model["properties"])]
        parts += [f"## {heading}\n", f"{escape(model['description'])}\n"]
        parts.append(make_table(("key", "type", "default", "meaning"), rows))
    return "\n".join(parts)


def list_tables(path: str, model: dict[str, Any], schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Heading and schema of a table, and of those within it."""
    has_named = "properties" in model and "$ref" in (model.get("additionalProperties") or {})
    yield (f"[{path}] and [{path}.NAME]" if has_named else f"[{path}]" if path else "At the top"), model
    for key, value in model["properties"].items():
        named = value.get("additionalProperties") if isinstance(value.get("additionalProperties"), dict) else {}
        inner, suffix = (value, "") if "$ref" in value else (named, ".NAME")
        if "$ref" in inner:
            child = schema["$defs"][inner["$ref"].rpartition("/")[2]]
            yield from list_tables(f"{path}.{key}{suffix}".lstrip("."), child, schema)


def _order(properties: dict[str, Any]) -> list[tuple[str, Any]]:
    """The keys, those that say how files are read at the end."""
    reads = properties.keys() >= ReadingSection.model_fields.keys()
    return sorted(properties.items(), key=lambda item: reads and item[0] in ReadingSection.model_fields)


def _describe(key: str, value: dict[str, Any], is_required: bool) -> tuple[str, ...]:
    meaning, default = split_default(value["description"])
    if "default" in value:
        default = show_code(json.dumps(value["default"]))
    return show_code(key), _name_type(value), "required" if is_required else default, escape(meaning)


def _name_type(value: dict[str, Any]) -> str:
    if "oneOf" in value:
        return f"{_name_type(value['oneOf'][0])}; or a list"
    if "anyOf" in value:
        return " or ".join(map(_name_type, value["anyOf"]))
    if "enum" in value:
        return ", ".join(show_code(json.dumps(choice)) for choice in value["enum"])
    if "$ref" in value or value.get("additionalProperties") is True:
        return "table"
    if value["type"] == "object":
        return "tables by name"
    if value["type"] == "array":
        return f"list of {_name_type(value['items'])}"
    if value["type"] == BYTES:
        return "bytes: integer, or string such as `16GB`, `16GiB`"
    bounds = [f"{words} {value[key]}" for key, words in BOUNDS.items() if key in value]
    return " ".join([value["type"], *bounds])

"""The JSON schema that editors use is that of the models."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support.schema import main, make_schema

ROOT = Path(__file__).parents[2]
PIPELINES = sorted((ROOT / "pipelines").glob("*.toml"))


def test_the_schema_beside_the_definitions_is_current(capsys):
    main()
    printed = capsys.readouterr().out
    assert json.loads(printed) == make_schema()
    assert (ROOT / "pipelines" / "mgspmv.schema.json").read_text() == printed, (
        "run python -m tests.support.schema > pipelines/mgspmv.schema.json"
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
    """As an editor that knows the schema would say."""
    assert path.read_text().startswith("#:schema ./mgspmv.schema.json\n")
    jsonschema.validate(tomllib.loads(path.read_text()), make_schema())


def test_what_does_not_follow_the_schema():
    definition = {"matrix": {"web": {"source": 3}}, "run": {"alpha": ["x"], "a": {"alhpa": 1}}, "x": 1}
    errors = jsonschema.Draft202012Validator(make_schema()).iter_errors(definition)
    assert {error.json_path for error in errors} == {"$.matrix.web.source", "$.run.alpha", "$.run.a", "$"}

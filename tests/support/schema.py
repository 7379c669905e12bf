"""JSON schema of definitions of pipelines, by which editors complete and check them.

python -m tests.support.schema > pipelines/mgspmv.schema.json
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from mgspmv.pipeline.definition import Pipeline


class _TomlSchema(GenerateJsonSchema):
    """Schema without null, which TOML lacks, without null defaults, and without titles that only repeat the key."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> dict[str, Any]:
        has_value = not isinstance(self.get_default_value(schema), dict | BaseModel | None)
        return super().default_schema(schema) if has_value else self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def make_schema() -> dict[str, Any]:
    """Return the JSON schema of definitions, as JSON values."""
    schema = Pipeline.model_json_schema(schema_generator=_TomlSchema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Pipeline of mgspmv"}


def main() -> None:
    """Print the JSON schema."""
    print(json.dumps(make_schema(), indent=1))


if __name__ == "__main__":
    main()

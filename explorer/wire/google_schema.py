"""Google's schemas as JSON Schema.

Owns: upper-case type names, snake_case keywords, ``nullable`` and numbers sent as text.
Must not know: where a schema stands in a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from explorer.errors import BadRequest

_DEEPEST = 100
_RENAMED = {
    "any_of": "anyOf",
    "min_items": "minItems",
    "max_items": "maxItems",
    "min_length": "minLength",
    "max_length": "maxLength",
    "min_properties": "minProperties",
    "max_properties": "maxProperties",
    "additional_properties": "additionalProperties",
    "ref": "$ref",
    "defs": "$defs",
}
# Only Google's own servers read these.
_DROPPED = ("nullable", "propertyOrdering", "property_ordering")
_COUNTS = (
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "minProperties",
    "maxProperties",
)
_OF_SCHEMAS = ("properties", "$defs")
_LISTS_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties")


def json_schema(schema: Any, depth: int = 0) -> Any:
    """The JSON Schema of a Google schema; what is no object stays as it is.

    Raises:
        BadRequest: it is nested too deeply.
    """
    if not isinstance(schema, dict):
        return schema
    if depth > _DEEPEST:
        raise BadRequest("a schema is nested too deeply")
    made: dict[str, Any] = {}
    for name, value in schema.items():
        key = str(_RENAMED.get(name, name))
        if key not in _DROPPED:
            made[key] = _keyword(key, value, depth + 1)
    if isinstance(made.get("type"), str):
        kind = made["type"].lower()
        if kind == "type_unspecified":
            del made["type"]
        else:
            made["type"] = [kind, "null"] if schema.get("nullable") is True else kind
    return made


def _keyword(key: str, value: Any, depth: int) -> Any:
    if key in _OF_SCHEMAS and isinstance(value, Mapping):
        return {name: json_schema(inner, depth) for name, inner in value.items()}
    if key in _LISTS_OF_SCHEMAS and isinstance(value, list):
        return [json_schema(inner, depth) for inner in value]
    if key in _SCHEMAS:
        return json_schema(value, depth)
    if key in _COUNTS and isinstance(value, str) and value.isascii() and value.isdigit():
        # 64-bit numbers are text in Google's JSON.
        return int(value[:18])
    return value

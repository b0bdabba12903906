"""JSON Schemas that people give: checked before anything is stored, and applied to what a model wrote. Pure.

A reference may only lead to another place of the same schema: nothing is fetched, from whatever address.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

#: Longest excerpt of a sentence about a value, characters.
_EXCERPT = 200
_REFERENCES = ("$ref", "$dynamicRef")


class BadSchema(ValueError):
    """It is no schema that can be applied; a sentence."""


def check(schema: Mapping[str, Any]) -> None:
    """Raises BadSchema."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise BadSchema(f"not a valid JSON Schema: {error.message[:_EXCERPT]}") from None
    except RecursionError:
        raise BadSchema("not a valid JSON Schema: nested too deeply") from None
    for reference in _references(schema):
        if not reference.startswith("#"):
            raise BadSchema(f"{reference[:_EXCERPT]} is outside of the schema; put what it names under $defs")
        if reference.startswith("#/") and not _leads_somewhere(schema, reference):
            raise BadSchema(f"{reference[:_EXCERPT]} names no place of the schema")


def _references(schema: Any) -> Iterator[str]:
    """Every reference, also inside values that are no schemas (examples, constants): they cost nobody anything."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            yield from (part[name] for name in _REFERENCES if isinstance(part.get(name), str))
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _leads_somewhere(schema: Any, reference: str) -> bool:
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    try:
        DRAFT202012.create_resource(schema).pointer(reference[1:], resolver=_registry().resolver())
    except (Unresolvable, LookupError, TypeError, ValueError):
        return False
    return True


def _registry() -> Any:
    """Knows nothing and fetches nothing."""
    from referencing import Registry

    return Registry()


def problem(text: str, schema: Mapping[str, Any]) -> str:
    """Why the text is no JSON of this schema; empty when it is."""
    from jsonschema import Draft202012Validator
    from referencing.exceptions import Unresolvable

    try:
        value = msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError) as error:
        return f"not JSON: {error}"
    try:
        errors = sorted(
            Draft202012Validator(schema, registry=_registry()).iter_errors(value), key=lambda error: list(map(str, error.path))
        )
    except (Unresolvable, RecursionError, re.error) as error:
        return f"the schema cannot be applied: {str(error)[:_EXCERPT] or 'it refers to itself without end'}"
    if not errors:
        return ""
    return f"{'.'.join(map(str, errors[0].path)) or 'value'}: {errors[0].message[:_EXCERPT]}"

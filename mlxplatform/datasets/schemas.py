"""JSON Schemas that people give: checked before anything is stored, and applied to what a model wrote. Pure.

A reference may only lead to another place of the same schema: nothing is fetched, from whatever address. How long
applying one may take is the business of :mod:`mlxplatform.datasets.bounded`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

#: Longest excerpt of a sentence about a value, characters.
_EXCERPT = 200
#: Longest schema (as JSON) and longest pattern in one, characters. Every keyword is looked at while somebody waits.
MAX_SCHEMA, MAX_PATTERN = 100_000, 4_000
_REFERENCES = ("$ref", "$dynamicRef")
#: Keywords whose values are data, in which nothing is a keyword.
_DATA = frozenset({"const", "enum", "default", "examples"})
#: What one of them lets through the other looks for in ways that take no time limit.
_NOT_TOGETHER = frozenset({"unevaluatedProperties", "patternProperties"})


class BadSchema(ValueError):
    """It is no schema that can be applied; a sentence."""


def check(schema: Mapping[str, Any]) -> None:
    """Raises BadSchema."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        if len(json.dumps(schema, ensure_ascii=False)) > MAX_SCHEMA:
            raise BadSchema(f"the JSON Schema is longer than {MAX_SCHEMA} characters")
        # Without its formats: the one that counts is that of patterns, which are compiled below.
        Draft202012Validator.check_schema(schema, format_checker=None)
    except SchemaError as error:
        raise BadSchema(f"not a valid JSON Schema: {error.message[:_EXCERPT]}") from None
    except RecursionError:
        raise BadSchema("not a valid JSON Schema: nested too deeply") from None
    for reference in _references(schema):
        if not reference.startswith("#"):
            raise BadSchema(f"{reference[:_EXCERPT]} is outside of the schema; put what it names under $defs")
        if reference.startswith("#/") and not _leads_somewhere(schema, reference):
            raise BadSchema(f"{reference[:_EXCERPT]} names no place of the schema")
    _check_parts(schema)


def _references(schema: Any) -> Iterator[str]:
    for part in _parts(schema):
        yield from (part[name] for name in _REFERENCES if isinstance(part.get(name), str))


def _parts(schema: Any, without: frozenset[str] = frozenset()) -> Iterator[Mapping[str, Any]]:
    """Every object of the schema, from the whole downwards. References may lead into data, so data counts too."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            yield part
            waiting += [value for name, value in part.items() if name not in without]
        elif isinstance(part, list):
            waiting += part


def _check_parts(schema: Mapping[str, Any]) -> None:
    """What could not be applied in bounded time, or not at all. Raises BadSchema."""
    found: set[str] = set()
    for part in _parts(schema):
        if part is not schema and isinstance(part.get("$schema"), str):
            raise BadSchema("$schema belongs at the top of the schema only")
        found.update(name for name in _NOT_TOGETHER if isinstance(part.get(name), Mapping | bool))
    if found == _NOT_TOGETHER:
        raise BadSchema("unevaluatedProperties cannot be applied beside patternProperties; use additionalProperties")
    for part in _parts(schema, without=_DATA):
        if isinstance(part.get("pattern"), str):
            _check_pattern(part["pattern"])
        if isinstance(part.get("patternProperties"), Mapping):
            for pattern in part["patternProperties"]:
                _check_pattern(pattern)


def _check_pattern(pattern: str) -> None:
    from mlxplatform.datasets.bounded import compiled

    shown = f"{pattern[:_EXCERPT]!r}"
    if len(pattern) > MAX_PATTERN:
        raise BadSchema(f"the pattern {shown}… is longer than {MAX_PATTERN} characters")
    try:
        compiled(pattern)
    except ValueError as error:
        raise BadSchema(f"the pattern {shown} cannot be used: {str(error)[:_EXCERPT]}") from None


def _leads_somewhere(schema: Any, reference: str) -> bool:
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    try:
        DRAFT202012.create_resource(schema).pointer(reference[1:], resolver=Registry().resolver())
    except (Unresolvable, LookupError, TypeError, ValueError):
        return False
    return True


def problem(text: str, schema: Mapping[str, Any]) -> str:
    """Why the text is no JSON of this schema; empty when it is."""
    from referencing.exceptions import Unresolvable

    from mlxplatform.datasets.bounded import TooLong, first_error

    # A reference may lead to a place of the schema that is no schema, and a number beyond what can be computed with.
    unusable = (Unresolvable, LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
    try:
        value = msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError) as error:
        return f"not JSON: {error}"
    try:
        found = first_error(schema, value, len(text))
    except TooLong as slow:
        return f"the schema takes too long to apply: {str(slow)[:_EXCERPT]}"
    except RecursionError:
        return "the schema cannot be applied: it refers to itself without end"
    except unusable as failure:
        return f"the schema cannot be applied: {str(failure)[:_EXCERPT]}"
    return f"{'.'.join(map(str, found.path)) or 'value'}: {found.message[:_EXCERPT]}" if found else ""

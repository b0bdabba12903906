"""What a family of tool call layouts is, and the pieces its calls are made of.

Knows no particular family. Pure data: the text layer reads with it, the grammar writes with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlxplatform.inference.contract import Tool

#: Name and arguments of one parsed call.
Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Literal:
    """Exactly this text."""

    text: str


@dataclass(frozen=True)
class Json:
    """A JSON value that follows a schema."""

    schema: Any


@dataclass(frozen=True)
class Until:
    """Any text, up to and including this mark."""

    mark: str


@dataclass(frozen=True)
class Maybe:
    """These pieces, or nothing."""

    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class OneOf:
    """One of these sequences of pieces."""

    options: tuple[tuple[Piece, ...], ...]


Piece = Literal | Json | Until | Maybe | OneOf


@dataclass(frozen=True)
class Family:
    """One layout.

    ``signs``: texts of a chat template that give the family away; each entry is a group that must occur
    together. ``vocabulary``: the same for token texts, looked at when no template gives a sign.
    ``starts`` open a call's markup anywhere; ``bare`` only as the first thing an answer says, and stay part of
    what is parsed. ``end`` closes the markup, None when only the end of the answer does.
    ``parse`` gets the markup between them and raises ValueError (or a KeyError, a TypeError) for
    anything it cannot read completely; an empty list means no call as well.
    ``forced`` lays out one call of one tool, for answers that must be a call; None when that is not offered. It raises
    ValueError for a tool whose names this layout cannot write.
    """

    parse: Callable[[str, list[Tool]], list[Call]]
    starts: tuple[str, ...]
    end: str | None
    signs: tuple[tuple[str, ...], ...] = ()
    vocabulary: tuple[tuple[str, ...], ...] = ()
    bare: tuple[str, ...] = ()
    forced: Callable[[Tool], tuple[Piece, ...]] | None = None


#: Keywords by which a schema says itself what other properties may be there.
_SPEAKS_OF_OTHERS = {
    "additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "minProperties",
    "anyOf", "oneOf", "allOf", "$ref",
}  # fmt: skip


def parameters(tool: Tool) -> dict[str, Any]:
    """The argument schema a forced call follows; no parameters means no arguments.

    Properties the schema does not speak of are left out: JSON Schema would allow any, and a small model that is
    made to call a function without arguments then invents some until its tokens run out.
    """
    schema = tool.parameters or {"type": "object", "properties": {}}
    if "type" not in schema:
        schema = {"type": "object", **schema}  # whatever else it says: arguments are an object
    if "properties" not in schema or schema.keys() & _SPEAKS_OF_OTHERS:
        return schema
    return {**schema, "additionalProperties": False}


def properties_of(tool: Tool) -> dict[str, Any]:
    """Schema of each argument by its name, each of which can stand alone: what references lead to comes with it."""
    schema = parameters(tool)
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    properties = schema.get("properties") or {}
    return {key: {**shared, **part} if shared and "$ref" in str(part) else part for key, part in properties.items()}


def listed(tool: Tool, argument: Callable[[str, Any], tuple[Piece, ...]]) -> tuple[Piece, ...]:
    """Arguments with commas between them: the required ones, then any of the others, each in schema order.

    ``argument`` lays out one, from its key and schema.
    """
    schema, properties = parameters(tool), properties_of(tool)
    required = [key for key in properties if key in (schema.get("required") or [])]
    optional = [argument(key, value) for key, value in properties.items() if key not in required]
    comma = Literal(",")

    def following(rest: list[tuple[Piece, ...]]) -> list[Piece]:
        return [Maybe((comma, *pieces)) for pieces in rest]

    pieces: list[Piece] = []
    for index, key in enumerate(required):
        pieces += [*([comma] if index else []), *argument(key, properties[key])]
    if required:
        return (*pieces, *following(optional))
    if not optional:
        return ()
    return (Maybe((OneOf(tuple((*first, *following(optional[at + 1 :])) for at, first in enumerate(optional))),)),)


def named(tools: list[Tool], name: str) -> Tool:
    for tool in tools:
        if tool.name == name:
            return tool
    raise ValueError(f"no tool is called {name!r}")

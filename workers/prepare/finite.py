"""Whether a JSON schema with references allows any answer that ends. Pure; the grammar library finds this out only by
running into the wall, in the middle of an answer.

``{"$ref": "#"}`` names nothing but itself, and an object that requires another of its own kind never closes. Only what
certainly has no finite instance is found; whatever this does not understand counts as possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

#: Rounds of the search; each settles one more level of nesting. Schemas that need more count as possible.
ROUNDS = 64


def has_finite_answer(schema: Any) -> bool:
    nodes = {id(node): node for node in _reached(schema, schema, set())}
    if not any("$ref" in node for node in nodes.values()):
        return True  # without references the schema is a tree, and its leaves end
    possible: set[int] = set()
    for _ in range(ROUNDS):
        found = {key for key, node in nodes.items() if key not in possible and _possible(node, schema, possible)}
        if not found:
            return not isinstance(schema, dict) or id(schema) in possible
        possible |= found
    return True


def _reached(schema: Any, root: Any, seen: set[int]) -> Iterator[dict[str, Any]]:
    """Every subschema that decides about the whole."""
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict) and id(node) not in seen:
            seen.add(id(node))
            yield node
            needed, choices = _parts(node, root)
            waiting += [*needed, *(option for options in choices for option in options)]


def _possible(node: dict[str, Any], root: Any, possible: set[int]) -> bool:
    def ends(part: Any) -> bool:
        return not isinstance(part, dict) or id(part) in possible

    needed, choices = _parts(node, root)
    return all(ends(part) for part in needed) and all(any(ends(option) for option in options) for options in choices)


def _parts(node: dict[str, Any], root: Any) -> tuple[list[Any], list[list[Any]]]:
    """Subschemas that must all have an answer, and lists of which one must."""
    needed: list[Any] = []
    choices = [node[key] for key in ("anyOf", "oneOf") if isinstance(node.get(key), list) and node[key]]
    if isinstance(node.get("$ref"), str):
        needed.append(_target(node["$ref"], root))
    if isinstance(node.get("allOf"), list):
        needed += node["allOf"]
    if node.get("type") == "object":
        properties, required = node.get("properties"), node.get("required")
        if isinstance(properties, dict) and isinstance(required, list):
            needed += [properties[name] for name in required if isinstance(name, str) and name in properties]
    if node.get("type") == "array" and isinstance(node.get("minItems"), int):
        prefix = node.get("prefixItems")
        first: list[Any] = prefix if isinstance(prefix, list) else []
        needed += first[: max(node["minItems"], 0)]
        if node["minItems"] > len(first) and isinstance(node.get("items"), dict):
            needed.append(node["items"])
    return needed, choices


def _target(reference: str, root: Any) -> Any:
    """The subschema a local reference names, None for any other."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    place = root
    for part in unquote(reference).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict):
            place = place.get(key)
        elif isinstance(place, list) and key.isdecimal() and int(key) < len(place):
            place = place[int(key)]
        else:
            return None
    return place

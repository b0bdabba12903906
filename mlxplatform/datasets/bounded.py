"""A JSON Schema applied to a value in bounded time, whatever the schema says. Pure.

The validator underneath matches patterns that may backtrack without end, follows references that may multiply, and
compares what must be unique pair by pair. Here every keyword looks at the clock first, patterns are matched with a
time limit and without holding up other threads, and unique things are compared by what they are written as.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import regex
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend
from referencing import Registry

#: Seconds for one value, beside those for its size. What a model writes takes a thousandth of them.
SECONDS = 1.0
#: Characters of a value that take another second at most, and the longest time of all.
CHARACTERS_PER_SECOND, MOST_SECONDS = 100_000, 30.0
#: The keyword that names a dialect: of the whole schema only, and all of ours are of one.
DIALECT = "$schema"
#: Characters of a pattern in a sentence.
_SHOWN = 100
#: Recursion into the whole pattern or a group of it, which JSON Schema's expressions do not have.
_CALLS_ITSELF = regex.compile(r"(?<!\\)(?:\\\\)*\(\?(?:R\)|[+-]?\d|&|P>)")

Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError]]

_deadline: ContextVar[float] = ContextVar("deadline")


class TooLong(Exception):
    """It was given up; says at what."""


def first_error(schema: Mapping[str, Any], value: Any, size: int) -> ValidationError | None:
    """The first thing about the value that the schema does not allow. ``size`` is the value's, in characters.

    Raises:
        TooLong: time is up.
        Exception: whatever comes of a reference to something that is no schema.
    """
    # A schema that names its dialect would be handed to that dialect's own validator wherever it refers to itself.
    nameless = {name: given for name, given in schema.items() if name != DIALECT}
    allowed = min(SECONDS + size / CHARACTERS_PER_SECOND, MOST_SECONDS)
    token = _deadline.set(time.monotonic() + allowed)
    try:
        found: ValidationError | None = next(_validator()(nameless, registry=Registry()).iter_errors(value), None)
        return found
    finally:
        _deadline.reset(token)


@lru_cache(maxsize=1)
def _validator() -> Any:
    own: dict[str, Keyword] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    stock = {name: _watched(name, keyword) for name, keyword in Draft202012Validator.VALIDATORS.items()}
    return extend(Draft202012Validator, {**stock, **own})


def _left(at: str) -> float:
    """Seconds that are left; raises TooLong when there are none."""
    left = _deadline.get() - time.monotonic()
    if left <= 0:
        raise TooLong(at)
    return left


def _watched(name: str, keyword: Any) -> Keyword:
    def watched(validator: Any, given: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        _left(f"at {name}")
        yield from keyword(validator, given, instance, schema) or ()

    return watched


@lru_cache(maxsize=256)
def compiled(pattern: str) -> regex.Pattern[str]:
    """The pattern, ready to be matched.

    Raises:
        ValueError: it is none, or one that calls itself: those fill the memory before any time is up.
    """
    if _CALLS_ITSELF.search(pattern):
        raise ValueError("it calls itself, or a group of its own")
    try:
        return regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError, MemoryError, KeyError) as error:
        raise ValueError(str(error) or "it is too complex") from None


def matches(pattern: str, text: str) -> bool:
    """Whether the pattern occurs in the text.

    Raises:
        TooLong: it was not found out in the time that is left.
    """
    at = f"the pattern {pattern[:_SHOWN]!r}"
    try:
        return compiled(pattern).search(text, timeout=_left(at)) is not None
    except TimeoutError:
        raise TooLong(at) from None


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not matches(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    for pattern, below in patterns.items():
        for name, value in instance.items():
            if matches(pattern, name):
                yield from validator.descend(value, below, path=name, schema_path=pattern)


def _additional_properties(validator: Any, below: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict) or below is True:
        return
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, value in instance.items():
        if name in named or any(matches(pattern, name) for pattern in patterns):
            continue
        if below is False:
            yield ValidationError(f"{name!r} is none of the properties it may have")
        else:
            yield from validator.descend(value, below, path=name)


def _unique_items(validator: Any, wanted: bool, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not wanted or not isinstance(instance, list):
        return
    seen: set[str] = set()
    for item in instance:
        _left("at uniqueItems")
        written = json.dumps(_comparable(item), sort_keys=True)
        if written in seen:
            yield ValidationError(f"{item!r} is there more than once")
            return
        seen.add(written)


def _comparable(value: Any) -> Any:
    """JSON Schema takes 1.0 and 1 for the same number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    if isinstance(value, dict):
        return {name: _comparable(item) for name, item in value.items()}
    return value

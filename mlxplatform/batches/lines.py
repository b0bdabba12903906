"""One line of a batch: how it must look going in, how its outcome looks going out. Pure functions of data."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec

from mlxplatform.files import jsonl

#: Longest custom_id, characters.
CUSTOM_ID_LIMIT = 512
ANTHROPIC_CUSTOM_ID = re.compile(r"^[a-zA-Z0-9_-]{1,64}\Z")
#: Problems described one by one; the rest of a broken file is only counted.
PROBLEM_CAP = 100

#: Line separators of Unicode that some readers break lines at although JSON does not escape them.
_SEPARATORS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


@dataclass(frozen=True)
class BatchLineIn:
    """A usable line: its physical number, key and body."""

    number: int
    custom_id: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """Why a file cannot run, as ``errors.data[]`` shows it."""

    code: str
    message: str
    line: int | None
    param: str | None = None

    def json(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "line": self.line, "param": self.param}


def read(file: BinaryIO, endpoint: str, dialect: str) -> Iterator[BatchLineIn | Problem]:
    """Every usable line and every problem, in order. Duplicate keys are found by :class:`Keys`."""
    try:
        for item in jsonl.rows(file):
            if isinstance(item, jsonl.BadLine):
                yield Problem("invalid_json_line", f"Line {item.line}: {item.reason}.", item.line)
            else:
                line, value = item
                yield _checked(line.number, value, endpoint) if dialect == "openai" else _plain(line.number, value)
    except jsonl.NotLines as wrong:
        yield Problem("invalid_json_line", wrong.message, 1)


def _plain(number: int, value: dict[str, Any]) -> BatchLineIn:
    """A line of a file we wrote ourselves from an inline list."""
    return BatchLineIn(number, value["custom_id"], value["params"])


def _checked(number: int, value: dict[str, Any], endpoint: str) -> BatchLineIn | Problem:
    for name in ("custom_id", "method", "url", "body"):
        if value.get(name) is None:
            return Problem("missing_required_parameter", f"Line {number}: missing '{name}'.", number, name)
    custom_id, method, url, body = (value[name] for name in ("custom_id", "method", "url", "body"))
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= CUSTOM_ID_LIMIT:
        message = f"Line {number}: 'custom_id' must be a string of 1 to {CUSTOM_ID_LIMIT} characters."
        return Problem("invalid_request", message, number, "custom_id")
    if method != "POST":
        return Problem("invalid_method", f"Line {number}: 'method' must be 'POST'.", number, "method")
    if url != endpoint:
        return Problem("invalid_url", f"Line {number}: 'url' must be the batch's endpoint, '{endpoint}'.", number, "url")
    if not isinstance(body, dict):
        return Problem("invalid_request", f"Line {number}: 'body' must be an object.", number, "body")
    return BatchLineIn(number, custom_id, body)


class Keys:
    """Which custom ids were seen, eight bytes each: a batch of 50,000 lines must not fill the orchestrator."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def is_new(self, custom_id: str) -> bool:
        mark = hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        if mark in self._seen:
            return False
        self._seen.add(mark)
        return True


def encode(value: Mapping[str, Any]) -> str:
    """One JSON object without any character that some reader takes for the end of the line."""
    raw = msgspec.json.encode(value)
    for character, escape in _SEPARATORS:
        if character in raw:
            raw = raw.replace(character, escape)
    return raw.decode()


def request_id(batch_id: str, number: int) -> str:
    """The same for every attempt at a line, so that a repeated line is byte for byte the same request."""
    return f"batch_req_{hashlib.blake2b(f'{batch_id}:{number}'.encode(), digest_size=12).hexdigest()}"


def answered(dialect: str, batch_id: str, line: BatchLineIn, body: dict[str, Any]) -> str:
    if dialect == "anthropic":
        return encode({"custom_id": line.custom_id, "result": {"type": "succeeded", "message": body}})
    return encode(_openai(batch_id, line, 200, body))


def refused(dialect: str, batch_id: str, line: BatchLineIn, status: int, body: dict[str, Any]) -> str:
    """``body`` is the protocol's error body, as the plain endpoint would have answered."""
    if dialect == "anthropic":
        error = {**body, "request_id": request_id(batch_id, line.number)}
        return encode({"custom_id": line.custom_id, "result": {"type": "errored", "error": error}})
    return encode(_openai(batch_id, line, status, body))


def unfinished(dialect: str, batch_id: str, line: BatchLineIn, outcome: str) -> str:
    """A line that was not run because the batch ended before."""
    if dialect == "anthropic":
        kind = {"cancelled": "canceled", "expired": "expired"}[outcome]
        return encode({"custom_id": line.custom_id, "result": {"type": kind}})
    message = {
        "cancelled": "This request was not run because the batch was cancelled.",
        "expired": "This request was not run because the batch expired.",
    }[outcome]
    return encode(
        {
            "id": request_id(batch_id, line.number),
            "custom_id": line.custom_id,
            "response": None,
            "error": {"code": f"batch_{outcome}", "message": message},
        }
    )


def _openai(batch_id: str, line: BatchLineIn, status: int, body: dict[str, Any]) -> dict[str, Any]:
    name = request_id(batch_id, line.number)
    return {
        "id": name,
        "custom_id": line.custom_id,
        "response": {"status_code": status, "request_id": name, "body": body},
        "error": None,
    }

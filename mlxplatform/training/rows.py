"""Training rows as people have them: which format, what is wrong with one, and what a whole file amounts to.

Formats by their keys: ``messages``, ``prompt``+``completion``, ``text``, and for preferences
``prompt``+``chosen``+``rejected`` or OpenAI's ``input``+``preferred_output``+``non_preferred_output``. Knows
no tokenizer and no Django: the web process and the trainer child read files with the same code.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import numpy as np

from mlxplatform.files import jsonl
from mlxplatform.inference.contract import Message, Tool, ToolCall

Role = Literal["system", "user", "assistant", "tool"]
Format = Literal["messages", "prompt_completion", "text", "preference"]
#: Keys of a row, by format. Others are ignored when listed below, refused when not.
_KEYS: dict[Format, tuple[str, ...]] = {
    "preference": ("prompt", "chosen", "rejected"),
    "prompt_completion": ("prompt", "completion"),
    "messages": ("messages",),
    "text": ("text",),
}
_OPENAI_PREFERENCE = ("input", "preferred_output", "non_preferred_output")
#: What dataset tools leave beside a row; carries no training text.
_IGNORED = {
    "tools",
    "parallel_tool_calls",
    "system",
    "id",
    "meta",
    "metadata",
    "source",
    "score",
    "tags",
    "category",
    "functions",
}
#: Of those, what may differ between rows that teach the same.
_BESIDE_THE_ROW = frozenset(_IGNORED - {"tools", "functions", "system"})
_ROLES = {"system", "developer", "user", "assistant", "tool"}
#: Problems listed one by one; the rest are counted.
LISTED = 20


@dataclass(frozen=True)
class Example:
    """One row, checked. ``turns`` is set for chats, ``text`` for plain text; ``rejected`` (prompt included) only for preferences.

    Turns the model learns are assistant turns with weight 1.
    """

    turns: list[Message] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    tools: list[Tool] = field(default_factory=list)
    text: str = ""
    rejected: list[Message] = field(default_factory=list)
    rejected_weights: list[int] = field(default_factory=list)


class BadRow(ValueError):
    """Why a row cannot be used; the message is for people."""


@dataclass
class Inspection:
    """What a file holds. ``rows`` counts usable ones; ``problems`` are sentences with line numbers."""

    rows: int = 0
    format: str = ""
    formats: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    bad: int = 0
    #: Lines that are not even JSON objects, of those the first few; a file with such lines is not trained on.
    broken: int = 0
    broken_lines: list[str] = field(default_factory=list)
    duplicates: int = 0
    #: One digest per usable row, to find rows that are also in another file.
    digests: set[bytes] = field(default_factory=set)

    def note(self, problem: str) -> None:
        self.bad += 1
        if len(self.problems) < LISTED:
            self.problems.append(problem)

    def describe(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "format": self.format,
            "formats": dict(self.formats),
            "bad_rows": self.bad,
            "duplicates": self.duplicates,
            "problems": self.problems,
        }


def format_of(row: dict[str, Any]) -> Format:
    """
    Raises:
        BadRow: no known set of keys, or keys nobody knows.
    """
    if all(key in row for key in _OPENAI_PREFERENCE):
        unknown = set(row) - set(_OPENAI_PREFERENCE) - _IGNORED
        name: Format = "preference"
    else:
        found = next((name for name, keys in _KEYS.items() if all(key in row for key in keys)), None)
        if found is None:
            raise BadRow(f"has the keys {_listed(row)}; a row needs messages, or prompt and completion, or text")
        name, unknown = found, set(row) - set(_KEYS[found]) - _IGNORED
    if unknown:
        raise BadRow(f"has keys nobody knows: {_listed(unknown)}")
    return name


def example(row: dict[str, Any]) -> Example:
    """
    Raises:
        BadRow: the row cannot be trained on.
    """
    kind = format_of(row)
    if kind == "text":
        return Example(text=_filled(row["text"], "text"))
    if kind == "prompt_completion":
        turns = [
            Message("user", _filled(row["prompt"], "prompt")),
            Message("assistant", _filled(row["completion"], "completion")),
        ]
        asked = _with_system(row, turns[:1])
        return Example([*asked, turns[1]], [0] * len(asked) + [1])
    if kind == "preference":
        return _preference(row)
    turns, weights = _turns(row["messages"], "messages")
    if not any(weights):
        raise BadRow("has no assistant turn to learn from")
    return Example(turns=turns, weights=weights, tools=_tools(row.get("tools")))


def read(path: Path, formats: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Usable rows of a file with their line numbers; bad ones are passed over (:func:`inspect` has named them)."""
    with path.open("rb") as stream:
        for item in jsonl.rows(stream):
            if isinstance(item, jsonl.BadLine):
                continue
            line, row = item
            try:
                if format_of(row) in formats:
                    example(row)
                    yield line.number, row
            except BadRow:
                continue


def inspect(path: Path, formats: tuple[str, ...]) -> Inspection:
    """Read a whole file and say what is in it.

    Raises:
        jsonl.NotLines: it is something else than JSON Lines.
    """
    seen = Inspection()
    with path.open("rb") as stream:
        for item in jsonl.rows(stream):
            if isinstance(item, jsonl.BadLine):
                seen.note(str(item))
                seen.broken += 1
                if len(seen.broken_lines) < LISTED:
                    seen.broken_lines.append(str(item))
                continue
            line, row = item
            try:
                kind = format_of(row)
                if kind not in formats:
                    raise BadRow(f"is a {kind} row; this method needs {' or '.join(formats)}")
                example(row)
            except BadRow as problem:
                seen.note(f"line {line.number} {problem}")
                continue
            seen.rows += 1
            seen.formats[kind] += 1
            digest = row_digest(row)
            seen.duplicates += digest in seen.digests
            seen.digests.add(digest)
    seen.format = seen.formats.most_common(1)[0][0] if seen.formats else ""
    return seen


def row_digest(row: dict[str, Any]) -> bytes:
    """Equal for rows that teach the same, whatever the order of keys and whatever stands beside."""
    taught = {name: value for name, value in row.items() if name not in _BESIDE_THE_ROW}
    return hashlib.blake2b(msgspec.json.encode(taught, order="deterministic"), digest_size=12).digest()


def _preference(row: dict[str, Any]) -> Example:
    if "input" in row:
        source = row["input"]
        if not isinstance(source, dict):
            raise BadRow("input must be an object with messages")
        prompt, _ = _turns(source.get("messages"), "input.messages")
        chosen, _ = _turns(row["preferred_output"], "preferred_output")
        rejected, _ = _turns(row["non_preferred_output"], "non_preferred_output")
        return _pair(prompt, chosen, rejected, _tools(source.get("tools")))
    if isinstance(row["prompt"], list):
        prompt, _ = _turns(row["prompt"], "prompt")
    else:
        prompt = _with_system(row, [Message("user", _filled(row["prompt"], "prompt"))])
    sides = []
    for name in ("chosen", "rejected"):
        value = row[name]
        turns = _turns(value, name)[0] if isinstance(value, list) else [Message("assistant", _filled(value, name))]
        # Some data sets repeat the prompt in front of each answer.
        sides.append(turns[len(prompt) :] if turns[: len(prompt)] == prompt else turns)
    return _pair(prompt, sides[0], sides[1], _tools(row.get("tools")))


def _pair(prompt: list[Message], chosen: list[Message], rejected: list[Message], tools: list[Tool]) -> Example:
    sides = [[0] * len(prompt) + [int(turn.role == "assistant") for turn in answer] for answer in (chosen, rejected)]
    if not all(map(any, sides)):
        raise BadRow("needs a chosen and a rejected answer, each with a turn of the assistant")
    return Example(prompt + chosen, sides[0], tools, rejected=prompt + rejected, rejected_weights=sides[1])


def _with_system(row: dict[str, Any], turns: list[Message]) -> list[Message]:
    system = row.get("system")
    return [Message("system", _filled(system, "system")), *turns] if system else turns


def _turns(value: Any, name: str) -> tuple[list[Message], list[int]]:
    if not isinstance(value, list) or not value:
        raise BadRow(f"{name} must be a list of turns")
    turns, weights = [], []
    for index, turn in enumerate(value):
        where = f"{name}[{index}]"
        if not isinstance(turn, dict):
            raise BadRow(f"{where} must be an object")
        role = turn.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise BadRow(f"{where}.role must be one of {', '.join(sorted(_ROLES))}")
        calls = _calls(turn.get("tool_calls"), where)
        content = _content(turn.get("content"), where)
        for key in ("name", "tool_call_id"):
            if not isinstance(turn.get(key), str | None):
                raise BadRow(f"{where}.{key} must be text")
        weight = turn.get("weight", 1)
        if weight not in (0, 1) or isinstance(weight, bool):
            raise BadRow(f"{where}.weight must be 0 or 1")
        if role == "assistant" and not calls and not (content or "").strip():
            raise BadRow(f"{where}: the assistant says nothing")
        speaker = cast(Role, "system" if role == "developer" else role)
        turns.append(Message(speaker, content, turn.get("name"), tool_calls=calls, tool_call_id=turn.get("tool_call_id")))
        weights.append(weight if role == "assistant" else 0)
    return turns, weights


def _content(value: Any, where: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in value):
        return "".join(part["text"] for part in value)
    raise BadRow(f"{where}.content must be text")


def _calls(value: Any, where: str) -> list[ToolCall] | None:
    if value is None:
        return None
    try:
        return [_call(str(call.get("id", "")), call["function"]) for call in value]
    except (TypeError, KeyError, AttributeError, msgspec.DecodeError):
        raise BadRow(f"{where}.tool_calls must be a list of function calls") from None


def _call(call_id: str, function: Any) -> ToolCall:
    """Arguments are text that holds an object; many files have the object itself.

    Raises:
        TypeError, KeyError, msgspec.DecodeError: neither.
    """
    name, arguments = function["name"], function["arguments"]
    if isinstance(arguments, str):
        arguments = msgspec.json.decode(arguments) if arguments.strip() else {}
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise TypeError
    said = function["arguments"]
    return ToolCall(call_id, name, said if isinstance(said, str) else msgspec.json.encode(arguments).decode())


def _tools(value: Any) -> list[Tool]:
    try:
        functions = [tool.get("function", tool) for tool in value or []]
        made = [Tool(f["name"], f.get("description"), f.get("parameters")) for f in functions]
    except (TypeError, KeyError, AttributeError):
        raise BadRow("tools must be a list of function definitions") from None
    for tool in made:
        if not isinstance(tool.name, str) or not isinstance(tool.description, str | None):
            raise BadRow("tools must be a list of function definitions, with names and descriptions that are text")
        if not isinstance(tool.parameters, dict | None):
            raise BadRow("parameters of a tool must be an object")
    return made


def _filled(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise BadRow(f"{name} must be text")
    if not value.strip():
        raise BadRow(f"{name} is empty")
    return value


def _listed(names: Any) -> str:
    shown = sorted(map(str, names))[:8]
    return ", ".join(name[:40] for name in shown) or "nothing"


def split(found: list[tuple[int, dict[str, Any]]], share: float, seed: int) -> tuple[list[Any], list[Any]]:
    """(train, valid) of numbered rows, disjoint also by content: of rows that are the same, none is held back while another
    is learned. The share is rounded down, so few rows give no validation set rather than no training."""
    count = int(len(found) * share)
    chosen = set(np.random.Generator(np.random.PCG64(seed)).permutation(len(found))[:count].tolist())
    learned = {row_digest(row) for n, (_, row) in enumerate(found) if n not in chosen}
    held = {n for n in chosen if row_digest(found[n][1]) not in learned}
    return [r for n, r in enumerate(found) if n not in held], [r for n, r in enumerate(found) if n in held]

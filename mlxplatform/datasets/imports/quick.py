"""Rows of the usual shapes, read at the speed of the decoder; the careful reader is the truth for everything else.

A row is taken here only when a strict decoder for its form accepts it, no key occurs twice and its turns are in
order: exactly what the careful reader would find. Any doubt means None, and the careful reader decides and explains.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec

from mlxplatform.datasets import convert
from mlxplatform.files import jsonl

_encode = msgspec.json.Encoder().encode


class QuickRow(NamedTuple):
    """A good row: its form, and the line our file gets."""

    form: str
    line: bytes


class _Turn(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


class _Chat(msgspec.Struct, forbid_unknown_fields=True):
    messages: list[_Turn]


class _Text(msgspec.Struct, forbid_unknown_fields=True):
    text: str


class _Pair(msgspec.Struct, forbid_unknown_fields=True):
    prompt: str
    completion: str


class _Preference(msgspec.Struct, forbid_unknown_fields=True):
    prompt: str
    chosen: str
    rejected: str


class _Alpaca(msgspec.Struct, forbid_unknown_fields=True):
    instruction: str
    output: str
    input: str | msgspec.UnsetType = msgspec.UNSET


class _ShareTurn(msgspec.Struct, forbid_unknown_fields=True, rename={"speaker": "from"}):
    speaker: Literal["system", "human", "gpt", "user", "assistant"]
    value: str


class _ShareGpt(msgspec.Struct, forbid_unknown_fields=True):
    conversations: list[_ShareTurn]


def _in_order(turns: list[_Turn]) -> bool:
    """Begins with the user (after one system message), ends with an answer, and nobody speaks out of place."""
    if not turns or turns[-1].role != "assistant":
        return False
    first = 1 if turns[0].role == "system" else 0
    if turns[first].role != "user":
        return False
    return all(turn.role == "user" or (turn.role == "assistant" and turn.content.strip()) for turn in turns[first:])


def _chat(row: _Chat) -> _Chat | None:
    return row if _in_order(row.messages) else None


def _text(row: _Text) -> _Text | None:
    return row if row.text else None


def _pair(row: _Pair) -> _Pair | None:
    return row if row.completion else None


def _preference(row: _Preference) -> _Preference | None:
    return row if row.chosen and row.rejected else None


def _alpaca(row: _Alpaca) -> _Chat | None:
    given = row.input if isinstance(row.input, str) else ""
    asked = f"{row.instruction}\n\n{given}" if given.strip() else row.instruction
    return _chat(_Chat([_Turn("user", asked), _Turn("assistant", row.output)]))


def _sharegpt(row: _ShareGpt) -> _Chat | None:
    return _chat(_Chat([_Turn(convert.ROLES[turn.speaker], turn.value) for turn in row.conversations]))  # type: ignore[arg-type]


#: Form → (strict decoder, what it becomes or None when it is no good row).
_FORMS: dict[str, tuple[msgspec.json.Decoder[Any], Callable[[Any], Any]]] = {
    "messages": (msgspec.json.Decoder(_Chat), _chat),
    "text": (msgspec.json.Decoder(_Text), _text),
    "prompt_completion": (msgspec.json.Decoder(_Pair), _pair),
    "dpo": (msgspec.json.Decoder(_Preference), _preference),
    "alpaca": (msgspec.json.Decoder(_Alpaca), _alpaca),
    "sharegpt": (msgspec.json.Decoder(_ShareGpt), _sharegpt),
}


class QuickReader:
    """Reads lines of the form that was last seen; ``expect`` tells it which the careful reader found."""

    def __init__(self) -> None:
        self._form = ""

    def expect(self, form: str) -> None:
        self._form = form if form in _FORMS else ""

    def __call__(self, raw: bytes) -> QuickRow | None:
        if not self._form:
            return None
        decoder, become = _FORMS[self._form]
        try:
            row = decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        made = become(row)
        if made is None:
            return None
        line = _encode(made)
        if not jsonl.keys_once(raw, line if made is row else _encode(row)):
            return None
        return QuickRow(self._form, line + b"\n")

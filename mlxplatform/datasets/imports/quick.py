"""Rows of the usual shapes, read at the speed of the decoder; the careful reader is the truth for everything else.

A row is taken here only when a strict decoder for its form accepts it, no key occurs twice and its turns are in
order: exactly what the careful reader would find. Any doubt means None, and the careful reader decides and explains.
Columns that no format uses (an id, a source, a score) are learned from the careful reader and then known here too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import takewhile
from typing import Any, Literal, NamedTuple

import msgspec

from mlxplatform.datasets import convert
from mlxplatform.files import jsonl

_encode = msgspec.json.Encoder().encode


#: Columns without a use that are learned; more of them are no table but a mixture.
MOST_EXTRAS = 64
#: What no field of a decoder's struct may have in its name.
_NO_FIELD = re.compile(r'["\\\x00-\x1f]')


class QuickRow(NamedTuple):
    """A good row: its form, the line our file gets, and the columns it has that no format uses."""

    form: str
    line: bytes
    left_out: frozenset[str] = frozenset()


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
    for turn in turns[first:]:  # noqa: SIM110  this runs for every row, and a generator costs as much as its two turns
        if turn.role != "user" and (turn.role != "assistant" or not turn.content.strip()):
            return False
    return True


def _chat(row: _Chat) -> _Chat | None:
    return row if _in_order(row.messages) else None


def _text(row: _Text) -> _Text | None:
    return row if row.text.strip() else None


def _pair(row: _Pair) -> _Pair | None:
    return row if row.completion.strip() else None


def _preference(row: _Preference) -> _Preference | None:
    return row if row.chosen.strip() and row.rejected.strip() and row.chosen != row.rejected else None


def _alpaca(row: _Alpaca) -> _Chat | None:
    given = row.input if isinstance(row.input, str) else ""
    asked = f"{row.instruction}\n\n{given}" if given.strip() else row.instruction
    return _chat(_Chat([_Turn("user", asked), _Turn("assistant", row.output)]))


def _sharegpt(row: _ShareGpt) -> _Chat | None:
    return _chat(_Chat([_Turn(convert.ROLES[turn.speaker], turn.value) for turn in row.conversations]))  # type: ignore[arg-type]


#: Form → (shape of its rows, what one becomes or None when it is no good row).
_FORMS: dict[str, tuple[type[msgspec.Struct], Callable[[Any], Any]]] = {
    "messages": (_Chat, _chat),
    "text": (_Text, _text),
    "prompt_completion": (_Pair, _pair),
    "dpo": (_Preference, _preference),
    "alpaca": (_Alpaca, _alpaca),
    "sharegpt": (_ShareGpt, _sharegpt),
}


class _Known(NamedTuple):
    """What is known of a form's rows: the columns that no format uses, and the decoder of rows that may have them."""

    extras: tuple[str, ...]
    all: frozenset[str]
    decoder: msgspec.json.Decoder[Any]


class QuickReader:
    """Reads lines of the form that was last seen; ``expect`` tells it what the careful reader found."""

    def __init__(self) -> None:
        self._form = ""
        self._known: dict[str, _Known] = {}

    def expect(self, form: str, left_out: frozenset[str] = frozenset()) -> None:
        """Read rows like the one that was just read carefully. Columns once seen may be there or not."""
        before = self._known.get(form)
        seen = before.extras if before else ()
        extras = seen + tuple(sorted(left_out.difference(seen)))
        learnable = len(extras) <= MOST_EXTRAS and not any(map(_NO_FIELD.search, extras))
        self._form = form if form in _FORMS and learnable and not _other_form(form, extras) else ""
        if self._form and (before is None or extras != seen):
            decoder = msgspec.json.Decoder(_with_extras(_FORMS[form][0], extras))
            self._known[form] = _Known(extras, frozenset(extras), decoder)

    def __call__(self, raw: bytes) -> QuickRow | None:
        if not self._form or (b"\\" in raw and b"\\u0000" in raw):
            return None
        shape, become = _FORMS[self._form]
        known = self._known[self._form]
        try:
            read = known.decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        row, left_out = _parted(read, shape, known) if known.extras else (read, known.all)
        made = become(row)
        if made is None:
            return None
        line = _encode(made)
        if not jsonl.keys_once(raw, line if made is read else _encode(read)):
            return None
        return QuickRow(self._form, line + b"\n", left_out)


def _parted(read: msgspec.Struct, shape: type[msgspec.Struct], known: _Known) -> tuple[msgspec.Struct, frozenset[str]]:
    """The row proper, and which of the extra columns it has: nearly always all of them."""
    values = msgspec.structs.astuple(read)
    own = len(shape.__struct_fields__)
    more = values[own:]
    if msgspec.UNSET not in more:
        return shape(*values[:own]), known.all
    present = frozenset(key for key, value in zip(known.extras, more, strict=True) if value is not msgspec.UNSET)
    return shape(*values[:own]), present


def _with_extras(shape: type[msgspec.Struct], extras: tuple[str, ...]) -> type[msgspec.Struct]:
    """The shape with more columns behind its own, of any kind, each of which may be absent."""
    if not extras:
        return shape
    names = {f"extra{place}": key for place, key in enumerate(extras)}
    fields = [(name, Any | msgspec.UnsetType, msgspec.UNSET) for name in names]
    return msgspec.defstruct(f"{shape.__name__}WithExtras", fields, bases=(shape,), rename=names, forbid_unknown_fields=True)


def _other_form(form: str, extras: tuple[str, ...]) -> bool:
    """Whether the columns together might make the row one of a form that is looked for earlier."""
    keys = {*extras, *_FORMS[form][0].__struct_fields__}
    earlier = takewhile(lambda other: other.name != form, convert.FORMS)
    return any(keys.issuperset(other.keys) for other in earlier)

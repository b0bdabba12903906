"""Reading event streams as a strict client does: every byte belongs to a frame, every payload to strict JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


def strict(raw: str) -> Any:
    """JSON without NaN, Infinity or lone surrogates."""

    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is no JSON")

    value = json.loads(raw, parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode()
    return value


@dataclass(frozen=True)
class Frame:
    event: str
    data: str
    id: str

    @property
    def json(self) -> Any:
        return strict(self.data)


def frames(text: str) -> list[Frame]:
    """Frames with data, in order; comments are dropped."""
    assert text.endswith("\n\n"), "the stream ends inside a frame"
    found = []
    for block in text[:-2].split("\n\n"):
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            if not line.startswith(":"):
                name, _, value = line.partition(": ")
                assert name in {"event", "data", "id"}, f"unexpected line {line!r}"
                fields[name] = value
        if fields:
            found.append(Frame(fields.get("event", ""), fields["data"], fields.get("id", "")))
    return found


def comments(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.startswith(":")]


def chunks(text: str) -> list[dict[str, Any]]:
    """Chunks of an OpenAI stream, which must end with its marker."""
    found = frames(text)
    assert found[-1].data == "[DONE]"
    return [frame.json for frame in found[:-1]]

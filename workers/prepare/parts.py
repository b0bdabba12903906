"""The content of a turn that may hold pictures: plain text, or the list of parts that templates of seeing models read."""

from __future__ import annotations

from typing import Any

from mlxplatform.inference.contract import Message


def seen_content(message: Message) -> str | list[dict[str, str]]:
    """The words of a turn, or its parts in order when there are pictures between them."""
    content = message.content or ""
    if not message.images:
        return content
    parts: list[dict[str, str]] = []
    said = 0
    for image in message.images:
        if words := content[said : image.at]:
            parts.append({"type": "text", "text": words})
        parts.append({"type": "image"})
        said = max(said, image.at)
    if words := content[said:]:
        parts.append({"type": "text", "text": words})
    return parts


def joined(first: Any, second: Any, separator: str = "\n\n") -> Any:
    """Two contents as one; either may be parts."""
    if isinstance(first, str) and isinstance(second, str):
        return separator.join(text for text in (first, second) if text)
    return [*_parts(first), *([{"type": "text", "text": separator}] if first and second else []), *_parts(second)]


def _parts(content: Any) -> list[dict[str, str]]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []

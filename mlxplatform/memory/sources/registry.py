"""The formats a person may import, by the name the API uses."""

from __future__ import annotations

from mlxplatform.memory.sources import Reader, chatgpt, claude, jsonl, markdown, pi

READERS: dict[str, Reader] = {
    "chatgpt": chatgpt.read,
    "claude": claude.read,
    "jsonl": jsonl.read,
    "markdown": markdown.read,
    "pi": pi.read,
}

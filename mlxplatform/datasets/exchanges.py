"""What was asked and answered in one line of a batch, in any of its dialects. Pure functions of JSON.

Parts that are not text (images, tool calls) make a line no exchange: a row must not pretend that they were not there.
"""

from __future__ import annotations

from typing import Any

Turns = list[dict[str, Any]]


def text_of(content: Any) -> str | None:
    """Text, or the joined text parts; None when there is anything else."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    parts = [part.get("text") if isinstance(part, dict) else None for part in content]
    return "".join(parts) if all(isinstance(part, str) for part in parts) else None  # type: ignore[arg-type]


def asked(body: dict[str, Any]) -> Turns | None:
    """The request's turns: chat messages, a prompt, a Responses input, or an Anthropic request."""
    turns: Turns = []
    system = text_of(body.get("system") or body.get("instructions") or "")
    if system:
        turns.append({"role": "system", "content": system})
    given = body.get("messages", body.get("input", body.get("prompt")))
    if isinstance(given, str):
        return [*turns, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        return None
    for message in given:
        content = text_of(message.get("content")) if isinstance(message, dict) else None
        role = message.get("role") if isinstance(message, dict) else None
        role = {"developer": "system"}.get(str(role), role)
        if content is None or role not in ("system", "user", "assistant"):
            return None
        turns.append({"role": role, "content": content})
    return turns


def answered(body: dict[str, Any]) -> str | None:
    """The answer's text in the body of a chat completion, completion, Response or Anthropic message."""
    for choice in body.get("choices") or ():
        if isinstance(choice.get("text"), str):
            return str(choice["text"])
        return text_of((choice.get("message") or {}).get("content"))
    for item in body.get("output") or ():
        if item.get("type") == "message":
            return text_of(item.get("content"))
    return text_of(body.get("content"))


def outcome(line: dict[str, Any]) -> tuple[str, str | None]:
    """(custom_id, answer) of an output line; the answer is None when the line did not succeed."""
    key = str(line.get("custom_id"))
    if "result" in line:
        result = line["result"]
        return key, answered(result["message"]) if result.get("type") == "succeeded" else None
    response = line.get("response") or {}
    return key, answered(response.get("body") or {}) if response.get("status_code") == 200 else None

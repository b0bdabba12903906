"""Rows of ours in other formats. Pure; one row at a time.

A row that a format could take only by losing something (calls of tools, a turn that its own text would forge) has no
equivalent there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from mlxplatform.datasets.convert import ROLES, Row, kept

_CHATML = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)
#: What may stand between the turns without saying anything: space, and the marks of a text's beginning and end.
_BETWEEN = re.compile(r"(?:\s|</?s>|<\|\w+\|>)*")


def to_messages(row: Row) -> dict[str, Any] | None:
    """A row of ours as a conversation, or None for what is none (plain text that is no ChatML)."""
    if "messages" in row:
        return dict(row)
    also = kept(row, ())
    if "chosen" in row:
        asked, better = row["prompt"], row["chosen"]
        turns = asked if isinstance(asked, list) else [{"role": "user", "content": asked}]
        answer = better if isinstance(better, list) else [{"role": "assistant", "content": better}]
        return {"messages": [*turns, *answer], **also}
    if "completion" in row:
        turns = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["completion"]}]
        return {"messages": turns, **also}
    turns = _chatml_turns(row["text"]) if isinstance(row.get("text"), str) else []
    return {"messages": turns, **also} if turns else None


def _chatml_turns(text: str) -> list[dict[str, Any]]:
    """The turns of a text that is ChatML from end to end; none when anything in it would be lost."""
    turns, end = [], 0
    for found in _CHATML.finditer(text):
        role = ROLES.get(found[1].casefold())
        if role is None or not _BETWEEN.fullmatch(text, end, found.start()):
            return []
        turns.append({"role": role, "content": found[2]})
        end = found.end()
    return turns if _BETWEEN.fullmatch(text, end) else []


def to_format(row: Row, wanted: str) -> dict[str, Any] | None:
    """A row of ours in another format, or None when it has no equivalent there."""
    if wanted in ("jsonl", "native"):
        return dict(row)
    if wanted == "dpo":
        return dict(row) if "chosen" in row else None
    if wanted == "text" and "text" in row:
        return dict(row)
    chat = to_messages(row)
    if chat is None:
        return None
    if wanted == "messages":
        return chat
    if any(turn["role"] == "tool" or turn.get("tool_calls") for turn in chat["messages"]):
        return None  # the other formats have no place for calls and their results
    return _WRITERS[wanted](chat["messages"])


def _plain(message: Row) -> str:
    return message.get("content") or ""


def pair_of(messages: list[dict[str, Any]], asked: str, answered: str) -> dict[str, Any] | None:
    last = next((place for place in range(len(messages) - 1, -1, -1) if messages[place]["role"] == "assistant"), None)
    if last is None:
        return None
    before = [message for message in messages[:last] if message["role"] != "system"]
    return {asked: "\n\n".join(_plain(message) for message in before), answered: _plain(messages[last])}


def _write_alpaca(messages: list[dict[str, Any]]) -> dict[str, Any] | None:
    system = next((_plain(message) for message in messages if message["role"] == "system"), "")
    also: dict[str, Any] = {"system": system} if system else {}
    spoken = [message for message in messages if message["role"] != "system"]
    said = [_plain(message) for message in spoken]
    if [message["role"] for message in spoken] == ["user", "assistant"] * (len(spoken) // 2) and len(spoken) > 2:
        history = [[said[place], said[place + 1]] for place in range(0, len(said) - 2, 2)]
        return {"instruction": said[-2], "input": "", "output": said[-1], **also, "history": history}
    pair = pair_of(messages, "instruction", "output")
    return None if pair is None else {"instruction": pair["instruction"], "input": "", "output": pair["output"], **also}


def _write_sharegpt(messages: list[dict[str, Any]]) -> dict[str, Any]:
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    return {"conversations": [{"from": names[message["role"]], "value": _plain(message)} for message in messages]}


def _write_chatml(messages: list[dict[str, Any]]) -> dict[str, Any] | None:
    if any(mark in _plain(message) for message in messages for mark in ("<|im_start|>", "<|im_end|>")):
        return None  # a turn that was never taken would be read out of it
    return {"text": "".join(f"<|im_start|>{message['role']}\n{_plain(message)}<|im_end|>\n" for message in messages)}


_WRITERS: dict[str, Callable[[list[dict[str, Any]]], dict[str, Any] | None]] = {
    "alpaca": _write_alpaca,
    "sharegpt": _write_sharegpt,
    "chatml": _write_chatml,
    "prompt_completion": lambda messages: pair_of(messages, "prompt", "completion"),
    "text": _write_chatml,
}

#: Formats rows can be exported in.
EXPORTS = ("jsonl", "messages", "prompt_completion", "alpaca", "sharegpt", "chatml", "dpo", "text", "csv", "parquet")

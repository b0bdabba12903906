"""House formats of training rows into ours. Pure; one row at a time. The way back is :mod:`mlxplatform.datasets.formats`.

A form is recognised by its keys. Values are never turned into something they are not: an object where text is
expected is an error of that row, naming the field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

Row = Mapping[str, Any]

#: Who speaks, by the names house formats use. ``messages`` rows themselves must use ours.
ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}


class BadRow(ValueError):
    """A row that cannot be converted: the field and a sentence."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


@dataclass(frozen=True)
class Form:
    """A house format: keys that identify it, and how it becomes one of ours."""

    name: str
    keys: tuple[str, ...]
    read: Callable[[Row], dict[str, Any]]
    #: Keys it also reads when they are there.
    also: tuple[str, ...] = ()


def text(row: Row, key: str, *, optional: bool = False) -> str:
    value = row.get(key)
    if value is None and optional:
        return ""
    if not isinstance(value, str):
        raise BadRow(key, f"must be text, got {kind(value)}")
    return value


@dataclass(frozen=True)
class Strange:
    """In place of a value that no Python type holds, such as a date beyond the calendar; ``what`` it is."""

    what: str


def kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, Strange):
        return value.what
    if isinstance(value, bool):
        return "true/false"
    if isinstance(value, int | float | Decimal):
        return "a number"
    names: dict[type, str] = {str: "text", list: "a list", dict: "an object", bytes: "bytes", date: "a date", datetime: "a time"}
    return names.get(type(value), "something else")


#: Keys that a sentence names, and characters of each: a file may have them by the thousand, and of any length.
_NAMED, _NAME_CHARS = 12, 60


def keys_of(row: Row) -> str:
    """The row's keys for a sentence."""
    more = ", …" if len(row) > _NAMED else ""
    return ", ".join(map(name_of, list(row)[:_NAMED])) + more if row else "none"


def name_of(key: Any) -> str:
    """A column's name for a sentence: one line, and not without end."""
    said = " ".join("".join(mark if mark.isprintable() else " " for mark in str(key)[: _NAME_CHARS + 1]).split())
    return f"{said[:_NAME_CHARS]}…" if len(str(key)) > _NAME_CHARS else said or "(no name)"


#: Keys a conversion keeps beside the row's own: the ones trainers and people use.
KEPT = ("tools", "parallel_tool_calls", "metadata")


def kept(row: Row, used: tuple[str, ...]) -> dict[str, Any]:
    return {key: row[key] for key in KEPT if key in row and key not in used}


def left_out(row: Row, name: str) -> frozenset[str]:
    """Keys of the row that its conversion does not use, by the form's name."""
    return frozenset(row.keys() - _USED[name])


def _messages(row: Row) -> dict[str, Any]:
    found = row["messages"]
    # Nearly every row has texts only, and is passed on as it is.
    if isinstance(found, list) and any(isinstance(turn, dict) and isinstance(turn.get("content"), list) for turn in found):
        found = [_joined(turn, f"messages[{index}]") for index, turn in enumerate(found)]
    return {"messages": found, **kept(row, ("messages",))}


def _joined(turn: Any, where: str) -> Any:
    """A turn whose content is a list of text parts, as the APIs take it, with one text."""
    if not isinstance(turn, dict) or not isinstance(turn.get("content"), list):
        return turn
    texts = []
    for index, part in enumerate(turn["content"]):
        said = part.get("text") if isinstance(part, dict) and part.get("type") in (None, "text") else part
        if not isinstance(said, str):
            what = f"a part of type {str(part.get('type'))[:40]!r}" if isinstance(part, dict) else kind(part)
            raise BadRow(f"{where}.content[{index}]", f"must be text, got {what}; only text can be trained on")
        texts.append(said)
    return {**turn, "content": "".join(texts)}


def _conversations(key: str, role_key: str, text_key: str) -> Callable[[Row], dict[str, Any]]:
    def read(row: Row) -> dict[str, Any]:
        turns = row[key]
        if not isinstance(turns, list) or not turns:
            raise BadRow(key, "must be a list with at least one turn")
        messages = [{"role": "system", "content": text(row, "system")}] if row.get("system") else []
        for index, turn in enumerate(turns):
            where = f"{key}[{index}]"
            if not isinstance(turn, dict):
                raise BadRow(where, f"must be an object, got {kind(turn)}")
            names = [name for name in (role_key, "role", "from") if name in turn]
            texts = [name for name in (text_key, "content", "value") if name in turn]
            if not names or not texts:
                raise BadRow(where, f"needs {role_key} and {text_key}; it has {keys_of(turn)}")
            role = ROLES.get(str(turn[names[0]]).casefold())
            if role is None:
                raise BadRow(f"{where}.{names[0]}", f"{str(turn[names[0]])[:40]!r} is no role; known: {', '.join(ROLES)}")
            content = turn[texts[0]]
            if not isinstance(content, str):
                raise BadRow(f"{where}.{texts[0]}", f"must be text, got {kind(content)}")
            # What is not to be trained on stays that way.
            messages.append({"role": role, "content": content, **({"weight": turn["weight"]} if "weight" in turn else {})})
        return {"messages": messages, **kept(row, (key,))}

    return read


def _alpaca(row: Row) -> dict[str, Any]:
    instruction, given = text(row, "instruction"), text(row, "input", optional=True)
    asked = f"{instruction}\n\n{given}" if given.strip() else instruction
    messages = [{"role": "system", "content": text(row, "system")}] if row.get("system") else []
    history = row.get("history") or []
    if not isinstance(history, list):
        raise BadRow("history", f"must be a list of pairs of texts, got {kind(history)}")
    for place, pair in enumerate(history):
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
            raise BadRow(f"history[{place}]", "must be a list of two texts")
        messages += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": text(row, "output")}]
    return {"messages": messages, **kept(row, ())}


def _pair(first: str, second: str) -> Callable[[Row], dict[str, Any]]:
    def read(row: Row) -> dict[str, Any]:
        turns = [{"role": "user", "content": text(row, first)}, {"role": "assistant", "content": text(row, second)}]
        return {"messages": turns, **kept(row, ())}

    return read


def _preference(row: Row) -> dict[str, Any]:
    asked = row["input"]
    if not isinstance(asked, dict) or not isinstance(asked.get("messages"), list):
        raise BadRow("input", "must be an object with messages")
    tools = {"tools": asked["tools"]} if asked.get("tools") else {}
    answers = {"chosen": row["preferred_output"], "rejected": row["non_preferred_output"]}
    return {"prompt": asked["messages"], **answers, **tools, **kept(row, ("tools",) if tools else ())}


def _dpo(row: Row) -> dict[str, Any]:
    prompt = row["prompt"]
    before = _before(row["chosen"], row["rejected"])
    if before and before != prompt:
        if not isinstance(prompt, str) or prompt not in [turn.get("content") for turn in before if isinstance(turn, dict)]:
            raise BadRow("chosen", "begins with turns that are not the prompt's")
        prompt = before
    if isinstance(prompt, list):
        prompt = _asked(prompt, "prompt")
    made = {"prompt": prompt, "chosen": row["chosen"], "rejected": row["rejected"]}
    for key, value in made.items():
        if isinstance(value, list) and key != "prompt":
            value = made[key] = _answer(value, key)
        if not isinstance(value, str | list):
            raise BadRow(key, f"must be text or a list of messages, got {kind(value)}")
    return {**made, **kept(row, ())}


def _before(chosen: Any, rejected: Any) -> list[Any]:
    """The turns that lead to the answers, where these are whole conversations."""
    leading = [value[:-1] for value in (chosen, rejected) if isinstance(value, list) and len(value) > 1]
    if leading and leading[0] != leading[-1]:
        raise BadRow("rejected", "must differ from chosen in its last message only")
    return leading[0] if leading else []


def _asked(turns: list[Any], key: str) -> str | list[Any]:
    """A prompt of several turns is kept; one question alone is its text."""
    first = turns[0] if len(turns) == 1 else None
    return _last_text(turns, key) if isinstance(first, dict) and first.get("role") == "user" else turns


#: Where the last answer begins in dialogues written as one text.
_LAST_ANSWER = "\n\nAssistant:"
_SPOKEN = re.compile(r"(?:\A|\n\n)(Human|Assistant):(.*?)(?=\n\n(?:Human|Assistant):|\Z)", re.DOTALL)


def _two_endings(row: Row) -> dict[str, Any]:
    """Two whole conversations that differ in their last answer: what they share is the prompt."""
    chosen, rejected = row["chosen"], row["rejected"]
    if isinstance(chosen, str) and isinstance(rejected, str):
        asked, _, better = chosen.rpartition(_LAST_ANSWER)
        asked_too, _, worse = rejected.rpartition(_LAST_ANSWER)
        if not asked or asked != asked_too:
            raise BadRow(
                "row", "needs a prompt beside chosen and rejected; these two share no beginning that ends with an answer"
            )
        turns = [{"role": ROLES[who.casefold()], "content": said.strip()} for who, said in _SPOKEN.findall(asked)]
        prompt = _asked(turns, "chosen") if turns else asked.strip()
        return {"prompt": prompt, "chosen": better.strip(), "rejected": worse.strip()}
    for key, value in (("chosen", chosen), ("rejected", rejected)):
        if not isinstance(value, list) or len(value) < 2:
            raise BadRow(key, f"must be a list of at least two messages when there is no prompt, got {kind(value)}")
    if chosen[:-1] != rejected[:-1]:
        raise BadRow("rejected", "must differ from chosen in its last message only when there is no prompt")
    answers = {"chosen": _answer(chosen, "chosen"), "rejected": _answer(rejected, "rejected")}
    return {"prompt": _asked(chosen[:-1], "chosen"), **answers, **kept(row, ())}


def _answer(messages: list[Any], key: str) -> str:
    """The text of the last turn, which is the assistant's."""
    said, role = _last_text(messages, key), messages[-1].get("role")
    if role is not None and ROLES.get(str(role).casefold()) != "assistant":
        raise BadRow(f"{key}[{len(messages) - 1}].role", f"the last turn must be the assistant's, got {str(role)[:40]}")
    return said


def _last_text(messages: list[Any], key: str) -> str:
    """The text of a message list where a text belongs: its last turn's."""
    last = messages[-1] if messages else None
    content = last.get("content") if isinstance(last, dict) else None
    if not isinstance(content, str):
        raise BadRow(key, "must be text or a list of messages with text")
    return content


def _text(row: Row) -> dict[str, Any]:
    return {"text": text(row, "text"), **kept(row, ())}


def _completion(row: Row) -> dict[str, Any]:
    return {"prompt": text(row, "prompt"), "completion": text(row, "completion"), **kept(row, ())}


#: In order: the first whose keys are all there names the row.
FORMS: tuple[Form, ...] = (
    Form("messages", ("messages",), _messages),
    Form("sharegpt", ("conversations",), _conversations("conversations", "from", "value"), ("system",)),
    Form("sharegpt", ("conversation",), _conversations("conversation", "from", "value"), ("system",)),
    Form("chat_rounds", ("chat_rounds",), _conversations("chat_rounds", "role", "content"), ("system",)),
    Form("preference", ("input", "preferred_output", "non_preferred_output"), _preference),
    Form("dpo", ("prompt", "chosen", "rejected"), _dpo),
    Form("prompt_completion", ("prompt", "completion"), _completion),
    Form("alpaca", ("instruction", "output"), _alpaca, ("input", "system", "history")),
    Form("question_answer", ("question", "answer"), _pair("question", "answer")),
    Form("input_output", ("input", "output"), _pair("input", "output")),
    Form("prompt_response", ("prompt", "response"), _pair("prompt", "response")),
    Form("two_endings", ("chosen", "rejected"), _two_endings),
    Form("text", ("text",), _text),
)

_USED: dict[str, frozenset[str]] = {}
for _form in FORMS:
    _USED[_form.name] = _USED.get(_form.name, frozenset()) | {*_form.keys, *_form.also, *KEPT}

#: The format each form becomes.
BECOMES = {"dpo": "dpo", "preference": "dpo", "two_endings": "dpo", "prompt_completion": "prompt_completion", "text": "text"}


def form_of(row: Row) -> Form | None:
    return next((form for form in FORMS if all(key in row for key in form.keys)), None)


def read(row: Row) -> tuple[str, dict[str, Any]]:
    """(form's name, the row in our format).

    Raises:
        BadRow: no known form, or a value of the wrong type.
    """
    form = form_of(row)
    if form is None:
        known = "; ".join(" + ".join(form.keys) for form in FORMS)
        raise BadRow("row", f"the keys ({keys_of(row)}) are no known form; known are: {known}; name others in columns")
    return form.name, form.read(row)

"""Neutral turns to the dictionaries a chat template reads.

Knows the conventions templates differ in (null content, arguments as object or text, roles without a
branch, where reasoning goes) and settles each from a probe of the template itself (:class:`Abilities`).
Knows no tokenizer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mlxplatform.inference.contract import Message, Refusal, Tool, ToolCall
from workers.engine import sound_text
from workers.prepare import hermes
from workers.prepare.parts import joined, seen_content
from workers.prepare.template import render

Turn = dict[str, Any]

#: Distinctive words the probes look for in what a template writes.
_TOOL, _KEY, _VALUE, _ANSWER = "probe_tool_q7", "probe_key_q7", "probe_value_q7", "probe_answer_q7"
_PROBE_TOOL = {
    "type": "function",
    "function": {"name": _TOOL, "description": "x", "parameters": {"type": "object", "properties": {_KEY: {"type": "string"}}}},
}
#: Probes run once per template; this many templates are remembered.
_PROBED_TEMPLATES = 32


@dataclass(frozen=True)
class Abilities:
    """What a template can write.

    ``arguments_as_text``: tool call arguments must reach it as JSON text. ``null_content``: it takes null for the
    content of a turn that only calls tools; some write the calls in no other case.
    """

    tools: bool
    tool_calls: bool
    tool_answers: bool
    arguments_as_text: bool
    null_content: bool

    @property
    def native_tools(self) -> bool:
        return self.tools and self.tool_calls and self.tool_answers


#: What is assumed of a template that no tool asks anything of.
UNPROBED = Abilities(tools=False, tool_calls=False, tool_answers=False, arguments_as_text=False, null_content=False)


def _try(source: str, special: tuple[tuple[str, str], ...], messages: list[Turn], tools: list[Any] | None) -> str | None:
    try:
        return render(source, {**dict(special), "messages": messages, "tools": tools, "add_generation_prompt": True})
    except Refusal as refusal:
        if refusal.code == "template_timeout":
            raise
        return None


@lru_cache(maxsize=_PROBED_TEMPLATES)
def abilities(source: str, special: tuple[tuple[str, str], ...]) -> Abilities:
    """Probe one template; ``special`` are the special token variables it may use."""
    asked: list[Turn] = [{"role": "user", "content": "x"}]

    def called(arguments: Any, content: str | None) -> str | None:
        # Nine alphanumeric characters: the id form the strictest templates insist on.
        call = {"id": "callprobe", "type": "function", "function": {"name": _TOOL, "arguments": arguments}}
        turns: list[Turn] = [
            *asked,
            {"role": "assistant", "content": content, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "callprobe", "name": _TOOL, "content": _ANSWER},
        ]
        text = _try(source, special, turns, [_PROBE_TOOL])
        good = text is not None and _VALUE in text and "None" not in text and f"'{_KEY}'" not in text
        return text if good else None

    listed = _try(source, special, asked, [_PROBE_TOOL])
    as_object, as_text = {_KEY: _VALUE}, json.dumps({_KEY: _VALUE})
    for arguments, content in ((as_object, None), (as_object, ""), (as_text, None), (as_text, "")):
        written = called(arguments, content)
        if written is not None:
            break
    return Abilities(
        tools=listed is not None and _TOOL in listed,
        tool_calls=written is not None,
        tool_answers=written is not None and _ANSWER in written,
        arguments_as_text=written is not None and arguments is as_text,
        null_content=written is not None and content is None,
    )


def tool_schema(tool: Tool) -> dict[str, Any]:
    """A tool as templates expect it."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _arguments(call: ToolCall, *, as_text: bool) -> Any:
    if as_text:
        return call.arguments
    try:
        value = sound_text.loads(call.arguments) if call.arguments.strip() else {}
    except ValueError:
        return call.arguments
    return value if isinstance(value, dict) else call.arguments


def turns(messages: list[Message], can: Abilities) -> list[Turn]:
    """Turns for a template that knows tools, or for any template when no tool takes part."""
    names = {call.id: call.name for message in messages for call in message.tool_calls or []}
    out: list[Turn] = []
    for message in messages:
        # '' for null elsewhere: templates concatenate content, and "None" must never reach a model.
        null = message.content is None and bool(message.tool_calls) and can.null_content
        turn: Turn = {"role": message.role, "content": None if null else seen_content(message)}
        if message.name:
            turn["name"] = message.name
        if message.role == "tool":
            turn["tool_call_id"] = message.tool_call_id or ""
            turn.setdefault("name", names.get(message.tool_call_id or "", ""))
        if message.tool_calls:
            turn["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": _arguments(call, as_text=can.arguments_as_text)},
                }
                for call in message.tool_calls
            ]
        if message.reasoning:
            turn["reasoning_content"] = message.reasoning
            # Harmony templates call it thinking and refuse it beside both content and calls.
            if not (message.content and message.tool_calls):
                turn["thinking"] = message.reasoning
        out.append(turn)
    return out


def uses_tools(messages: list[Message], tools: list[Tool]) -> bool:
    return bool(tools) or any(message.tool_calls or message.role == "tool" for message in messages)


def conversation(messages: list[Message], tools: list[Tool], can: Abilities) -> tuple[list[Turn], list[dict[str, Any]] | None]:
    """The ``messages`` and ``tools`` variables of the template."""
    schemas = [tool_schema(tool) for tool in tools]
    if uses_tools(messages, tools) and not can.native_tools:
        return hermes.turns(messages, schemas), None
    return turns(messages, can), schemas or None


def repairs(conversation_turns: list[Turn]) -> Iterator[list[Turn]]:
    """The turns as they are, then as templates with stricter tastes want them; every word is kept each time."""
    yield conversation_turns
    fitted = short_ids(conversation_turns)
    yield fitted
    fitted = one_call_a_turn(fitted)
    yield fitted
    alternating = merged(fitted)
    yield alternating
    yield merged(without_system(alternating))


def short_ids(conversation_turns: list[Turn]) -> list[Turn]:
    """Tool call ids of nine letters and digits, the one form Mistral's templates accept."""

    def short(identifier: str) -> str:
        return hashlib.sha256(identifier.encode()).hexdigest()[:9]

    out = []
    for turn in conversation_turns:
        if turn.get("tool_calls"):
            turn = {**turn, "tool_calls": [{**call, "id": short(call["id"])} for call in turn["tool_calls"]]}
        if "tool_call_id" in turn:
            turn = {**turn, "tool_call_id": short(turn["tool_call_id"])}
        out.append(turn)
    return out


def one_call_a_turn(conversation_turns: list[Turn]) -> list[Turn]:
    """Parallel calls one after the other, each followed by its answer, for templates that know single calls only."""
    answers = {turn["tool_call_id"]: turn for turn in conversation_turns if "tool_call_id" in turn}
    out: list[Turn] = []
    moved: set[str] = set()
    for turn in conversation_turns:
        calls = turn.get("tool_calls") or []
        if len(calls) < 2:
            if turn.get("tool_call_id") not in moved:
                out.append(turn)
            continue
        for index, call in enumerate(calls):
            out.append({**turn, "content": turn["content"] if index == 0 else "", "tool_calls": [call]})
            if call["id"] in answers:
                out.append(answers[call["id"]])
                moved.add(call["id"])
    return out


def merged(conversation_turns: list[Turn]) -> list[Turn]:
    """Neighbouring turns of one speaker joined, for templates that insist on strict alternation."""
    out: list[Turn] = []
    for turn in conversation_turns:
        last = out[-1] if out else None
        if last and last["role"] == turn["role"] in ("user", "system") and not turn.get("tool_calls"):
            out[-1] = {**last, "content": joined(last["content"], turn["content"])}
        elif last and last["role"] == turn["role"] == "assistant" and not (last.get("tool_calls") or turn.get("tool_calls")):
            out[-1] = {**last, "content": "\n\n".join(text for text in (last["content"], turn["content"]) if text)}
        else:
            out.append(turn)
    return out


def without_system(conversation_turns: list[Turn]) -> list[Turn]:
    """System text moved in front of the first user turn, for templates that know no system role."""
    system = [turn["content"] for turn in conversation_turns if turn["role"] == "system"]
    if not system:
        return conversation_turns
    rest = [turn for turn in conversation_turns if turn["role"] != "system"]
    for index, turn in enumerate(rest):
        if turn["role"] == "user":
            rest[index] = {**turn, "content": joined("\n\n".join(system), turn["content"])}
            return rest
    return [{"role": "user", "content": "\n\n".join(system)}, *rest]

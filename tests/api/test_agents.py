"""The same agent's work of twenty model turns with a tool, through each protocol's own SDK: what the model sees and says is
the same, whichever words carry it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.system.stack import Stack

pytestmark = pytest.mark.stack

TURNS = 20
SYSTEM = "Use f."
#: Arguments that end by themselves: a model this small would count for ever in an open integer.
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}


@dataclass
class Said:
    """One model turn: the call's arguments or the text, and the prompt it answered."""

    arguments: Any
    text: str
    prompt_tokens: int


def chat(stack: Stack) -> Iterator[Said]:
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Go."}]
    for turn in range(TURNS):
        calling = turn % 2 == 0
        answer = stack.openai().chat.completions.create(
            model="tiny",
            messages=messages,
            tools=[tool],
            tool_choice="required" if calling else "none",
            parallel_tool_calls=False,
            max_tokens=60 if calling else 3,
            temperature=0,
        )
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        call = message.tool_calls[0] if message.tool_calls else None
        if call is not None:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"{turn} ok"})
        else:
            messages.append({"role": "user", "content": "Next."})
        yield Said(json.loads(call.function.arguments) if call else None, message.content or "", answer.usage.prompt_tokens)


def responses(stack: Stack) -> Iterator[Said]:
    tool = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": False}
    previous, new = None, [{"role": "user", "content": "Go."}]
    for turn in range(TURNS):
        calling = turn % 2 == 0
        answer = stack.openai().responses.create(
            model="tiny",
            instructions=SYSTEM if previous is None else None,
            previous_response_id=previous,
            input=new,
            tools=[tool],
            tool_choice="required" if calling else "none",
            parallel_tool_calls=False,
            max_output_tokens=60 if calling else 3,
            temperature=0,
        )
        previous = answer.id
        call = next((item for item in answer.output if item.type == "function_call"), None)
        if call is not None:
            new = [{"type": "function_call_output", "call_id": call.call_id, "output": f"{turn} ok"}]
        else:
            new = [{"role": "user", "content": "Next."}]
        yield Said(json.loads(call.arguments) if call else None, answer.output_text, answer.usage.input_tokens)


def messages(stack: Stack) -> Iterator[Said]:
    tool = {"name": "f", "input_schema": SCHEMA}
    turns: list[Any] = [{"role": "user", "content": "Go."}]
    for turn in range(TURNS):
        calling = turn % 2 == 0
        with stack.anthropic().messages.stream(
            model="tiny",
            system=[{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
            messages=turns,
            tools=[tool],
            tool_choice={"type": "any", "disable_parallel_tool_use": True} if calling else {"type": "none"},
            max_tokens=60 if calling else 3,
            extra_body={"temperature": 0},
        ) as stream:
            answer = stream.get_final_message()
        turns.append({"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]})
        call = next((block for block in answer.content if block.type == "tool_use"), None)
        if call is not None:
            turns.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": f"{turn} ok"}]})
        else:
            turns.append({"role": "user", "content": [{"type": "text", "text": "Next."}]})
        text = "".join(block.text for block in answer.content if block.type == "text")
        yield Said(call.input if call else None, text, answer.usage.input_tokens)


@pytest.fixture(scope="module")
def by_chat(stack: Stack) -> list[Said]:
    return list(chat(stack))


def test_twenty_turns_over_chat_completions(by_chat: list[Said]) -> None:
    assert len(by_chat) == TURNS
    assert all(said.arguments in ({"a": 1}, {"a": 2}) for said in by_chat[::2])
    assert all(said.arguments is None and said.text for said in by_chat[1::2])
    for kind in (by_chat[::2], by_chat[1::2]):  # without tools to call, none are described
        prompts = [said.prompt_tokens for said in kind]
        assert prompts == sorted(set(prompts)), "each turn sees all before it"


@pytest.mark.parametrize("converse", [responses, messages])
def test_twenty_turns_are_the_same_over_other_protocols(
    stack: Stack, by_chat: list[Said], converse: Callable[[Stack], Iterator[Said]]
) -> None:
    assert list(converse(stack)) == by_chat

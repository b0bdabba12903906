"""Conversations between an assistant and a user played by the same model."""

from __future__ import annotations

from collections.abc import Iterator

from mlxplatform.datasets.templates.base import Ask, Draft, Drop, Field, Inputs, Source, Template, lines, system, user
from mlxplatform.inference.contract import Message

ANSWER_TOKENS, FOLLOW_UP_TOKENS = 512, 160


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    for number, seed in enumerate(lines(inputs["seeds"]), 1):
        yield Source(str(number), seed)


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    spoken = [Message("system", f"You are a {inputs['persona']}."), Message("user", source.data)]
    # The assistant has the last word: what ends with a question teaches nobody to answer it.
    for turn in range(inputs["turns"] | 1):
        if turn % 2 == 0:
            said = await ask(f"turn{turn}", spoken, max_tokens=ANSWER_TOKENS)
        else:
            said = await ask(f"turn{turn}", _follow_up(inputs["user_persona"], spoken), max_tokens=FOLLOW_UP_TOKENS)
        if not said.text:
            break
        spoken.append(Message("assistant" if turn % 2 == 0 else "user", said.text))
    if spoken[-1].role == "user":
        spoken.pop()
    if spoken[-1].role != "assistant":
        return [Drop("empty_answer", source.data[:120])]
    return [Draft({"messages": [{"role": message.role, "content": message.content} for message in spoken]})]


def _follow_up(persona: str, spoken: list[Message]) -> list[Message]:
    transcript = "\n\n".join(f"{message.role.capitalize()}: {message.content}" for message in spoken[1:])
    return [
        system(f"You play the user in a conversation. You are {persona}."),
        user(f"{transcript}\n\nWrite the user's next message and nothing else."),
    ]


TEMPLATE = Template(
    id="multi_turn_chat",
    label="Conversations",
    description="Continues each seed question into a conversation; the model plays both sides.",
    output_format="messages",
    fields=(
        Field("seeds", "textarea", "First user messages, one a line", required=True),
        Field(
            "turns",
            "number",
            "Turns after the first message",
            hint="an even number gets one more: an answer ends it",
            default=4,
            minimum=2,
            maximum=40,
        ),
        Field("persona", "text", "The assistant is a", default="helpful, concise assistant"),
        Field("user_persona", "text", "The user is", default="a curious developer probing for specifics"),
    ),
    sources=sources,
    build=build,
    needs_llm=True,
    repeatable=True,
)

"""User messages drawn out of an aligned model by giving it only the beginning of a user turn, then answered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from mlxplatform.datasets.chatprefix import user_turn
from mlxplatform.datasets.templates.base import Ask, Draft, Drop, Field, Inputs, Source, Template, chat_row, system, user
from mlxplatform.inference.contract import Message

QUESTION_TOKENS, ANSWER_TOKENS = 200, 700
#: Drawing needs variety; answering does not need more than usual.
DRAW_TEMPERATURE = 1.0


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    for number in range(1, inputs["draws"] + 1):
        yield Source(str(number), number)


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    about = inputs["system_prompt"]
    turn = await asyncio.to_thread(user_turn, ask.model, about)
    drawn = await ask(
        "question",
        [],
        prompt=turn.prefix,
        stop=turn.stop,
        max_tokens=QUESTION_TOKENS,
        temperature=DRAW_TEMPERATURE,
    )
    question = drawn.text.strip()
    if len(question.split()) < 2:
        return [Drop("no_question", question[:120])]
    before: list[Message] = [system(about)] if about else []
    answer = await ask("answer", [*before, user(question)], max_tokens=ANSWER_TOKENS)
    if not answer.text:
        return [Drop("empty_answer", question[:120])]
    turns = [("user", question), ("assistant", answer.text)]
    return [chat_row(*([("system", about)] if about else []), *turns)]


TEMPLATE = Template(
    id="magpie",
    label="Magpie",
    description="Lets the model invent user messages from nothing but the start of a user turn, and answers them.",
    output_format="messages",
    fields=(
        Field("draws", "number", "User messages to draw", default=100, minimum=1, maximum=1_000_000),
        Field("system_prompt", "textarea", "System prompt", hint="steers the subject; optional"),
    ),
    sources=sources,
    build=build,
    needs_llm=True,
    repeatable=True,
)

"""Conversations between an assistant and a user played by the same model."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mlxplatform.datasets.templates.base import (
    Ask,
    Draft,
    Drop,
    Field,
    Inputs,
    Source,
    Template,
    lines,
    paragraphs,
    system,
    user,
)
from mlxplatform.datasets.templates.parsing import itself
from mlxplatform.inference.contract import Message

ANSWER_TOKENS, FOLLOW_UP_TOKENS = 512, 160
#: Turns that a follow-up is written from: what was said long before leads a small model astray.
REMEMBERED = 4
#: Told only whom to play, a small model goes on as the assistant.
EXAMPLES = (
    (
        "User: How often should I water a cactus?\n\nAssistant: About every two weeks in summer, once a month in winter.",
        "And how would I notice that it got too much?",
    ),
    (
        "User: Write two lines for the birthday of my sister.\n\nAssistant: A year more, and none of it shows. Stay as you are!",
        "Nice, but she is turning ten. Can you make it funnier?",
    ),
    (
        "User: What is a mortgage?\n\nAssistant: A loan to buy a home. The home itself is the bank's security.",
        "What happens to the home if I cannot pay for a few months?",
    ),
)
#: How somebody begins who serves and does not ask.
_SERVING = re.compile(
    r"^\W*(?:i(?:'|’)?m (?:so |very )?(?:glad|happy|here|ready|sorry)|i(?:'|’)?d be (?:glad|happy)|i can (?:help|assist|provide)"
    r"|how (?:can|may) i (?:help|assist)|sure\b|certainly\b|of course\b|here(?:'|’)?s\b|here (?:is|are)\b"
    r"|thank you for (?:your|asking)|as an? (?:ai|assistant))",
    re.IGNORECASE,
)
#: Words of our own question, said again instead of an answer.
_ECHOED = re.compile(r"user(?:'|’)?s next message", re.IGNORECASE)
_NAMED = re.compile(r"^(?:user|human)\s*:\s*", re.IGNORECASE)


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    for number, seed in enumerate(lines(inputs["seeds"]), 1):
        yield Source(str(number), seed)


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    spoken = [Message("system", f"You are a {inputs['persona']}."), Message("user", source.data)]
    # The assistant has the last word: what ends with a question teaches nobody to answer it.
    for turn in range(inputs["turns"] | 1):
        if turn % 2 == 0:
            said = (await ask(f"turn{turn}", spoken, max_tokens=ANSWER_TOKENS)).text
        else:
            asking = _follow_up(inputs["user_persona"], spoken)
            said = asked((await ask(f"turn{turn}", asking, max_tokens=FOLLOW_UP_TOKENS)).text)
        if not said:
            break
        spoken.append(Message("assistant" if turn % 2 == 0 else "user", said))
    if spoken[-1].role == "user":
        spoken.pop()
    if spoken[-1].role != "assistant":
        return [Drop("empty_answer", source.data[:120])]
    return [Draft({"messages": [{"role": message.role, "content": message.content} for message in spoken]})]


def asked(text: str) -> str:
    """What the user says, of what the model wrote for them: one paragraph; nothing of the assistant's or of our question."""
    said = itself(_NAMED.sub("", next(iter(paragraphs(text)), "")))
    return "" if _SERVING.match(said) or _ECHOED.search(said) else said


def _follow_up(persona: str, spoken: list[Message]) -> list[Message]:
    transcript = "\n\n".join(f"{message.role.capitalize()}: {message.content}" for message in spoken[1:][-REMEMBERED:])
    return [
        system(f"You write what a person says next to an assistant. The person is {persona}."),
        *(turn for shown, said in EXAMPLES for turn in (user(_asking(shown)), Message("assistant", said))),
        user(_asking(transcript)),
    ]


def _asking(transcript: str) -> str:
    return f"{transcript}\n\nThe user's next message:"


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
